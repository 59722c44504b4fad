"""The kinds of ViT that timm publishes beside the paper's, against timm itself: read, computed and written back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
import transformers
from safetensors.torch import load_file

from tests.peers.count_timm import REFUSED, check, list_architectures
from vitrail.models import create_backbone
from vitrail.tasks.classification.classifier import Classifier
from vitrail.verbs.convert import convert
from vitrail.weights.native import save_model
from vitrail.weights.timm import read_timm

pytestmark = pytest.mark.peers
SMALL = {"embed_dim": 192, "num_heads": 3}
KINDS = {
    "vit_small_patch16_dinov3_qkvb": {},
    "vit_small_plus_patch16_dinov3": {},
    "vit_7b_patch16_dinov3": {"embed_dim": 256, "num_heads": 2},
    "eva02_tiny_patch14_224": {},
    "eva02_base_patch14_224": SMALL,
    "eva02_base_patch16_clip_224": SMALL,
    "eva02_enormous_patch14_clip_224": {"embed_dim": 224, "num_heads": 2},
    "eva_giant_patch14_clip_224": {"embed_dim": 224, "num_heads": 2},
    "vit_pe_core_tiny_patch16_384": {"attn_pool_num_heads": 4},
    "vit_pe_spatial_tiny_patch16_512": {},
    "vit_giant_patch14_reg4_dinov2": SMALL,
    "vit_base_patch16_clip_quickgelu_224": SMALL,
    "beit3_base_patch16_224": SMALL,
    "vit_medium_patch16_rope_reg1_gap_256": SMALL,
    "vit_small_patch16_rope_mixed_224": SMALL,
    "vit_small_patch16_rope_ape_224": SMALL,
    "vit_base_patch16_radio_v3": SMALL,
    "vit_intern300m_patch14_448": SMALL,
    "vit_base_patch14_reg1_tipsv2": SMALL,
    "vit_so400m_patch16_siglip_256": {"embed_dim": 144, "num_heads": 2},
    "aimv2_large_patch14_224": {"embed_dim": 256, "num_heads": 2},
    "vit_base_patch16_rpn_224": SMALL,
}


def create_random(name: str, dtype: torch.dtype = torch.float32, scale: float = 1.0, **changes) -> torch.nn.Module:
    patch = 14 if "patch14" in name else 16
    changes = {"depth": 2, "num_classes": 5, "img_size": (4 * patch, 6 * patch), **KINDS[name], **changes}
    model = timm.create_model(name, **changes).to(dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            is_input = key.startswith(("patch_embed.proj", "pos_embed")) or key.endswith("_token")
            noise = torch.randn(tensor.shape, generator=generator) * (
                0.05 if tensor.ndim > 1 and "token" not in key else 0.3
            )
            tensor.copy_((noise + (tensor.ndim == 1 and key.endswith("weight"))) * (scale if is_input else 1))
    return model.eval()


def write_folder(name: str, model: torch.nn.Module) -> dict:
    """Returns what timm's config.json says of the model."""
    patch = 14 if "patch14" in name else 16
    arguments = {"depth": 2, **KINDS[name], "img_size": [4 * patch, 6 * patch]}
    return {"architecture": name, "global_pool": model.global_pool, "model_args": arguments}


def read(name: str, theirs: torch.nn.Module) -> tuple:
    weights = read_timm(dict(theirs.state_dict()), write_folder(name, theirs), Path(name))
    ours = create_backbone(weights.config)
    ours.load_state_dict(weights.tensors)
    return weights, ours.eval()


def make_images(theirs: torch.nn.Module) -> torch.Tensor:
    size = theirs.patch_embed.img_size or tuple(
        side * count for side, count in zip(theirs.patch_embed.patch_size, (4, 6))
    )
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))


