"""Changes of weights between two models: of adapters, slice by slice, of nothing, and of other networks."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from tests.looked_at import QUIET
from tests.models.conftest import shaken
from tests.models.tiny import TINY
from vitrail.analysis.weight_changes import measure_changes, participation_ratio
from vitrail.models import create_backbone
from vitrail.models.adapters import add_adapters, list_adapters
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.verbs.inspect.measurements import inspect_pair


def make(name="vit", **changes):
    return shaken(create_backbone(replace(TINY[name], **changes)))


@pytest.mark.parametrize(
    ("values", "ratio"), [([1.0, 1.0, 1.0], 3.0), ([2.0, 0.0, 0.0], 1.0), ([0.0] * 3, 0.0), ([2.0, 1.0, 0.0], 25 / 17)]
)
def test_the_participation_ratio_counts_directions(values, ratio):
    turned = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    assert participation_ratio(turned @ torch.diag(torch.tensor(values, dtype=torch.float64))) == pytest.approx(ratio)


def test_adapters_change_their_slices_in_as_many_directions_as_their_rank():
    before, after = make(), make()
    add_adapters(after, rank=2, alpha=4.0, slices="qv", layers=("qkv",), blocks=1)
    torch.manual_seed(0)
    ((_, adapter),) = list_adapters(after)
    torch.nn.init.normal_(adapter.b)
    found = {(change.layer, change.part): change for change in measure_changes(before, after)}
    assert all(
        change.relative == 0 == change.directions for (layer, _), change in found.items() if layer[:8] != "blocks.2"
    )
    assert found["blocks.2.attn.qkv", "k"].relative == 0
    weight = before.blocks[2].attn.qkv.weight.detach().double().chunk(3)[2]
    update = 2.0 * (adapter.b[1].double() @ adapter.a[1].double()).detach()
    change = found["blocks.2.attn.qkv", "v"]
    assert change.relative == pytest.approx(float(update.norm() / weight.norm()), rel=1e-5)
    assert 1 < change.directions <= 2 + 1e-5 and change.full == 16


def test_heads_are_left_out_and_other_networks_have_no_changes():
    assert {change.layer for change in measure_changes(make(), make(classes=3))}.isdisjoint({"head"})
    assert measure_changes(make(), make(depth=2)) == [] == measure_changes(make(), make("swin"))


def test_a_weight_that_was_zero_has_no_relative_change():
    before, after = make(), make()
    with torch.no_grad():
        before.blocks[0].attn.proj.weight.zero_()
    (change,) = [each for each in measure_changes(before, after) if each.layer == "blocks.0.attn.proj"]
    assert math.isnan(change.relative) and change.directions > 1


def test_rounding_hardly_counts():
    before = make()
    after = deepcopy(before).half().float()
    add_adapters(after, rank=1, layers=("fc1",))
    for _, adapter in list_adapters(after):
        torch.nn.init.normal_(adapter.b, std=0.3)
    changes = [change for change in measure_changes(before, after) if change.layer.endswith("fc1")]
    assert all(change.directions == pytest.approx(1.0, abs=0.01) for change in changes) and len(changes) == 3


def test_the_page_and_the_numbers_have_them(tmp_path):
    models = [create_classifier(TINY["vit"], classes=tuple("abcdefg")) for _ in range(2)]
    shaken(models[0].backbone), shaken(models[1].backbone, seed=1)
    report, numbers = inspect_pair(tuple(models), tmp_path / "out", options=QUIET, log=lambda line: None)
    assert json.loads((tmp_path / "out" / "numbers.json").read_text())["weight_changes"] == numbers["weight_changes"]
    first = numbers["weight_changes"][0]
    assert (first["layer"], first["part"], first["full"]) == ("blocks.0.attn.qkv", "q", 16) and first["relative"] > 0.5
    assert "Changes of the weights" in report.read_text()
    other = create_classifier(TINY["swin"], classes=tuple("abcdefg"))
    page, found = inspect_pair((models[0], other), tmp_path / "other", options=QUIET, log=lambda line: None)
    assert found["weight_changes"] == [] and "Changes of the weights" not in page.read_text()
