"""Figures as ``numbers.json`` holds them."""

from __future__ import annotations

import math
from typing import Any

from vitrail.evaluation.estimates import LEVEL, Estimate, Student
from vitrail.evaluation.verdicts import Rule


def finite(value: float | None) -> float | None:
    """A figure as JSON can hold it: None where it is not finite."""
    return None if value is None or not math.isfinite(value) else float(value)


def with_interval(figure: Estimate) -> dict[str, Any]:
    """``estimate``, ``low`` and ``high``."""
    low, high = figure.bounds(LEVEL)
    return {"estimate": finite(figure.value), "low": finite(low), "high": finite(high)}


def describe_effect(figure: Estimate, unit: str, seeds: int | None) -> dict[str, Any]:
    """A figure with its 95 % interval, its degrees of freedom where it has some, and the fewest seeds it rests on."""
    df = finite(figure.freedom) if isinstance(figure, Student) else None
    return {**with_interval(figure), "unit": unit, "level": LEVEL, "df": df, "seeds": seeds}


def detect(figure: Estimate) -> float | None:
    """The smallest effect that such a figure detects; None where that is not known."""
    return finite(figure.detectable()) if isinstance(figure, Student) else None


def describe_rule(rule: Rule) -> dict[str, Any]:
    """The kind of a rule, and the effects for which it holds, in their unit; None is open."""
    low, high = rule.zone
    return {"kind": rule.kind, "low": low, "high": high}
