"""Effects in words: every unit with its sign, its digits and its zone."""

from __future__ import annotations

import math

import pytest

from vitrail.reports.study.units import describe_zone, read_effect, signed, tick


@pytest.mark.parametrize(
    ("effect", "words"),
    [
        ({"estimate": 0.0234, "low": 0.011, "high": 0.036, "unit": "points"}, "+2.3 points [+1.1, +3.6]"),
        ({"estimate": -0.12, "low": -0.2, "high": 0.0, "unit": "logit"}, "−0.12 logit [−0.20, 0.00]"),
        ({"estimate": 0.1, "low": 0.0, "high": 0.2, "unit": "logit a decade"}, "+0.10 logit a decade [0.00, +0.20]"),
        ({"estimate": 0.41, "low": 0.3, "high": 0.57, "unit": "ratio"}, "0.41× [0.3×, 0.57×]"),
        ({"estimate": 0.5, "low": 0.25, "high": 0.75, "unit": "share"}, "50.0 % [25.0 %, 75.0 %]"),
        ({"estimate": 0.83, "low": 0.6, "high": 0.95, "unit": "correlation"}, "+0.83 [+0.60, +0.95]"),
        ({"estimate": 0.02, "low": None, "high": math.nan, "unit": "points"}, "+2.0 points"),
        ({"estimate": None, "low": 0.1, "high": 0.2, "unit": "points"}, "not measured"),
        (None, "not measured"),
    ],
)
def test_an_effect_is_said_in_its_unit(effect, words):
    assert read_effect(effect).words().replace("\u202f", " ") == words


@pytest.mark.parametrize(
    ("rule", "unit", "words"),
    [
        ({"low": 0.01, "high": None}, "points", "at least +1.0 points"),
        ({"low": 0.0, "high": None}, "points", "more than no effect"),
        ({"low": None, "high": -0.05}, "logit", "at most −0.05 logit"),
        ({"low": -0.01, "high": 0.01}, "points", "within ±1.0 points"),
        ({"low": 0.25, "high": 0.5}, "ratio", "between 0.25× and 0.5×"),
        ({}, "points", ""),
    ],
)
def test_the_zone_of_a_rule_is_said_in_words(rule, unit, words):
    assert describe_zone(rule, unit) == words


def test_a_value_that_rounds_to_zero_has_no_sign():
    assert [signed(value, 1) for value in (-0.04, 0.0, 0.04, -0.06)] == ["0.0", "0.0", "0.0", "−0.1"]


def test_marks_of_axes_are_short():
    assert [tick(value, "points") for value in (-0.02, 0.0, 0.005)] == ["−2", "0", "+0.5"]
    assert [tick(value, "ratio") for value in (0.0, 0.25, 0.3, 1, 3)] == ["0×", "1/4×", "0.3×", "1×", "3×"]
    assert [tick(value, "share").replace("\u202f", " ") for value in (0.5, 0.5605)] == ["50 %", "56.05 %"]
