"""Small models of transformers, with numbers of some size in every tensor, that go through files as a user's do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

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

# the class, its config, and fields that are not as by default
THEIRS: dict[str, tuple[str, str, dict[str, Any]]] = {
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
