"""The ViT against timm's with the same random weights: logits, features of every block, gradients.

timm's weights load as they are: the names are the same.
"""

from __future__ import annotations

import pytest
import torch

from tests.peers.oracles import (
    CLASSES,
    FEATURES,
    LOGITS,
    assert_gradients_near,
    assert_near,
    gradients,
    pictures,
    randomise,
)
from vitrail.models import ViT, create_backbone

pytestmark = pytest.mark.peers

SIZE = (96, 160)


@pytest.fixture(scope="module")
def with_timm() -> tuple[ViT, torch.nn.Module, torch.Tensor]:
    timm = pytest.importorskip("timm")
    theirs = randomise(timm.create_model("vit_tiny_patch16_224", img_size=SIZE, num_classes=CLASSES))
    ours = create_backbone("vit-ti16", image_size=SIZE, classes=CLASSES, gelu="exact").eval()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs, pictures(*SIZE)


@torch.no_grad()
def test_logits_and_features_of_every_block_are_timms(with_timm):
    ours, theirs, images = with_timm
    assert_near(ours(images), theirs(images), LOGITS)
    expected = theirs.forward_intermediates(images, intermediates_only=True, output_fmt="NCHW")
    found = ours.feature_maps(images)
    assert len(found) == len(expected) == 12
    for mine, other in zip(found, expected):
        assert_near(mine, other, FEATURES)
    assert_near(ours.forward_features(images).x, theirs.forward_features(images), FEATURES)


def test_gradients_are_timms(with_timm):
    ours, theirs, images = with_timm
    assert_gradients_near(gradients(ours, images), gradients(theirs, images))


@torch.no_grad()
def test_positions_resized_with_antialiasing_are_timms():
    timm = pytest.importorskip("timm")
    theirs = randomise(timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, depth=2, dynamic_img_size=True))
    options = {"classes": CLASSES, "depth": 2, "gelu": "exact", "position_resize": "bicubic-antialias"}
    ours = create_backbone("vit-ti16", **options).eval()
    ours.load_state_dict(theirs.state_dict())
    for size in ((384, 384), (96, 160)):
        images = pictures(*size)
        assert_near(ours(images), theirs(images), LOGITS)
