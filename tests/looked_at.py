"""A classifier of every architecture to look into, with numbers of some size in every tensor, and pictures for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tests.models.tiny import TINY
from vitrail.inference.options import InferenceOptions
from vitrail.models import Config
from vitrail.tasks.classification.classifier import Classifier, create_classifier

QUIET = InferenceOptions(quiet=True, max_bad=1)
NAMES = ("ant", "bee", "cat", "dog", "eel", "fly", "<b>gnu</b>")


def shaken(config: Config = TINY["vit"], names: tuple[str, ...] = NAMES) -> Classifier:
    model = create_classifier(config, classes=names)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=generator)
    return model.eval()


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def write_pictures(folder: Path, classes: Sequence[str], sizes: Sequence[tuple[int, int]]) -> Path:
    """Writes a folder of pictures of noise for each class, one of each of the ``sizes``: 00.png, 01.png, ..."""
    for row, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number, size in enumerate(sizes):
            picture(*size, seed=row * len(sizes) + number).save(folder / name / f"{number:02}.png")
    return folder
