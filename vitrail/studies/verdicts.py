"""Verdicts on claims: held, did not hold, or cannot tell, by rules that are fixed before the figures are known.

A verdict always has an interval. Of the three outcomes of a rule, the one that a figure can reach with enough data depends on
its value alone; a narrower interval around the same value only turns "cannot tell" into that one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from vitrail.errors import ConfigError
from vitrail.studies.statistics import LEVEL, Estimate

Outcome = Literal["held", "did not hold", "cannot tell", "out of range"]
Unit = Literal["points", "logit", "logit a decade", "ratio", "share", "correlation"]
FINEST = 1e-9  # levels closer to 1 than this are not distinguished


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

    def decide(self, value: float, low: float, high: float, unit: Unit) -> tuple[Outcome, str]:
        """Returns the outcome and the reason for it."""
        by = show(self.by, unit)
        if low > 0 and value >= self.by:
            return "held", f"greater than 0, and {show(value, unit)} is at least {by}" if self.by else "greater than 0"
        if high < self.by:
            sign = (
                "greater than 0, but "
                if low > 0
                else "less than 0, the other way round, and so "
                if high < 0 < self.by
                else ""
            )
            return "did not hold", f"{sign}less than {by}"
        if low > 0:
            return "cannot tell", f"greater than 0, but perhaps less than {by}"
        return "cannot tell", "the interval contains 0"


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

    def decide(self, value: float, low: float, high: float, unit: Unit) -> tuple[Outcome, str]:
        within = show(self.within, unit)
        if -self.within < low and high < self.within:
            return "held", f"less than {within} in either direction"
        different = low > 0 or high < 0
        if different and abs(value) >= self.within:
            return "did not hold", f"different from 0, and {show(abs(value), unit)} is at least {within}"
        if different:
            return "cannot tell", f"different from 0, but perhaps by less than {within}"
        return "cannot tell", f"the interval contains both 0 and {within}"


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """The figure, a ratio, lies on the same side of 1 as ``low`` to ``high``, the range that was claimed.

    Held if the interval is on that side of 1; did not hold if it is on the other. The reason says whether the range held too.
    """

    kind: Literal["ratio"] = "ratio"
    low: float
    high: float

    def __post_init__(self) -> None:
        if not (1 <= self.low < self.high or 0 < self.low < self.high <= 1):
            raise ConfigError(f"the rule ratio with low={self.low} and high={self.high}", "give a range beside 1")

    @property
    def zone(self) -> tuple[float, float | None]:
        return self.low, self.high

    def decide(self, value: float, low: float, high: float, unit: Unit) -> tuple[Outcome, str]:
        above = self.low >= 1
        side, other = ("greater", "less") if above else ("less", "greater")
        if high < 1 if above else low > 1:
            return "did not hold", f"the ratio is {other} than 1"
        if not (low > 1 if above else high < 1):
            return "cannot tell", "the interval contains 1"
        claimed = f"{self.low:g} to {self.high:g}"
        if self.low <= low and high <= self.high:
            return "held", f"the ratio is {side} than 1, and inside of {claimed}"
        if high < self.low or low > self.high:
            return "held", f"the ratio is {side} than 1, but outside of {claimed}"
        return "held", f"the ratio is {side} than 1; whether inside of {claimed} cannot be told"


Rule = Greater | Equal | Ratio


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """An outcome, the figure it rests on with its interval at ``level``, and the reason in words."""

    kind: Outcome
    effect: float
    low: float
    high: float
    level: float
    why: str


def judge(rule: Rule, figures: Sequence[Estimate], *, level: float = LEVEL, unit: Unit = "points") -> Verdict:
    """Returns the verdict on a claim that ``rule`` holds for all of ``figures``, usually one.

    It is held if the rule holds for each of them at ``level``. It did not hold if it fails for one of K at the level
    1 - (1 - level) / K, so that more figures are no more chances to fail. The verdict shows the figure that decided.
    """

    def decide(figure: Estimate, level: float) -> Verdict:
        low, high = figure.bounds(level)
        kind, why = "cannot tell", "the uncertainty is unknown: give it two seeds or more"
        if np.isfinite([figure.value, low, high]).all():
            kind, why = rule.decide(figure.value, low, high, unit)
        return Verdict(kind=kind, effect=figure.value, low=low, high=high, level=level, why=why)

    verdicts = [decide(figure, level) for figure in figures]
    strict = verdicts if len(figures) == 1 else [decide(each, 1 - (1 - level) / len(figures)) for each in figures]
    weakest = int(np.argmin([_support(rule, figure.value) for figure in figures]))
    for verdict in (strict[weakest], *strict):
        if verdict.kind == "did not hold":
            return verdict
    verdict = next((each for each in (verdicts[weakest], *verdicts) if each.kind != "held"), verdicts[weakest])
    if verdict.kind == "did not hold":  # clear at the level of one figure, but not at the stricter one of several
        return replace(verdict, kind="cannot tell", why=f"{verdict.why}, which one of several can be by chance")
    return verdict


class Question(NamedTuple):
    """A rule, and the figures for which it is asked, in one unit."""

    rule: Rule
    figures: Sequence[Estimate]
    unit: Unit = "points"


def judge_all(questions: Mapping[str, Question], *, level: float = LEVEL) -> dict[str, Verdict]:
    """Returns the verdicts on several claims, of which with probability ``level`` none that decides is wrong (Holm 1979).

    Of m claims, the clearest is judged at the level 1 - (1 - level) / m, the next at 1 - (1 - level) / (m - 1), and so on until
    one cannot be told; the others are judged at the level of that one.
    """

    def answer(name: str, level: float) -> Verdict:
        return judge(questions[name].rule, questions[name].figures, level=level, unit=questions[name].unit)

    errors = {name: 1 - clearest(lambda at, name=name: answer(name, at).kind) for name in questions}
    verdicts: dict[str, Verdict] = {}
    share, failed = 1 - level, False
    for rank, name in enumerate(sorted(questions, key=lambda name: (errors[name], name))):
        if not failed:
            share = (1 - level) / (len(questions) - rank)
            failed = errors[name] > share
        verdicts[name] = answer(name, 1 - share)
    return {name: verdicts[name] for name in questions}


def clearest(outcome: Callable[[float], Outcome]) -> float:
    """Returns the highest level of confidence, 0 to 1, at which an outcome is not "cannot tell", by bisection; 0 if none is."""
    low, high = np.log(FINEST), 0.0  # of the logarithm of 1 - level
    if outcome(1 - FINEST) != "cannot tell":
        return 1 - FINEST
    for _ in range(40):
        middle = (low + high) / 2
        if outcome(1 - float(np.exp(middle))) == "cannot tell":
            low = middle
        else:
            high = middle
    return 1 - float(np.exp(high))


def show(value: float, unit: Unit) -> str:
    """Formats a figure: points from fractions, others with their unit."""
    if unit == "points":
        return f"{100 * value:.1f} points"
    return f"{value:.2f}" if unit in ("ratio", "correlation") else f"{value:.2f} {unit}"


def _support(rule: Rule, value: float) -> float:
    """Returns how far a figure speaks for a rule: the least is the weakest of several."""
    match rule:
        case Greater():
            return value
        case Equal():
            return -abs(value)
        case Ratio():
            return value if rule.low >= 1 else -value
