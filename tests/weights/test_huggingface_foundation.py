"""DINOv3, DINOv2's giant, CLIP, MetaCLIP 2, SigLIP, AIMv2, InternViT, TIPSv2, RADIO and I-JEPA against transformers: read, and
written back.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.each_row import each_row
from vitrail.errors import CheckpointError
from vitrail.tasks.classification.classifier import Classifier
from vitrail.verbs.convert import convert
from vitrail.weights import load
from vitrail.weights.adapt import adapt
from vitrail.weights.native import save_model

transformers = pytest.importorskip("transformers")
SIZE = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96}
SMALL = {**SIZE, "image_size": 32, "patch_size": 8}
WORDS = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 40, "vocab_size": 50}
WORDS |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
GIANT = {**SIZE, "mlp_ratio": 4, "use_swiglu_ffn": True, "image_size": 28, "patch_size": 14}
RATIO = {name: value for name, value in SMALL.items() if name != "intermediate_size"}
TIPS_WORDS = {
    "hidden_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "vocab_size": 50,
}
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
    "InternViT": ("InternVLVisionModel", {**SMALL, "use_mask_token": True}, "class token"),
    "InternViT, biases": ("InternVLVisionModel", {**SMALL, "attention_bias": True}, "class token"),
    "InternViT, last norm": ("InternVLVisionModel", {**SMALL, "use_mean_pooling": False}, "class token"),
    "TIPSv2": ("Tipsv2VisionModel", {**RATIO, "mlp_ratio": 1.7}, "pooler_output"),
    "TIPSv2 giant": ("Tipsv2VisionModel", {**RATIO, "use_swiglu_ffn": True}, "pooler_output"),
    "TIPSv2 with text": ("Tipsv2Model", {"vision_config": RATIO, "text_config": TIPS_WORDS}, "pooler_output"),
    "RADIO": ("RadioModel", {**RATIO, "max_img_size": 80, "num_registers": 2}, "class token"),
    "RADIO, gated": ("RadioModel", {**RATIO, "max_img_size": 32, "use_swiglu_ffn": True}, "class token"),
    "I-JEPA": ("IJepaModel", SMALL, "mean"),
    "I-JEPA classifier": ("IJepaForImageClassification", {**SMALL, "num_labels": 5}, "logits"),
}  # fmt: skip

QUICK = ("DINOv3", "CLIP with text", "SigLIP classifier", "AIMv2", "InternViT", "TIPSv2", "RADIO", "I-JEPA")


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
        if kind in ("SigLIP with text", "TIPSv2 with text"):
            return model.vision_model(images).pooler_output
        return pool(model(undo_normalising(model, images)), output)


def undo_normalising(model: nn.Module, images: Tensor) -> Tensor:
    """Returns the images that RADIO normalises to ``images``."""
    inside = getattr(model, "input_conditioner", None)
    return images if inside is None else images * inside.norm_std + inside.norm_mean


def pool(answer: Any, output: str) -> Tensor:
    """Returns the features of an answer that `KINDS` names."""
    tokens = getattr(answer, "last_hidden_state", None)
    if output == "class token":
        return tokens[:, 0]
    return tokens.mean(1) if output == "mean" else answer[output]


def draw_images(kind: str) -> Tensor:
    side = 28 if "DINOv2" in kind else 32
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))


def read(kind: str, folder: Any) -> tuple[Classifier, Tensor, list[str]]:
    """Returns the model read from what transformers writes, what transformers computes, and the lines of the log."""
    theirs = build(kind)
    theirs.save_pretrained(folder)
    lines: list[str] = []
    model = load(folder, log=lines.append)
    assert isinstance(model, Classifier)
    return model, compute(kind, theirs, draw_images(kind)), lines


@each_row("kind", list(KINDS), quick=QUICK)
def test_outputs_are_those_of_transformers(kind, tmp_path):
    model, expected, lines = read(kind, tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(model(draw_images(kind)), expected, atol=2e-6, rtol=1e-5)
    # no class names are made up, and a text tower is named as left out
    assert len(model.classes) == (5 if KINDS[kind][2] == "logits" else 0)
    assert any("text_" in line for line in lines if line.startswith("unused")) == ("with text" in kind)


@pytest.mark.slow
@each_row("kind", [kind for kind in KINDS if kind not in ("DINOv2 giant with registers", "MetaCLIP 2")], quick=QUICK)
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
    answer = again.eval()(undo_normalising(again, draw_images(kind)))
    name = "image_embeds" if "Projection" in type(again).__name__ else "logits" if model.classes else KINDS[kind][2]
    torch.testing.assert_close(pool(answer, name), expected, atol=2e-6, rtol=1e-5)
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


def describe(folder: Path, **changes: Any) -> None:
    """Changes fields of config.json."""
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**described, **changes}))


def assert_near(ours: Tensor, theirs: Tensor) -> None:
    assert (ours - theirs).abs().max() <= 1e-6 * theirs.abs().max()


def compare(folder: Path, kind: str, images: Tensor) -> Classifier:
    """Compares the features of the model in a folder with those of transformers, for images as ours normalises them."""
    ours = load(folder, log=lambda line: None)
    theirs = getattr(transformers, KINDS[kind][0]).from_pretrained(folder).eval()
    with torch.no_grad():
        assert_near(ours(images), compute(kind, theirs, images))
    return ours


@each_row("kind", ["InternViT", "TIPSv2", "TIPSv2 giant", "RADIO"])
def test_images_of_other_sizes_have_the_positions_of_transformers(kind, tmp_path):
    read(kind, tmp_path)
    for size in ((40, 64), (24, 80), (16, 16)):
        processor = {"image_processor_type": "ViTImageProcessor", "size": dict(zip(("height", "width"), size))}
        if kind == "RADIO":  # the table is that of the preprocessing
            (tmp_path / "preprocessor_config.json").write_text(json.dumps({**processor, "do_normalize": False}))
        compare(tmp_path, kind, torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(2)))


def test_radio_normalises_the_images_of_its_processor(tmp_path):
    read("RADIO", tmp_path)
    described = {"image_processor_type": "CLIPImageProcessor", "size": 32, "crop_size": 32}
    described |= {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(described))
    lines: list[str] = []
    ours = load(tmp_path, log=lines.append)
    theirs = transformers.RadioModel.from_pretrained(tmp_path).eval()
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    mean, std = (torch.tensor(described[name]).view(3, 1, 1) for name in ("image_mean", "image_std"))
    with torch.no_grad():
        expected = theirs((images - mean) / std).last_hidden_state[:, 0]
        assert_near(ours(ours.preprocessing.normalise(images)), expected)
    assert "positions of 10x10 patches resized to 4x4" in lines[0]


def test_radio_without_layer_scale_is_written_and_with_a_bias_of_patches_refused(tmp_path):
    read("RADIO", tmp_path / "theirs")
    file = tmp_path / "theirs" / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(file).items() if "lambda1" not in name}, file)
    images = draw_images("RADIO")
    ours = compare(tmp_path / "theirs", "RADIO", images)
    assert ours.config.layer_scale is None
    folder = convert(save_model(tmp_path / "own", ours), tmp_path / "back", "huggingface").path
    assert compare(folder, "RADIO", images).preprocessing.mean == ours.preprocessing.mean
    with torch.no_grad():
        ours.backbone.patch_embed.proj.bias[0] = 1
    with pytest.raises(CheckpointError, match="a bias of patches"):
        convert(save_model(tmp_path / "trained", ours), tmp_path / "again", "huggingface")
    describe(tmp_path / "theirs", layerscale_value=0.1)
    with pytest.raises(CheckpointError, match=r"layerscale_value 0\.1"):
        load(tmp_path / "theirs", log=lambda line: None)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("InternViT", {"use_qk_norm": True}, "use_qk_norm True"),
    ("InternViT", {"norm_type": "rms_norm"}, "norm_type 'rms_norm'"),
    ("InternViT", {"use_absolute_position_embeddings": False}, "use_absolute_position_embeddings False"),
    ("InternViT", {"projection_dropout": 0.1}, "projection_dropout 0.1"),
    ("InternViT", {"hidden_act": "silu"}, "hidden_act 'silu'"),
    ("InternViT", {"image_size": [16, 64]}, r"image_size \(16, 64\)"),
    ("TIPSv2", {"hidden_act": "silu"}, "hidden_act 'silu'"),
    ("TIPSv2", {"image_size": [16, 64]}, r"image_size \(16, 64\)"),
    ("RADIO", {"video_temporal_patch_size": 2}, "video_temporal_patch_size 2"),
    ("RADIO", {"norm_mean": [0.5, 0.5, 0.5]}, "norm_mean"),
    ("RADIO", {"norm_std": [1.0]}, "norm_std"),
    ("RADIO", {"image_size": 96}, r"images of \(96, 96\) have more patches"),
    ("RADIO", {"num_registers": 1}, "reg_token"),
    ("RADIO", {"patch_size": 16}, "unflatten"),
]


@each_row("kind, changes, what", REFUSED)
def test_what_cannot_be_expressed_is_refused_by_its_field(kind, changes, what, tmp_path):
    read(kind, tmp_path)
    describe(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=what):
        load(tmp_path, log=lambda line: None)


@each_row("kind", ["InternViT", "TIPSv2", "RADIO"])
def test_a_head_and_images_that_are_not_square_are_not_written(kind, tmp_path):
    model, *_ = read(kind, tmp_path / "theirs")
    oblong = adapt(model, image_size=(16, 32))
    trained = adapt(model, classes=("a", "b", "c"))
    for number, (wrong, what) in enumerate([(oblong, "not square"), (trained, "no classifier")]):
        with pytest.raises(CheckpointError, match=what):
            convert(save_model(tmp_path / f"own{number}", wrong), tmp_path / "back", "huggingface")
