"""The kinds of ViT with later parts in what a user does with them: fine-tuned, masked, with boxes and masks, converted."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from tests.each_row import each_row
from tests.models.test_vit_kinds import KINDS, create, draw_images
from tests.slow import slow_except
from tests.tasks import dense_models
from tests.training.logged import list_logged
from tests.training.stopping import stopped_after
from vitrail.data.preprocessing import Preprocessing
from vitrail.objectives.mae import MAE
from vitrail.tasks.classification.classifier import Classifier
from vitrail.verbs.convert import convert

CLASSES = tuple("abcde")
SET = ("compute.tune=false", "compute.precision=fp32", "save.evaluations=1", "save.log_every=1")
HOW: dict[str, Any] = {"batch": 12, "lr": 3e-3, "quiet": True, "set": SET}


# numerics that timm's layout can express
OF_TIMM = {"gelu": "exact", "projection": 0, "norm_eps": 1e-6}
EPS = {"aimv2": 1e-5, "clip": 1e-5, "dinov3": 1e-5, "pe-core": 1e-5}


def classifier(kind: str, **changes: Any) -> Classifier:
    heads = {"pool_heads": None, "pool_mlp_width": None} if kind == "siglip" else {}
    changes = {**OF_TIMM, "norm_eps": EPS.get(kind, 1e-6), **heads, **changes}
    return Classifier(create(kind, **changes), CLASSES, Preprocessing.paper((32, 48)))


def images_of_classes() -> tuple[np.ndarray, np.ndarray]:
    """60 images whose class is their brightness."""
    labels = np.arange(60) % 5
    noise = np.random.default_rng(0).integers(0, 40, (60, 32, 48, 3))
    return (noise + 40 * labels[:, None, None, None]).astype(np.uint8), np.array(CLASSES)[labels]


@pytest.mark.parametrize("kind", slow_except(KINDS, {"dinov3"}))
def test_a_kind_is_fine_tuned_reloaded_and_converted_there_and_back(kind, tmp_path):
    result = vitrail.train(images_of_classes(), init=classifier(kind), steps=20, out=tmp_path / "run", **HOW)
    fell = list_logged(result)
    assert np.mean(fell[-5:]) < 0.8 * np.mean(fell[:5])
    trained = result.load()
    if KINDS[kind].get("qkv_bias") == "qv":
        with torch.no_grad():
            _, k, _ = trained.backbone.blocks[0].attn.split(torch.zeros(1, 3, 48))
        assert not k.any()
    images = draw_images()
    with torch.no_grad():
        logits = trained(images)
        written = convert(result.folder, tmp_path / "timm", "timm").path
        torch.testing.assert_close(vitrail.load(written, log=lambda line: None)(images), logits, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_a_stopped_training_with_random_coordinates_resumes_bit_for_bit(tmp_path):
    start = classifier("dinov3", rope_rescale=2.0, rope_jitter=1.2, drop_path=0.2)
    train = partial(vitrail.train, images_of_classes(), init=start, steps=6, **HOW)
    whole = train(out=tmp_path / "whole")
    with stopped_after(3):
        train(out=tmp_path / "parts")
    parts = train(out=tmp_path / "parts")
    ours, theirs = parts.load().state_dict(), whole.load().state_dict()
    assert list_logged(parts) == list_logged(whole)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@each_row("kind", list(KINDS))
def test_a_kind_learns_from_masked_patches(kind):
    """Masked autoencoding, which encodes the visible patches alone."""
    encoder = create(kind, classes=0, projection=0, image_size=(64, 64), rope_grid=None)
    objective = MAE(encoder, decoder_width=16, decoder_depth=1, decoder_heads=2).train()
    images = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    ids = np.stack([np.zeros(4, np.int64), np.arange(4), np.zeros(4, np.int64)], 1)
    loss, _ = objective(images, *objective.draw(ids, (64, 64), 0))
    loss.backward()
    blocks = [parameter for name, parameter in encoder.named_parameters() if name.startswith("blocks.")]
    assert loss.isfinite() and all(parameter.grad.abs().sum() > 0 for parameter in blocks)


@pytest.mark.slow
@each_row("task, kind", [(task, kind) for task in ("detection", "segmentation", "instances") for kind in KINDS])
def test_a_kind_carries_detection_and_segmentation(task, kind):
    config = create(kind, classes=0, projection=0, image_size=(64, 64), rope_grid=None).config
    model = dense_models.create(task, config)
    images = dense_models.draw_images(model)
    outputs = model(images)
    for output in outputs if isinstance(outputs, tuple | list) else [outputs]:
        assert output.isfinite().all()
    with torch.no_grad():
        bf16 = model.bfloat16()(images.bfloat16())
    assert all(part.isfinite().all() for part in (bf16 if isinstance(bf16, tuple | list) else [bf16]))
