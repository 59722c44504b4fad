"""Studies whose truth is known: results of trainings that never were, drawn from accuracies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vitrail.studies.design import LIMIT, STEPS, Claim, Difference, Experiment, Study
from vitrail.studies.plan import Place, TrialResult
from vitrail.studies.report import Tuning, evaluate_study
from vitrail.training.lr_search import choose_rate

IMAGES, CLASSES = 2000, 10
DATA = {"name": "synthetic", "classes": CLASSES, "training": 4000, "validation": 500, "test": IMAGES}
PLAN = {"sha256": "0" * 64, "earlier": [], "reductions": []}
Truth = Callable[[str, dict[str, Any]], float]  # arm, levels -> accuracy
Trials = dict[str, dict[Place, TrialResult]]


def make_study(*claims: Claim, **experiments: Experiment) -> Study:
    return Study(name="synthetic", base={STEPS: 64}, experiments=tuple(experiments.values()), claims=claims)


def arms(*names: str) -> dict[str, dict[str, Any]]:
    return {name: {"model.name": "vit-ti16", "model.changes": {"depth": depth}} for depth, name in enumerate(names, 1)}


def pair(name: str = "own", **changes: Any) -> Claim:
    """A claim that arm ``a`` is better than arm ``b`` of the experiment ``two``."""
    return Claim(**{"name": name, "experiment": "two", "contrast": Difference(plus="a", minus="b"), **changes})


def train(
    study: Study,
    truth: Truth,
    *,
    seed: int = 0,
    spread: float = 0.004,
    gap: float | Mapping[str, float] = 0.05,
) -> Trials:
    """Results of all trials: images of their own difficulty, accuracies around the truth, training accuracy ``gap`` above."""
    rng = np.random.default_rng(seed)
    hard = rng.normal(0, 1.2, IMAGES)
    trials: Trials = {}
    for experiment in study.experiments:
        found = trials[experiment.name] = {}
        for arm in experiment.arms:
            for levels in experiment.levels():
                accuracy = truth(arm, levels)
                own = hard + rng.normal(0, 0.4, IMAGES)
                # the logit shift that gives the accuracy, on these images
                shift = solve(own, accuracy)
                more = gap if isinstance(gap, float) else gap[arm]
                for number in range(experiment.seeds):
                    chances = sigmoid(own + shift) + rng.normal(0, spread)
                    right = rng.random(IMAGES) < chances
                    place = Place(arm, tuple(sorted(levels.items())), number)
                    found[place] = TrialResult(
                        key=f"{experiment.name}-{arm}-{levels}-{number}",
                        kind="final",
                        state="done",
                        seed=number,
                        rate=1e-3,
                        limit=levels.get(LIMIT, DATA["training"]),
                        steps=64,
                        right=right,
                        test={"accuracy": float(right.mean()), "nll": 1.0},
                        validation={"accuracy": accuracy + rng.normal(0, spread), "nll": 1.0},
                        train={"accuracy": min(float(right.mean()) + more, 1.0), "nll": 0.5},
                        flops=0.9e12,
                        macs6=1e12,
                        parameters=1000 + sum(map(ord, arm)),
                    )
    return trials


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def solve(own: np.ndarray, accuracy: float) -> float:
    """The shift of logits whose mean chance is ``accuracy``, by bisection."""
    low, high = -10.0, 10.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if sigmoid(own + middle).mean() < accuracy else (low, middle)
    return low


def tune(points: Mapping[float, float]) -> Tuning:
    """Tuning trials from rate to validation NLL."""
    about: Any = {"kind": "tuning", "state": "done", "seed": 1_000_000}
    tried = {
        rate: TrialResult(key=f"tuning-{rate}", rate=rate, validation={"nll": nll}, **about)
        for rate, nll in points.items()
    }
    return Tuning(tried, choose_rate(points, tuple(points)))


TWO = Experiment(name="two", arms=arms("a", "b", "c", "d"))


def by_arm(**accuracies: float) -> Truth:
    """The accuracy of each arm at all levels, 0.6 unless given."""
    return lambda arm, levels: accuracies.get(arm, 0.6)


def decide(study: Study, trials: Trials, tunings: Any = None) -> dict[str, Any]:
    """All figures of a study of `DATA`."""
    return evaluate_study(study, trials, tunings or {}, data=DATA, plan=PLAN)
