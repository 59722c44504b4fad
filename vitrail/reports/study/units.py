"""Effects of a study in words: the units of `numbers.json` and how they are shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vitrail.text import decimal, number, percent

MINUS = "\u2212"


@dataclass(frozen=True)
class Effect:
    """An estimate with the ends of its interval, NaN where unknown, and its unit."""

    estimate: float
    low: float
    high: float
    unit: str = ""

    @property
    def known(self) -> bool:
        """Whether the estimate has an interval."""
        return all(map(math.isfinite, (self.estimate, self.low, self.high)))

    @property
    def log(self) -> bool:
        """Whether the effect is a factor, which a logarithmic scale shows."""
        return self.unit == "ratio"

    @property
    def none(self) -> float:
        """The value of no effect."""
        return 1.0 if self.log else 0.0

    @property
    def value(self) -> str:
        """The estimate and its unit in words: "+2.3 points"."""
        if not math.isfinite(self.estimate):
            return "not measured"
        return f"{spell(self.estimate, self.unit)}{noun_of(self.unit)}"

    def words(self) -> str:
        """The estimate, its unit and, where it is known, its interval: "+2.3 points [+1.1, +3.5]"."""
        ends = f" [{spell(self.low, self.unit)}, {spell(self.high, self.unit)}]" if self.known else ""
        return f"{self.value}{ends}"


def read_effect(row: Mapping[str, Any] | None) -> Effect:
    """Reads ``estimate``, ``low``, ``high`` and ``unit``; what is missing or not a number is NaN."""
    estimate, low, high = (number((row or {}).get(name)) for name in ("estimate", "low", "high"))
    return Effect(estimate, low, high, str((row or {}).get("unit", "")))


def noun_of(unit: str) -> str:
    """The name of a unit after its values, with a space before it; empty for those without a name."""
    return "" if unit in ("ratio", "share", "correlation", "") else f" {unit}"


def spell(value: float, unit: str) -> str:
    """Formats a value of a unit, without the name of the unit. NaN is a dash."""
    if not math.isfinite(value):
        return decimal(value)
    if unit == "points":
        return signed(100 * value, 1)
    if unit == "ratio":
        return f"{value:.3g}×"
    if unit == "share":
        return percent(value)
    return signed(value, 2)


def signed(value: float, digits: int) -> str:
    """Formats with a sign: "+1.2", "−0.5", "0.0"."""
    shown = f"{abs(value):.{digits}f}"
    return shown if not float(shown) else f"{MINUS if value < 0 else '+'}{shown}"


def tick(value: float, unit: str) -> str:
    """Formats a mark of an axis: as `spell`, with no more digits than needed."""
    if unit in ("points", "share"):
        shown = f"{abs(100 * value):.4g}"
        sign = "" if shown == "0" else MINUS if value < 0 else "+" if unit == "points" else ""
        return sign + shown + ("\u202f%" if unit == "share" else "")
    if unit == "ratio":
        whole = 0 < value < 1 and (1 / value).is_integer()
        return f"1/{1 / value:.0f}×" if whole else f"{value:.4g}×"
    shown = f"{abs(value):.4g}"
    return shown if shown == "0" else f"{MINUS if value < 0 else '+'}{shown}"


def describe_zone(rule: Mapping[str, Any], unit: str) -> str:
    """Says where a claim holds: "at least 1.0 points"; empty if its rule has no ends."""
    low, high = number(rule.get("low")), number(rule.get("high"))
    noun = noun_of(unit)
    if math.isfinite(low) and math.isfinite(high):
        if low == -high:
            return f"within ±{spell(high, unit).lstrip('+')}{noun}"
        return f"between {spell(low, unit)} and {spell(high, unit)}{noun}"
    if math.isfinite(low):
        return f"at least {spell(low, unit)}{noun}" if low else "more than no effect"
    return f"at most {spell(high, unit)}{noun}" if math.isfinite(high) else ""
