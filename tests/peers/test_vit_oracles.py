"""The ViT against timm's with the same random weights: logits, features of every block, gradients.

Every tensor gets numbers of deviation 0.1, so that nothing which starts at zero or one hides a mistake. timm's weights
load as they are: the names are the same.
"""

from __future__ import annotations

import pytest
import torch

from vitrail.models import ViT, create_backbone

pytestmark = pytest.mark.peers

LOGITS, FEATURES = 1e-4, 2e-5  # of the largest absolute value that is compared; fp32 in 12 blocks
CLASSES = 11


def randomise(model: torch.nn.Module) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            is_scale = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1 + is_scale)
    return model.eval()


def pictures(height: int, width: int) -> torch.Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(1))


def assert_near(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= tolerance * max(1.0, float(theirs.detach().abs().max()))


@pytest.fixture(scope="module", params=[(224, 224), (96, 160)], ids=["square", "oblong"])
def with_timm(request) -> tuple[ViT, torch.nn.Module, torch.Tensor]:
    timm = pytest.importorskip("timm")
    size = request.param
    theirs = randomise(timm.create_model("vit_tiny_patch16_224", img_size=size, num_classes=CLASSES))
    ours = create_backbone("vit-ti16", image_size=size, classes=CLASSES, gelu="exact").eval()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs, pictures(*size)


@torch.no_grad()
def test_logits_are_timms(with_timm):
    ours, theirs, images = with_timm
    assert_near(ours(images), theirs(images), LOGITS)


@torch.no_grad()
def test_features_of_every_block_are_timms(with_timm):
    ours, theirs, images = with_timm
    expected = theirs.forward_intermediates(images, intermediates_only=True, output_fmt="NCHW")
    found = ours.feature_maps(images)
    assert len(found) == len(expected) == 12
    for mine, other in zip(found, expected):
        assert_near(mine, other, FEATURES)
    assert_near(ours.forward_features(images).x, theirs.forward_features(images), FEATURES)


def test_gradients_are_timms(with_timm):
    ours, theirs, images = with_timm
    targets = torch.tensor([3, 7])
    for model in (ours, theirs):
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(images), targets).backward()
    expected = dict(theirs.named_parameters())
    assert len(expected) == len(list(ours.parameters()))
    for name, parameter in ours.named_parameters():
        assert_near(parameter.grad, expected[name].grad, LOGITS)


@torch.no_grad()
def test_a_map_head_is_timms():
    timm = pytest.importorskip("timm")
    options = {"img_size": 64, "num_classes": CLASSES, "global_pool": "map", "class_token": False, "depth": 2}
    theirs = randomise(timm.create_model("vit_tiny_patch16_224", **options))
    ours = create_backbone(
        "vit-ti16", image_size=64, classes=CLASSES, depth=2, gelu="exact", pool="map", prefix=()
    ).eval()
    ours.load_state_dict(theirs.state_dict())
    images = pictures(64, 64)
    assert_near(ours(images), theirs(images), LOGITS)


@torch.no_grad()
def test_layer_scale_and_another_patch_are_timms():
    timm = pytest.importorskip("timm")
    options = {"img_size": 64, "patch_size": 8, "num_classes": CLASSES, "init_values": 1e-5, "depth": 3, "in_chans": 5}
    theirs = randomise(timm.create_model("vit_tiny_patch16_224", **options))
    ours = create_backbone(
        "vit-ti16", image_size=64, patch_size=8, classes=CLASSES, layer_scale=1e-5, depth=3, in_channels=5, gelu="exact"
    ).eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 5, 64, 64, generator=torch.Generator().manual_seed(1))
    assert_near(ours(images), theirs(images), LOGITS)


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
