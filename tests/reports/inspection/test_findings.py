"""The paper's findings are true or false by the numbers, and unasked where there are none."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy
import torch

from vitrail.analysis.embeddings import LineSimilarity
from vitrail.analysis.head_statistics import HeadFigures
from vitrail.analysis.tokens import MapNorms, Neuron
from vitrail.reports.inspection.facts import Positions, Tokens
from vitrail.reports.inspection.findings import (
    distance_grows,
    findings,
    lines_are_alike,
    low_layers_mix,
    norms_have_outliers,
    positions_know_neighbours,
    rank_correlation,
)
from vitrail.text import percent


def layers(*distances: list[float], uniform: float = 100.0) -> list[HeadFigures]:
    return [
        HeadFigures(torch.tensor(each), uniform, torch.zeros(len(each)), torch.zeros(len(each))) for each in distances
    ]


POSITIONS = Positions(
    similarity=np.zeros((2, 2, 2, 2)),
    neighbour_rate=0.96,
    neighbour_rate_with_corners=1.0,
    lines=LineSimilarity(0.4, 0.3, 0.1),
)


def test_low_layers_mix_where_they_have_a_local_and_a_global_head():
    rest = [[90.0, 90.0], [90.0, 90.0], [90.0, 90.0], [90.0, 90.0]]
    assert low_layers_mix(layers([20.0, 30.0], [40.0, 75.0], *rest)).holds
    assert low_layers_mix(layers([20.0, 30.0], [40.0, 74.0], *rest)).holds is False
    assert low_layers_mix(layers([50.0, 60.0], [80.0, 75.0], *rest)).holds is False
    words = low_layers_mix(layers([20.0, 30.0], [40.0, 75.0], *rest)).words
    assert "the 4 heads in the lowest third of the layers, relative to uniform attention: 3 below 0.5, 1" in words
    assert "1 at least 0.75; minimum 0.20, maximum 0.75" in words


def test_distances_are_evaluated_by_what_a_layer_can_reach():
    grown = [*layers([10.0], [20.0], uniform=40.0), *layers([60.0], [80.0], uniform=100.0)]
    assert distance_grows(grown).holds
    shrunk = [*layers([10.0], [20.0], uniform=20.0), *layers([30.0], [40.0], uniform=100.0)]
    assert distance_grows(shrunk).holds is False


def test_distance_grows_only_where_most_layers_say_so():
    assert distance_grows(layers([10.0], [30.0], [20.0], [40.0], [50.0])).holds
    assert distance_grows(layers([30.0], [30.0], [30.0])).holds is False
    assert distance_grows(layers([50.0], [5.0], [5.0], [5.0], [5.0], [60.0])).holds is False


def test_layers_in_which_no_place_asks_are_left_out():
    silent = layers([math.nan], [math.nan], uniform=math.nan)
    assert distance_grows([*layers([10.0], [20.0], [30.0]), *silent]).holds
    for ask in (distance_grows, low_layers_mix):
        assert ask([*layers([10.0], [20.0]), *silent]).holds is None


def test_positions():
    assert positions_know_neighbours(POSITIONS).holds
    far = positions_know_neighbours(replace(POSITIONS, neighbour_rate=0.949))
    assert far.holds is False and far.words.startswith(f"For {percent(0.949)} of the patches")
    assert lines_are_alike(POSITIONS).holds
    assert lines_are_alike(replace(POSITIONS, lines=LineSimilarity(0.4, 0.1, 0.1))).holds is False
    assert lines_are_alike(replace(POSITIONS, lines=LineSimilarity(math.nan, math.nan, math.nan))).holds is None
    assert positions_know_neighbours(replace(POSITIONS, neighbour_rate=math.nan)).holds is None


def test_properties_that_were_not_measured_are_not_called_too_small():
    unasked = findings([], None)
    assert [each.holds for each in unasked] == [None] * 4
    assert [each.words for each in unasked[:2]] == ["Attention was not measured."] * 2
    assert "Fewer than three layers" in distance_grows(layers([10.0], [20.0])).words


@pytest.mark.parametrize("seed", range(3))
def test_the_rank_correlation_is_spearmans(seed):
    values = np.random.default_rng(seed).integers(0, 5, 9).astype(float)
    assert rank_correlation(values) == pytest.approx(scipy.stats.spearmanr(values, np.arange(9)).statistic)


def test_artefacts_are_named_by_map_place_and_neuron():
    clean, dirty = np.ones((25, 4, 5)), np.ones((25, 4, 5))
    dirty[:, 0, 0] = dirty[:20, 3, 4] = 8.0
    maps = [MapNorms(each) for each in (clean, dirty, dirty)]
    neuron = Neuron(417, 170.0, 0.01, 2.0)
    finding = norms_have_outliers(Tokens(maps=maps, after="block", neuron=neuron))
    assert finding.holds and not finding.of_paper
    for said in (
        "feature map 1, after block 2 of 3",
        f"In map 2, {percent(0.09)} of the patches",
        "up to 8 times",
        f"row and column (0, 0) in {percent(1.0, 0)}, (3, 4) in {percent(0.8, 0)} of the images",
        "Neuron 417 of the MLP of block 2",
        "Models with registers",
    ):
        assert said in finding.words
    none = norms_have_outliers(Tokens(maps=maps[:1], after="block"))
    assert none.holds is False and "the largest is 1.0 times" in none.words
    few = norms_have_outliers(Tokens(maps=[MapNorms(dirty[:4])], after="stage"))
    assert few.holds is None and "With 80 patches" in few.words
