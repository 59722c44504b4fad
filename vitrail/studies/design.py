"""A study as a value: which networks are trained on how many images from which seeds, and which claims that decides.

A study is written and read as YAML; the built-in ones lie in ``definitions``. Settings are those of a `Run`, by their dotted
path, as ``--set`` takes them. Nothing here imports torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import as_file, files
from math import prod
from pathlib import Path
from typing import Any, Literal

from vitrail.config.parse import build, overlay, read_yaml
from vitrail.config.schema import Run
from vitrail.errors import ConfigError, nearest
from vitrail.studies.verdicts import Greater, Rule, Unit

BUILT_IN = ("vit-paper", "vit-paper-m", "digits")
MEASURES = ("heads", "positions", "shifts")
LIMIT, STEPS, RATE, SEED = "data.limit", "schedule.steps", "optim.lr", "seed"  # the settings that a study itself varies
MOST_TRIALS = 10_000  # of a study; a few bytes can ask for any number of them
POINTS = 8  # of the learning curve of a trial
SAMPLE = (
    1_000  # training images that are evaluated without augmentation; of the curve, and its validation images, at most
)
# the settings that all trials of all studies share unless a study says otherwise: equal steps, a schedule of one shape, one
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
Arms = str | tuple[str, ...]


def _check(holds: bool, what: str, remedy: str) -> None:
    if not holds:
        raise ConfigError(what, remedy)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The accuracy of ``plus`` less that of ``minus``; of several arms ``plus``, the best on validation images.

    Args:
        at: levels by factor, over which a mean is taken: ``lowest``, ``highest``, ``lowest third``, ``all``, or a level. A factor
            that is not named is at its highest level.
    """

    kind: Literal["difference"] = "difference"
    plus: Arms
    minus: Arms
    at: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Several differences, (plus, minus) each, for all of which the rule must hold; those without trials are left out."""

    kind: Literal["pairs"] = "pairs"
    pairs: tuple[tuple[str, str], ...]
    at: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Slope:
    """The growth of a difference with each factor of ten of ``along``: a factor, or ``flops``, those of ``plus``.

    With several arms, each of ``plus`` is compared with the one of ``minus`` at the same place.
    """

    kind: Literal["slope"] = "slope"
    plus: Arms
    minus: Arms
    along: str


@dataclass(frozen=True, kw_only=True)
class Compute:
    """How many times less compute the arms ``plus`` need than the arms ``minus`` for the same accuracy."""

    kind: Literal["compute"] = "compute"
    plus: tuple[str, ...]
    minus: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The mean over trials of a figure that was measured inside of the models of an arm, less another.

    Args:
        arm: whose models; of several, the first that the experiment has.
        figure: dotted path into the findings of a trial.
        less: another figure, of the same model.
        against: whose models' mean of the figure is subtracted; of several, the first that the experiment has.
        present: the share of trials in which the figure is greater than 0, in place of its mean.
    """

    kind: Literal["finding"] = "finding"
    arm: Arms
    figure: str
    less: str = ""
    against: Arms = ()
    present: bool = False
    unit: Literal["share", "correlation"] = "share"


Contrast = Difference | Pairs | Slope | Compute | Finding


def unit_of(contrast: Contrast, scale: Unit) -> Unit:
    """Returns the unit of a contrast whose accuracies are on ``scale``."""
    match contrast:
        case Slope():
            return "logit a decade"
        case Compute():
            return "ratio"
        case Finding(unit=unit):
            return unit
    return scale


