"""The names of other repositories for networks that timm has, changed to timm's: torchvision's ViT, and DINOv2, DeiT III and Swin
as their authors publish them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vitrail.weights.names import State, rename, rename_with

# first layers, by which the names of torchvision and of the authors of DINOv2 and Swin are told apart
TORCHVISION_MARK, DINOV2_MARK, SWIN_MARK = "conv_proj.weight", "register_tokens", "layers.0.downsample.reduction.weight"
IMAGENET: dict[str, Any] = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "crop_pct": 224 / 256}
LAYER, BLOCK = "encoder.layers.encoder_layer_{}", "blocks.{}"
# their names -> timm's; the MLP had other names before torchvision 0.12
TORCHVISION = {
    "class_token": "cls_token",
    "conv_proj": "patch_embed.proj",
    "encoder.pos_embedding": "pos_embed",
    f"{LAYER}.ln_1": f"{BLOCK}.norm1",
    f"{LAYER}.self_attention.in_proj_weight": f"{BLOCK}.attn.qkv.weight",
    f"{LAYER}.self_attention.in_proj_bias": f"{BLOCK}.attn.qkv.bias",
    f"{LAYER}.self_attention.out_proj": f"{BLOCK}.attn.proj",
    f"{LAYER}.ln_2": f"{BLOCK}.norm2",
    f"{LAYER}.mlp.0": f"{BLOCK}.mlp.fc1",
    f"{LAYER}.mlp.linear_1": f"{BLOCK}.mlp.fc1",
    f"{LAYER}.mlp.3": f"{BLOCK}.mlp.fc2",
    f"{LAYER}.mlp.linear_2": f"{BLOCK}.mlp.fc2",
    "encoder.ln": "norm",
    "heads.pre_logits": "pre_logits.fc",
    "heads.head": "head",
}
DEIT3 = {f"{BLOCK}.gamma_1": f"{BLOCK}.ls1.gamma", f"{BLOCK}.gamma_2": f"{BLOCK}.ls2.gamma"}
# BEiT and CaiT have DeiT III's names in timm, too
OTHER_SCALES = {"blocks.0.attn.q_bias", "blocks_token_only.0.attn.q.weight"}
# the authors' layers end with a downsampling, timm's begin with it
SWIN = {"layers.{}.downsample.": "layers.{1}.downsample.", "head": "head.fc"}
CHUNKED = re.compile(r"blocks\.\d+\.(\d+\.(?:norm|attn|mlp|ls))")  # DINOv2's blocks in chunks, as FSDP needs them
# tensors that follow from the shape of a network; timm no longer stores them
BUFFERS = re.compile(r"(.*\.)?(relative_position_index|attn_mask)")
# tensors of a pre-training that timm does not have
PRETRAINING = ("mask_token", "decoder_pos_embed", "decoder_embed.weight")


@dataclass(frozen=True)
class Renamed:
    """Tensors by timm's names.

    Args:
        layout: the name of the layout that they had.
        defaults: the preprocessing of the published models, if it is not timm's default.
        unused: names of tensors that follow from the shape of the network.
    """

    tensors: dict[str, Tensor]
    layout: str = "timm"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    unused: tuple[str, ...] = ()


def to_timm_names(state: Mapping[str, Tensor]) -> Renamed:
    """Renames the tensors of torchvision's ViT, and of DINOv2, DeiT III and Swin from their authors. Others are kept."""
    if TORCHVISION_MARK in state:
        return Renamed(rename(state, TORCHVISION), "torchvision", {**IMAGENET, "interpolation": "bilinear"})
    published = any(name in state for name in (*PRETRAINING, DINOV2_MARK, SWIN_MARK))
    unused = tuple(name for name in state if BUFFERS.fullmatch(name))
    state = {name: tensor for name, tensor in state.items() if not BUFFERS.fullmatch(name)}
    state = rename_with(state, lambda name: CHUNKED.sub(r"blocks.\1", name))
    if "blocks.0.gamma_1" in state and OTHER_SCALES.isdisjoint(state):
        state = rename(state, DEIT3)
    if SWIN_MARK in state:
        state = rename(state, SWIN)
    if DINOV2_MARK in state and {"cls_token", "pos_embed"} <= state.keys():
        state = _move_class_position(state)
    return Renamed(state, defaults=IMAGENET if published else {}, unused=unused)


def separate_head(state: Mapping[str, Tensor]) -> tuple[State, tuple[str, ...]]:
    """Returns the tensors of a ViT without a head for features of another width, such as those of several layers, and the
    names of the head's tensors.
    """
    layer, head, bias = (state.get(name) for name in ("patch_embed.proj.weight", "head.weight", "head.bias"))
    if layer is None or layer.ndim != 4 or head is None or bias is None or "blocks.0.attn.qkv.weight" not in state:
        return dict(state), ()
    if head.ndim != 2 or bias.shape != head.shape[:1] or head.shape[1] == len(layer):
        return dict(state), ()
    names = ("head.weight", "head.bias")
    return {name: tensor for name, tensor in state.items() if name not in names}, names


def _move_class_position(state: State) -> State:
    """DINOv2's table has a slot for the class token and none for registers: the slot is added to the token, as by timm."""
    token, table = state["cls_token"], state["pos_embed"]
    moved = {"reg_token" if name == DINOV2_MARK else name: tensor for name, tensor in state.items()}
    if token.ndim == table.ndim == 3 and token.shape[2] == table.shape[2] and table.shape[1] > 1:
        moved |= {"cls_token": token + table[:, :1], "pos_embed": table[:, 1:].contiguous()}
    return moved
