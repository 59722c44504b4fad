"""ViTs against those of transformers, which come through files: logits, features of every block, attention, gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.conftest import assert_near
from tests.models.theirs import VITS, build, saved
from vitrail.tasks.classification.classifier import Classifier
from vitrail.weights import load
from vitrail.weights.folders import read_folder
from vitrail.weights.huggingface import FAMILIES

NEAR = 1e-5  # of the largest absolute value that is compared, in fp32
SIZES = [(32, 32), (24, 40)]


def silent(line: str) -> None:
    """Takes what `load` says."""


def pictures(model: Classifier, size: tuple[int, int]) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, model.config.in_channels, *size, generator=generator)


def answer(theirs: Any, images: Tensor) -> Any:
    """All that transformers gives for the images, of an autoencoder that of its encoder, in which nothing is hidden."""
    seen = {"output_hidden_states": True, "output_attentions": True}
    model_type = theirs.config.model_type
    if not model_type.startswith("dinov2"):
        seen["interpolate_pos_encoding"] = True
    if model_type == "vit_mae":
        patches = images.shape[2] // 8 * (images.shape[3] // 8)
        return getattr(theirs, "vit", theirs)(images, noise=torch.arange(float(patches)).expand(2, -1), **seen)
    return (theirs.vit if hasattr(theirs, "decoder") else theirs)(images, **seen)


def outputs(theirs: Any, given: Any) -> Tensor:
    """Logits, or of a bare model the first tokens that ours pools."""
    if "logits" in given:
        return given.logits
    tokens = 2 if theirs.config.model_type == "deit" else 1
    return given.last_hidden_state[:, :tokens].flatten(1)


@pytest.mark.parametrize("kind", VITS)
def test_logits_features_attention_and_gradients_are_those_of_transformers(kind, tmp_path):
    theirs = build(kind)
    ours = load(saved(theirs, tmp_path / "weights"), log=silent)
    for size in SIZES:
        assert_same_outputs(theirs, ours, size)
    assert_same_gradients(theirs, ours, tmp_path / "gradients")


@torch.no_grad()
def assert_same_outputs(theirs: Any, ours: Classifier, size: tuple[int, int]) -> None:
    images = pictures(ours, size)
    given = answer(theirs, images)
    logits, attention = ours.forward_with_attention(images)
    assert_near(ours(images), outputs(theirs, given), NEAR)
    assert_near(logits, outputs(theirs, given), NEAR)
    grid = (size[0] // 8, size[1] // 8)
    before = len(ours.config.prefix) + ours.config.registers
    for mine, other in zip(ours.feature_maps(images), given.hidden_states[1:], strict=True):
        assert_near(mine, other[:, before:].mT.unflatten(2, grid), NEAR)
    for mine, other in zip(attention, given.attentions, strict=True):
        assert_near(mine, other, NEAR)


def assert_same_gradients(theirs: Any, ours: Classifier, folder: Path) -> None:
    """Their gradients take the place of their weights and come through a file, which gives them our names."""
    images = pictures(ours, (24, 40))
    targets = torch.linspace(-1, 1, ours(images).numel()).view(2, -1)
    theirs.requires_grad_(True)  # positions of an autoencoder are fixed
    (ours(images) * targets).sum().backward()
    (outputs(theirs, answer(theirs, images)) * targets).sum().backward()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    expected, _ = FAMILIES[theirs.config.model_type].to_own_names(read_folder(saved(theirs, folder), log=silent))
    found = {name: parameter.grad for name, parameter in ours.backbone.named_parameters()}
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        assert gradient is not None
        assert_near(gradient, expected[name], NEAR)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["vit", "distilled deit"])
def test_a_table_of_an_oblong_image_is_read_row_by_row(kind, tmp_path):
    theirs = build(kind, image_size=[24, 40])
    ours = load(saved(theirs, tmp_path), log=silent)
    assert ours.config.grid == (3, 5)
    images = pictures(ours, (24, 40))
    assert_near(ours(images), outputs(theirs, theirs(images)), NEAR)
