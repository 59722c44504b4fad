"""BiT's ResNet and the hybrids against timm's with the same random weights: logits, maps after every block, gradients.

In fp64: in fp32 another rounding switches some of the ReLUs, and gradients jump by a hundredth. timm's names are ours, but
for the head of a ResNet alone: a convolution, one deeper.
"""

from __future__ import annotations

import pytest
import torch

from tests.models.conftest import outputs_of
from tests.peers.oracles import CLASSES, assert_near, pictures, randomise
from vitrail.models import Backbone, create_backbone

pytestmark = pytest.mark.peers

NEAR = 1e-9  # of the largest value that is compared
TIMMS = {"standardise": "timm", "group_norm_eps": 1e-5, "gelu": "exact"}


def named_as_ours(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name.replace("head.fc", "head"): each.squeeze() if "head.fc" in name else each for name, each in state.items()
    }


def blocks_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [each for each in model.modules() if type(each).__name__.endswith("Bottleneck")]


def assert_same(ours: Backbone, theirs: torch.nn.Module, images: torch.Tensor, blocks: int) -> None:
    """Maps after every block, logits, and the gradient of every parameter."""
    ours, theirs, images = ours.double(), theirs.double(), images.double()
    mine, other = outputs_of(blocks_of(ours)), outputs_of(blocks_of(theirs))
    answers = []
    for model in (ours, theirs):
        model.zero_grad()
        answers.append(model(images))
        torch.nn.functional.cross_entropy(answers[-1], torch.tensor([3, 7])).backward()
    assert len(mine) == len(other) == blocks
    for found, expected in zip(mine, other):
        assert_near(found, expected, NEAR)
    assert_near(*answers, NEAR)
    gradients = named_as_ours({name: each.grad for name, each in theirs.named_parameters()})
    assert gradients.keys() == dict(ours.named_parameters()).keys()
    for name, parameter in ours.named_parameters():
        assert (parameter.grad - gradients[name]).abs().max() <= 1e-7 * gradients[name].abs().max(), name


def test_bit_r50x1_is_timms():
    timm = pytest.importorskip("timm")
    theirs = randomise(timm.create_model("resnetv2_50x1_bit", num_classes=CLASSES))
    ours = create_backbone("bit-r50x1", classes=CLASSES, standardise="timm").eval()
    ours.load_state_dict(named_as_ours(theirs.state_dict()))
    images = pictures(49, 67).double()
    assert_same(ours, theirs, images, blocks=16)
    with torch.no_grad():
        expected = theirs.forward_intermediates(images, intermediates_only=True)[1:]
        for found, other in zip(ours.feature_maps(images), expected, strict=True):
            assert_near(found, other, NEAR)


HYBRIDS = {  # ours: timm's, the blocks of its stem, and a size
    "r-vit-ti16": ("vit_tiny_r_s16_p8_224", 0, (64, 128)),
    "r26-vit-s32": ("vit_small_r26_s32_224", 8, (64, 64)),
    "r50-vit-b16": ("vit_base_r50_s16_384", 16, (48, 80)),
}


@pytest.mark.parametrize("name", HYBRIDS)
def test_hybrids_are_timms(name):
    """With two blocks after the stem, of which nothing is left out."""
    timm = pytest.importorskip("timm")
    theirs, blocks, size = HYBRIDS[name]
    theirs = randomise(timm.create_model(theirs, img_size=size, num_classes=CLASSES, depth=2))
    ours = create_backbone(name, image_size=size, classes=CLASSES, depth=2, **TIMMS).eval()
    ours.load_state_dict(theirs.state_dict())
    assert_same(ours, theirs, pictures(*size), blocks)
