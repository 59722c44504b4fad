"""Heads on the maps of four blocks: which blocks, what reads them, and that nothing changes without the setting."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from tests.models.conftest import shaken
from tests.models.tiny import TINY
from tests.tasks.dense_models import BACKBONES, CLASSES, create, draw_images, draw_targets
from vitrail.errors import CheckpointError, ConfigError
from vitrail.exports.graph import to_onnx
from vitrail.models import ViTConfig
from vitrail.models.dense import ScaledMaps, upsample
from vitrail.weights import adapt
from vitrail.weights.description import KEY, build_model_around, describe
from vitrail.weights.native import load_model, save_model
from vitrail.weights.onnx import read_onnx

DEEP = replace(TINY["vit"], depth=5)  # reads the blocks 0, 1, 2 and 4
OBLONG = (24, 40)
KINDS = {
    "fused": ("segmentation", {}),
    "linear": ("segmentation", {"head": "linear"}),
    "boxes": ("detection", {}),
    "masks": ("instances", {}),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def four(kind, config=DEEP, **arguments):
    task, own = KINDS[kind]
    return create(task, config, **{"maps": "four", **own, **arguments})


@pytest.mark.parametrize(
    ("depth", "layers"),
    [
        (1, [0]),
        (3, [0, 1, 2]),
        (4, [0, 1, 2, 3]),
        (5, [0, 1, 2, 4]),
        (12, [2, 5, 8, 11]),
        (14, [2, 6, 9, 13]),
        (24, [4, 11, 17, 23]),
        (32, [7, 15, 23, 31]),
        (40, [9, 19, 29, 39]),
    ],
)
def test_four_blocks_lie_at_even_intervals_but_for_the_first_of_24(depth, layers):
    assert list(ViTConfig(depth=depth).even_layers) == layers


@every_kind
def test_the_gradient_of_the_loss_reaches_the_head_from_the_maps_of_all_four(kind):
    model = four(kind).train()
    images = draw_images(model, 2, OBLONG)
    maps = model.backbone.dense_maps(images, model.dense_layers)
    maps = [each.detach().requires_grad_() for each in maps]
    loss = model.loss(model.answer_maps(maps, images), draw_targets(model, [5, 300], OBLONG))
    found = torch.autograd.grad(loss, [*maps, *model.own.parameters()])
    assert model.dense_layers == (0, 1, 2, 4)
    assert all(each.isfinite().all() and each.any() for each in found)


def test_the_linear_head_concatenates_the_normalised_maps():
    model = four("linear").double()
    images = draw_images(model, 2, OBLONG).double()
    maps = [model.backbone.norm(x.movedim(1, -1)) for x in model.backbone.feature_maps(images)]
    layer = model.own["head"].classifier
    expected = torch.cat([maps[block] for block in (0, 1, 2, 4)], -1) @ layer.weight[..., 0, 0].mT + layer.bias
    logits = model(images)
    assert logits.shape == (2, 3, *OBLONG)
    torch.testing.assert_close(logits, upsample(expected.movedim(-1, 1), *model.strides[0]))


def test_each_level_is_made_from_the_map_of_its_own_and_further_ones_from_the_last():
    neck = shaken(ScaledMaps(16, (8, 8), (4, 8, 16, 32))).eval()
    maps = [torch.randn(1, 16, 4, 8, generator=torch.Generator().manual_seed(block)) for block in range(4)]
    found = neck(maps)
    for place, level in enumerate(found):
        assert torch.equal(level, neck(maps[place : place + 1])[place])
    assert [tuple(each.shape[2:]) for each in found] == [(8, 16), (4, 8), (2, 4), (1, 2)]
    assert all(map(torch.equal, neck(maps[:2])[2:], neck(maps[1:2])[2:]))


@every_kind
def test_saving_and_loading_and_starting_from_it_keep_maps_and_outputs(tmp_path, kind):
    model = four(kind)
    images = draw_images(model, 2, OBLONG)
    again = load_model(save_model(tmp_path / "model", model))
    assert again.describe() == model.describe() and again.describe()["maps"] == again.maps == "four"
    assert torch.equal(again(images), model(images))
    larger = adapt(again, arguments={"classes": CLASSES, "maps": "four"}, image_size=(48, 64)).eval()
    for name, tensor in model.own.state_dict().items():
        assert torch.equal(larger.own.state_dict()[name], tensor)


@every_kind
def test_the_default_has_the_tensors_outputs_and_description_of_before(tmp_path, kind):
    task, own = KINDS[kind]
    model, named = (create(task, DEEP, **own, **more) for more in ({}, {"maps": "last"}))
    images = draw_images(model, 2, OBLONG)
    assert model.dense_layers == (4,) and "maps" not in describe(named)
    assert torch.equal(model(images), model.answer_maps(model.backbone.dense_maps(images), images))
    assert torch.equal(named(images), model(images))
    path = save_model(tmp_path / "model", model)
    assert "maps" not in json.loads((path / "config.json").read_text())
    again = load_model(path)
    assert torch.equal(again(images), model(images))
    kept = adapt(again, arguments={"classes": CLASSES, "maps": "last"})
    assert all(map(torch.equal, kept.own.state_dict().values(), model.own.state_dict().values()))


@pytest.mark.parametrize("name", ["swin", "pvt v2", "bit"])
def test_four_maps_of_a_pyramid_are_refused(name):
    for kind in KINDS:
        with pytest.raises(
            ConfigError, match=r"maps is 'four', and the head reads .* all 2 stages of .*\n.*leave maps"
        ):
            four(kind, BACKBONES[name])


def test_other_values_and_fewer_levels_than_maps_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"maps is 'for'\n.*four"):
        four("fused", maps="for")
    for kind in ("fused", "boxes"):
        with pytest.raises(
            ConfigError, match=r"levels is \[8, 16\], fewer than the 4 maps.*\n.*such as \[\d, .* maps=last"
        ):
            four(kind, levels=(8, 16))
    model = create("detection", DEEP)
    for value in ("five", ["four"], None):
        with pytest.raises(CheckpointError, match="cannot be used"):
            build_model_around(lambda config: model.backbone, {**describe(model), "maps": value}, tmp_path)


@pytest.mark.parametrize("kind", ["linear", "boxes"])
@pytest.mark.parametrize("name", ["deit", "cait", "beit"])
def test_networks_of_fewer_blocks_read_all_of_them(kind, name):
    model = four(kind, replace(BACKBONES[name], depth=2))
    assert model.dense_layers == (0, 1)
    images = draw_images(model, 2, (32, 64))
    assert model.loss(model(images), draw_targets(model, [1, 2], (32, 64))).isfinite()


@pytest.mark.slow
@every_kind
def test_an_exported_graph_answers_as_the_model_at_any_size(tmp_path, kind):
    pytest.importorskip("onnxruntime")
    model = four(kind, size=(64, 64))  # two cells of the coarsest level in each direction where it is traced
    to_onnx(model, tmp_path / "model.onnx", metadata={KEY: json.dumps(describe(model))})
    graph = read_onnx(tmp_path / "model.onnx")
    assert graph.maps == "four"
    with torch.no_grad():
        for batch, size in ((1, (64, 64)), (3, (72, 200)), (2, (64, 96))):
            images = draw_images(model, batch, size)
            expected, given = model.graph(images), graph.backbone.run_graph(images)
            assert model.difference(expected, given) < 1e-4 and model.agreement(expected, given) == 1