def assert_equal(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
    assert (ours - theirs).norm() <= tolerance * theirs.norm()


@pytest.mark.parametrize("name", KINDS)
def test_logits_are_timms(name):
    for dtype, scale, tolerance in (
        (torch.float32, 1.0, 1e-6),
        (torch.float64, 1.0, 1e-8),
        (torch.float64, 1e-3, 1e-8),
    ):
        theirs = create_random(name, dtype, scale)
        _, ours = read(name, theirs)
        images = make_images(theirs).to(dtype)
        with torch.no_grad():
            assert_equal(ours.to(dtype)(images), theirs(images), tolerance)


def test_the_name_decides_between_equal_tensors_with_norms_elsewhere():
    """The blocks of EVA-02-CLIP E are post-norm, those of EVA-CLIP g pre-norm, and their tensors are the same."""
    enormous = create_random("eva02_enormous_patch14_clip_224")
    ratio = {"mlp_ratio": 15360 / 1792}
    giant = create_random("eva_giant_patch14_clip_224", **ratio)
    giant.load_state_dict(enormous.state_dict())
    images, outputs = make_images(enormous), []
    for name, theirs, norm_at in (("eva02_enormous", enormous, "post"), ("eva_giant", giant, "pre")):
        folder = write_folder(f"{name}_patch14_clip_224", theirs)
        folder["model_args"] |= ratio
        weights = read_timm(dict(theirs.state_dict()), folder, Path(name))
        ours = create_backbone(weights.config).eval()
        ours.load_state_dict(weights.tensors)
        with torch.no_grad():
            assert_equal(ours(images), theirs(images), 1e-6)
            outputs.append(ours(images))
        assert ours.config.norm_at == norm_at
    assert (outputs[0] - outputs[1]).norm() > 0.1 * outputs[0].norm()


@pytest.mark.parametrize("name", KINDS)
def test_attention_is_timms(name):
    theirs = create_random(name)
    expected: list[torch.Tensor] = []
    for module in theirs.blocks.modules():
        if hasattr(module, "fused_attn"):  # otherwise the matrix is not computed
            module.fused_attn = False
            module.attn_drop.register_forward_hook(lambda module, given, output: expected.append(output))
    _, ours = read(name, theirs)
    images = make_images(theirs)
    with torch.no_grad():
        theirs(images)
        logits, matrices = ours.forward_with_attention(images)
        assert torch.equal(logits, ours(images))
    for found, matrix in zip(matrices, expected, strict=True):
        assert_equal(found, matrix, 2e-6)  # the softmax is in fp32


@pytest.mark.parametrize("name", KINDS)
def test_written_folders_are_equal_tensors_and_outputs_of_timm(name, tmp_path):
    theirs = create_random(name)
    weights, ours = read(name, theirs)
    model = Classifier(ours, tuple("abcde"), weights.preprocessing)
    folder = convert(save_model(tmp_path / "source", model), tmp_path / "timm", "timm").path
    described = json.loads((folder / "config.json").read_text())
    assert "num_classes" not in described["model_args"]  # transformers refuses it
    again = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = make_images(theirs)
    with torch.no_grad():
        assert_equal(again(images), theirs(images), 1e-6)
    # as timm writes it, without vitrail's description
    back = read_timm(load_file(folder / "model.safetensors"), {**described, "vitrail": None}, folder)
    assert back.config == replace(weights.config, norm_eps=back.config.norm_eps)
    assert back.tensors.keys() == weights.tensors.keys()
    for key, tensor in weights.tensors.items():
        assert torch.equal(tensor, back.tensors[key]), key


@pytest.mark.parametrize(
    ("name", "patch", "model_type"),
    [("vit_base_patch16_radio_v3", 16, "radio"), ("vit_intern300m_patch14_448", 14, "internvl_vision")],
)
def test_transformers_opens_what_is_read_from_timm(name, patch, model_type, tmp_path):
    theirs = create_random(name, img_size=(4 * patch, 4 * patch), num_classes=0)
    if model_type == "radio":  # which has no bias there
        torch.nn.init.zeros_(theirs.patch_embed.proj.bias)
    described = write_folder(name, theirs)
    described["model_args"]["img_size"] = [4 * patch, 4 * patch]
    weights = read_timm(dict(theirs.state_dict()), described, Path(name))
    ours = create_backbone(weights.config)
    ours.load_state_dict(weights.tensors)
    source = save_model(tmp_path / "source", Classifier(ours.eval(), (), weights.preprocessing))
    folder = convert(source, tmp_path / "theirs", "huggingface").path
    assert json.loads((folder / "config.json").read_text())["model_type"] == model_type
    images = make_images(theirs)
    with torch.no_grad():
        found = transformers.AutoModel.from_pretrained(folder).eval()(images).last_hidden_state[:, 0]
        assert_equal(found, theirs(images), 1e-6)


def test_every_plain_vit_of_timm_is_read_as_timm_builds_it_or_refused_by_name():
    """Never a silent wrong model: over the whole registry, by the name alone."""
    counts = [check(name) for name in list_architectures()]
    assert sum(count.tags for count in counts if not count.refused) >= 405
    assert {count.refused for count in counts if count.refused} == set(REFUSED.values())


def test_transformers_opens_a_classifier_of_dinov3_from_timms_layout(tmp_path):
    theirs = create_random("vit_small_patch16_dinov3_qkvb")
    weights, ours = read("vit_small_patch16_dinov3_qkvb", theirs)
    model = Classifier(ours, tuple("abcde"), weights.preprocessing)
    folder = convert(save_model(tmp_path / "source", model), tmp_path / "timm", "timm").path
    opened = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    images = make_images(theirs)
    with torch.no_grad():
        assert_equal(opened(pixel_values=images).logits, theirs(images), 1e-6)
    assert list(opened.config.id2label.values()) == list("abcde")
