"""Files of torchvision and of the authors of DINOv2, MAE, MoCo v3, DINO and Swin, against torchvision and timm itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer import checkpoint_filter_fn as filter_swin
from timm.models.vision_transformer import VisionTransformer
from timm.models.vision_transformer import checkpoint_filter_fn as filter_vit
from torch import Tensor, nn
from torchvision.models import VisionTransformer as TorchvisionViT

from tests.peers.test_weights_timm import shaken
from vitrail.weights import load

pytestmark = pytest.mark.peers
State = dict[str, Tensor]
SIZES: dict[str, Any] = {"patch_size": 14, "embed_dim": 192, "depth": 2, "num_heads": 3}
ONES = torch.ones(3)


def dinov2(model: nn.Module) -> State:
    state = model.state_dict()
    place = torch.linspace(-0.5, 0.5, 192).expand(1, 1, -1)  # a constant would not pass a LayerNorm
    token = {"cls_token": state["cls_token"] - place, "mask_token": torch.ones(1, 192)}
    if "reg_token" in state:
        token["register_tokens"] = state.pop("reg_token")
    else:
        return {**state, **{"mask_token": token["mask_token"]}}
    return {**state, **token, "pos_embed": torch.cat([place, state["pos_embed"]], 1)}


def mae(model: nn.Module) -> State:
    return {**model.state_dict(), "mask_token": ONES, "decoder_pos_embed": ONES, "decoder_blocks.0.norm1.weight": ONES}


def moco(model: nn.Module) -> State:
    state = model.state_dict()
    online = {f"module.base_encoder.{name}": tensor for name, tensor in state.items()}
    momentum = {f"module.momentum_encoder.{name}": tensor + 1 for name, tensor in state.items()}
    return {**online, **momentum, "module.base_encoder.head.0.weight": ONES, "module.predictor.0.weight": ONES}


def dino(model: nn.Module) -> dict[str, Any]:
    state = model.state_dict()
    student = {f"module.backbone.{name}": tensor + 1 for name, tensor in state.items()}
    teacher = {f"backbone.{name}": tensor for name, tensor in state.items()}
    return {
        "student": student,
        "teacher": {**teacher, "head.mlp.0.weight": ONES},
        "epoch": 3,
        "dino_loss": {"center": ONES},
    }


VITS: dict[str, tuple[dict[str, Any], Callable[[nn.Module], dict[str, Any]]]] = {
    "DINOv2": ({"init_values": 1.0}, dinov2),
    "DINOv2 with registers": ({"init_values": 1.0, "reg_tokens": 4, "no_embed_class": True}, dinov2),
    "MAE": ({}, mae),
    "MoCo v3": ({}, moco),
    "DINO": ({}, dino),
}


@pytest.mark.parametrize("size", [(56, 56), (28, 70)])
@pytest.mark.parametrize("kind", VITS)
def test_a_vit_of_its_authors_gives_the_features_of_timm(kind, size, tmp_path):
    changes, names = VITS[kind]
    theirs = shaken(VisionTransformer(**{**SIZES, **changes}, img_size=size, num_classes=0))
    torch.save(names(theirs), tmp_path / "x.pth")
    ours = load(tmp_path / "x.pth", grid=(size[0] // 14, size[1] // 14), log=lambda line: None)
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
    expected = theirs(images)
    torch.testing.assert_close(ours.backbone.pool(ours.forward_features(images)), expected, atol=1e-5, rtol=1e-5)
    assert expected.std(0).max() > 0.01
    if kind in ("MAE", "DINOv2", "DINOv2 with registers"):
        again = VisionTransformer(**{**SIZES, **changes}, img_size=size, num_classes=0).eval()
        known = {name: tensor for name, tensor in names(theirs).items() if not name.startswith("decoder")}
        known = filter_vit(known if "DINOv2" in kind else {**known, "mask_token": torch.ones(1, 192)}, again)
        again.load_state_dict({name: tensor for name, tensor in known.items() if name != "mask_token"})
        torch.testing.assert_close(again(images), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [(56, 56), (56, 112)])
def test_swin_of_its_authors_gives_the_logits_of_timm(size, tmp_path):
    fields: dict[str, Any] = {
        "embed_dim": 24,
        "depths": (2, 2),
        "num_heads": (1, 2),
        "window_size": 7,
        "num_classes": 5,
    }
    theirs = shaken(SwinTransformer(img_size=size, **fields))
    state = {
        re.sub(r"layers\.1\.downsample", "layers.0.downsample", name).replace("head.fc.", "head."): tensor
        for name, tensor in theirs.state_dict().items()
    }
    buffers = {"layers.0.blocks.1.attn_mask": ONES, "layers.0.blocks.0.attn.relative_position_index": ONES}
    torch.save({"model": {**state, **buffers}}, tmp_path / "x.pth")
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
    again = SwinTransformer(img_size=size, **fields).eval()
    again.load_state_dict(filter_swin({"model": {**state, **buffers}}, again))
    ours = load(tmp_path / "x.pth", image_size=size, log=lambda line: None)
    torch.testing.assert_close(ours(images), theirs(images), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(again(images), theirs(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("hidden", [None, 192])
def test_the_vit_of_torchvision_gives_its_logits(hidden, tmp_path: Path):
    fields: dict[str, Any] = {"num_layers": 2, "num_heads": 3, "hidden_dim": 192, "mlp_dim": 384, "num_classes": 5}
    theirs = shaken(TorchvisionViT(image_size=32, patch_size=8, representation_size=hidden, **fields))
    torch.save(theirs.state_dict(), tmp_path / "x.pth")
    ours = load(tmp_path / "x.pth", log=lambda line: None)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours(images), theirs(images), atol=1e-5, rtol=1e-5)
