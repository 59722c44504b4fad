"""Google's .npz of hybrids and of BiT's ResNets: kernels by hand, every generation of names, there and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.each_row import each_row
from vitrail.errors import CheckpointError
from vitrail.models import Backbone, Config, ViTConfig, create_backbone
from vitrail.models.resnet import ResNetConfig
from vitrail.models.swin import SwinConfig
from vitrail.weights import load
from vitrail.weights.google import from_google, read_google, to_google

WHERE = Path("R50+ViT-B_16.npz")
HYBRID = ViTConfig(
    image_size=32, patch_size=16, classes=5, stem=(1, 2), stem_width=32, width=16, depth=2, heads=2, mlp_width=24
)
HYBRIDS: dict[str, Config] = {
    "stages": HYBRID,
    "one stage": replace(HYBRID, stem=(2,), in_channels=4),
    "root alone": replace(HYBRID, stem=(), patch_size=(8, 16), image_size=(32, 64)),
    "hidden layer": replace(HYBRID, pre_logits=True),
    "hidden layer, root alone": replace(HYBRID, stem=(), pre_logits=True),
    "mean": replace(HYBRID, prefix=(), pool="gap", classes=0),
}
BIT = ResNetConfig(classes=5, depths=(1, 2))
BITS: dict[str, Config] = {
    "two stages": BIT,
    "twice as wide": replace(BIT, depths=(1,), width_factor=2),
    "half as wide": replace(BIT, depths=(1,), stem_width=32),
    "three stages of one channel": replace(BIT, depths=(1, 1, 1), in_channels=1),
    "ten units": replace(BIT, depths=(10,)),
    "no head": replace(BIT, classes=0),
}
MODELS = {**HYBRIDS, **BITS}
Arrays = dict[str, np.ndarray]


def drawn(config: Config) -> Backbone:
    """Numbers of some size in every tensor."""
    backbone, draw = create_backbone(config).eval(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, each in backbone.named_parameters():
            scale = name.endswith("weight") and each.ndim == 1
            each.copy_(torch.randn(each.shape, generator=draw) * 0.3 + scale)
    return backbone


def written(config: Config) -> Arrays:
    return to_google(config, drawn(config).state_dict())


def pictures(config: Config) -> torch.Tensor:
    size = (2, config.in_channels, *(min(length, 64) for length in config.image_size))
    return torch.randn(size, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
@each_row("kind", MODELS)
def test_there_and_back_changes_no_bit_and_no_answer(kind, tmp_path):
    model = drawn(MODELS[kind])
    arrays = to_google(model.config, model.state_dict())
    config, state = from_google(arrays, WHERE)
    assert config == model.config
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    again = to_google(config, state)
    assert again.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name, strict=True)
    np.savez(tmp_path / "x.npz", **arrays)
    images = pictures(config)
    assert torch.equal(load(tmp_path / "x.npz", log=lambda line: None).backbone(images), model(images))


HYBRID_SHAPES = {
    "conv_root/kernel": (7, 7, 3, 32),
    "gn_root/scale": (1, 1, 1, 32),
    "block1/unit1/conv1/kernel": (1, 1, 32, 32),
    "block1/unit1/conv_proj/kernel": (1, 1, 32, 128),
    "block1/unit1/gn_proj/bias": (1, 1, 1, 128),
    "block2/unit1/conv2/kernel": (3, 3, 64, 64),
    "block2/unit2/conv3/kernel": (1, 1, 64, 256),
    "block2/unit2/gn3/scale": (1, 1, 1, 256),
    "embedding/kernel": (2, 2, 256, 16),
    "Transformer/posembed_input/pos_embedding": (1, 5, 16),
    "Transformer/encoderblock_1/MlpBlock_3/Dense_0/kernel": (16, 24),
}
BIT_SHAPES = {
    "resnet/root_block/standardized_conv2d/kernel": (7, 7, 3, 64),
    "resnet/block1/unit01/a/proj/standardized_conv2d/kernel": (1, 1, 64, 256),
    "resnet/block1/unit01/a/group_norm/gamma": (64,),
    "resnet/block2/unit01/b/standardized_conv2d/kernel": (3, 3, 128, 128),
    "resnet/block2/unit02/c/group_norm/beta": (128,),
    "resnet/group_norm/gamma": (512,),
    "resnet/head/conv2d/kernel": (1, 1, 512, 5),
    "resnet/head/conv2d/bias": (5,),
}


@each_row("config, shapes", [(HYBRID, HYBRID_SHAPES), (BIT, BIT_SHAPES)])
def test_names_and_shapes_are_googles(config, shapes):
    arrays = written(config)
    assert {name: arrays[name].shape for name in shapes} == shapes
    assert len(arrays) == len(create_backbone(config).state_dict()) + (8 if config is HYBRID else 0)  # q, k, v apart
    assert not any("downsample" in name or "proj" in name for name in arrays if "unit2" in name or "unit02" in name)


def test_ten_units_have_two_digits():
    units = {name.split("/")[2] for name in written(BITS["ten units"]) if "/unit" in name}
    assert units == {f"unit{number:02d}" for number in range(1, 11)}


def test_kernels_are_turned_as_by_hand():
    """Each number of ours lies where (row, column, input, output) says."""
    for config, ours, theirs in (
        (HYBRID, "patch_embed.backbone.stem.conv.weight", "conv_root/kernel"),
        (HYBRID, "patch_embed.backbone.stages.1.blocks.0.conv2.weight", "block2/unit1/conv2/kernel"),
        (HYBRID, "patch_embed.proj.weight", "embedding/kernel"),
        (BIT, "stages.1.blocks.1.conv2.weight", "resnet/block2/unit02/b/standardized_conv2d/kernel"),
        (BIT, "stages.0.blocks.0.downsample.conv.weight", "resnet/block1/unit01/a/proj/standardized_conv2d/kernel"),
    ):
        arrays, (_, state) = written(config), from_google(written(config), WHERE)
        for row, column, given, made in ((0, 0, 1, 2), (-1, 0, 2, 7), (0, -1, 0, 1), (-1, -1, 2, 3)):
            assert state[ours][made, given, row, column] == arrays[theirs][row, column, given, made]
    arrays, (_, state) = written(BIT), from_google(written(BIT), WHERE)
    assert state["head.weight"][3, 100] == arrays["resnet/head/conv2d/kernel"][0, 0, 100, 3]


def test_norms_are_told_apart():
    arrays = {name: np.full_like(array, number) for number, (name, array) in enumerate(written(HYBRID).items())}
    places = {name: float(number) for number, name in enumerate(arrays)}
    _, state = from_google(arrays, WHERE)
    backbone = "patch_embed.backbone."
    pairs = {
        "stem.norm.weight": "gn_root/scale",
        "stem.norm.bias": "gn_root/bias",
        "stages.1.blocks.1.norm2.bias": "block2/unit2/gn2/bias",
        "stages.1.blocks.0.norm3.weight": "block2/unit1/gn3/scale",
        "stages.0.blocks.0.downsample.norm.weight": "block1/unit1/gn_proj/scale",
    }
    assert {ours: state[backbone + ours][0].item() for ours in pairs} == {a: places[b] for a, b in pairs.items()}


def numbered(arrays: Arrays) -> Arrays:
    """As TensorFlow counts layers of one kind in one graph."""
    found = {}
    for place, (name, array) in enumerate(arrays.items()):
        name = name.replace("standardized_conv2d/", f"standardized_conv2d_{place}/")
        found[name.replace("group_norm/", f"group_norm_{place + 1}/")] = array
    return found


def resaved(arrays: Arrays) -> Arrays:
    """As big_vision saves BiT's ResNets, written out by hand."""
    names = {
        "root_block/standardized_conv2d": "root_block/conv_root",
        "a/proj/standardized_conv2d": "conv_proj",
        "a/standardized_conv2d": "conv1",
        "b/standardized_conv2d": "conv2",
        "c/standardized_conv2d": "conv3",
        "a/group_norm": "gn1",
        "b/group_norm": "gn2",
        "c/group_norm": "gn3",
        "resnet/group_norm": "resnet/norm-pre-head",
        "head/conv2d": "head",
        "gamma": "scale",
        "beta": "bias",
    }
    found = {}
    for name, array in arrays.items():
        for theirs, later in names.items():
            name = name.replace(theirs, later)
        maps = "/unit" in name or "pre-head" in name
        array = array.reshape(1, 1, 1, -1) if array.ndim == 1 and maps else array
        found[name.removeprefix("resnet/")] = array[0, 0] if name == "resnet/head/kernel" else array
    return found


