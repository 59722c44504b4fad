"""A study as a value: which networks are trained on how many images from which seeds, and which claims that decides.

It is read from YAML; the built-in ones lie in ``definitions``. Nothing here imports torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, Literal

from vitrail.config.parse import build, overlay, read_yaml
from vitrail.config.schema import Run
from vitrail.errors import ConfigError, nearest
from vitrail.studies.verdicts import Greater, Rule, Unit

DEFINITIONS = Path(__file__).parent / "definitions"
BUILT_IN = ("vit-paper", "vit-paper-m", "digits")
MEASURES = ("heads", "positions", "shifts")
LIMIT, STEPS, RATE, SEED = "data.limit", "schedule.steps", "optim.lr", "seed"  # the settings that a study itself varies
CHOOSING = ("save.best", "save.patience")  # settings by which evaluations choose the length or the model
MAX_TRIALS = 10_000  # of a study; a few bytes can ask for any number of them
SAMPLE = 1_000  # at most, of the training images that are evaluated without augmentation, and of the curve's validation images
Arms = str | tuple[str, ...]


def _check(holds: bool, what: str, remedy: str) -> None:
    if not holds:
        raise ConfigError(what, remedy)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The accuracy of ``plus`` less that of ``minus``; of several arms ``plus``, the best on validation images.

    ``at`` gives by factor the levels over which a mean is taken: ``highest``, the default, ``lowest``, ``lowest third``, ``all``,
    or a level.
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
class Finding:
    """The mean over trials of a figure that was measured inside of the models of an ``arm``, less that of the arm ``against``; of
    several arms, the first that the experiment has.

    ``figure`` is a dotted path into the findings of a trial. ``present`` takes the share of trials in which it is greater than 0.
    """

    kind: Literal["finding"] = "finding"
    arm: Arms
    figure: str
    against: Arms = ()
    present: bool = False
    unit: Literal["share", "correlation"] = "share"


Contrast = Difference | Pairs | Slope | Finding


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim: its words, the contrast of arms of an experiment that is asked about, and the rule that decides.

    ``scale`` is that of accuracies: ``logit`` where different ones are compared or averaged. ``regime`` is what must limit all
    arms: ``data-limited`` networks fit their own images much better than others. ``beyond`` says why a study of this size cannot
    contradict the claim; the verdict is then "held" or "out of range".
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

    @property
    def unit(self) -> Unit:
        """Returns the unit of the contrast."""
        match self.contrast:
            case Slope():
                return "logit a decade"
            case Finding(unit=unit):
                return unit
        return self.scale

    def __post_init__(self) -> None:
        _check(bool(self.name), "a claim has no name", "give it one, e.g. name: deeper-is-better")
        if isinstance(self.contrast, Slope):
            plus, minus = self.contrast.plus, self.contrast.minus
            what = f"the claim {self.name!r} compares {plus} with {minus}"
            _check(len(as_arms(plus)) == len(as_arms(minus)), what, "give as many arms minus as plus")


def as_arms(arms: Arms) -> tuple[str, ...]:
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
    """The images of a study: what ``vitrail train`` takes as its data, of which ``validation`` training images, at most a fifth,
    are held out of all trials, for rates and curves.
    """

    source: str = ""
    validation: int = 5_000

    def __post_init__(self) -> None:
        _check(self.validation >= 1, f"pool.validation is {self.validation}", "give a number of images, e.g. 5000")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Trials that are compared with each other: every arm at every level of every factor, from ``seeds`` seeds.

    Args:
        arms: settings by dotted path over the study's ``base``, of which an arm with another ``model.name`` takes no
            ``model.changes``. ``seed`` is the first seed of an arm, by default 0.
        factors: levels by dotted path, as ``{"data.limit": [500, 4000, null]}``; null is all images.
        rates: None takes the rate that the settings name.
        measure: beside accuracy: of ViTs ``heads``, attention distances, and ``positions``; ``shifts``, how far features move.
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
        for arm, own in self.arms.items():
            _check(
                isinstance(own, Mapping),
                f"the arm {arm!r} of {where} is {own!r}",
                "give settings by dotted path, or {}",
            )
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
    """A study: its images, the settings of every trial by dotted path, and the experiments, most important first."""

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
        _check(trials <= MAX_TRIALS, f"the study {self.name!r} has {trials:,} trials", f"plan at most {MAX_TRIALS:,}")
        arms = [settings for experiment in self.experiments for settings in experiment.arms.values()]
        factors = [experiment.factors for experiment in self.experiments]
        chosen = next(
            (path for settings in (self.base, *arms, *factors) for path in settings if path in CHOOSING), None
        )
        _check(chosen is None, f"the study {self.name!r} sets {chosen}", "equal steps compare: leave it out")
        _check(STEPS in self.base, f"the base of {self.name!r} has no {STEPS}", "equal steps compare: give e.g. 512")
        for claim in self.claims:
            known = claim.experiment in names
            _check(known, f"the claim {claim.name!r} needs {claim.experiment!r}", nearest(claim.experiment, names))

    def experiment(self, name: str) -> Experiment:
        return next(experiment for experiment in self.experiments if experiment.name == name)

    @property
    def measure(self) -> tuple[str, ...]:
        """Returns what is measured of every final trial: experiments share trials."""
        return tuple(sorted({name for experiment in self.experiments for name in experiment.measure}))

    def run(self, arm: Mapping[str, Any], levels: Mapping[str, Any]) -> Run:
        """Returns the settings of a trial from its first seed. Raises `ConfigError` for an unknown setting."""
        tree: dict[str, Any] = {}
        for layer in (common_settings(), self.base, arm, levels, {"data.source": self.pool.source}):
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
def common_settings() -> dict[str, Any]:
    """Returns the settings that all trials share unless a study says otherwise, by dotted path."""
    return read_yaml(DEFINITIONS / "common.yaml")


@cache
def paper_claims() -> dict[str, dict[str, Any]]:
    """Returns the claims of the ViT paper by name, as trees."""
    return {name: {"name": name, **claim} for name, claim in read_yaml(DEFINITIONS / "claims.yaml").items()}


def parse_study(tree: Mapping[str, Any]) -> Study:
    """Builds a study from a tree, in which a claim may be the name of a paper's claim. Raises `ConfigError`."""
    claims, known = tree.get("claims") or (), paper_claims()
    for name in claims:
        _check(not isinstance(name, str) or name in known, f"there is no claim {name!r}", nearest(str(name), known))
    return build(Study, {**tree, "claims": [known[each] if isinstance(each, str) else each for each in claims]})


def read_study(path: Path) -> Study:
    """Reads a study of one's own from YAML. Raises `ConfigError`."""
    return parse_study(read_yaml(path))


def find_definition(name: str) -> Path:
    """Returns the file of a built-in study. Raises `ConfigError` with the nearest names."""
    _check(name in BUILT_IN, f"there is no study {name!r}", nearest(name, BUILT_IN))
    return DEFINITIONS / f"{name}.yaml"


def write_study(name: str) -> str:
    """Returns a built-in study as YAML: vit-paper, vit-paper-m or digits. Raises `ConfigError` for another name."""
    return find_definition(name).read_text("utf-8")
