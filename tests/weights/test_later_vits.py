"""Bare files of DINOv3, EVA-02, Perception Encoder and CLIP by their structure, and DINOv3 and DINOv2's giant in Meta's names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from huggingface_hub.errors import RepositoryNotFoundError
from safetensors.torch import save_file
from torch import Tensor

from tests.each_row import each_row
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import Backbone, ViTConfig, create_backbone
from vitrail.models.rope import Rotation
from vitrail.tasks.classification.classifier import Classifier
from vitrail.verbs.convert import convert
from vitrail.weights import hub, load
from vitrail.weights.native import save_model
from vitrail.weights.read import read_model
from vitrail.weights.resolve import resolve_model
from vitrail.weights.timm import family_of

SIZES: dict[str, Any] = {"image_size": (32, 32), "patch_size": 8, "width": 192, "depth": 2, "heads": 3, "classes": 0}
SIZES |= {"gelu": "exact", "position_resize": "bicubic-antialias"}
DINOV3 = {
    "rope": "dinov3",
    "positions": "none",
    "registers": 4,
    "qkv_bias": "qv",
    "layer_scale": 1e-5,
    "norm_eps": 1e-5,
}
EVA02 = {"rope": "eva02", "rope_grid": (16, 16), "qkv_bias": "qv"}
KINDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "DINOv3": (DINOV3, ("rotary positions 'dinov3'", "pooling 'cls'", "image size 256x256", "LayerNorm eps 1e-05")),
    "EVA-02": (
        {**EVA02, "mlp": "swiglu", "mlp_width": 512, "pool": "gap", "pool_norm": True},
        ("rotary positions 'eva02'", "pooling 'gap'", "LayerNorm eps 1e-06"),
    ),
    "PE core": (
        {"rope": "pe", "rope_grid": (4, 4), "pre_norm": True, "pool": "map", "pool_heads": 8, "norm_eps": 1e-5},
        ("rotary positions 'pe'", "pooling 'map'", "LayerNorm eps 1e-05"),
    ),
    "CLIP": ({"pre_norm": True, "norm_eps": 1e-5, "projection": 512}, ("exact GELU", "LayerNorm eps 1e-05", "3 heads")),
}  # fmt: skip


def create(**changes: Any) -> Backbone:
    """Returns a network whose every tensor has numbers of non-trivial size."""
    model = create_backbone(ViTConfig(**{**SIZES, **changes}))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


def write(tensors: dict[str, Tensor], folder: Path) -> Path:
    path = folder / "weights.safetensors"
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, path)
    return path


def assert_equal(path: Path, expected: Backbone) -> list[str]:
    """The features of the file are those of the network, at an image size that both take. Returns the lines of the log."""
    lines: list[str] = []
    model = load(path, log=lines.append)
    images = torch.randn(2, 3, 48, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(model.backbone.features(images), expected.features(images), atol=1e-5, rtol=1e-5)
    return lines


@each_row("kind", list(KINDS))
def test_bare_files_are_read_by_their_structure_and_assumptions_are_logged(kind, tmp_path):
    changes, assumed = KINDS[kind]
    model = create(**changes)
    path = write(family_of(model.config).write(model.config, model.state_dict()), tmp_path)
    line = next(line for line in assert_equal(path, model) if line.startswith("assumed"))
    assert all(each in line for each in assumed), line


def periods_of(theta: float) -> Tensor:
    return theta ** (torch.arange(16) / 16)


def to_meta(model: Backbone) -> dict[str, Tensor]:
    """Returns the tensors of a DINOv3 in Meta's names, with what its files hold besides."""
    theirs: dict[str, Tensor] = {"mask_token": torch.zeros(1, 192), "rope_embed.periods": periods_of(100.0)}
    for name, tensor in model.state_dict().items():
        owner, _, last = name.rpartition(".")
        if last == "q_bias":
            v_bias = model.state_dict()[f"{owner}.v_bias"]
            theirs[f"{owner}.qkv.bias"] = torch.cat([tensor, torch.full_like(tensor, 9.0), v_bias])
            theirs[f"{owner}.qkv.bias_mask"] = torch.cat([torch.ones(192), torch.zeros(192), torch.ones(192)])
        elif owner.endswith("mlp.fc1") and model.config.mlp == "swiglu":
            gate, value = tensor.chunk(2)
            theirs |= {f"{owner[:-3]}w1.{last}": gate, f"{owner[:-3]}w2.{last}": value}
        elif owner.endswith("mlp.fc2") and model.config.mlp == "swiglu":
            theirs[f"{owner[:-3]}w3.{last}"] = tensor
        elif last != "v_bias":
            theirs[name.replace("reg_token", "storage_tokens")] = tensor
    return theirs


@each_row("changes", [{}, {"mlp": "swiglu", "mlp_width": 96}])
def test_dinov3_in_metas_names_has_no_bias_of_k(changes, tmp_path):
    model = create(**DINOV3, **changes)
    lines = assert_equal(write(to_meta(model), tmp_path), model)
    assert any("mask_token" in line for line in lines if line.startswith("unused"))


