"""Hybrids and BiT's ResNets that we write in Google's layout, read by timm from the disk: equal logits, in fp64."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from timm import create_model
from timm.layers import StdConv2d
from timm.models.resnetv2 import ResNetV2

from vitrail.models import Backbone, create_backbone
from vitrail.weights.google import from_google, read_npz, to_google

pytestmark = pytest.mark.peers

# timm's numerics, which no file states
TIMMS: dict[str, Any] = {"standardise": "timm", "group_norm_eps": 1e-5}
NEAR = 1e-9  # of the largest logit
HYBRIDS = {
    "r-vit-ti16": "vit_tiny_r_s16_p8_224",
    "r26-vit-s32": "vit_small_r26_s32_224",
    "r50-vit-b16": "vit_base_r50_s16_384",
}


def assert_timm_reads(ours: Backbone, theirs: torch.nn.Module, path: Path) -> None:
    """Both from the file, and both as the model that was written."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, each in ours.named_parameters():
            scale = name.endswith("weight") and each.ndim == 1
            each.copy_(torch.randn(each.shape, generator=draw) * (0.05 if each.ndim == 2 else 0.3) + scale)
    np.savez(path, **to_google(ours.config, ours.state_dict()))
    theirs.load_pretrained(str(path))
    images = torch.randn(2, 3, *ours.config.image_size, generator=draw).double()
    logits = ours.eval().double()(images)
    assert (theirs.eval().double()(images) - logits).abs().max() < NEAR * logits.abs().max()

    config, tensors = from_google(read_npz(path), path)
    told = {name: getattr(ours.config, name) for name in (*TIMMS, "gelu") if hasattr(config, name)}
    again = create_backbone(replace(config, image_size=ours.config.image_size, **told))
    again.load_state_dict(tensors)
    assert torch.equal(again.eval().double()(images), logits)


@pytest.mark.parametrize("name", HYBRIDS)
@torch.no_grad()
def test_timm_reads_the_hybrids_we_write(name, tmp_path):
    theirs = create_model(HYBRIDS[name], img_size=64, num_classes=7, depth=1)
    ours = create_backbone(name, image_size=64, classes=7, depth=1, gelu="exact", **TIMMS)
    assert_timm_reads(ours, theirs, tmp_path / "ours.npz")


@pytest.mark.parametrize(("depths", "width_factor"), [((1, 2, 1, 1), 1), ((2, 1), 2)], ids=["four stages", "x2"])
@torch.no_grad()
def test_timm_reads_the_resnets_we_write(depths, width_factor, tmp_path):
    conv = partial(StdConv2d, eps=1e-8)
    theirs = ResNetV2(depths, num_classes=7, width_factor=width_factor, stem_type="fixed", conv_layer=conv)
    ours = create_backbone("bit-r50x1", image_size=64, classes=7, depths=depths, width_factor=width_factor, **TIMMS)
    assert_timm_reads(ours, theirs, tmp_path / "ours.npz")
