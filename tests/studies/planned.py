"""A study of two experiments on images that need not be there, with results that nobody trained."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitrail.studies.design import Experiment, Pool, Study
from vitrail.studies.plan import PoolFacts, Trial, TrialResult

VIT = {"model.name": "vit-ti16", "model.changes.width": 32}
POOL = PoolFacts(
    name="digits",
    fingerprint="f" * 64,
    classes=10,
    training=1_000,
    validation=200,
    test=400,
    test_split="split test",
)


def make_study(**changes: Any) -> Study:
    """Tests the width at three sizes of the training set, and then the depth at all of it."""
    experiments = (
        Experiment(
            name="width",
            arms={"narrow": VIT, "wide": {**VIT, "model.changes.width": 64}},
            factors={"data.limit": (100, 300, None)},
        ),
        Experiment(name="depth", arms={"deep": {**VIT, "model.changes.depth": 6}, "base": VIT}),
        Experiment(name="fixed", arms={"slow": {**VIT, "optim.lr": 1e-4}}, rates=None),
    )
    given = {"name": "small", "pool": Pool(source="digits"), "base": {"schedule.steps": 40}, "experiments": experiments}
    return Study(**{**given, **changes})


def fake_result(trial: Trial, rate: float = 2e-3, **changes: Any) -> TrialResult:
    """A result of ``trial`` that depends on its key alone; tuning prefers 2e-3."""
    draw = np.random.default_rng(int(trial.key[:8], 16))
    nll = 1.0 + abs(float(np.log2(rate / 2e-3)))
    figures = {"accuracy": 0.5, "nll": nll}
    given = {
        "key": trial.key,
        "kind": trial.kind,
        "state": "done",
        "seed": trial.run.seed,
        "rate": rate,
        "limit": trial.run.data.limit or POOL.training,
        "steps": trial.run.schedule.steps,
        "right": draw.random(POOL.test) < 0.5,
        "test": figures,
        "validation": figures,
        "train": figures,
    }
    return TrialResult(**{**given, **changes})
