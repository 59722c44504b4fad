"""RADIO in transformers: names, and tensors of other shapes than ours.

The features are the first class token; transformers' ``summary``, which joins several of them, is not computed.

D width, h x w patches, C channels, P x Q a patch, R registers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from vitrail.errors import CheckpointError
from vitrail.models import ViTConfig, positions
from vitrail.text import printable
from vitrail.weights.blocks import split_gates
from vitrail.weights.layout import Weights, refuse
from vitrail.weights.names import State, invert, nest, rename

WHOLE, BODY = "radio_model.", "radio_model.model."
OF_RADIO = {
    "tokens": f"{BODY}patch_generator.cls_token.token",
    "pos_embed": f"{BODY}patch_generator.pos_embed",
    "patch_embed.proj": f"{BODY}patch_generator.embedder",
    "blocks.{}.": f"{BODY}blocks.{{}}.",
    **nest("blocks.{}.mlp.", f"{BODY}blocks.{{}}.mlp.", {"g": "gate_proj", "x": "up_proj", "w3": "down_proj"}),
    "blocks.{}.ls1.gamma": f"{BODY}blocks.{{}}.layer_scale1.lambda1",
    "blocks.{}.ls2.gamma": f"{BODY}blocks.{{}}.layer_scale2.lambda1",
    "norm_mean": f"{WHOLE}input_conditioner.norm_mean",
    "norm_std": f"{WHOLE}input_conditioner.norm_std",
    "summary_idxs": f"{WHOLE}summary_idxs",
}
UNUSED = ("norm_mean", "norm_std", "summary_idxs")
DOWN = {"blocks.{}.mlp.w3": "blocks.{}.mlp.fc2"}


def from_radio(state: State) -> State:
    """Splits all tokens, (1 + R, D), to the class token and registers. The bias of patches is zero."""
    own = {name: tensor for name, tensor in rename(state, DOWN).items() if name not in UNUSED}
    if "tokens" in own and own["tokens"].ndim == 2:
        tokens = own.pop("tokens")
        own |= {"cls_token": tokens[None, :1], "patch_embed.proj.bias": torch.zeros_like(tokens[0])}
        own |= {"reg_token": tokens[None, 1:]} if len(tokens) > 1 else {}
    return own


def to_radio(config: ViTConfig, state: State) -> State:
    """The inverse of `from_radio` and `complete_radio`."""
    theirs = {name: tensor for name, tensor in state.items() if name not in ("cls_token", "reg_token")}
    has_bias = bool(theirs.pop("patch_embed.proj.bias").any())
    refuse("transformers' 'radio'", {"a bias of patches other than zero": has_bias})
    theirs["patch_embed.proj.weight"] = theirs["patch_embed.proj.weight"].flatten(1)
    theirs["tokens"] = torch.cat([state[name] for name in ("cls_token", "reg_token") if name in state], 1)[0]
    theirs |= {name: torch.tensor(value) for name, value in radio_fields(config).items() if name in UNUSED}
    theirs |= {name: theirs[name].view(-1, 1, 1) for name in ("norm_mean", "norm_std")}
    return rename(split_gates(theirs), invert(DOWN)) if config.mlp == "swiglu" else theirs


def radio_fields(config: ViTConfig) -> dict[str, Any]:
    """Returns fields of config.json. The image processor normalises: mean and std of the network are 0 and 1."""
    return {
        "image_size": config.image_size[0],
        "max_img_size": config.image_size[0],
        "num_cls_tokens": 1,
        "num_registers": config.registers,
        "summary_idxs": [0],
        "norm_mean": [0.0] * config.in_channels,
        "norm_std": [1.0] * config.in_channels,
    }


def complete_radio(weights: Weights, fields: Mapping[str, Any], tensors: State) -> Weights:
    """Resizes the table to the longer side of the preprocessing's grid, and crops it. The network normalises the images that the
    image processor returns.
    """
    config, state, first = weights.config, dict(weights.tensors), weights.preprocessing
    (rows, columns), table = config.grid, state["pos_embed"]
    side, longer = math.isqrt(table.shape[1]), max(rows, columns)
    if longer > side:
        what = f"images of {first.size} have more patches along a side than its table of positions, {side}"
        raise CheckpointError(what, "give images of at most max_img_size in preprocessor_config.json")
    table = positions.resize(table, (side, side), (longer, longer), "bilinear").unflatten(1, (longer, longer))
    state["pos_embed"] = table[:, :rows, :columns].flatten(1, 2)  # (1, h w, D)
    weight = state["patch_embed.proj.weight"]  # (D, C P Q)
    state["patch_embed.proj.weight"] = weight.unflatten(1, (config.in_channels, *config.patch_size))
    for name in ("norm_mean", "norm_std"):
        stored = tensors.get(OF_RADIO[name])
        if stored is not None and stored.flatten().tolist() != torch.tensor(fields[name]).to(stored).tolist():
            what = f"its {name} is {printable(fields[name])} in config.json, and another in its tensors"
            raise CheckpointError(what, f"correct {name} in config.json")
    assumed = [each for each in weights.assumed if not each.startswith(("mean ", "std "))]
    if len(assumed) < len(weights.assumed):  # no image processor
        first = replace(first, mean=(0.0,) * config.in_channels, std=(1.0,) * config.in_channels)
    numbers = zip(first.mean, first.std, fields["norm_mean"], fields["norm_std"], strict=True)
    mean, std = zip(*((mean + std * own_mean, std * own_std) for mean, std, own_mean, own_std in numbers))
    assumed += [f"positions of {side}x{side} patches resized to {rows}x{columns}"] if longer < side else []
    return replace(weights, tensors=state, preprocessing=replace(first, mean=mean, std=std), assumed=tuple(assumed))
