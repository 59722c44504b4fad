"""Small classifiers of every architecture to export, and the sizes and batches that their graphs are run at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from tests.models.conftest import shaken
from tests.models.tiny import TINY
from vitrail.models import Config
from vitrail.tasks.classification import Classifier, create_classifier

VIT = TINY["vit"]
# what TINY leaves out: each kind of position and pooling, DeiT's two heads, BEiT's other biases
VARIANTS: dict[str, Config] = {
    "vit, one block": replace(VIT, depth=1),
    "vit, gap, learned2d": replace(VIT, pool="gap", positions="learned2d"),
    "vit, map, sincos2d": replace(VIT, pool="map", prefix=(), positions="sincos2d"),
    "vit, relative": replace(VIT, positions="relative"),
    "vit, shared relative": replace(VIT, positions="relative", positions_at="shared", registers=1),
    "vit, no positions, pad": replace(VIT, positions="none", pad=True),
    "vit, positions at every block": replace(
        VIT, positions_at="every", registers=2, position_resize="bicubic-antialias"
    ),
    "deit": replace(VIT, prefix=("cls", "dist"), layer_scale=0.1),
    "beit, no bias": replace(TINY["beit"], relative_bias="none"),
    "beit, cubic": replace(TINY["beit"], bias_resize="geometric-cubic"),
    "encoder": replace(VIT, classes=0),
}
ALL = {**TINY, **VARIANTS}


def classifier_of(name: str) -> Classifier:
    config = ALL[name]
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
