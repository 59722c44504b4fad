"""timm's layout of a ViT, plain or hybrid. Most names are those of `vitrail.models.vit`. What cannot be inferred from tensors
is given as arguments of timm's ``VisionTransformer``.

D width, N patches, P prefix tokens, R registers, S slots of the position table, K classes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.models import ViTConfig
from vitrail.weights.layout import is_cut
from vitrail.weights.names import State, invert, rename
from vitrail.weights.shapes import vit_fields
from vitrail.weights.tensors import printable
from vitrail.weights.timm.families import NUMERICS, is_timms_stem, name_hybrid
from vitrail.weights.timm.family import BLOCKS, IMAGES, Family, find_heads

# our name -> timm's, for models with a head for each of two tokens
TWO_HEADS = {"head.cls": "head", "head.dist": "head_dist"}
POOLS = {"token": "cls", "avg": "gap", "map": "map"}
ACTIVATIONS = {"gelu": "exact", "gelu_tanh": "tanh"}
# (width, depth) -> timm's name of the size, and the available patch sizes
SIZES = {
    (192, 12): ("tiny", (16,)),
    (384, 12): ("small", (8, 16, 32)),
    (768, 12): ("base", (8, 16, 32)),
    (1024, 24): ("large", (14, 16, 32)),
    (1280, 32): ("huge", (14,)),
    (1408, 40): ("giant", (14,)),
    (1664, 48): ("gigantic", (14,)),
}
SUPPORTED = (
    "supported: ViT, DeiT, R+ViT, Swin, CaiT, PVT v2, BEiT and BiT in timm's layout, ViT of torchvision, DINOv2 and Swin of "
    "their authors, and vitrail's own files"
)
UNSUPPORTED = "such models are not supported"
# names of other networks and layouts -> what they are, and the remedy
KNOWN = {
    r"(^|\.)to_patch_embedding\.": (
        "is in the layout of vit-pytorch, which is not read",
        "give weights in the layout of timm, torchvision or Hugging Face transformers",
    ),
    r"(^|\.)embeddings\.patch_embeddings\.": (
        "has the names of Hugging Face transformers, whose config.json states the rest",
        "give the folder with its config.json, as save_pretrained writes it",
    ),
    r"(^|\.)class_embedding$": ("is a CLIP model, which normalises before the first block", UNSUPPORTED),
    r"^blocks\.\d+\.mlp\.w12\.": (
        "has SwiGLU layers (mlp.w12), as DINOv2's giant",
        "only MLP layers are supported: take a smaller model",
    ),
    r"\.conv_bn_relu_\d+\.": ("has a stem of convolutions before the ViT", UNSUPPORTED),
    r"\.lora_[AB]\.": (
        "has adapters beside the weights of the layers",
        "merge them and save the model again: model.merge_and_unload()",
    ),
}
DISTILLED = {192: "tiny", 384: "small", 768: "base"}


def _infer(state: State, where: Path, arguments: Mapping[str, Any]) -> ViTConfig:
    """Infers the config. By default the number of heads is that of the published model of that width, and pooling takes the
    class token if there is one, otherwise the mean.
    """
    _check_plain(state, where)
    fields = vit_fields(state, where, arguments)
    hidden = state.get("head.pre_logits.weight")
    if hidden is not None and hidden.shape != (fields["width"], fields["width"]):
        what = f"{where} has a hidden layer of {len(hidden)} in its head, and its width is {fields['width']}"
        raise CheckpointError(what, "supported is a hidden layer of the width of the model")
    return ViTConfig(
        **fields,
        **(NUMERICS if "stem" in fields else {}),
        heads=arguments.get("num_heads") or find_heads(fields["width"], where),
        pool=_find_pool(state, arguments, bool(fields["prefix"]), fields["registers"], where),
        position_resize="bicubic-antialias",
        gelu=ACTIVATIONS[arguments.get("act_layer") or "gelu"],
        norm_eps=arguments.get("norm_eps", 1e-6),
        layer_scale=(arguments.get("init_values") or 1e-5) if "blocks.0.ls1.gamma" in state else None,
    )


def _find_pool(
    state: Mapping[str, Tensor], arguments: Mapping[str, Any], has_prefix: bool, registers: int, where: Path
) -> str:
    """Returns our type of pooling. Raises `CheckpointError` for an unsupported one."""
    averaged = not has_prefix or "fc_norm.weight" in state
    pool = arguments.get("global_pool") or ("map" if "attn_pool.latent" in state else "avg" if averaged else "token")
    if not isinstance(pool, str) or pool not in POOLS:
        raise CheckpointError(f"{where} pools by {printable(pool)!r}", f"supported: {', '.join(POOLS)}")
    if (has_prefix or registers) and pool != "token" and bool(arguments.get("pool_include_prefix")) != (pool == "map"):
        tokens = "with" if pool == "avg" else "without"
        what = f"{where} pools by {pool} {tokens} the tokens before the patches"
        raise CheckpointError(what, "supported: avg without and map with them (pool_include_prefix)")
    return POOLS[pool]


def _check_plain(state: Mapping[str, Tensor], where: Path) -> None:
    needed = {"patch_embed.proj.weight": 4, "blocks.0.attn.qkv.weight": 2, "blocks.0.mlp.fc1.weight": 2}
    for name, axes in needed.items():
        if name not in state or state[name].ndim != axes:
            for pattern, (what, remedy) in KNOWN.items():
                if any(re.search(pattern, other) for other in state):
                    raise CheckpointError(f"{where} {what}", remedy)
            names = printable(", ".join(list(state)[:3]), 200) or "nothing"
            what = f"{where} is not a plain ViT in timm's layout: it has no {name!r} of {axes} axes; it contains {names}, ..."
            raise CheckpointError(what, SUPPORTED)
    width = len(state["patch_embed.proj.weight"])
    for name in ("cls_token", "dist_token", "reg_token", "pos_embed"):
        tensor = state.get(name)
        if tensor is None:
            continue
        if tensor.ndim != 3 or tensor.shape[::2] != (1, width) or not tensor.is_floating_point():
            what = f"{where} has {name!r} of shape {tuple(tensor.shape)}, {tensor.dtype}"
            raise CheckpointError(what, f"in a model of width {width} it is (1, n, {width}), of floats")
    if "pos_embed" not in state:
        what = f"{where} has no 'pos_embed', so its image size is unknown"
        raise CheckpointError(what, UNSUPPORTED)
    if "norm_pre.weight" in state:
        what = f"{where} has 'norm_pre': it normalises before the first block, as CLIP's models do"
        raise CheckpointError(what, UNSUPPORTED)


def _to_own(config: ViTConfig, state: State) -> State:
    """Adds the positions of registers to the registers themselves, which have none in vitrail."""
    if "dist" in config.prefix:
        state = rename(state, invert(TWO_HEADS))
    table, prefix, registers = state["pos_embed"], config.prefix_slots, config.registers
    if table.shape[1] == math.prod(config.grid) + prefix:
        return state
    added = table[:, prefix : prefix + registers]
    placed = {"reg_token": state["reg_token"] + added} if added.any() else {}
    return {**state, "pos_embed": torch.cat([table[:, :prefix], table[:, prefix + registers :]], 1), **placed}


def _to_timms(config: ViTConfig, state: State) -> State:
    """Gives registers positions of zero if prefix tokens have positions, as timm's have them then."""
    if config.registers and config.prefix_slots:
        table, prefix = state["pos_embed"], config.prefix_slots
        none = table.new_zeros(1, config.registers, config.width)
        state = {**state, "pos_embed": torch.cat([table[:, :prefix], none, table[:, prefix:]], 1)}
    return rename(state, TWO_HEADS)


