"""CaiT against timm's with the same random weights: logits, features of every block, attention's parts, gradients.

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
from vitrail.models import create_backbone
from vitrail.models.cait import CaiT

pytestmark = pytest.mark.peers

SIZE = (96, 160)


@pytest.fixture(scope="module")
def with_timm() -> tuple[CaiT, torch.nn.Module, torch.Tensor]:
    timm = pytest.importorskip("timm")
    theirs = randomise(timm.create_model("cait_xxs24_224", img_size=SIZE, num_classes=CLASSES))
    ours = create_backbone("cait-xxs24", image_size=SIZE, classes=CLASSES).eval()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs, pictures(*SIZE)


@torch.no_grad()
def test_logits_and_features_of_every_block_are_timms(with_timm):
    ours, theirs, images = with_timm
    assert_near(ours(images), theirs(images), LOGITS)
    assert_near(ours.forward_features(images).x, theirs.forward_features(images), LOGITS)
    expected = theirs.forward_intermediates(images, intermediates_only=True, output_fmt="NCHW")
    for mine, other in zip(ours.feature_maps(images), expected, strict=True):
        assert_near(mine, other, FEATURES)


@torch.no_grad()
def test_attention_is_timms(with_timm):
    ours, theirs, images = with_timm
    seen = []
    for block in theirs.blocks:
        # what timm's proj_w is given: the softmax, with the heads last
        block.attn.proj_w.register_forward_pre_hook(lambda module, given: seen.append(given[0].permute(0, 3, 1, 2)))
    theirs(images)
    _, matrices = ours.forward_with_attention(images)
    for mine, other in zip(matrices[:24], seen, strict=True):
        assert_near(mine, other, FEATURES)


def test_gradients_are_timms(with_timm):
    ours, theirs, images = with_timm
    assert_gradients_near(gradients(ours, images), gradients(theirs, images))