@dataclass(frozen=True, kw_only=True)
class SecondaryFigure:
    """A figure that is shown beside a verdict and decides nothing; of the claim's experiment, or of another one."""

    name: str
    contrast: Contrast
    experiment: str = ""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim: its words, the contrast of arms that is asked about, and the rule that decides.

    Args:
        quote: of the paper; empty for a claim of one's own.
        experiment: whose arms are compared.
        scale: of accuracies: ``points``, or ``logit`` where different accuracies are compared or averaged.
        regime: what must limit the accuracy of all arms that are compared: ``data-limited`` networks fit their own images much
            better than others; ``compute-limited`` ones do not.
        beyond: why a study of this size cannot contradict the claim; the verdict is then "held" or "out of range".
    """

    name: str
    quote: str = ""
    source: str = ""
    question: str = ""
    experiment: str
    contrast: Contrast
    rule: Rule = Greater()
    scale: Literal["points", "logit"] = "points"
    regime: Literal["", "data-limited", "compute-limited"] = ""
    beyond: str = ""
    caveat: str = ""
    beside: tuple[SecondaryFigure, ...] = ()

    def __post_init__(self) -> None:
        _check(bool(self.name), "a claim has no name", "give it one, e.g. name: deeper-is-better")
        if isinstance(self.contrast, Slope):
            plus, minus = as_arms(self.contrast.plus), as_arms(self.contrast.minus)
            _check(len(plus) == len(minus), f"the claim {self.name!r} compares {self.contrast.plus} with {self.contrast.minus}",
                   "give as many arms minus as plus")  # fmt: skip


def as_arms(arms: Arms) -> tuple[str, ...]:
    """Returns one arm or several as a tuple."""
    return (arms,) if isinstance(arms, str) else arms


@dataclass(frozen=True, kw_only=True)
class Rates:
    """How the learning rate of an arm is tuned: by the validation NLL of one trial for each rate, from a seed of its own.

    Where the best rate is the first or last of the ``grid``, the grid is continued by one rate on that side, at most twice.
    ``length`` is that of a tuning trial relative to the study's own length; all arms are tuned with the same budget.
    """

    grid: tuple[float, ...] = (1e-3, 2e-3, 4e-3)
    length: float = 0.5

    def __post_init__(self) -> None:
        rising = len(self.grid) > 1 and list(self.grid) == sorted(set(self.grid)) and self.grid[0] > 0
        _check(rising, f"rates.grid is {list(self.grid)}", "give two or more rising rates, e.g. [1e-3, 2e-3, 4e-3]")
        _check(0 < self.length <= 1, f"rates.length is {self.length}", "give a share of the length, e.g. 0.5")


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The images of a study.

    Args:
        source: anything that ``vitrail train`` takes as its data.
        validation: how many training images are held out of all trials, for rates and curves. At most a fifth is.
        test: the split that is evaluated once, at the end of a final trial.
    """

    source: str = ""
    validation: int = 5_000
    test: str = "test"

    def __post_init__(self) -> None:
        _check(self.validation >= 1, f"pool.validation is {self.validation}", "give a number of images, e.g. 5000")
        _check(self.test in ("test", "val"), f"pool.test is {self.test!r}", nearest(self.test, ("test", "val")))


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Trials that are compared with each other: every arm at every level of every factor, from ``seeds`` seeds.

    Args:
        arms: the settings of each arm by dotted path, over the study's ``base``. An arm that names another ``model.name`` takes
            none of its ``model.changes`` from there. ``seed`` is the first seed of an arm, by default 0.
        factors: levels by dotted path, as ``{"data.limit": [500, 4000, null]}``; null is all images.
        rates: None takes the rate that the settings name.
        measure: beside accuracy: of ViTs ``heads``, the mean attention distances, and ``positions``; ``shifts``, how much the
            output changes with the place of the image.
    """

    name: str
    arms: dict[str, dict[str, Any]]
    factors: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    seeds: int = 3
    rates: Rates | None = Rates()
    measure: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"the experiment {self.name!r}"
        _check(bool(self.name), "an experiment has no name", "give it one, e.g. name: patch")
        _check(bool(self.arms), f"{where} has no arms", "give one or more, e.g. arms: {vit: {model.name: vit-ti16}}")
        _check(self.seeds >= 1, f"{where} has {self.seeds} seeds", "give 3 or more")
        for arm, settings in self.arms.items():
            remedy = "give settings by dotted path, or {}"
            _check(isinstance(settings, Mapping), f"the arm {arm!r} of {where} is {settings!r}", remedy)
        for path, levels in self.factors.items():
            distinct = isinstance(levels, (list, tuple)) and len(levels) == len({str(level) for level in levels}) > 0
            _check(distinct, f"the factor {path!r} of {where} is {levels!r}", "give a list of different levels")
        for name in self.measure:
            _check(name in MEASURES, f"{where} measures {name!r}", nearest(name, MEASURES))
        object.__setattr__(self, "factors", {path: tuple(levels) for path, levels in self.factors.items()})

    def levels(self) -> Iterator[dict[str, Any]]:
        """Yields every combination of the levels of the factors, by dotted path; one that is empty where there are none."""
        for chosen in itertools.product(*self.factors.values()):
            yield dict(zip(self.factors, chosen))


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study: its images, the settings of every trial by dotted path, and the experiments, most important first.

    The reduction to a budget of time drops experiments from the end.
    """

    name: str
    pool: Pool = Pool()
    base: dict[str, Any]
    experiments: tuple[Experiment, ...]
    claims: tuple[Claim, ...] = ()

    def __post_init__(self) -> None:
        names = [experiment.name for experiment in self.experiments]
        _check(bool(names), f"the study {self.name!r} has no experiments", "see `vitrail study write vit-paper`")
        twice = {name for name in names if names.count(name) > 1}
        _check(not twice, f"two experiments are called {min(twice, default='')!r}", "give each a name of its own")
        trials = sum(each.seeds * len(each.arms) * prod(map(len, each.factors.values())) for each in self.experiments)
        _check(trials <= MOST_TRIALS, f"the study {self.name!r} has {trials:,} trials", f"plan at most {MOST_TRIALS:,}")
        _check(STEPS in self.base, f"the base of {self.name!r} has no {STEPS}", "equal steps compare: give e.g. 512")
        for claim in self.claims:
            known = claim.experiment in names
            _check(known, f"the claim {claim.name!r} needs {claim.experiment!r}", nearest(claim.experiment, names))

    def experiment(self, name: str) -> Experiment:
        """Returns the experiment of this name, which the study has."""
        return next(experiment for experiment in self.experiments if experiment.name == name)

    @property
    def measure(self) -> tuple[str, ...]:
        """Returns what is measured of every final trial: experiments share trials."""
        return tuple(sorted({name for experiment in self.experiments for name in experiment.measure}))

    def run(self, arm: Mapping[str, Any], levels: Mapping[str, Any]) -> Run:
        """Returns the settings of a trial from its first seed. Raises `ConfigError` for an unknown setting."""
        tree: dict[str, Any] = {}
        for layer in (COMMON, self.base, arm, levels, {"data.source": self.pool.source}):
            nested = nest(layer)
            if nested.get("model", {}).get("name"):
                tree = {**tree, "model": {}}
            tree = overlay(tree, nested)
        return build(Run, tree)


