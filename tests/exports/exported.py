"""Small classifiers of every architecture to export, and the sizes and batches that their graphs are run at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from tests.models.conftest import shaken
from tests.models.test_vit_kinds import KINDS, SIZES
from tests.models.tiny import SHALLOW, TINY, TWO_STAGES
from vitrail.models import Config, ViTConfig
from vitrail.tasks.classification.classifier import Classifier, create_classifier

VIT = SHALLOW["vit"]
CONFIGS: dict[str, Config] = {
    **SHALLOW,
    "swin": replace(TINY["swin"], depths=(2, 1)),
    # what has code of its own in a graph: windows, averages, a stem, each kind of position and pooling, two heads
    "vit, windows": replace(TINY["vit, windows"], depth=2),
    "vit, stem": replace(TINY["vit, stem"], stem=(1,), patch_size=8, depth=1),
    "vit, sincos2d, gap": replace(VIT, prefix=(), positions="sincos2d", pool="gap"),
    "vit, learned2d at every block, map": replace(
        VIT, positions="learned2d", positions_at="every", pool="map", pad=True
    ),
    "deit": replace(VIT, prefix=("cls", "dist"), layer_scale=0.1, registers=2, position_resize="bicubic-antialias"),
    "dinov3": replace(TINY["vit, dinov3"], depth=1),
    "eva02": replace(TINY["vit, eva02"], depth=1),
    "pe core": replace(VIT, rope="pe", rope_grid=(4, 4), pre_norm=True, gelu="quick", pool="map", pool_heads=1),
    "aimv2": replace(VIT, norm="rms", patch_norm=True, bias=False, qkv_bias=False, mlp="swiglu", prefix=(), pool="gap"),
    "rope-vit": replace(VIT, rope="mixed", positions="none", layer_scale=0.1),
    # the kinds of later ViTs that are not above
    **{
        kind: ViTConfig(**{**SIZES, "depth": 1, **KINDS[kind]})
        for kind in ("dinov2-giant", "clip", "siglip", "eva02-e", "radio", "sbb")
    },
    "encoder, relative": replace(VIT, classes=0, positions="relative", registers=1),
    "beit, one cubic table": replace(TINY["beit, one table"], depth=1, bias_resize="geometric-cubic"),
    "pvt v2, linear": replace(TINY["pvt v2, linear"], **TWO_STAGES),
}


def classifier_of(name: str) -> Classifier:
    config = CONFIGS[name]
    model = create_classifier(config, classes=config.classes)
    shaken(model)
    return model.eval()


def shapes_of(model: Classifier, *, is_dynamic: bool) -> list[tuple[int, int, int]]:
    """(batch, height, width): every one of three batches, at three sizes where sizes are open."""
    config = model.config
    (height, width), (down, right) = config.image_size, config.cell
    if not is_dynamic:
        return [(batch, height, width) for batch in (1, 3, 8)]
    # an image of odd sides, where they are taken, is filled up in every stage
    odd = (height + 1, width + 3) if getattr(config, "pad", True) else (2 * height + down, height + 3 * right)
    sizes = [(2 * height, 2 * width), (3 * down, 5 * right) if min(config.cell) > 8 else (height, width), odd]
    return [(batch, *size) for batch in (1, 3, 8) for size in sizes]


def images_of(model: Classifier, shape: tuple[int, int, int]) -> Tensor:
    batch, height, width = shape
    generator = torch.Generator().manual_seed(batch * height + width)
    return torch.randn(batch, model.config.in_channels, height, width, generator=generator)


@torch.no_grad()
def expected(model: Classifier, images: Tensor) -> dict[str, Tensor]:
    features = model.features(images)
    return {"logits": model(images), "features": features} if model.classes else {"features": features}


def assert_same_answers(model: Classifier, run: Callable[[Tensor], dict[str, Tensor]], *, is_dynamic: bool) -> None:
    """To 1e-4, at all of `shapes_of`."""
    for shape in shapes_of(model, is_dynamic=is_dynamic):
        images = images_of(model, shape)
        difference = _largest_difference(run(images), expected(model, images))
        assert difference <= 1e-4, (shape, difference)


def _largest_difference(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    assert list(found) == list(wanted)
    return max((found[name] - wanted[name]).abs().max().item() for name in wanted)