def inside(arrays: Arrays, around: str) -> Arrays:
    """In a training's checkpoint, beside the optimiser's arrays."""
    return {**{around + name: array for name, array in arrays.items()}, "opt/count": np.zeros(())}


LATER = {
    "numbered": numbered,
    "big_vision": resaved,
    "big_vision, a training's": lambda arrays: inside(resaved(arrays), "params/"),
    "beside a count": lambda arrays: {**arrays, "global_step": np.zeros(())},
}


@pytest.mark.slow
@each_row(
    "kind, names",
    [*(("two stages", names) for names in LATER), *((kind, "big_vision") for kind in BITS if kind != "two stages")],
)
def test_bit_is_read_by_all_its_names(kind, names):
    arrays = written(BITS[kind])
    theirs = LATER[names](arrays)
    assert theirs.keys() != arrays.keys()
    config, state = from_google(theirs, WHERE)
    assert config == BITS[kind]
    assert all(torch.equal(tensor, state[name]) for name, tensor in drawn(config).state_dict().items())


def test_a_hybrid_is_read_from_a_trainings_checkpoint():
    config, state = from_google(inside(written(HYBRID), "opt/target/"), WHERE)
    assert config == HYBRID
    assert all(torch.equal(tensor, state[name]) for name, tensor in drawn(config).state_dict().items())


