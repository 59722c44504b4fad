"""PVT v2 against timm's with the same random weights: logits, maps of every stage, features of every block, gradients.

timm's weights load as they are: the names are the same.
"""

from __future__ import annotations

import pytest
import torch

from tests.models.conftest import outputs_of
from tests.peers.oracles import CLASSES, LOGITS, assert_gradients_near, assert_near, gradients, pictures, randomise
from vitrail.models import create_backbone
from vitrail.models.pvt_v2 import PVTv2

pytestmark = pytest.mark.peers

SIZES = {"oblong": (96, 160), "odd": (101, 75)}


@pytest.fixture(scope="module", params=[False, True], ids=["", "linear"])
def with_timm(request) -> tuple[PVTv2, torch.nn.Module]:
    timm = pytest.importorskip("timm")
    theirs = randomise(timm.create_model("pvt_v2_b0", num_classes=CLASSES, linear=request.param))
    ours = create_backbone("pvt-v2-b0", classes=CLASSES, linear=request.param).eval()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@torch.no_grad()
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_logits_features_of_every_block_and_maps_are_timms(with_timm, size):
    ours, theirs = with_timm
    images = pictures(*size)
    mine, others = (outputs_of(block for stage in model.stages for block in stage.blocks) for model in with_timm)
    assert_near(ours(images), theirs(images), LOGITS)
    assert len(mine) == len(others) == 8
    for found, expected in zip(mine, others):
        assert_near(found, expected, LOGITS)
    expected = theirs.forward_intermediates(images, intermediates_only=True)
    for found, other in zip(ours.feature_maps(images), expected, strict=True):
        assert_near(found, other, LOGITS)


def test_gradients_are_timms(with_timm):
    ours, theirs = with_timm
    images = pictures(101, 75)
    assert_gradients_near(gradients(ours, images), gradients(theirs, images))
