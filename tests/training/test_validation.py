"""What is watched while learning without labels, on images and networks small enough to be looked at whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.models.tiny import TINY
from vitrail.config.schema import DataSettings, Run, SaveSettings, ScheduleSettings
from vitrail.data.loader import stop_at_bad
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Splits
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.training.validation import CodeValidator, FeatureValidator

RUN = Run(
    data=DataSettings(batch=16, micro_batch=16),
    schedule=ScheduleSettings(steps=1),
    save=SaveSettings(watched=120),
)


def never() -> bool:
    return False


def photos(images: int = 50, *, classes: int = 2) -> Splits:
    """Noise of 32 x 32 pixels whose brightness tells the class, all of it for training."""
    targets, random = np.arange(images) % classes, np.random.default_rng(0)
    pixels = random.integers(0, 90, (images, 32, 32, 3)) + 80 * targets[:, None, None, None]
    return open_data((pixels.astype(np.uint8), targets), validation=0)


def filled(module: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return module


def test_the_figures_of_a_tokenizer_are_those_of_all_its_images_at_once():
    tokenizer = Tokenizer(TokenizerConfig(patch_size=4, width=8, depth=1, levels=(4, 4)))
    filled(tokenizer)
    validator = CodeValidator(tokenizer, preprocessing := Preprocessing.paper((32, 32)), photos(), RUN, stop_at_bad)
    figures = validator(RUN, never)
    assert figures is not None and tokenizer.training
    pictures = torch.from_numpy(np.stack([validator.queries.read(row).content for row in range(40)]))
    pictures = pictures.movedim(3, 1) / 255  # (B, C, H, W)
    with torch.no_grad():
        made = (tokenizer(preprocessing.normalise(pictures))[0] / 2 + 0.5).clamp(0, 1)
    cells = pictures.unflatten(3, (8, 4)).unflatten(2, (8, 4))
    for name, error in (
        ("psnr_held_out", made - pictures),
        ("psnr_mean_colour", cells - cells.mean((3, 5), keepdim=True)),
    ):
        assert figures[name] == pytest.approx(-10 * np.log10(error.double().square().mean().item()), rel=1e-4)


def test_no_image_is_its_own_neighbour_where_too_few_were_held_out():
    model = create_classifier(TINY["vit"], classes=())
    filled(model)
    validator = FeatureValidator(model, photos(), RUN, stop_at_bad)
    assert not set(validator.known.keys) & set(validator.queries.keys)
    assert len(validator.known) == len(validator.queries) == 25
    figures = validator(RUN, never)
    assert figures is not None and model.training
    assert figures["knn"] > 0.9 > figures["chance"]
    assert validator(RUN, lambda: True) is None


def test_two_thirds_of_the_watched_images_are_known_and_one_third_is_classified():
    pixels, labels = np.zeros((300, 32, 32, 3), np.uint8), np.arange(300) % 2
    splits = open_data({"train": (pixels[:200], labels[:200]), "val": (pixels[200:], labels[200:])})
    validator = FeatureValidator(create_classifier(TINY["vit"], classes=()), splits, RUN, stop_at_bad)
    assert (len(validator.known), len(validator.queries)) == (80, 40)
    assert validator.known.keys[0].startswith("train") and validator.queries.keys[0].startswith("val")


def test_without_labels_nobody_is_asked_for_them():
    train = photos().train
    assert train is not None
    pixels = np.stack([train.read(row).content for row in range(len(train))])
    model = create_classifier(TINY["vit"], classes=())
    figures = FeatureValidator(model, open_data(pixels, validation=0, labelled=False), RUN, stop_at_bad)(RUN, never)
    assert figures is not None and figures.keys() == {"effective_rank", "spread"}
