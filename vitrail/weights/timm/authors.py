"""The names of other repositories for networks that timm has, changed to timm's: torchvision's ViT, the image tower of CLIP in
OpenAI's and open_clip's files, and Perception Encoder, DINOv2, DeiT III and Swin as their authors publish them.

D width, F width of the projection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitrail.data.preprocessing import CLIP_COLOURS, IMAGENET_COLOURS
from vitrail.errors import CheckpointError
from vitrail.models.rope import ROPES
from vitrail.weights.blocks import PACKED, from_flat_tokens
from vitrail.weights.names import State, nest, rename, rename_with

# first layers, by which the names of torchvision and of the authors of DINOv2 and Swin are told apart
TORCHVISION_MARK, DINOV2_MARK, DINOV3_MARK = "conv_proj.weight", "register_tokens", "storage_tokens"
SWIN_MARK = "layers.0.downsample.reduction.weight"
CLIP_MARK, CLIP_BLOCK = "ln_pre.weight", "transformer.resblocks.0.attn.in_proj_weight"
IMAGENET: dict[str, Any] = {"mean": list(IMAGENET_COLOURS[0]), "std": list(IMAGENET_COLOURS[1]), "crop_pct": 224 / 256}
LAYER, BLOCK = "encoder.layers.encoder_layer_{}", "blocks.{}"
PACKED_ATTENTION = {"in_proj_weight": "qkv.weight", "in_proj_bias": "qkv.bias", "out_proj": "proj"}
# their names -> timm's; the MLP had other names before torchvision 0.12
TORCHVISION = {
    "class_token": "cls_token",
    "conv_proj": "patch_embed.proj",
    "encoder.pos_embedding": "pos_embed",
    **nest(f"{LAYER}.", f"{BLOCK}.", {"ln_1": "norm1", "ln_2": "norm2"}),
    **nest(f"{LAYER}.self_attention.", f"{BLOCK}.attn.", PACKED_ATTENTION),
    **nest(f"{LAYER}.mlp.", f"{BLOCK}.mlp.", {"0": "fc1", "linear_1": "fc1", "3": "fc2", "linear_2": "fc2"}),
    "encoder.ln": "norm",
    "heads.pre_logits": "pre_logits.fc",
    "heads.head": "head",
}
RESBLOCK, POOL = "transformer.resblocks.{}", "attn_pool"
CLIP = {
    "class_embedding": "cls_token",
    "positional_embedding": "pos_embed.weight",
    "conv1": "patch_embed.proj",
    "ln_pre": "norm_pre",
    f"{RESBLOCK}.": f"{BLOCK}.",
    **nest(f"{RESBLOCK}.", f"{BLOCK}.", {"ln_1": "norm1", "ln_2": "norm2"}),
    **nest(f"{RESBLOCK}.", f"{BLOCK}.", {"ls_1.gamma": "ls1.gamma", "ls_2.gamma": "ls2.gamma"}),
    **nest(f"{RESBLOCK}.attn.", f"{BLOCK}.attn.", PACKED_ATTENTION),
    **nest(f"{RESBLOCK}.mlp.", f"{BLOCK}.mlp.", {"c_fc": "fc1", "c_proj": "fc2"}),
    "ln_post": "norm",
    **nest(f"{POOL}.", f"{POOL}.", {"probe": "latent", "layernorm": "norm", "attn.out_proj": "proj"}),
    **nest(f"{POOL}.attn.", f"{POOL}.", {name: name for name in ("in_proj_weight", "in_proj_bias")}),
    **nest(f"{POOL}.mlp.", f"{POOL}.mlp.", {"c_fc": "fc1", "c_proj": "fc2"}),
}
OPENAI: dict[str, Any] = {"mean": list(CLIP_COLOURS[0]), "std": list(CLIP_COLOURS[1]), "crop_pct": 1.0}
PE_IMAGES: dict[str, Any] = {"interpolation": "bilinear", "crop_pct": 1.0, "crop_mode": "squash"}
# DINOv3, EUPE and EVA-02
GATED = {
    "storage_tokens": "reg_token",
    f"{BLOCK}.mlp.w1": f"{BLOCK}.mlp.fc1_g",
    f"{BLOCK}.mlp.w2": f"{BLOCK}.mlp.fc1_x",
    f"{BLOCK}.mlp.w3": f"{BLOCK}.mlp.fc2",
    f"{BLOCK}.mlp.ffn_ln": f"{BLOCK}.mlp.norm",
    f"{BLOCK}.attn.inner_attn_ln": f"{BLOCK}.attn.norm",
}
DEIT3 = {f"{BLOCK}.gamma_1": f"{BLOCK}.ls1.gamma", f"{BLOCK}.gamma_2": f"{BLOCK}.ls2.gamma"}
# BEiT and CaiT have DeiT III's names in timm, too
OTHER_SCALES = {"blocks.0.attn.q_bias", "blocks_token_only.0.attn.q.weight"}
# the authors' layers end with a downsampling, timm's begin with it
SWIN = {"layers.{}.downsample.": "layers.{1}.downsample.", "head": "head.fc"}
CHUNKED = re.compile(r"blocks\.\d+\.(\d+\.(?:norm|attn|mlp|ls))")  # DINOv2's blocks in chunks, as FSDP needs them
# tensors that follow from the shape of a network, those of Meta's pre-training, and masks of the bias of k
BUFFERS = re.compile(
    r"(.*\.)?(relative_position_index|attn_mask|rope\.freqs_(cos|sin))|rope_embed\.periods|(local_cls_norm|projectors)\..*"
    r"|blocks\.\d+\.attn\.(rope\.freqs_(cos|sin)|qkv\.bias_mask)"
)
# tensors of a pre-training that timm does not have
PRETRAINING = ("mask_token", "decoder_pos_embed", "decoder_embed.weight")


@dataclass(frozen=True)
class Renamed:
    """Tensors by timm's names.

    Args:
        layout: the name of the layout that they had.
        defaults: the preprocessing of the published models, if it is not timm's default.
        unused: names of tensors that follow from the shape of the network.
        fields: those of our config that are not what timm's layout implies.
    """

    tensors: dict[str, Tensor]
    layout: str = "timm"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)


def to_timm_names(state: Mapping[str, Tensor], *, stated: bool = False) -> Renamed:
    """Renames the tensors of torchvision's ViT, of CLIP's image tower, and of Perception Encoder, DINOv2, DINOv3, EVA-02,
    DeiT III and Swin from their authors. Others are kept.

    Args:
        stated: whether a config is beside the tensors; without one, how a CLIP without ``ln_pre`` pools is unknown.

    Raises:
        CheckpointError: a mask of biases is not that of k, or rotary positions have other periods than DINOv3's.
    """
    if CLIP_BLOCK in state and "conv1.weight" in state and (stated or CLIP_MARK in state):
        return _from_clip(state, stated=stated)
    if TORCHVISION_MARK in state:
        return Renamed(rename(state, TORCHVISION), "torchvision", {**IMAGENET, "interpolation": "bilinear"})
    published = any(name in state for name in (*PRETRAINING, DINOV2_MARK, DINOV3_MARK, SWIN_MARK))
    state = _mask_biases(state)
    if (periods := state.get("rope_embed.periods")) is not None:  # not used, as published ones are rounded to bf16
        known = ROPES["dinov3"].theta ** (torch.arange(len(periods)) / len(periods))
        if not torch.allclose(periods.float(), known, rtol=2**-8, atol=0):
            raise CheckpointError("rope_embed.periods are not those of theta 100", "such models are not supported")
    unused = tuple(name for name in state if BUFFERS.fullmatch(name))
    state = {name: tensor for name, tensor in state.items() if not BUFFERS.fullmatch(name)}
    state = rename_with(state, lambda name: CHUNKED.sub(r"blocks.\1", name))
    if "blocks.0.gamma_1" in state and OTHER_SCALES.isdisjoint(state):
        state = rename(state, DEIT3)
    state = rename(state, PACKED if "blocks.0.mlp.w12.weight" in state else GATED)
    if SWIN_MARK in state:
        state = rename(state, SWIN)
    if DINOV2_MARK in state and {"cls_token", "pos_embed"} <= state.keys():
        state = _move_class_position(state)
    return Renamed(state, defaults=IMAGENET if published else {}, unused=unused)


def _from_clip(state: Mapping[str, Tensor], *, stated: bool) -> Renamed:
    """Renames CLIP's image tower, and Perception Encoder, which has either attention pooling or no last norm. Its own code
    rotates by the index of a patch at every image size.
    """
    own = from_flat_tokens(rename(state, CLIP))
    if "proj" in own:
        own["projection.weight"] = own.pop("proj").transpose(0, 1)  # (D, F) to (F, D)
    if "norm_pre.weight" not in own:  # vitrail's projection of patches has a bias then
        own["patch_embed.proj.bias"] = own["patch_embed.proj.weight"].new_zeros(len(own["patch_embed.proj.weight"]))
    if "fc_norm.weight" in own or ("attn_pool.latent" in own) != ("norm.weight" in own):
        return Renamed(own, "open_clip", OPENAI, fields={"norm_eps": 1e-5})
    fields: dict[str, Any] = {} if stated else {"rope_grid": None, "position_resize": "bilinear"}
    return Renamed(own, "Perception Encoder", PE_IMAGES, fields={"norm_eps": 1e-5, **fields})


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


def _mask_biases(state: Mapping[str, Tensor]) -> State:
    """Takes q_bias and v_bias from DINOv3's biases of q, k and v, whose mask leaves none to k."""
    masked = dict(state)
    for name, mask in state.items():
        owner, _, last = name.rpartition(".qkv.")
        bias = state.get(f"{owner}.qkv.bias")
        if last != "bias_mask" or bias is None:
            continue
        width = len(mask) // 3
        expected = torch.ones_like(mask)
        expected[width : 2 * width] = 0
        if bias.shape != mask.shape or not (mask.isnan().all() or torch.equal(mask, expected)):
            raise CheckpointError(f"{name} is not 1 for q and v and 0 for k", "such models are not supported")
        del masked[f"{owner}.qkv.bias"]
        masked |= {f"{owner}.q_bias": bias[:width].clone(), f"{owner}.v_bias": bias[2 * width :].clone()}
    return masked


def _move_class_position(state: State) -> State:
    """DINOv2's table has a slot for the class token and none for registers: the slot is added to the token, as by timm."""
    token, table = state["cls_token"], state["pos_embed"]
    moved = {"reg_token" if name == DINOV2_MARK else name: tensor for name, tensor in state.items()}
    if token.ndim == table.ndim == 3 and token.shape[2] == table.shape[2] and table.shape[1] > 1:
        moved |= {"cls_token": token + table[:, :1], "pos_embed": table[:, 1:].contiguous()}
    return moved