def nest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings by dotted path as a tree."""
    tree: dict[str, Any] = {}
    for path, value in settings.items():
        for key in reversed(path.split(".")):
            value = {key: value}
        tree = overlay(tree, value)
    return tree


@cache
def paper_claims() -> dict[str, dict[str, Any]]:
    """Returns the claims of the ViT paper by name, as trees."""
    with _definition("claims") as path:
        return {name: {"name": name, **claim} for name, claim in read_yaml(path).items()}


def parse_study(tree: Mapping[str, Any]) -> Study:
    """Builds a study from a tree, in which a claim may be the name of a paper's claim. Raises `ConfigError`."""
    claims = []
    for claim in tree.get("claims") or ():
        if isinstance(claim, str) and claim not in paper_claims():
            raise ConfigError(f"there is no claim {claim!r}", nearest(claim, paper_claims()))
        claims.append(paper_claims()[claim] if isinstance(claim, str) else claim)
    return build(Study, {**tree, "claims": claims})


def read_study(path: Path) -> Study:
    """Reads a study of one's own from YAML. Raises `ConfigError`."""
    return parse_study(read_yaml(path))


def find_study(name: str) -> Study:
    """Returns the built-in study of this name. Raises `ConfigError` with the nearest ones."""
    _check(name in BUILT_IN, f"there is no study {name!r}", nearest(name, BUILT_IN))
    with _definition(name) as path:
        return read_study(path)


def write_study(name: str) -> str:
    """Returns a built-in study as YAML: vit-paper, vit-paper-m or digits. Raises `ConfigError` for another name."""
    _check(name in BUILT_IN, f"there is no study {name!r}", nearest(name, BUILT_IN))
    with _definition(name) as path:
        return path.read_text("utf-8")


def _definition(name: str) -> Any:
    return as_file(files("vitrail.studies") / "definitions" / f"{name}.yaml")