def _find_wrong(config: ViTConfig) -> dict[str, bool]:
    is_read = config.pool == "cls" and not config.registers and config.prefix_positions
    distilled, stemmed = "dist" in config.prefix, config.stem is not None
    learned = (config.positions, config.positions_at) == ("learned", "stem")
    unread = "a second token that is not read, beside registers or without a position"
    return {
        "a hidden layer in the head": config.pre_logits,
        f"{config.positions} positions, {config.positions_at}": not learned,
        f"pooling by {config.pool}": config.pool not in POOLS.values(),
        f"windows of {config.window} patches": config.window > 0,
        "layers without skips": not config.skips,
        f"a stem of {config.stem} blocks, {config.stem_width} wide": stemmed and not is_timms_stem(config),
        "a second token behind a stem": stemmed and distilled,
        unread: distilled and not is_read,
        "images that are not whole patches": is_cut(config),
    }


def _name_model(config: ViTConfig) -> str:
    if "dist" in config.prefix:
        return f"deit_{DISTILLED.get(config.width, 'base')}_distilled_patch16_224"
    size, patches = SIZES.get((config.width, config.depth), ("base", ()))
    if config.stem is not None:
        return name_hybrid(config, size)
    patch = config.patch_size[0] if config.patch_size[0] in patches else patches[0] if patches else 16
    return f"vit_{size}_patch{patch}_224"


VIT = Family(
    config=ViTConfig,
    mark="blocks.0.attn.qkv.weight",
    names={"head.pre_logits": "pre_logits.fc"},  # which timm had until version 0.5
    infer=_infer,
    needed=frozenset(
        {"num_heads", "act_layer", "global_pool", "img_size", "no_embed_class", "init_values", "pool_include_prefix"}
    ),
    written={
        **IMAGES,
        **BLOCKS,
        "patch_size": lambda config: [length // config.stem_stride for length in config.patch_size],
        "qkv_bias": "qkv_bias",
        "class_token": lambda config: bool(config.prefix),
        "reg_tokens": "registers",
        "no_embed_class": lambda config: not config.prefix_slots,
        "global_pool": lambda config: invert(POOLS)[config.pool],
        "pool_include_prefix": lambda config: config.pool == "map",
        "fc_norm": "pool_norm",
        "act_layer": lambda config: invert(ACTIVATIONS)[config.gelu],
        "init_values": "layer_scale",
    },
    unread=frozenset({"pre_norm", "qk_norm", "fix_init", "dynamic_img_size"}),
    find_wrong=_find_wrong,
    architecture=_name_model,
    to_own=_to_own,
    to_timms=_to_timms,
)