def test_a_mask_that_leaves_k_a_bias_is_refused(tmp_path):
    tensors = to_meta(create(**DINOV3))
    tensors["blocks.1.attn.qkv.bias_mask"] = torch.ones(576)
    with pytest.raises(CheckpointError, match="is not 1 for q and v and 0 for k"):
        load(write(tensors, tmp_path))


@torch.no_grad()
def test_periods_that_are_rounded_to_bf16_give_the_features_of_exact_ones(tmp_path, monkeypatch):
    """Those of Meta's files are: its own code rotates by what the file holds, and vitrail by theta."""
    model = create(**DINOV3)
    for tensor in model.parameters():
        tensor.data *= 0.5  # of the size in a trained network, so that attention is not of one patch alone
    images, tensors = torch.randn(2, 3, 48, 32, generator=torch.Generator().manual_seed(1)), to_meta(model)
    exact = load(write(tensors, tmp_path), log=lambda line: None).backbone.features(images)
    rounded = tensors["rope_embed.periods"].bfloat16()
    read = load(write({**tensors, "rope_embed.periods": rounded}, tmp_path), log=lambda line: None)
    assert torch.equal(read.backbone.features(images), exact)

    def rotate_by_them(config: ViTConfig, frequencies: None, ids: None, leading: int, places: Tensor) -> list[Rotation]:
        angles = F.pad((places[..., None] / rounded.float()).movedim(0, 1).flatten(1), (0, 0, leading, 0))
        cos, sin = angles.cos(), angles.sin()
        return [Rotation(torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1))]

    monkeypatch.setattr("vitrail.models.vit.make_rotations", rotate_by_them)
    theirs = model.features(images)
    assert 0 < (theirs - exact).norm() <= 2e-4 * exact.norm()


@each_row("theta", [98.5, 101.5, 10_000.0])
def test_periods_of_another_theta_are_refused(theta, tmp_path):
    for periods in (periods_of(theta), periods_of(theta).bfloat16()):
        with pytest.raises(CheckpointError, match="periods are not those of theta 100"):
            load(write({**to_meta(create(**DINOV3)), "rope_embed.periods": periods}, tmp_path))


@pytest.mark.slow
@torch.no_grad()
def test_one_dinov3_in_the_layouts_of_timm_transformers_and_meta_has_equal_features(tmp_path):
    model = create(**DINOV3)
    source = save_model(tmp_path / "source", Classifier(model, (), Preprocessing.paper((32, 32))))
    paths = {layout: convert(source, tmp_path / layout, layout).path for layout in ("timm", "huggingface")}
    paths["meta"] = write(to_meta(model), tmp_path)
    images = torch.randn(2, 3, 48, 32, generator=torch.Generator().manual_seed(1))
    expected = model.features(images)
    for layout, path in paths.items():
        read = read_model(resolve_model(path), lambda line: None, use_sidecar=False).model.backbone
        for pool in ("cls", "gap"):
            ours, theirs = (create_backbone(replace(each.config, pool=pool)).eval() for each in (model, read))
            ours.load_state_dict(model.state_dict())
            theirs.load_state_dict(read.state_dict())
            difference = ours.features(images) - theirs.features(images)
            assert difference.norm() <= 1e-6 * expected.norm(), (layout, pool)


def test_dinov2s_giant_in_metas_names(tmp_path):
    model = create(mlp="swiglu", mlp_width=96, layer_scale=1e-5)
    renamed = {
        name.replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3"): tensor
        for name, tensor in model.state_dict().items()
    }
    assert_equal(write(renamed, tmp_path), model)


def test_a_grid_for_a_file_without_a_table_is_refused(tmp_path):
    model = create(**DINOV3)
    path = write(family_of(model.config).write(model.config, model.state_dict()), tmp_path)
    with pytest.raises(ConfigError, match="has no table of positions"):
        load(path, grid=(4, 4))


def test_gated_weights_without_access_name_what_to_do(monkeypatch):
    def refuse(*arguments: Any, **keywords: Any) -> None:
        raise RepositoryNotFoundError.__new__(RepositoryNotFoundError)

    monkeypatch.setattr(hub, "find_cached", lambda *arguments: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(ConfigError) as caught:
        load("hf:facebook/dinov3-vits16-pretrain-lvd1689m", log=lambda line: None)
    assert "accept its licence" in caught.value.remedy
    assert "hf:timm/vit_small_patch16_dinov3.lvd1689m" in caught.value.remedy


def test_an_architecture_that_is_not_known_is_refused_and_read_without_its_name(tmp_path):
    model = create()
    tensors = family_of(model.config).write(model.config, model.state_dict())
    write(tensors, tmp_path).rename(tmp_path / "model.safetensors")
    described = {"architecture": "vit_base_patch16_dinov9", "model_args": {"num_heads": 3}}
    (tmp_path / "config.json").write_text(json.dumps(described))
    with pytest.raises(CheckpointError, match="'vit_base_patch16_dinov9', which is not known"):
        load(tmp_path, log=lambda line: None)
    described["architecture"] = "vit_tiny_patch8_32"
    (tmp_path / "config.json").write_text(json.dumps(described))
    assert load(tmp_path, log=lambda line: None).config.rope == "none"
