"""The Swin Transformer against timm's with the same random weights: logits, features of every block, gradients.

timm clamps and shifts each axis of a map of its own and rolls before it fills up, where the authors do as we do: sizes are
chosen so that maps are whole windows, and so that in stages of one row of windows nothing is shifted.
"""

from __future__ import annotations

import pytest
import torch

from tests.models.conftest import outputs_of
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
from vitrail.models.swin import Swin

pytestmark = pytest.mark.peers

# 7 x 14 places in a last stage of one block, which has no shift; another window and channels
CASES = {
    "oblong": ((224, 448), {"depths": (2, 2, 2, 1)}),
    "larger than windows": ((128, 192), {"depths": (2, 2), "heads": (3, 6), "window": 4}),
}


def renamed(name: str) -> str:
    """Ours for timm's: "layers" is a verb of every backbone here, and a head is its last layer."""
    return name.replace("layers.", "stages.").replace("head.fc.", "head.")


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def with_timm(request) -> tuple[Swin, torch.nn.Module, torch.Tensor]:
    timm = pytest.importorskip("timm")
    size, changes = request.param
    names = {"depths": "depths", "heads": "num_heads", "window": "window_size"}
    options = {names[field]: value for field, value in changes.items()}
    theirs = timm.create_model("swin_tiny_patch4_window7_224", img_size=size, num_classes=CLASSES, **options)
    theirs = randomise(theirs)
    ours = create_backbone("swin-t", image_size=size, classes=CLASSES, **changes).eval()
    ours.load_state_dict({renamed(name): each for name, each in theirs.state_dict().items()})
    return ours, theirs, pictures(*size)


@torch.no_grad()
def test_logits_and_features_of_every_block_are_timms(with_timm):
    ours, theirs, images = with_timm
    found, expected = (
        outputs_of(block for stage in stages for block in stage.blocks) for stages in (ours.stages, theirs.layers)
    )
    assert_near(ours(images), theirs(images), LOGITS)
    assert len(found) == ours.config.blocks
    for mine, other in zip(found, expected, strict=True):
        assert_near(mine, other, FEATURES)


def test_gradients_are_timms(with_timm):
    ours, theirs, images = with_timm
    expected = {renamed(name): each for name, each in gradients(theirs, images).items()}
    assert_gradients_near(gradients(ours, images), expected)
