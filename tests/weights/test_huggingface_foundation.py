"""DINOv3, DINOv2's giant, CLIP, MetaCLIP 2, SigLIP, AIMv2 and I-JEPA against transformers: read, and written back."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.each_row import each_row
from vitrail.errors import CheckpointError
from vitrail.tasks.classification.classifier import Classifier
from vitrail.verbs.convert import convert
from vitrail.weights import load
from vitrail.weights.native import save_model

transformers = pytest.importorskip("transformers")
SIZE = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96}
SMALL = {**SIZE, "image_size": 32, "patch_size": 8}
WORDS = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 40, "vocab_size": 50}
WORDS |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
GIANT = {**SIZE, "mlp_ratio": 4, "use_swiglu_ffn": True, "image_size": 28, "patch_size": 14}
BOTH = {"vision_config": SMALL, "text_config": WORDS, "num_labels": 5}
# the class of the model and its config; which part of its output are the features
KINDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "DINOv3": ("DINOv3ViTModel", {**SMALL, "num_register_tokens": 4}, "pooler_output"),
    "DINOv3, gated": ("DINOv3ViTModel", {**SMALL, "use_gated_mlp": True, "hidden_act": "silu"}, "pooler_output"),
    "DINOv3, no biases": ("DINOv3ViTModel", {**SMALL, "query_bias": False, "value_bias": False}, "pooler_output"),
    "DINOv2 giant": ("Dinov2Model", GIANT, "pooler_output"),
    "DINOv2 giant with registers": ("Dinov2WithRegistersForImageClassification", {**GIANT, "num_labels": 5}, "logits"),
    "CLIP": ("CLIPVisionModel", SMALL, "pooler_output"),
    "CLIP with projection": ("CLIPVisionModelWithProjection", {**SMALL, "projection_dim": 24}, "image_embeds"),
    "CLIP with text": ("CLIPModel", {"vision_config": SMALL, "text_config": WORDS, "projection_dim": 24}, "image_embeds"),
    "CLIP classifier": ("CLIPForImageClassification", BOTH, "logits"),
    "MetaCLIP 2": ("MetaClip2VisionModel", SMALL, "pooler_output"),
    "SigLIP": ("SiglipVisionModel", SMALL, "pooler_output"),
    "SigLIP with text": ("SiglipModel", {"vision_config": SMALL, "text_config": WORDS}, "pooler_output"),
    "SigLIP classifier": ("SiglipForImageClassification", BOTH, "logits"),
    "AIMv2": ("Aimv2VisionModel", {**SMALL, "use_head": False}, "mean"),
    "I-JEPA": ("IJepaModel", SMALL, "mean"),
    "I-JEPA classifier": ("IJepaForImageClassification", {**SMALL, "num_labels": 5}, "logits"),
}  # fmt: skip


def build(kind: str) -> nn.Module:
    """Returns transformers' model with numbers of non-trivial size in every tensor."""
    name, values, _ = KINDS[kind]
    cls = getattr(transformers, name)
    model = cls(cls.config_class(**values)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * (0.3 if parameter.ndim == 1 else 0.1)
            parameter.copy_(noise + (parameter.ndim == 1 and key.endswith("weight")))
    return model


def compute(kind: str, model: nn.Module, images: Tensor) -> Tensor:
    """Returns the features or logits of transformers' model."""
    output = KINDS[kind][2]
    with torch.no_grad():
        if kind == "CLIP with text":
            return model.visual_projection(model.vision_model(images).pooler_output)
        if kind == "SigLIP with text":
            return model.vision_model(images).pooler_output
        answer = model(images)
    return answer.last_hidden_state.mean(1) if output == "mean" else answer[output]


def draw_images(kind: str) -> Tensor:
    side = 28 if "giant" in kind else 32
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))


def read(kind: str, folder: Any) -> tuple[Classifier, Tensor, list[str]]:
    """Returns the model read from what transformers writes, what transformers computes, and the lines of the log."""
    theirs = build(kind)
    theirs.save_pretrained(folder)
    lines: list[str] = []
    model = load(folder, log=lines.append)
    assert isinstance(model, Classifier)
    return model, compute(kind, theirs, draw_images(kind)), lines


@each_row("kind", list(KINDS))
def test_outputs_are_those_of_transformers(kind, tmp_path):
    model, expected, lines = read(kind, tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(model(draw_images(kind)), expected, atol=2e-6, rtol=1e-5)
    # no class names are made up, and a text tower is named as left out
    assert len(model.classes) == (5 if KINDS[kind][2] == "logits" else 0)
    assert any("text_model" in line for line in lines if line.startswith("unused")) == ("with text" in kind)


@each_row("kind", [kind for kind in KINDS if kind not in ("DINOv2 giant with registers", "MetaCLIP 2")])
def test_written_folders_are_opened_by_transformers(kind, tmp_path):
    model, expected, _ = read(kind, tmp_path / "theirs")
    folder = convert(save_model(tmp_path / "own", model), tmp_path / "back", "huggingface").path
    described = json.loads((folder / "config.json").read_text())
    cls = getattr(transformers, described["architectures"][0])
    again, loading = cls.from_pretrained(folder, output_loading_info=True)
    assert not loading["missing_keys"] or {key.split(".")[0] for key in loading["missing_keys"]} <= {
        "text_model",
        "head",
        "pooler",
        "embeddings",
        "vision_model",
    }
    answer = again.eval()(draw_images(kind))
    name = "image_embeds" if "Projection" in type(again).__name__ else "logits" if model.classes else KINDS[kind][2]
    found = answer.last_hidden_state.mean(1) if name == "mean" else answer[name]
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
    back = load(folder, log=lambda line: None)
    assert back.config == model.config
    for key, tensor in model.backbone.state_dict().items():
        assert torch.equal(back.backbone.state_dict()[key], tensor), key


def test_defaults_that_a_nested_config_omits_are_transformers(tmp_path):
    read("CLIP with text", tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    tower = described["vision_config"]
    described["vision_config"] = {key: value for key, value in tower.items() if key in SMALL}
    (tmp_path / "config.json").write_text(json.dumps(described))
    config = load(tmp_path, log=lambda line: None).config
    assert (config.gelu, config.norm_eps, config.pre_norm) == ("quick", 1e-5, True)


def test_other_sizes_of_dinov3_need_no_resizing(tmp_path):
    theirs = build("DINOv3")
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path, log=lambda line: None)
    for size in ((32, 32), (40, 64), (24, 80)):
        images = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(2))
        with torch.no_grad():
            torch.testing.assert_close(ours(images), theirs(images).pooler_output, atol=2e-6, rtol=1e-5)


def test_a_dinov3_with_a_head_is_refused_with_the_layout_that_has_one(tmp_path):
    model, *_ = read("DINOv3", tmp_path / "theirs")
    backbone = model.backbone
    backbone.reset_head(3)
    trained = Classifier(backbone, ("a", "b", "c"), model.preprocessing)
    with pytest.raises(CheckpointError, match="no classifier"):
        convert(save_model(tmp_path / "own", trained), tmp_path / "back", "huggingface")


def test_biases_of_k_alone_are_refused(tmp_path):
    read("DINOv3", tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**described, "key_bias": True, "value_bias": False}))
    with pytest.raises(CheckpointError, match="biases of q, k and v"):
        load(tmp_path, log=lambda line: None)
