"""Claims are plain values: they survive YAML, errors name the key, and the table is whole."""

from __future__ import annotations

import pytest
import yaml

from vitrail.config.parse import build, plain
from vitrail.errors import ConfigError
from vitrail.evaluation.claim import Claim, Difference, Pairs, Published, Slope
from vitrail.evaluation.paper_claims import CLAIMS, NOT_TESTABLE
from vitrail.evaluation.verdicts import Equal, Greater


def test_every_claim_survives_yaml():
    text = yaml.safe_dump({name: plain(claim) for name, claim in CLAIMS.items()}, sort_keys=False, allow_unicode=True)
    assert {name: build(Claim, claim) for name, claim in yaml.safe_load(text).items()} == CLAIMS


def test_the_table_is_keyed_by_name_and_says_what_is_asked():
    assert all(claim.name == name for name, claim in CLAIMS.items())
    assert all(claim.question and claim.source and 20 < len(claim.quote) < 200 for claim in CLAIMS.values())
    assert {claim.experiment == "" for claim in CLAIMS.values() if isinstance(claim.contrast, Published)} == {True}
    assert all(len(why) > 20 for why in NOT_TESTABLE.values())


def test_a_claim_of_ones_own_takes_two_lines():
    own = {
        "name": "deeper",
        "experiment": "depth",
        "contrast": {"kind": "difference", "plus": "deep", "minus": "shallow"},
    }
    found = build(Claim, own)
    assert found.contrast == Difference(plus="deep", minus="shallow") and found.rule == Greater(by=0.01)
    assert build(Claim, {**own, "rule": {"kind": "equal", "within": "2e-2"}}).rule == Equal(within=0.02)


def test_lists_of_arms_and_pairs_become_tuples():
    own = {"name": "alike", "experiment": "positions", "contrast": {"kind": "pairs", "pairs": [["1d", "2d"]]}}
    assert build(Claim, own).contrast == Pairs(pairs=(("1d", "2d"),))


def test_a_mistake_in_a_claim_is_named_with_its_remedy():
    own = {"name": "own", "experiment": "depth", "contrast": {"kind": "difference", "plus": "a", "minus": "b"}}
    mistakes = [
        ({"contrast": {"kind": "diference", "plus": "a", "minus": "b"}}, "contrast.kind is 'diference'.*difference"),
        ({"contrast": {"plus": "a", "minus": "b"}}, "contrast.kind is None"),
        ({"contrast": {"kind": "difference", "plus": "a", "mnius": "b"}}, "contrast.mnius.*minus"),
        ({"rule": {"kind": "equal", "withn": 1}}, "rule.withn.*within"),
        ({"rule": {"kind": "greater", "by": -1}}, "by=-1"),
        ({"contrast": {"kind": "slope", "plus": ["a", "b"], "minus": "c", "along": "flops"}}, "as many arms minus"),
        ({"experiment": ""}, "names no experiment"),
        ({"name": ""}, "has no name"),
        ({"regime": "slow"}, "regime is 'slow'"),
    ]
    for change, words in mistakes:
        with pytest.raises(ConfigError, match=f"(?s){words}"):
            build(Claim, {**own, **change})


def test_units_follow_the_contrast():
    units = {
        name: CLAIMS[name].unit for name in ("data-hungry", "crossover", "gap-closes", "compute", "distance-grows")
    }
    assert list(units.values()) == ["logit", "points", "logit a decade", "ratio", "correlation"]
    assert isinstance(CLAIMS["gap-closes"].contrast, Slope)
