"""The name table of timm's layout against timm itself: equal logits there and back, for every kind of plain ViT."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from vitrail.models import create_backbone
from vitrail.weights.timm.vit import VIT

pytestmark = pytest.mark.peers
SIZES = {"img_size": 64, "patch_size": 16, "embed_dim": 192, "depth": 3, "num_heads": 3, "num_classes": 7}
KINDS = {
    "plain": {},
    "no qkv bias": {"qkv_bias": False},
    "DeiT III": {"no_embed_class": True, "init_values": 1e-5},
    "registers without slots": {"reg_tokens": 4, "no_embed_class": True, "init_values": 1e-5},
    "registers with slots": {"reg_tokens": 2},
    "a picture that is no square": {"img_size": (48, 64)},
    "mean of patches": {"class_token": False, "global_pool": "avg", "fc_norm": False},
    "mean of patches beside a class token": {"global_pool": "avg", "fc_norm": False},
    "norm after the mean of patches": {"class_token": False, "global_pool": "avg"},
    "norm after the mean beside a class token": {"global_pool": "avg", "no_embed_class": True},
    "attention pooling": {"class_token": False, "global_pool": "map"},
    "attention pooling of all tokens": {"global_pool": "map", "pool_include_prefix": True},
    "an odd MLP": {"mlp_ratio": 4304 / 1152},
    "tanh GELU": {"act_layer": "gelu_tanh"},
    "registers alone": {"class_token": False, "reg_tokens": 2, "global_pool": "avg", "no_embed_class": True},
}


def shaken(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.08 if parameter.ndim == 2 else 0.3
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return model.eval()


@pytest.fixture
def images(request: pytest.FixtureRequest) -> torch.Tensor:
    kind = getattr(request.node, "callspec", None)
    size = KINDS[kind.params["kind"]].get("img_size", (64, 64)) if kind else (64, 64)
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", KINDS)
def test_timms_weights_give_timms_logits_there_and_back(kind, images):
    theirs = shaken(VisionTransformer(**{**SIZES, **KINDS[kind]}))
    config, tensors = VIT.read(theirs.state_dict(), Path("timm"), KINDS[kind])
    ours = create_backbone(config)
    ours.load_state_dict(tensors)
    torch.testing.assert_close(ours.eval()(images), theirs(images), atol=1e-5, rtol=1e-5)

    again = VisionTransformer(**{**VIT.arguments(config), "num_classes": 7})
    again.load_state_dict(VIT.write(config, tensors))
    torch.testing.assert_close(again.eval()(images), theirs(images), atol=1e-5, rtol=1e-5)


def test_the_distilled_model_averages_its_two_heads(images):
    theirs = shaken(VisionTransformerDistilled(**SIZES))
    config, tensors = VIT.read(theirs.state_dict(), Path("timm"))
    ours = create_backbone(config)
    ours.load_state_dict(tensors)
    torch.testing.assert_close(ours.eval()(images), theirs(images), atol=1e-5, rtol=1e-5)
    again = VisionTransformerDistilled(**SIZES)
    again.load_state_dict(VIT.write(config, tensors))
    torch.testing.assert_close(again.eval()(images), theirs(images), atol=1e-5, rtol=1e-5)
