"""Files that we write in Google's layout, read by timm from the disk: equal logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from vitrail.models import create_backbone
from vitrail.weights.google import from_google, read_npz, to_google

pytestmark = pytest.mark.peers
KINDS = {
    "class token": ({}, {}),
    "mean of patches": ({"prefix": (), "pool": "gap"}, {"class_token": False, "global_pool": "avg", "fc_norm": False}),
    "attention pooling": ({"prefix": (), "pool": "map"}, {"class_token": False, "global_pool": "map"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_timm_reads_what_we_write(kind, tmp_path: Path):
    changes, told = KINDS[kind]
    ours = create_backbone("vit-ti16", depth=2, image_size=64, classes=7, gelu="exact", **changes).eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * (0.08 if parameter.ndim == 2 else 0.3))
    np.savez(tmp_path / "ours.npz", **to_google(ours.config, ours.state_dict()))
    theirs = VisionTransformer(img_size=64, embed_dim=192, depth=2, num_heads=3, num_classes=7, **told)
    theirs.load_pretrained(str(tmp_path / "ours.npz"))
    images = torch.randn(2, 3, 64, 64, generator=draw)
    torch.testing.assert_close(ours(images), theirs.eval()(images), atol=1e-5, rtol=1e-5)

    config, tensors = from_google(read_npz(tmp_path / "ours.npz"), tmp_path / "ours.npz")
    again = create_backbone(config, gelu="exact")
    again.load_state_dict(tensors)
    assert torch.equal(again.eval()(images), ours(images))
