"""A study as a value: which networks are trained on how many images from which seeds, and which claims that decides.

A study is written and read as YAML. Settings are those of a `Run`, by their dotted path, as ``--set`` takes them. Nothing here
imports torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from vitrail.config.parse import build, overlay
from vitrail.config.schema import Run
from vitrail.errors import ConfigError, nearest
from vitrail.evaluation.claim import Claim
from vitrail.workflows.study.rates import Rates

MEASURES = ("heads", "positions", "shifts")
LIMIT, STEPS, RATE, SEED = "data.limit", "schedule.steps", "optim.lr", "seed"  # the settings that a study itself varies
MOST_CELLS = 10_000  # of a study; a few bytes can ask for any number of them
POINTS = 8  # of the curve of a cell
SAMPLE = 1_000  # training images that are judged without augmentation; of the curve, and its validation images, at most
# the settings that all cells of all studies share unless a study says otherwise: equal steps, a schedule of one shape, one
# optimiser (paper, D.1: Adam for ResNets too), one augmentation, and one thread, so that the bits do not depend on the machine
COMMON: dict[str, Any] = {
    "recipe": "study",
    "data.batch": 128,
    "data.micro_batch": 128,
    "data.workers": 0,
    "optim.name": "adamw",
    "optim.weight_decay": 0.1,
    "schedule.warmup": 0.1,
    "schedule.kind": "cosine",
    "schedule.end": 0.0,
    "augment.crop": "pad",
    "augment.pad_mode": "zero",
    "augment.flip": 0.5,
    "compute.precision": "fp32",
    "compute.compile": False,
    "compute.threads": 1,
    "compute.tune": False,
    "save.evaluations": POINTS,
}


def _demand(holds: bool, what: str, remedy: str) -> None:
    if not holds:
        raise ConfigError(what, remedy)


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The images of a study.

    Args:
        source: anything that ``vitrail train`` takes as its data.
        validation: how many training images are held out of all cells, for rates and curves. At most a fifth is.
        test: the split that is judged once, at the end of a final cell.
    """

    source: str = ""
    validation: int = 5_000
    test: str = "test"

    def __post_init__(self) -> None:
        _demand(self.validation >= 1, f"pool.validation is {self.validation}", "give a number of images, e.g. 5000")
        _demand(self.test in ("test", "val"), f"pool.test is {self.test!r}", nearest(self.test, ("test", "val")))


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Cells that are compared with each other: every arm at every level of every factor, from ``seeds`` seeds.

    Args:
        arms: the settings of each arm by dotted path, over the study's ``base``. An arm that names another ``model.name`` takes
            none of its ``model.changes`` from there.
        factors: levels by dotted path, as ``{"data.limit": [500, 4000, null]}``; null is all images.
        seeds: of each cell, from ``first_seed`` on. A seed determines images, initialisation, order and augmentation.
        rates: None takes the rate that the settings name.
        measure: beside accuracy: of ViTs ``heads``, the mean attention distances, and ``positions``; ``shifts``, how much the
            answer changes with the place of the image.
    """

    name: str
    arms: dict[str, dict[str, Any]]
    factors: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    seeds: int = 3
    first_seed: int = 0
    rates: Rates | None = Rates()
    measure: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"the experiment {self.name!r}"
        _demand(bool(self.name), "an experiment has no name", "give it one, e.g. name: patch")
        _demand(bool(self.arms), f"{where} has no arms", "give one or more, e.g. arms: {vit: {model.name: vit-ti16}}")
        _demand(self.seeds >= 1, f"{where} has {self.seeds} seeds", "give 3 or more")
        _demand(self.first_seed >= 0, f"{where}.first_seed is {self.first_seed}", "give 0 or more")
        for arm, settings in self.arms.items():
            _demand(
                isinstance(settings, Mapping),
                f"the arm {arm!r} of {where} is {settings!r}",
                "give settings by dotted path, or {}",
            )
        for path, levels in self.factors.items():
            distinct = isinstance(levels, (list, tuple)) and len(levels) == len({str(level) for level in levels}) > 0
            _demand(distinct, f"the factor {path!r} of {where} is {levels!r}", "give a list of different levels")
        for name in self.measure:
            _demand(name in MEASURES, f"{where} measures {name!r}", nearest(name, MEASURES))
        object.__setattr__(self, "factors", {path: tuple(levels) for path, levels in self.factors.items()})

    def levels(self) -> Iterator[dict[str, Any]]:
        """Every combination of the levels of the factors, by dotted path; one that is empty where there are none."""
        for chosen in itertools.product(*self.factors.values()):
            yield dict(zip(self.factors, chosen))


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study: its images, the settings of every cell by dotted path, and the experiments, most important first.

    The reduction to a budget of time drops experiments from the end.
    """

    name: str
    pool: Pool = Pool()
    base: dict[str, Any]
    experiments: tuple[Experiment, ...]
    claims: tuple[Claim, ...] = ()

    def __post_init__(self) -> None:
        names = [experiment.name for experiment in self.experiments]
        _demand(bool(names), f"the study {self.name!r} has no experiments", "see `vitrail study write vit-paper`")
        twice = {name for name in names if names.count(name) > 1}
        _demand(not twice, f"two experiments are called {min(twice, default='')!r}", "give each a name of its own")
        cells = sum(each.seeds * len(each.arms) * prod(map(len, each.factors.values())) for each in self.experiments)
        _demand(cells <= MOST_CELLS, f"the study {self.name!r} has {cells:,} cells", f"plan at most {MOST_CELLS:,}")
        _demand(STEPS in self.base, f"the base of {self.name!r} has no {STEPS}", "equal steps compare: give e.g. 512")
        for claim in self.claims:
            known = not claim.experiment or claim.experiment in names
            _demand(known, f"the claim {claim.name!r} needs {claim.experiment!r}", nearest(claim.experiment, names))

    def experiment(self, name: str) -> Experiment:
        """The experiment of this name. Raises `ConfigError` for an unknown one."""
        names = {experiment.name: experiment for experiment in self.experiments}
        _demand(name in names, f"there is no experiment {name!r} in {self.name!r}", nearest(name, names))
        return names[name]

    def run(self, arm: Mapping[str, Any], levels: Mapping[str, Any], seed: int = 0) -> Run:
        """The settings of a cell. Raises `ConfigError` for an unknown setting, with the nearest known one."""
        tree: dict[str, Any] = {}
        for layer in (COMMON, self.base, arm, levels, {SEED: seed, "data.source": self.pool.source}):
            nested = nest(layer)
            if nested.get("model", {}).get("name"):
                tree = {**tree, "model": {}}
            tree = overlay(tree, nested)
        return build(Run, tree)


def nest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted path as a tree."""
    tree: dict[str, Any] = {}
    for path, value in settings.items():
        for key in reversed(path.split(".")):
            value = {key: value}
        tree = overlay(tree, value)
    return tree


def parse_study(tree: Mapping[str, Any]) -> Study:
    """The study that `plain` made a tree of. Raises `ConfigError`."""
    return build(Study, tree)
