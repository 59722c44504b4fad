"""EoMT against transformers' with the same random weights: classes and masks of every block, with and without masks of attention,
files in both directions, and its image processor.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from tests.each_row import each_row
from tests.models.theirs import saved
from tests.peers.oracles import pictures, randomise
from tests.weights.test_eomt import create_ours
from vitrail.models import ViTConfig
from vitrail.runtime.progress import log_nothing
from vitrail.verbs.convert.layouts import write_layout
from vitrail.weights import load
from vitrail.weights.huggingface.processor import BORDER, from_processor
from vitrail.weights.native import save_model

pytestmark = pytest.mark.peers

NEAR = 1e-5  # of the largest absolute value
SIZES = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "image_size": 64, "patch_size": 16}
HEAD = {"num_blocks": 2, "num_queries": 5, "num_labels": 3, "layer_norm_eps": 1e-3}
KINDS = {
    "Eomt": {"num_register_tokens": 4},
    "Eomt without registers": {"num_register_tokens": 0, "num_upscale_blocks": 1},
    "Eomt with a SwiGLU": {"num_register_tokens": 1, "use_swiglu_ffn": True},
    "EomtDinov3": {"num_register_tokens": 4, "intermediate_size": 48},
    "EomtDinov3 without registers": {
        "num_register_tokens": 0,
        "intermediate_size": 48,
        "rope_parameters": {"rope_type": "default", "rope_theta": 30.0},
    },
}


def build(kind, masking):
    name = kind.split()[0]
    changes = {"pos_embed_rescale": None} if name == "EomtDinov3" else {}  # its coordinates are drawn in training
    config = getattr(transformers, f"{name}Config")(**SIZES, **HEAD, **KINDS[kind], **changes)
    model = randomise(getattr(transformers, f"{name}ForUniversalSegmentation")(config))
    model.attn_mask_probs.fill_(masking)
    return model


def assert_equal(ours, theirs):
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= NEAR * theirs.abs().max()


@torch.no_grad()
@each_row("kind", KINDS)
def test_classes_and_masks_are_transformers(kind, tmp_path):
    theirs = build(kind, 0.0)
    ours, images = load(saved(theirs, tmp_path), log=log_nothing), pictures(64, 64)
    classes, masks = ours.unpack(ours(images))
    expected = theirs(images)
    assert classes.shape[1] == 1
    assert_equal(classes[:, 0], expected.class_queries_logits)
    assert_equal(masks[:, 0], expected.masks_queries_logits)


@torch.no_grad()
@each_row("kind", KINDS)
def test_with_masks_of_attention_all_answers_of_a_training_are_transformers(kind, tmp_path):
    theirs = build(kind, 1.0)
    ours, images = load(saved(theirs, tmp_path), log=log_nothing), pictures(64, 64)
    expected, predict = [], theirs.predict
    theirs.predict = lambda tokens: expected.append(predict(tokens)) or expected[-1]
    theirs.train()(images)
    classes, masks = ours.train().unpack(ours(images))
    assert classes.shape[1] == len(expected) == 3
    for answer, (their_masks, their_classes) in enumerate(expected):
        assert_equal(classes[:, answer], their_classes)
        assert_equal(masks[:, answer], their_masks)
    ours.eval()
    assert (ours.unpack(ours(images))[1][:, 0] - masks[:, -1]).abs().max() > 1e-2  # the masks of attention matter


@torch.no_grad()
@each_row(
    "changes",
    [
        {"registers": 2, "layer_scale": 0.1},
        {"positions": "sincos2d"},
        {"mlp": "swiglu", "mlp_width": 32, "initial": "truncated", "prefix_positions": False},
        {"rope": "dinov3", "positions": "none", "qkv_bias": "qv", "initial": "truncated", "registers": 1},
        {"rope": "dinov3", "rope_theta": 30.0, "positions": "none", "initial": "truncated"},
    ],
)
def test_transformers_opens_what_is_written(changes, tmp_path):
    ours = create_ours(**changes)
    save_model(tmp_path / "native", ours)
    write_layout(tmp_path / "native", tmp_path / "theirs", "huggingface")
    kind = transformers.AutoModelForUniversalSegmentation
    theirs, found = kind.from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert not any(found.values())
    assert theirs.config.id2label == {0: "ant", 1: "bee"}
    images = pictures(32, 32)
    classes, masks = ours.unpack(ours(images))
    expected = theirs.eval()(images)
    assert_equal(classes[:, 0], expected.class_queries_logits)
    assert_equal(masks[:, 0], expected.masks_queries_logits)
    again = load(saved(theirs, tmp_path / "again"), log=log_nothing)  # as transformers writes it
    assert again.describe() == ours.describe() and again.preprocessing == ours.preprocessing
    assert_equal(again(images), ours(images))
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "theirs")
    assert type(processor).__name__.startswith("EomtImageProcessor") and processor.do_pad


@each_row("size, within", [((427, 640), 1), ((640, 480), 1), ((300, 128), 1)])
def test_pictures_are_those_of_the_processor_but_for_the_border(size, within):
    """Of some sizes their longer side is one pixel short, such as 900x1211 at 128."""
    generator = np.random.default_rng(0)
    small = Image.fromarray(generator.integers(0, 255, (12, 16, 3), dtype=np.uint8))
    picture = small.resize(size[::-1], Image.Resampling.BICUBIC)
    theirs = transformers.EomtImageProcessor(do_pad=True, size={"shortest_edge": 128, "longest_edge": 128})
    ours, notes = from_processor(theirs.to_dict(), "ViT", ViTConfig(image_size=128), Path("folder"))
    assert notes == [BORDER]
    mean, std = (np.array(values)[:, None, None] for values in (ours.mean, ours.std))
    levels = 255 * (theirs(picture, return_tensors="np")["pixel_values"][0] * std + mean)
    found = ours.picture(picture).astype(float)
    rows, columns = ours.resized(*size)
    assert np.abs(levels - found)[:, :rows, :columns].max() <= within + 1e-3
    beyond = np.ones((128, 128), bool)
    beyond[:rows, :columns] = False
    assert beyond.any() and np.abs(levels[:, beyond]).max() < 1e-3
    assert np.abs(found[:, beyond] - 255 * mean[..., 0]).max() <= 0.5
