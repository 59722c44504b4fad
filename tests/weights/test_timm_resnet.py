"""timm's layout of BiT's ResNet and of hybrids: there and back, what is assumed, and what is refused in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.each_row import each_row
from vitrail.errors import CheckpointError
from vitrail.models import MODELS, Config, ViTConfig, create_backbone
from vitrail.models.resnet import ResNetConfig
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.verbs.convert import convert
from vitrail.weights import load
from vitrail.weights.native import save_model
from vitrail.weights.timm import family_of, read_timm

WHERE = Path("weights.safetensors")
BIT = ResNetConfig(image_size=32, classes=5, depths=(3,), standardise="timm")
HYBRID = ViTConfig(
    image_size=64, patch_size=32, classes=5, stem=(1, 2), width=192, depth=1, heads=3, mlp_width=24,
    standardise="timm", group_norm_eps=1e-5, gelu="exact", position_resize="bicubic-antialias",
)  # fmt: skip
ROOT = replace(HYBRID, stem=(), image_size=32, patch_size=8)


def a_state(config: Config) -> dict[str, Tensor]:
    """By timm's names, with numbers of some size in every tensor, which need not be one of timm's models."""
    draw = torch.Generator().manual_seed(0)
    state = {
        name: torch.randn(each.shape, generator=draw) * 0.3
        for name, each in create_backbone(config).state_dict().items()
    }
    return family_of(config).write(config, state) if isinstance(config, ResNetConfig) else state


@each_row("config", [BIT, replace(BIT, depths=(1, 10), classes=0), replace(BIT, stem_width=96), HYBRID, ROOT])
def test_every_size_is_read_from_names_and_shapes(config):
    state = a_state(config)
    said = {"pretrained_cfg": {"input_size": [3, *config.image_size]}}
    held = read_timm(state, said, WHERE)
    assert held.config == config
    backbone = create_backbone(held.config)
    backbone.load_state_dict(held.tensors)
    if isinstance(config, ResNetConfig) and config.classes:
        assert state["head.fc.weight"].shape == (5, config.width, 1, 1)
        assert torch.equal(backbone.head.weight, state["head.fc.weight"][:, :, 0, 0])


def test_assumptions_that_no_tensor_shows_are_reported(tmp_path):
    rules = "kernels standardised by the rule 'timm' (1e-08 added to the variance), group norm eps 1e-05, image size"
    placed = "32x32, a grid of 4x4 patches (--grid states another), mean [0.5, 0.5, 0.5]"
    for config, words in (
        (BIT, f"{rules} 224x224, mean [0.5, 0.5, 0.5]"),
        (ROOT, f"exact GELU, LayerNorm eps 1e-06, 3 heads, {rules} {placed}"),
    ):
        save_file(a_state(config), tmp_path / "x.safetensors")
        said: list[str] = []
        model = load(tmp_path / "x.safetensors", log=said.append)
        assert any(line.startswith(f"assumed  timm's layout: {words}") for line in said)
        assert model.config.image_size == ((224, 224) if config is BIT else (32, 32))


STRANGE = {
    "a stage is missing": (BIT, {"stages.2.blocks.0.norm1.weight": (1,)}, "its stages are 0, 2"),
    "a stage of a hybrid is missing": (
        HYBRID,
        {"patch_embed.backbone.stages.1000000000.blocks.0.norm1.weight": (1,)},
        "its stages are 0, 1, 1000000000",
    ),
    "block 10^9": (BIT, {"stages.0.blocks.1000000000.norm1.weight": (1,)}, "stages.0.blocks.3.norm1"),
    "block 10^9 of a hybrid": (
        HYBRID,
        {"patch_embed.backbone.stages.0.blocks.1000000000.norm1.weight": (1,)},
        "stages.0.blocks.1.norm1",
    ),
    "62 stages": (
        HYBRID,
        {f"patch_embed.backbone.stages.{stage}.blocks.0.norm1.weight": (1,) for stage in range(62)},
        "whole numbers up to 16,384",
    ),
    "a root between widths": (BIT, {"stem.conv.weight": (72, 3, 7, 7)}, "stem_width is 72"),
    "a root of 3 x 3": (BIT, {"stem.conv.weight": (64, 3, 3, 3)}, "stem.conv.weight"),
    "a root of no axes": (BIT, {"stem.conv.weight": ()}, "cannot be built"),
    "a root of a hybrid of no axes": (ROOT, {"patch_embed.backbone.conv.weight": ()}, "cannot be built"),
    "a root that no groups divide": (
        ROOT,
        {"patch_embed.backbone.conv.weight": (40, 3, 7, 7)},
        "stem_width is 40",
    ),
    "a head of no axes": (BIT, {"head.fc.weight": ()}, "cannot be built"),
    "a head of 3 x 3": (BIT, {"head.fc.weight": (5, 256, 3, 3)}, "head.weight"),
    "batch norm": (BIT, {"norm.running_mean": (256,)}, "norm.running_mean"),
    "no stem": (BIT, {"stem.conv.weight": None}, "it has no 'stem.conv.weight'"),
    "another stem": (
        ROOT,
        {"patch_embed.backbone.conv.weight": None, "patch_embed.backbone.0.conv.weight": (64, 3, 3, 3)},
        "is not the ViT paper's ResNet: it contains patch_embed.backbone.",
    ),
}  # fmt: skip


@pytest.mark.slow
@each_row("kind", STRANGE)
def test_other_resnets_are_refused(kind, tmp_path):
    config, changes, words = STRANGE[kind]
    changed = {name: None if shape is None else torch.zeros(shape) for name, shape in changes.items()}
    state = {name: each for name, each in {**a_state(config), **changed}.items() if each is not None}
    save_file(state, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path / "x.safetensors", log=lambda line: None)
    assert words in str(caught.value)


@each_row(
    "config, words",
    [
        (MODELS["bit-r200x3"], "stages of 3, 24, 36, 3 blocks"),
        (replace(BIT, stem="small"), "the stem 'small'"),
        (replace(BIT, depths=(1, 2)), "stages of 1, 2 blocks"),
        (replace(BIT, depths=(3, 4, 6, 3, 1)), "stages of 3, 4, 6, 3, 1 blocks"),
        (HYBRID, r"a stem of \(1, 2\) blocks, 64 wide"),
        (replace(ROOT, stem_width=32), r"a stem of \(\) blocks, 32 wide"),
        (replace(ROOT, prefix=("cls", "dist")), "a second token behind a stem"),
    ],
)
def test_configs_without_a_timm_counterpart_are_refused(config, words):
    with pytest.raises(CheckpointError, match=f"no counterpart of {words}"):
        family_of(config).check(config)


@each_row("config", [BIT, ROOT])
def test_numerics_of_the_stem_that_timm_has_no_words_for_are_refused_and_forced(config, tmp_path):
    model = create_classifier(replace(config, standardise="vit", group_norm_eps=1.0), classes=["a", "b"])
    state = read_timm(a_state(replace(config, classes=2)), {}, WHERE).tensors
    model.backbone.load_state_dict(state)
    source = save_model(tmp_path / "source", model)
    with pytest.raises(CheckpointError, match="cannot express 2 of the model's numerics") as caught:
        convert(source, tmp_path / "copy", "timm")
    said = ("group_norm_eps 1.0, read as 1e-05", "standardise vit, read as timm")
    assert caught.value.value == "\n".join(said)
    done = convert(source, tmp_path / "copy", "timm", force=True)
    assert done.unsaid == said
    assert done.alone > 1e-5
    assert load(done.path).config == model.config


def test_every_published_resnet_and_hybrid_but_r200_has_a_name_of_timms():
    """Of its own size, or of another from which the arguments make it."""
    names = {
        name: family_of(config).architecture(config)
        for name, config in MODELS.items()
        if (isinstance(config, ResNetConfig) and name != "bit-r200x3")
        or (isinstance(config, ViTConfig) and config.stem is not None)
    }
    assert names == {
        **{f"bit-r{size}": f"resnetv2_{size}_bit" for size in ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")},
        "bit-r50x2": "resnetv2_50x1_bit",
        "bit-r152x1": "resnetv2_152x2_bit",
        "r-vit-ti16": "vit_tiny_r_s16_p8_224",
        "r26-vit-s32": "vit_small_r26_s32_224",
        "r26-vit-b32": "vit_base_r26_s32_224",
        "r50-vit-b16": "vit_base_r50_s16_224",
        "r50-vit-b32": "vit_large_r50_s32_224",
        "r50-vit-l16": "vit_base_r50_s16_224",
        "r50-vit-l32": "vit_large_r50_s32_224",
    }