def test_assumptions_about_a_file_are_reported(tmp_path):
    said: dict[str, list[str]] = {"hybrid": [], "bit": []}
    for name, config in (("hybrid", HYBRID), ("bit", BIT)):
        np.savez(tmp_path / f"{name}.npz", **written(config))
        model = load(tmp_path / f"{name}.npz", log=said[name].append)
        assert (model.preprocessing.size, model.preprocessing.resize) == (config.image_size, "squash")
        assert (model.preprocessing.mean, model.preprocessing.std) == ((0.5,) * 3, (0.5,) * 3)
    assert said["hybrid"][1] == (
        "assumed  Google's layout: tanh GELU, LayerNorm eps 1e-06, "
        "kernels standardised by the rule 'vit' (1e-05 added to the deviation), group norm eps 1e-06, "
        "image size 32x32, a grid of 2x2 patches (--grid states another), mean 0.5, std 0.5, resize squash to 32x32"
    )
    assert said["bit"][1] == (
        "assumed  Google's layout: kernels standardised by the rule 'bit' (1e-10 added to the variance), "
        "group norm eps 1e-05, mean 0.5, std 0.5, resize squash to 224x224"
    )


def without(arrays: Arrays, part: str) -> Arrays:
    return {name: array for name, array in arrays.items() if part not in name}


WRONG = {
    "a lost block": (lambda: without(written(HYBRID), "block1"), "its stages are 1"),
    "a lost kernel": (
        lambda: without(written(HYBRID), "unit2/conv2"),
        "missing  .*stages.1.blocks.1.conv2.weight 64x64x3x3",
    ),
    "a lost norm": (lambda: without(written(BIT), "resnet/group_norm/beta"), "missing     norm.bias 512"),
    "a width that is none": (
        lambda: {**written(BIT), "resnet/root_block/standardized_conv2d/kernel": np.ones((7, 7, 3, 72), np.float32)},
        "stem_width is 72",
    ),
    "a head of 2 x 3": (
        lambda: {**written(BIT), "resnet/head/conv2d/kernel": np.ones((2, 3, 512, 5), np.float32)},
        "head.weight is 5x3072, the model has 5x512",
    ),
    "a norm of two axes": (
        lambda: {**written(HYBRID), "gn_root/scale": np.ones((2, 16), np.float32)},
        "invalid for input of size 32",
    ),
    "a layer twice": (
        lambda: {**written(BIT), "resnet/block1/unit01/a/group_norm_7/gamma": np.ones(64, np.float32)},
        "does not use: block1/unit01/a/group_norm_7/gamma",
    ),
    "a foreign array": (
        lambda: {**written(BIT), "resnet/block1/unit01/d/kernel": np.ones(3)},
        "that a BiT ResNet does not use: block1/unit01/d/kernel",
    ),
}


@each_row("kind", WRONG)
def test_damaged_files_are_refused_by_name_and_reason(kind):
    make, words = WRONG[kind]
    with pytest.raises(CheckpointError, match=words):
        read_google(make(), WHERE).build_model(WHERE, print, has_names=True, stated=())


def test_models_without_a_google_counterpart_are_refused():
    config = SwinConfig(image_size=32, width=8, depths=(2,), heads=(1,), window=4)
    with pytest.raises(CheckpointError, match="no counterpart of a Swin"):
        to_google(config, create_backbone(config).state_dict())
    with pytest.raises(CheckpointError, match=r"no counterpart of the stem 'small'\n.*--to native"):
        to_google(small := replace(BIT, stem="small"), create_backbone(small).state_dict())
