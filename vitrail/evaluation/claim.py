"""A claim as a value: which cells are compared, and by which rule the comparison decides.

A claim is written and read as YAML with its study. An arm is a network's settings in an experiment, a level the value of a
factor, by the dotted path of the factor; ``lowest``, ``highest`` and ``lowest third`` name levels by their place. Nothing here
imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from vitrail.errors import ConfigError
from vitrail.evaluation.verdicts import Greater, Rule, Unit

POINT, LOGIT = 0.01, 0.05  # the smallest differences of interest, of an accuracy and of its logit
Arms = str | tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The accuracy of ``plus`` less that of ``minus``; of several arms ``plus``, the best on validation images.

    Args:
        at: levels by factor, over which a mean is taken. A factor that is not named is at its highest level.
    """

    kind: Literal["difference"] = "difference"
    plus: Arms
    minus: Arms
    at: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Change:
    """The difference of two arms at the highest level of the factor ``along`` less that at its lowest."""

    kind: Literal["change"] = "change"
    plus: Arms
    minus: Arms
    along: str


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
class Pairs:
    """Several differences, (plus, minus) each, for all of which the rule must hold; those without cells are left out."""

    kind: Literal["pairs"] = "pairs"
    pairs: tuple[tuple[str, str], ...]
    at: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LastDoubling:
    """What the last doubling of FLOPs gained: between the best of the upper half and of what costs less, on validation."""

    kind: Literal["last doubling"] = "last doubling"
    arms: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Compute:
    """How many times less compute the arms ``plus`` need than the arms ``minus`` for the same accuracy."""

    kind: Literal["compute"] = "compute"
    plus: tuple[str, ...]
    minus: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Spearman's correlation of accuracy with FLOPs less that with the number of parameters, over all cells."""

    kind: Literal["ranks"] = "ranks"
    fewest: int = 6  # networks


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The mean over trainings of a figure that was looked up inside of the models of an arm, less another.

    Args:
        arm: whose models; of several, the first that the experiment has.
        figure: dotted path into the findings of a cell.
        less: another figure, of the same model.
        against: whose models' mean of the figure is taken off; of several, the first that the experiment has.
        present: the share of trainings in which the figure is greater than 0, in place of its mean.
    """

    kind: Literal["finding"] = "finding"
    arm: Arms
    figure: str
    less: str = ""
    against: Arms = ()
    present: bool = False
    unit: Literal["share", "correlation"] = "share"


@dataclass(frozen=True, kw_only=True)
class Published:
    """The ratio of compute in a table of the paper, by a key of `vitrail.workflows.study.published.METRICS`."""

    kind: Literal["published"] = "published"
    metric: str = "imagenet"


Contrast = Difference | Change | Slope | Pairs | LastDoubling | Compute | Ranks | Finding | Published


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A figure that is shown beside a verdict and decides nothing; of the claim's experiment, or of another one."""

    name: str
    contrast: Contrast
    experiment: str = ""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim: its words, the contrast of cells that is asked about, and the rule.

    Args:
        quote: of the paper; empty for a claim of one's own.
        experiment: whose cells are compared; empty for a claim that needs none.
        scale: of accuracies: ``points``, or ``logit`` where different accuracies are compared or averaged.
        regime: what must limit the accuracy of all cells that are compared: ``data-limited`` networks fit their own images much
            better than others; ``compute-limited`` ones do not.
        beyond: why a study of this size cannot contradict the claim; the verdict is then "held" or "out of range".
    """

    name: str
    quote: str = ""
    source: str = ""
    question: str = ""
    experiment: str = ""
    contrast: Contrast
    rule: Rule = Greater()
    scale: Literal["points", "logit"] = "points"
    regime: Literal["", "data-limited", "compute-limited"] = ""
    beyond: str = ""
    caveat: str = ""
    beside: tuple[Beside, ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a claim has no name", "give it one, e.g. name: deeper-is-better")
        if not self.experiment and not isinstance(self.contrast, Published):
            raise ConfigError(f"the claim {self.name!r} names no experiment", "give the one whose cells it compares")
        if isinstance(self.contrast, Slope) and len(as_arms(self.contrast.plus)) != len(as_arms(self.contrast.minus)):
            raise ConfigError(f"the claim {self.name!r} compares {self.contrast.plus} with {self.contrast.minus}",
                              "give as many arms minus as plus")  # fmt: skip

    @property
    def unit(self) -> Unit:
        """Of the figure that is judged."""
        match self.contrast:
            case Slope():
                return "logit a decade"
            case LastDoubling():
                return "logit"
            case Compute() | Published():
                return "ratio"
            case Ranks():
                return "correlation"
            case Finding(unit=unit):
                return unit
            case _:
                return self.scale


def as_arms(arms: Arms) -> tuple[str, ...]:
    """One arm or several as a tuple."""
    return (arms,) if isinstance(arms, str) else arms
