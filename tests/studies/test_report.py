"""Judging studies whose truth is known: every verdict, what keeps a claim from one, controls, and null studies."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import scipy

from tests.slow import few_or_nightly
from tests.studies.synthetic_trials import (
    CLASSES,
    IMAGES,
    TWO,
    arms,
    by_arm,
    decide,
    make_study,
    pair,
    train,
    tune,
)
from vitrail.studies.aggregate import Aggregate
from vitrail.studies.design import (
    LIMIT,
    Difference,
    Experiment,
    Finding,
    Pairs,
    Slope,
    find_definition,
    paper_claims,
    read_study,
)
from vitrail.studies.verdicts import Equal, Greater, Question, decide_all

SIZED = Experiment(name="two", arms=arms("a", "b"), factors={LIMIT: (100, 1000, 4000)})
OPTIMAL = tune({1e-3: 1.1, 2e-3: 1.0, 4e-3: 1.1})


def evaluate_one(claim, truth, *, experiment=TWO, tunings=None, **settings):
    study = make_study(claim, two=experiment)
    return decide(study, train(study, truth, **{"seed": 2, **settings}), tunings)["claims"][0]


def test_each_verdict_is_reached_by_its_truth():
    for a, b, rule, verdict in (
        (0.70, 0.60, Greater(by=0.01), "held"),
        (0.55, 0.60, Greater(by=0.01), "did not hold"),
        (0.61, 0.60, Greater(by=0.01), "cannot tell"),
        (0.70, 0.60, Equal(within=0.01), "did not hold"),
        (0.60, 0.60, Equal(within=0.06), "held"),
        (0.60, 0.60, Equal(within=0.005), "cannot tell"),
    ):
        row = evaluate_one(pair(rule=rule), by_arm(a=a, b=b))
        effect = row["effect"]
        assert row["verdict"] == verdict, (a, b, rule)
        assert effect["low"] < a - b < effect["high"] and effect["unit"] == "points" and effect["seeds"] == 3
        assert effect["df"] > 4 and 0 < row["detectable"] < 0.06


def test_a_claim_beyond_the_study_is_held_or_out_of_range():
    claim = pair(beyond="the study is too small")
    assert evaluate_one(claim, by_arm(a=0.7))["verdict"] == "held"
    row = evaluate_one(claim, by_arm(a=0.5))
    assert (row["verdict"], row["why"]) == ("out of range", "the study is too small")


def test_a_claim_about_networks_of_another_regime_is_out_of_range():
    claim = pair(regime="data-limited")
    row = evaluate_one(claim, by_arm(a=0.7), gap=0.05)
    assert row["verdict"] == "out of range" and row["regime"] == "compute-limited"
    assert "is compute-limited: train - test is 5.0 points" in row["why"]
    row = evaluate_one(claim, by_arm(a=0.7), gap=0.2)
    assert (row["verdict"], row["regime"]) == ("held", "data-limited")


def test_networks_that_fit_everything_are_limited_by_neither():
    row = evaluate_one(pair(regime="compute-limited"), by_arm(a=0.97, b=0.96), gap=0.02)
    assert (row["verdict"], row["regime"]) == ("out of range", "neither")


def test_a_diverged_training_counts_as_chance():
    study = make_study(pair(), two=TWO)
    trials = train(study, by_arm(a=0.7))
    whole = decide(study, trials)["claims"][0]
    place = next(place for place in trials["two"] if place.arm == "a")
    trials["two"][place] = replace(
        trials["two"][place],
        state="diverged",
        right=np.zeros(0, bool),
        test={},
        validation={},
        train={},
        macs6=0.0,
        error="loss is nan",
    )
    numbers = decide(study, trials)
    found = numbers["claims"][0]["effect"]
    lost = float(trials["two"][place].right.mean()) if trials["two"][place].right.size else 0.1
    assert found["estimate"] == pytest.approx(whole["effect"]["estimate"] - (0.7 - lost) / 3, abs=0.01)
    assert found["high"] - found["low"] > 5 * (whole["effect"]["high"] - whole["effect"]["low"])
    assert numbers["claims"][0]["verdict"] == "cannot tell"
    assert [(row["arm"], row["state"], row["error"]) for row in numbers["failures"]] == [
        ("a", "diverged", "loss is nan")
    ]


def test_a_failed_training_leaves_its_claims_open_and_others_alone():
    study = make_study(pair(), pair("other", contrast=Difference(plus="c", minus="d")), two=TWO)
    trials = train(study, by_arm(a=0.7, c=0.7))
    place = next(place for place in trials["two"] if place.arm == "b")
    trials["two"][place] = replace(trials["two"][place], state="failed", right=np.zeros(0, bool), error="no space left")
    first, second = decide(study, trials)["claims"]
    assert (first["verdict"], first["effect"]) == ("cannot tell", None) and "no space left" in first["why"]
    assert second["verdict"] == "held"


def test_trials_that_were_not_trained_yet_leave_a_claim_open():
    study = make_study(pair(), two=TWO)
    trials = train(study, by_arm(a=0.7))
    for arms_left, words in (("a", "b in two were not trained yet"), ("", "a in two were not trained yet")):
        left = {place: result for place, result in trials["two"].items() if place.arm in arms_left}
        row = decide(study, {"two": left})["claims"][0]
        assert row["verdict"] == "cannot tell" and words in row["why"]


def test_claims_without_trials_are_not_tested():
    claims = [
        pair("arm", contrast=Difference(plus="a", minus="z")),
        pair("level", contrast=Difference(plus="a", minus="b", at={LIMIT: 123})),
        pair("factor", contrast=Slope(plus="a", minus="b", along="optim.lr")),
        pair("pairs", contrast=Pairs(pairs=(("x", "y"),))),
        pair("finding", contrast=Finding(arm="a", figure="heads.share_mixed")),
    ]
    study = make_study(*claims, two=SIZED)
    numbers = decide(study, train(study, by_arm()))
    assert numbers["claims"] == []
    why = {row["name"]: row["why"] for row in numbers["not_asked"]}
    assert why["arm"] == "the experiment two has no arm z" and why["level"] == f"{LIMIT} has no level 123"
    assert list(why) == ["arm", "level", "factor", "pairs", "finding"]


def test_a_best_rate_at_the_edge_leaves_a_claim_open():
    edge = tune({1e-3: 1.2, 2e-3: 1.0})
    row = evaluate_one(pair(), by_arm(a=0.7), tunings={"two": {"a": OPTIMAL, "b": edge}})
    assert row["verdict"] == "cannot tell" and "the best learning rate of b is at the edge" in row["why"]
    assert row["to_tell"].startswith("a wider grid of learning rates")
    assert row["effect"]["estimate"] == pytest.approx(0.1, abs=0.03)


def test_what_a_single_seed_does_not_tell_is_null():
    row = evaluate_one(pair(), by_arm(a=0.7), experiment=replace(TWO, seeds=1))
    assert (row["effect"]["low"], row["effect"]["high"], row["detectable"]) == (None, None, None)


def test_the_spread_of_seeds_is_pooled_over_the_trials_of_one_training_size():
    study = make_study(two=SIZED)
    trained = Aggregate(study, train(study, by_arm()), classes=CLASSES, images=IMAGES)
    spreads = [trained.spreads[group] for group in trained.groups["two"]]
    assert [spread.freedom for spread in spreads] == [4] * 6 and len(set(spreads)) == 3
    assert spreads[:3] == spreads[3:]  # a and b at the same sizes


def test_an_undecided_claim_names_the_number_of_seeds_needed():
    row = evaluate_one(pair(), by_arm(a=0.61), experiment=replace(TWO, seeds=2), seed=3)
    more = int(row["to_tell"].split()[0])
    assert row["verdict"] == "cannot tell" and row["to_tell"].endswith("seeds would show a difference of 1.0 points")
    narrower = evaluate_one(pair(), by_arm(a=0.61), experiment=replace(TWO, seeds=2 + more), seed=3)
    assert row["detectable"] > 0.02 and narrower["detectable"] == pytest.approx(0.01, rel=0.3)
    tight = evaluate_one(pair(rule=Greater(by=0.001)), by_arm(a=0.601))
    assert tight["to_tell"] == "no number of seeds would show a difference of 0.1 points: that needs more test images"


def test_more_claims_are_evaluated_at_stricter_levels():
    study = make_study(*(pair(str(number)) for number in range(5)), two=TWO)
    rows = decide(study, train(study, by_arm(a=0.7)))["claims"]
    assert [row["verdict_level"] for row in rows] == pytest.approx([0.99] * 5)
    assert {row["effect"]["level"] for row in rows} == {0.95}


def test_slope_interval_contains_the_true_slope():
    def truth(arm, levels):  # a starts behind and ends ahead
        size = np.log10(levels[LIMIT] / 100) / np.log10(40)
        return 0.4 + 0.3 * size + (0.1 * (2 * size - 1) if arm == "a" else 0.0)

    slope = evaluate_one(pair(contrast=Slope(plus="a", minus="b", along=LIMIT)), truth, experiment=SIZED)
    logit = lambda p: np.log(p / (1 - p))  # noqa: E731
    gains = [logit(truth("a", {LIMIT: n})) - logit(truth("b", {LIMIT: n})) for n in (100, 1000, 4000)]
    expected = np.polyfit(np.log10([100, 1000, 4000]), gains, 1)[0]
    assert slope["verdict"] == "held"
    assert slope["effect"]["unit"] == "logit a decade" and slope["effect"]["low"] < expected < slope["effect"]["high"]


def test_several_pairs_must_all_hold_and_those_without_trials_are_left_out():
    contrast = Pairs(pairs=(("a", "b"), ("b", "c"), ("c", "z")))
    assert evaluate_one(pair(contrast=contrast), by_arm(a=0.75, b=0.65, c=0.55))["verdict"] == "held"
    row = evaluate_one(pair(contrast=contrast), by_arm(a=0.75, b=0.65, c=0.75))
    assert row["verdict"] == "did not hold" and row["effect"]["estimate"] == pytest.approx(-0.1, abs=0.03)


@pytest.mark.parametrize("studies", few_or_nightly(100, 1000))
def test_at_most_five_percent_of_null_studies_hold_something(studies):
    claims = (
        pair("one", rule=Greater(by=0.0)),
        pair("slope", contrast=Slope(plus="a", minus="b", along=LIMIT), rule=Greater(by=0.0)),
    )
    study = make_study(*claims, two=SIZED)
    held = 0
    for seed in range(studies):
        trained = Aggregate(study, train(study, lambda arm, levels: 0.6, seed=seed), classes=CLASSES, images=IMAGES)
        measured = {claim.name: trained.measure(claim.contrast, "two", claim.scale) for claim in claims}
        verdicts = decide_all({name: Question(Greater(by=0.0), found[0]) for name, found in measured.items()})
        held += any(verdict.kind == "held" for verdict in verdicts.values())
    assert held <= scipy.stats.binom(studies, 0.025).ppf(
        0.995
    )  # in one direction, so half of 5 %: 7 of 100, 39 of 1000


def test_the_same_trials_give_the_same_figures_to_the_bit_in_any_order():
    study = make_study(pair(), two=SIZED)
    trials = train(study, lambda arm, levels: 0.4 + 0.1 * np.log10(levels[LIMIT]))
    first = json.dumps(decide(study, trials), allow_nan=False)
    shuffled = {}
    for name, found in reversed(trials.items()):
        places = list(found)
        random.Random(0).shuffle(places)
        shuffled[name] = {place: replace(found[place], seconds=9.0, host="other", attempts=2) for place in places}
    assert json.dumps(decide(study, shuffled), allow_nan=False) == first


def test_arms_and_rates_are_listed():
    study = make_study(pair(), two=SIZED)
    trials = train(study, lambda arm, levels: 0.4 + 0.1 * np.log10(levels[LIMIT]))
    numbers = decide(study, trials, {"two": {"a": OPTIMAL}})
    row = numbers["arms"][0]
    assert (row["experiment"], row["arm"], row["levels"], row["limit"], row["seeds"]) == (
        "two",
        "a",
        {LIMIT: 100},
        100,
        3,
    )
    assert row["accuracy"]["low"] < 0.6 < row["accuracy"]["high"] and row["regime"] == "compute-limited"
    assert [row["best"] for row in numbers["rates"]] == [2e-3] and len(numbers["rates"][0]["points"]) == 3


def test_the_built_in_study_tests_the_claims_of_the_paper():
    study = read_study(find_definition("vit-paper"))
    sizes = {0: {}, 1: {LIMIT: (4000,)}, 2: {LIMIT: (100, 4000)}, 3: {LIMIT: (100, 1000, 4000)}}
    sized = (replace(each, factors=sizes[len(each.factors.get(LIMIT, ()))]) for each in study.experiments)
    study = replace(study, experiments=tuple(sized))
    numbers = decide(study, train(study, lambda arm, levels: 0.6, gap=0.2))
    asked = {row["name"] for row in numbers["claims"]}
    assert {"data-hungry", "gap-closes", "crossover", "smaller-patches", "cls-equals-gap", "same-network"} <= asked
    assert {row["name"] for row in numbers["not_asked"]} <= paper_claims().keys() - asked
    assert next(row for row in numbers["claims"] if row["name"] == "crossover")["verdict"] in ("held", "out of range")
    assert list(numbers["published"]) == ["ImageNet", "mean of five sets", "ImageNet ReaL"]


def with_curve(trials, arm, accuracies):
    """The same results, in which an arm had these accuracies on its own images at the points of its curve."""
    curve = tuple({"step": step, "train_accuracy": accuracy} for step, accuracy in enumerate(accuracies, 1))
    found = {place: replace(each, curve=curve) if place.arm == arm else each for place, each in trials["two"].items()}
    return {"two": found}


@pytest.mark.parametrize(
    ("curve", "message"),
    [
        # what `vitrail study digits --budget 150s` gave of networks that were cut to 80 steps: 34 % of their own images
        ([0.10, 0.12, 0.14, 0.17, 0.22, 0.27, 0.31, 0.34], "is 34 %, and was 17 % halfway"),
        ([0.10, 0.10, 0.11, 0.10, 0.12, 0.11, 0.10, 0.12], "is 12 %, about chance"),
        # after 37 steps a schedule that ends at 0 has flattened the curve, and another network learned far more
        (
            [0.19, 0.23, 0.22, 0.26, 0.24, 0.27, 0.28, 0.28],
            "is 28 %, and that of another network after as many steps 7",
        ),
        ([0.30, 0.50, 0.60, 0.64, 0.66, 0.67, 0.68, 0.68], ""),
        ([0.10, 0.10, 0.10, 0.10, 0.40, 0.80, 0.95, 0.99], ""),  # it fits its images
    ],
)
def test_a_claim_about_undertrained_networks_cannot_be_told(curve, message):
    study = make_study(pair(), pair("other", contrast=Difference(plus="c", minus="d")), two=TWO)
    accuracies = {"a": 0.5, "b": 0.6, "c": 0.7, "d": 0.6}
    others = 0.75 if "another" in message else 0.6 if curve[-1] > 0.5 else 0.45
    gap = {arm: (curve[-1] if arm == "a" else others) - accuracy for arm, accuracy in accuracies.items()}
    trials = with_curve(train(study, by_arm(**accuracies), gap=gap), "a", curve)
    numbers = decide(study, trials)
    row, other = numbers["claims"]
    assert other["verdict"] == "held"
    if message:
        assert row["verdict"] == "cannot tell"
        assert row["why"].startswith("a is undertrained: ")
        assert message in row["why"]
        assert row["to_tell"].startswith("a longer training")
        assert row["effect"]["estimate"] == pytest.approx(-0.1, abs=0.03)
        assert numbers["arms"][0]["undertrained"] == row["why"]
    else:
        assert row["verdict"] == "did not hold"
        assert numbers["arms"][0]["undertrained"] == ""
