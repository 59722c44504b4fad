"""The rules of verdicts: each outcome, what a narrower interval may change, and how often a null effect is said to hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import scipy

from tests.slow import few_or_nightly
from vitrail.errors import ConfigError
from vitrail.studies.statistics import Student, VariancePart, contrast, pool_variance
from vitrail.studies.verdicts import Equal, Greater, Question, Rule, decide, decide_all, show, write

RULES: list[Rule] = [
    Greater(by=0.01),
    Greater(by=0),
    Equal(within=0.01),
]


@dataclass(frozen=True)
class Figure:
    """A figure with the same interval at every level."""

    value: float
    low: float
    high: float

    def bounds(self, level=0.95):
        return self.low, self.high


def normal(value, error):
    return Student(value=value, seeds=(VariancePart(error**2, 1e9),))


def test_each_rule_has_three_outcomes():
    outcomes = [
        (Greater(by=0.01), (0.02, 0.005, 0.035), "held", "greater than 0, and 2.0 points is at least 1.0 points"),
        (Greater(by=0.01), (0.004, -0.001, 0.009), "did not hold", "less than 1.0 points"),
        (Greater(by=0.01), (0.006, 0.003, 0.009), "did not hold", "greater than 0, but less than 1.0 points"),
        (Greater(by=0.01), (0.007, 0.002, 0.012), "cannot tell", "greater than 0, but perhaps less than 1.0 points"),
        (Greater(by=0.01), (0.02, -0.001, 0.041), "cannot tell", "the interval contains 0"),
        (
            Greater(by=0.01),
            (-0.02, -0.03, -0.01),
            "did not hold",
            "less than 0, the other way round, and so less than 1.0",
        ),
        (Greater(by=0), (0.02, 0.001, 0.039), "held", "greater than 0"),
        (Greater(by=0), (-0.02, -0.03, -0.01), "did not hold", "less than 0.0 points"),
        (Equal(within=0.01), (0.002, -0.004, 0.008), "held", "less than 1.0 points in either direction"),
        (Equal(within=0.01), (-0.02, -0.03, -0.01), "did not hold", "different from 0, and 2.0 points is at least 1.0"),
        (Equal(within=0.01), (0.006, 0.001, 0.011), "cannot tell", "different from 0, but perhaps by less"),
        (Equal(within=0.01), (0.002, -0.01, 0.014), "cannot tell", "the interval contains both 0 and"),
        (Greater(by=0.01), (0.02, np.nan, np.nan), "cannot tell", "two seeds or more"),
    ]
    wrong = []
    for rule, figure, kind, why in outcomes:
        verdict = decide(Question(rule, [Figure(*figure)]))
        assert verdict.effect == figure[0]
        if verdict.kind != kind or why not in verdict.why:
            wrong.append(f"{rule} of {figure} is {verdict.kind}, {verdict.why}")
    assert not wrong


@pytest.mark.parametrize("figures", few_or_nightly(1000, 10_000))
def test_a_narrower_interval_never_changes_a_decision(figures):
    rng = np.random.default_rng(0)
    for number in range(figures):
        rule = RULES[number % len(RULES)]
        value = 0.01 * rng.normal(0, 2)
        outcomes = []
        below, above = 0.01 * rng.exponential(2, 2)
        for share in np.sort(rng.random(6))[::-1]:
            outcomes.append(decide(Question(rule, [Figure(value, value - share * below, value + share * above)])).kind)
        decided = [outcome for outcome in outcomes if outcome != "cannot tell"]
        assert len(set(decided)) <= 1 and outcomes[len(outcomes) - len(decided) :] == decided, rule


def test_several_figures_hold_only_together():
    rule = Greater(by=0.01)
    assert decide(Question(rule, [normal(0.03, 0.005), normal(0.02, 0.005)])).effect == 0.02
    assert decide(Question(rule, [normal(0.03, 0.005), normal(0.02, 0.005)])).kind == "held"
    assert decide(Question(rule, [normal(0.03, 0.005), normal(0.02, 0.05)])).kind == "cannot tell"
    failed = decide(Question(rule, [normal(0.03, 0.005), normal(-0.02, 0.005)]))
    assert (failed.kind, failed.effect, failed.level) == ("did not hold", -0.02, pytest.approx(0.975))


def test_one_of_several_figures_fails_at_a_stricter_level():
    nearly = normal(0.01 - 2.0 * 0.005, 0.005)  # its upper bound is below 0.01 at 95 %, not at 97.5 %
    assert decide(Question(Greater(by=0.01), [nearly])).kind == "did not hold"
    assert decide(Question(Greater(by=0.01), [nearly, normal(0.05, 0.005)])).kind == "cannot tell"


def test_holm_decides_claims_whose_p_values_are_below_rising_thresholds():
    # p-values 0.01, 0.02, 0.04 of three claims: thresholds 0.05 / 3, 0.05 / 2, 0.05
    figures = {"middle": 2.326, "clear": 2.576, "weak": 2.054}
    verdicts = decide_all({name: Question(Greater(by=0.0), [normal(z, 1.0)]) for name, z in figures.items()})
    assert list(verdicts) == list(figures)
    assert {name: each.kind for name, each in verdicts.items()} == dict.fromkeys(figures, "held")
    levels = {name: each.level for name, each in verdicts.items()}
    assert levels == {"clear": pytest.approx(1 - 0.05 / 3), "middle": pytest.approx(0.975), "weak": pytest.approx(0.95)}


def test_holm_stops_at_the_first_claim_that_cannot_be_told():
    # p-values 0.03 and 0.04: the first is above 0.05 / 2, so neither is told, although both are below 0.05
    claims = {name: Question(Greater(by=0.0), [normal(z, 1.0)]) for name, z in (("a", 2.17), ("b", 2.054))}
    assert {name: (each.kind, each.level) for name, each in decide_all(claims).items()} == dict.fromkeys(
        claims, ("cannot tell", 0.975)
    )


def differ(cells, arm):
    return contrast([cells[arm], cells[0]], [1, -1], [pool_variance([cells[arm], cells[0]])] * 2)


@pytest.mark.parametrize("studies", few_or_nightly(400, 1000))
def test_at_most_five_percent_of_null_studies_say_that_something_held(studies):
    rng = np.random.default_rng(0)
    held = told = 0
    for _ in range(studies):
        cells = (rng.random((4, 3, 300)) < 0.7).astype(float)  # four arms that are the same
        claims = {str(arm): Question(Greater(by=0.0), [differ(cells, arm)]) for arm in (1, 2, 3)}
        verdicts = decide_all(claims)
        held += any(verdict.kind == "held" for verdict in verdicts.values())
        told += decide(Question(Greater(by=0.0), [differ(cells, 1)])).kind == "held"
    low, high = scipy.stats.binom(studies, 0.025).ppf(
        [0.001, 0.999]
    )  # in one direction, so half of 5 %: 11 to 42 of 1000
    assert held <= high and low <= told <= high


def test_rules_that_make_no_sense_are_refused():
    for kind, bounds in (
        (Greater, {"by": -0.01}),
        (Equal, {"within": 0}),
    ):
        with pytest.raises(ConfigError, match="the rule"):
            kind(**bounds)


def test_figures_are_written_with_their_unit_and_sign():
    assert [write(each, "points", signed=True) for each in (0.0123, -0.0123, 0.0001)] == ["+1.2", "\u22121.2", "0.0"]
    assert [show(2.09163, "logit a decade"), show(0.5, "share"), show(-0.5, "logit")] == [
        "2.09 logit a decade",
        "50.0\u202f%",
        "\u22120.50 logit",
    ]
    assert write(float("nan"), "points") == "–"
