"""What is looked up inside of the models of a study: heads by hand, shifts whose answer is known, and how both are decided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch

from tests.models.tiny import TINY
from tests.peers.oracles import randomise
from tests.studies.synthetic_trials import TWO, by_arm, decide, make_study, pair, train
from vitrail.analysis.head_statistics import HeadFigures
from vitrail.data.sources.open import open_data
from vitrail.studies.design import Finding
from vitrail.studies.trial import measure_findings, summarise_heads
from vitrail.studies.verdicts import Greater
from vitrail.tasks.classification.classifier import create_classifier


def heads(*distances):
    unknown = torch.zeros(len(distances))
    return HeadFigures(distance=torch.tensor(distances), uniform=10.0, entropy=unknown, prefix=unknown)


def test_heads_of_the_lowest_third_are_local_mixed_or_neither():
    layers = [heads(2.0, 9.5), heads(4.9, 6.0), heads(6.0, 7.0), heads(8.0, 8.0), heads(7.0, 7.0)]
    found = summarise_heads(layers)
    assert found["share_mixed"] == 0.5  # the first of two layers has a head below 5 and one above 9
    assert found["share_local"] == 0.5  # two of their four heads are below 5
    assert found["distance_by_depth"] == pytest.approx(0.8)  # ranks 2 1 3 5 4
    assert summarise_heads(layers[3:])["share_local"] == 0.0


@pytest.mark.parametrize("name", ["vit", "bit"])
def test_only_images_with_a_place_move(name):
    model = randomise(create_classifier(TINY[name], classes=4))
    noise = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), np.uint8)
    plain = np.broadcast_to(noise[:, :1, :1], noise.shape).copy()  # each image has one colour
    still, moving = (look_inside(model, images)["shifts"] for images in (plain, noise))
    assert still == {"moved": pytest.approx(0, abs=1e-9)}
    assert 0.01 < moving["moved"] < 3


def look_inside(model, images):
    source = open_data((images, np.arange(len(images)) % 4), validation=0).train
    return measure_findings(["shifts"], model, source, seed=0)


def test_findings_are_evaluated_over_trainings():
    claims = (
        pair("share", contrast=Finding(arm=("z", "a"), figure="heads.share_mixed", present=True), rule=Greater(by=0.5)),
        pair(
            "depth",
            contrast=Finding(arm="a", figure="heads.distance_by_depth", unit="correlation"),
            rule=Greater(by=0.0),
        ),
        pair(
            "near",
            contrast=Finding(arm="a", figure="positions.neighbour_excess"),
        ),
    )
    study = make_study(*claims, two=replace(TWO, measure=("heads", "positions")))
    trials = train(study, by_arm())
    for number, place in enumerate(place for place in trials["two"] if place.arm == "a"):
        layers = [{"distance": [3.0, 9.0], "uniform": 11.0}]
        heads = {"share_mixed": 1 / 3, "distance_by_depth": 0.8 + 0.05 * number, "layers": layers}
        positions = {"neighbour_excess": 0.8 + 0.01 * number}
        trials["two"][place] = replace(trials["two"][place], findings={"heads": heads, "positions": positions})
    numbers = decide(study, trials)
    share, depth, near = numbers["claims"]
    assert (share["verdict"], share["effect"]["estimate"], share["effect"]["low"]) == (
        "held",
        1.0,
        pytest.approx(0.292, abs=1e-3),
    )
    assert (
        depth["verdict"] == "held"
        and depth["effect"]["estimate"] == pytest.approx(0.85)
        and depth["effect"]["df"] == pytest.approx(2)
    )
    assert near["verdict"] == "held" and near["effect"]["estimate"] == pytest.approx(0.81)
    assert [row["model"] for row in numbers["heads"]] == ["two: a"]


def test_a_finding_is_compared_between_networks():
    moves = Finding(arm=("z", "a"), against="b", figure="shifts.moved")
    study = make_study(pair("shifts", contrast=moves, rule=Greater(by=0.0)), two=TWO)
    trials = train(study, by_arm())
    moved = {"a": (0.30, 0.32, 0.37), "b": (0.10, 0.12, 0.14)}
    for place, cell in trials["two"].items():
        if place.arm in moved:
            trials["two"][place] = replace(cell, findings={"shifts": {"moved": moved[place.arm][place.seed]}})
    (row,) = decide(study, trials)["claims"]
    expected = scipy.stats.ttest_ind(*moved.values(), equal_var=False)
    low, high = expected.confidence_interval()
    assert row["verdict"] == "held" and row["effect"]["estimate"] == pytest.approx(0.21)
    assert (row["effect"]["low"], row["effect"]["high"]) == (pytest.approx(low), pytest.approx(high))
    assert row["effect"]["df"] == pytest.approx(expected.df)
