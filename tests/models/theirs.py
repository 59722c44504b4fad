"""Small models of transformers, with numbers of some size in every tensor, that go through files as a user's do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from vitrail.models import Config

VIT: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 5,
}
DINO = {name: value for name, value in VIT.items() if name != "intermediate_size"}
MAE = {"decoder_hidden_size": 8, "decoder_num_attention_heads": 2, "decoder_num_hidden_layers": 1}

Kinds = dict[str, tuple[str, str, dict[str, Any]]]  # the class, its config, and fields that are not as by default

VITS: Kinds = {
    "vit": ("ViTForImageClassification", "ViTConfig", {**VIT, "layer_norm_eps": 1e-2}),
    "vit of four channels": (
        "ViTForImageClassification",
        "ViTConfig",
        {**VIT, "hidden_act": "gelu_new", "qkv_bias": False, "num_channels": 4},
    ),
    "bare vit": ("ViTModel", "ViTConfig", {**VIT, "hidden_act": "gelu_pytorch_tanh"}),
    "simmim": ("ViTForMaskedImageModeling", "ViTConfig", {**VIT, "encoder_stride": 8}),
    "deit": ("DeiTForImageClassification", "DeiTConfig", {**VIT, "layer_norm_eps": 1e-2, "hidden_act": "gelu_fast"}),
    "distilled deit": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", VIT),
    "bare deit": ("DeiTModel", "DeiTConfig", VIT),
    "mae": ("ViTMAEForPreTraining", "ViTMAEConfig", {**VIT, **MAE, "mask_ratio": 0.0, "layer_norm_eps": 1e-2}),
    "bare mae": ("ViTMAEModel", "ViTMAEConfig", {**VIT, "mask_ratio": 0.0}),
    "dinov2": ("Dinov2ForImageClassification", "Dinov2Config", {**DINO, "mlp_ratio": 3, "layer_norm_eps": 1e-2}),
    "bare dinov2": ("Dinov2Model", "Dinov2Config", {**DINO, "use_mask_token": False}),
    "dinov2 with registers": (
        "Dinov2WithRegistersForImageClassification",
        "Dinov2WithRegistersConfig",
        {**DINO, "num_register_tokens": 3, "hidden_act": "gelu_pytorch_tanh"},
    ),
    "bare dinov2 with registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", DINO),
}

SWIN = {"image_size": 48, "embed_dim": 8, "depths": [2, 3], "num_heads": [2, 4], "window_size": 3, "num_labels": 5}
BEIT = {**VIT, "layer_norm_eps": 1e-2}
PVT = {
    "image_size": 64,
    "hidden_sizes": [8, 12, 12, 16],
    "depths": [1, 2, 1, 2],
    "num_attention_heads": [1, 2, 3, 2],
    "mlp_ratios": [3, 2, 2, 2],
    "num_labels": 5,
    "layer_norm_eps": 1e-3,
}
PYRAMIDS: Kinds = {
    "swin": ("SwinForImageClassification", "SwinConfig", {**SWIN, "mlp_ratio": 2.5}),
    "bare swin": (
        "SwinModel",
        "SwinConfig",
        {**SWIN, "hidden_act": "gelu_new", "qkv_bias": False, "patch_size": [4, 2], "num_channels": 1},
    ),
    "masked swin": (
        "SwinForMaskedImageModeling",
        "SwinConfig",
        {**SWIN, "depths": [1, 2, 1], "num_heads": [1, 2, 4], "encoder_stride": 16},
    ),
    "beit": ("BeitForImageClassification", "BeitConfig", {**BEIT, "use_relative_position_bias": True}),
    "beit with one table": (
        "BeitForImageClassification",
        "BeitConfig",
        {**BEIT, "use_shared_relative_position_bias": True, "use_mean_pooling": False, "layer_scale_init_value": 0.0},
    ),
    "bare beit": ("BeitModel", "BeitConfig", {**BEIT, "use_absolute_position_embeddings": True}),
    "masked beit": (
        "BeitForMaskedImageModeling",
        "BeitConfig",
        {**BEIT, "use_shared_relative_position_bias": True, "use_mask_token": True, "vocab_size": 9},
    ),
    "pvt": ("PvtForImageClassification", "PvtConfig", {**PVT, "sequence_reduction_ratios": [4, 3, 2, 1]}),
    "bare pvt": ("PvtModel", "PvtConfig", {**PVT, "hidden_act": "gelu_new", "qkv_bias": False}),
    "pvt v2": ("PvtV2ForImageClassification", "PvtV2Config", {**PVT, "sr_ratios": [4, 3, 2, 1]}),
    "bit": ("BitForImageClassification", "BitConfig", {"depths": [1, 2], "hidden_sizes": [256, 512], "num_labels": 5}),
    "bare bit": (
        "BitModel",
        "BitConfig",
        {"depths": [1], "hidden_sizes": [512], "embedding_size": 128, "num_channels": 1},
    ),
    "bare pvt v2": (
        "PvtV2Model",
        "PvtV2Config",
        {**PVT, "linear_attention": True, "strides": [2, 2, 2, 2], "patch_sizes": [3, 3, 3, 3]},
    ),
}
THEIRS = {**VITS, **PYRAMIDS}


def build(kind: str, **changes: Any) -> Any:
    """A model of `THEIRS`, in evaluation mode, whose attention matrices can be seen."""
    transformers = pytest.importorskip("transformers")
    model, config, fields = THEIRS[kind]
    described = getattr(transformers, config)(**{**fields, **changes}, attn_implementation="eager")
    return shaken(getattr(transformers, model)(described)).eval()


def shaken(model: torch.nn.Module) -> Any:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in sorted(model.state_dict().items()):
            if tensor.is_floating_point():
                is_scale = tensor.ndim == 1 and name.endswith("weight")
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.2 + is_scale)
    return model


def saved(model: Any, folder: Path, **options: Any) -> Path:
    """The folder, as transformers writes it, without the bar that it draws."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    model.save_pretrained(folder, **options)
    return folder


def pooled(given: Any, config: Config) -> Tensor:
    """What a bare model of ours would pool of what one of theirs gives."""
    tokens = given.last_hidden_state
    match config.architecture:
        case "swin":
            return tokens.mean(1)
        case "beit" | "bit":
            return given.pooler_output.flatten(1)
        case "pvt-v2":
            return tokens.mean((2, 3))
    return tokens[:, : len(config.prefix)].flatten(1)


def edited(file: Path, **changes: Any) -> None:
    """Other values in a JSON file; None takes a key away."""
    values = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))
