"""A tiny model that starts fast, pictures that it tells apart, and the questions whose answers it gave offline."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from itertools import combinations

import numpy as np
import torch
from PIL import Image

from tests.looked_at import shaken
from tests.serving.load import Question, agree, is_prediction, upload
from vitrail.models import Config, ViTConfig
from vitrail.tasks.classification.classifier import Classifier

TINY = ViTConfig(image_size=32, patch_size=8, width=16, depth=3, heads=2, mlp_width=24, classes=7)
# a few milliseconds an image: what a flood can outrun
HEAVY = ViTConfig(image_size=128, patch_size=8, width=96, depth=6, heads=3, mlp_width=384, classes=7)


def model(letter: str = "a", config: Config = TINY) -> Classifier:
    """Random weights, its classes named after the letter: a0, a1 ...; the mean photograph is as likely one as another."""
    classifier = shaken(config, tuple(f"{letter}{number}" for number in range(7)))
    with torch.no_grad():
        logits = classifier(classifier.preprocess(photographs(20)))  # (20, 7)
        classifier.get_parameter("backbone.head.bias").sub_(logits.mean(0))
    classifier.temperature = float(logits.std(0).mean())
    return classifier


def photographs(count: int, *, side: int = 96) -> list[bytes]:
    """JPEG files of a few large patches of colour."""
    chance = np.random.default_rng(0)
    found = []
    for _ in range(count):
        patches = Image.fromarray(chance.integers(0, 256, (3, 4, 3), dtype=np.uint8))
        file = BytesIO()
        patches.resize((side, side), Image.Resampling.BICUBIC).save(file, "JPEG")
        found.append(file.getvalue())
    return found


def questions(
    classifier: Classifier, images: Sequence[bytes], path: str = "/v1/predict", **headers: str
) -> list[Question]:
    """One upload for each image. No image's answer may pass for that of another."""
    tops = [each.top for each in classifier.predict(images)]
    assert not any(agree(top, other) for top, other in combinations(tops, 2))
    return [Question(upload(path, image, **headers), is_prediction(top)) for image, top in zip(images, tops)]
