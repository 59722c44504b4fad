"""Verdicts on claims: held, did not hold, or cannot tell, by rules that are fixed before the figures are known.

A narrower interval around the same value only ever turns "cannot tell" into one of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from vitrail.errors import ConfigError
from vitrail.studies.statistics import LEVEL, Estimate
from vitrail.text import percent

Outcome = Literal["held", "did not hold", "cannot tell", "out of range"]
Unit = Literal["points", "logit", "logit a decade", "share", "correlation"]
UNNAMED = ("share", "correlation")  # units that are not written after a value


@dataclass(frozen=True, kw_only=True)
class Greater:
    """The figure is greater than 0, and at least ``by``.

    Held if the interval is above 0 and the figure is at least ``by``; did not hold if the interval is below ``by``.
    """

    kind: Literal["greater"] = "greater"
    by: float = 0.01

    def __post_init__(self) -> None:
        if not self.by >= 0:
            raise ConfigError(f"the rule greater with by={self.by}", "give 0 or more; exchange plus and minus instead")

    @property
    def zone(self) -> tuple[float, float | None]:
        """Returns the effects for which the claim holds, from and to; None is open."""
        return self.by, None

    def support(self, value: float) -> float:
        """Returns how far a figure speaks for the rule: the least is the weakest of several."""
        return value

    def decide(self, value: float, low: float, high: float, unit: Unit) -> tuple[Outcome, str]:
        """Returns the outcome and the reason for it."""
        by = show(self.by, unit)
        if low > 0 and value >= self.by:
            return "held", f"greater than 0, and {show(value, unit)} is at least {by}" if self.by else "greater than 0"
        if high < self.by:
            side = "greater than 0, but " if low > 0 else ""
            if high < 0 < self.by:
                side = "less than 0, the other way round, and so "
            return "did not hold", f"{side}less than {by}"
        return "cannot tell", f"greater than 0, but perhaps less than {by}" if low > 0 else "the interval contains 0"


@dataclass(frozen=True, kw_only=True)
class Equal:
    """The figure is 0, but for less than ``within``.

    Held if the interval is inside of ``within``; did not hold if it excludes 0 and the figure is at least ``within``.
    """

    kind: Literal["equal"] = "equal"
    within: float = 0.01

    def __post_init__(self) -> None:
        if not self.within > 0:
            raise ConfigError(f"the rule equal with within={self.within}", "give the difference that does not matter")

    @property
    def zone(self) -> tuple[float, float | None]:
        return -self.within, self.within

    def support(self, value: float) -> float:
        return -abs(value)

    def decide(self, value: float, low: float, high: float, unit: Unit) -> tuple[Outcome, str]:
        within = show(self.within, unit)
        if -self.within < low and high < self.within:
            return "held", f"less than {within} in either direction"
        if low <= 0 <= high:
            return "cannot tell", f"the interval contains both 0 and {within}"
        if abs(value) >= self.within:
            return "did not hold", f"different from 0, and {show(abs(value), unit)} is at least {within}"
        return "cannot tell", f"different from 0, but perhaps by less than {within}"


Rule = Greater | Equal


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """An outcome, the value of the figure that it rests on, the level of its interval, and the reason in words."""

    kind: Outcome
    effect: float
    level: float
    why: str


class Question(NamedTuple):
    """A rule, and the figures, usually one and in one unit, for all of which it must hold."""

    rule: Rule
    figures: Sequence[Estimate]
    unit: Unit = "points"


def decide(question: Question, *, level: float = LEVEL) -> Verdict:
    """Returns the verdict on a claim.

    It is held if the rule holds for each figure at ``level``. It did not hold if it fails for one of K at the level
    1 - (1 - level) / K, so that more figures are no more chances to fail. The verdict shows the figure that decided.
    """
    rule, figures, unit = question

    def decide(figure: Estimate, level: float) -> Verdict:
        low, high = figure.bounds(level)
        kind, why = "cannot tell", "the uncertainty is unknown: give it two seeds or more"
        if np.isfinite([figure.value, low, high]).all():
            kind, why = rule.decide(figure.value, low, high, unit)
        return Verdict(kind=kind, effect=figure.value, level=level, why=why)

    figures = sorted(figures, key=lambda figure: rule.support(figure.value))  # the weakest first
    for figure in figures:
        strict = decide(figure, 1 - (1 - level) / len(figures))
        if strict.kind == "did not hold":
            return strict
    verdicts = [decide(figure, level) for figure in figures]
    verdict = next((each for each in verdicts if each.kind != "held"), verdicts[0])
    if verdict.kind == "did not hold":  # clear at the level of one figure, but not at the stricter one of several
        return replace(verdict, kind="cannot tell", why=f"{verdict.why}, which one of several can be by chance")
    return verdict


def decide_all(questions: Mapping[str, Question]) -> dict[str, Verdict]:
    """Returns the verdicts on several claims, of which with probability `LEVEL` none that decides is wrong (Holm 1979).

    Of m claims, all are decided at the level 1 - 0.05 / m; those that are not decided then are decided again, at the level of
    as many as are left, until none of them is decided any more.
    """
    verdicts: dict[str, Verdict] = {}
    left = dict(questions)
    while left:
        verdicts |= {name: decide(each, level=1 - (1 - LEVEL) / len(left)) for name, each in left.items()}
        undecided = {name: each for name, each in left.items() if verdicts[name].kind == "cannot tell"}
        if len(undecided) == len(left):
            break
        left = undecided
    return {name: verdicts[name] for name in questions}


def write(value: float, unit: str, *, signed: bool = False) -> str:
    """Formats a value of a unit, without the name of the unit. NaN is a dash."""
    if not np.isfinite(value) or unit == "share":
        return percent(value)
    shown = f"{abs(100 * value):.1f}" if unit == "points" else f"{abs(value):.2f}"
    sign = "\u2212" if value < 0 else "+" if signed else ""
    return shown if not float(shown) else sign + shown


def show(value: float, unit: str, *, signed: bool = False) -> str:
    """Formats a value with its unit; points from fractions."""
    return write(value, unit, signed=signed) + ("" if unit in UNNAMED else f" {unit}")
