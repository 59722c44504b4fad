"""timm's layouts of a ViT: of its ``VisionTransformer``, plain or hybrid, and of its ``Eva``, which has RoPE. Most names are
those of `vitrail.models.vit`. What cannot be inferred from tensors is given as arguments of these classes.

D width, N patches, P prefix tokens, R registers, S slots of the position table, K classes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.models import ViTConfig
from vitrail.text import printable
from vitrail.weights.blocks import join_blocks, pair_halves, pair_neighbours, split_gates
from vitrail.weights.layout import is_cut
from vitrail.weights.names import State, invert, rename
from vitrail.weights.shapes import vit_fields
from vitrail.weights.timm.families import NUMERICS, is_timms_stem, name_hybrid
from vitrail.weights.timm.family import BLOCKS, IMAGES, Arguments, Family, find_heads, get_ratio
from vitrail.weights.timm.rope import HIDDEN, find_rope

# our name -> timm's, for models with a head for each of two tokens
TWO_HEADS = {"head.cls": "head", "head.dist": "head_dist"}
POOLS = {"token": "cls", "avg": "gap", "map": "map"}
NAMES_OF_GELU = {"exact": "gelu", "tanh": "gelu_tanh", "quick": "quick_gelu"}
ACTIVATIONS = {**invert(NAMES_OF_GELU), "silu": "exact"}  # silu: of a SwiGLU
# what timm's classes call the parts of a block that they store apart
GATE_AND_VALUE = {"blocks.{}.mlp.g": "blocks.{}.mlp.fc1_g", "blocks.{}.mlp.x": "blocks.{}.mlp.fc1_x"}
SCALES = {"blocks.{}.ls1.gamma": "blocks.{}.gamma_1", "blocks.{}.ls2.gamma": "blocks.{}.gamma_2"}
APART = {**{f"blocks.{{}}.attn.{part}": f"blocks.{{}}.attn.{part}_proj" for part in "qkv"}, **GATE_AND_VALUE, **SCALES}
HALVES = ("none", "dinov3")  # rotary positions whose pairs are those of vitrail
PROJECTIONS = (512, 640, 768, 1024, 1280)  # widths of published image-text projections
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
    "supported: ViT, DeiT, R+ViT, Swin, CaiT, PVT v2, BEiT and BiT in timm's layout, ViT of torchvision, CLIP of OpenAI "
    "and open_clip, Perception Encoder, DINOv2 and Swin of their authors, and vitrail's own files"
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
    r"(^|\.)class_embedding$": (
        "is a CLIP model in the layout of OpenAI or open_clip without ln_pre, and its pooling is unknown",
        "give the folder with its open_clip_config.json, or take it in the layout of timm or transformers",
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
    projection = _find_projection(state, arguments)
    rope = find_rope(state, arguments, where)
    arguments = {**arguments, "use_rot_pos_emb": bool(rope)}
    if rope and "pos_embed" not in state and not (arguments.get("img_size") or arguments.get("input_size")):
        arguments = {**arguments, "input_size": (256, 256) if rope["rope"] == "dinov3" else None}
    if "pos_embed" not in state and not rope:
        what = f"{where} has no 'pos_embed', and no signs of rotary positions"
        raise CheckpointError(what, "name its architecture in a config.json beside it, as timm does")
    fields = vit_fields(state, where, arguments)
    if rope:
        fields["positions"] = "learned" if "pos_embed" in state else "none"
    is_left_out = arguments.get("final_norm") is False or arguments.get("use_post_transformer_norm") is False
    if not (is_left_out or rope.get("rope_grid") == "own"):
        fields["final_norm"] = True  # a file without the norm is not read in silence
    if rope.get("rope_grid") == "own":
        rope["rope_grid"] = tuple(side // patch for side, patch in zip(fields["image_size"], fields["patch_size"]))
    if projection:
        fields |= {"classes": 0, "projection": projection}
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
        norm_eps=arguments.get("norm_eps") or _guess_eps(fields, rope),
        norm_at=_find_place_of_norm(fields, arguments),
        layer_scale=(arguments.get("init_values") or 1e-5) if "blocks.0.ls1.gamma" in state else None,
        pool_heads=arguments.get("attn_pool_num_heads") or _guess_pool_heads(state, fields, rope),
        pool_mlp_width=_find_pool_mlp_width(state, fields),
        **rope,
    )


def _guess_eps(fields: Mapping[str, Any], rope: Mapping[str, Any]) -> float:
    """Returns the eps of the published models of this structure, for a file that names none of them."""
    return 1e-5 if fields["pre_norm"] or fields["patch_norm"] or rope.get("rope") == "dinov3" else 1e-6


def _guess_pool_heads(state: State, fields: Mapping[str, Any], rope: Mapping[str, Any]) -> int | None:
    """Perception Encoder pools with eight heads at every width."""
    return 8 if rope.get("rope") == "pe" and "attn_pool.latent" in state and fields["width"] % 8 == 0 else None


def _find_place_of_norm(fields: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    is_enormous = (fields["width"], fields["depth"]) == (1792, 64)  # EVA-02-CLIP E
    return "post" if arguments.get("use_post_norm", is_enormous) else "pre"


def _find_pool_mlp_width(state: State, fields: Mapping[str, Any]) -> int | None:
    first = state.get("attn_pool.mlp.fc1.weight")
    return None if first is None or len(first) == fields["mlp_width"] else len(first)


def _find_projection(state: State, arguments: Mapping[str, Any]) -> int:
    """Returns the width of an image-text projection, which timm stores as a head whose bias is zero; 0 if there is none."""
    if "projection.weight" in state:
        return len(state["projection.weight"])
    head, bias = state.get("head.weight"), state.get("head.bias")
    if head is None or head.ndim != 2 or arguments.get("label_names") or len(head) not in PROJECTIONS:
        return 0
    is_image_text = (
        "norm_pre.weight" in state or "blocks.0.attn.norm.weight" in state or "blocks.0.attn.q_bias" in state
    )
    return len(head) if is_image_text and (bias is None or not bias.any()) else 0


def _find_pool(
    state: Mapping[str, Tensor], arguments: Mapping[str, Any], has_prefix: bool, registers: int, where: Path
) -> str:
    """Returns our type of pooling. Raises `CheckpointError` for an unsupported one."""
    averaged = (
        not has_prefix or "fc_norm.weight" in state or ("norm_pre.weight" in state and "norm.weight" not in state)
    )
    pool = arguments.get("global_pool") or ("map" if "attn_pool.latent" in state else "avg" if averaged else "token")
    if not isinstance(pool, str) or pool not in POOLS:
        raise CheckpointError(f"{where} pools by {printable(pool)!r}", f"supported: {', '.join(POOLS)}")
    includes = bool(arguments.get("pool_include_prefix", pool == "map" and arguments.get("use_rot_pos_emb")))
    if (has_prefix or registers) and pool != "token" and includes != (pool == "map"):
        tokens = "with" if pool == "avg" else "without"
        what = f"{where} pools by {pool} {tokens} the tokens before the patches"
        raise CheckpointError(what, "supported: avg without and map with them (pool_include_prefix)")
    return POOLS[pool]


def _check_plain(state: Mapping[str, Tensor], where: Path) -> None:
    needed = {"patch_embed.proj.weight": 4}
    needed |= {f"blocks.0.{layer}.weight": 2 for layer in ("attn.qkv", "mlp.fc1", "mlp.fc2")}
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


def _prepare(state: State) -> State:
    """Joins what ``Eva`` and ``SwiGLU`` may store apart, by their names of it."""
    return join_blocks(rename(state, invert(APART)))


def _to_own(config: ViTConfig, state: State) -> State:
    """Adds the positions of registers to the registers themselves, which have none in vitrail."""
    if "dist" in config.prefix:
        state = rename(state, invert(TWO_HEADS))
    if config.projection:
        state = {name: tensor for name, tensor in state.items() if name != "head.bias"}
        state = rename(state, {"head.weight": "projection.weight"})
    if config.rope not in HALVES:
        state = pair_halves(config, state)
    if "pos_embed" not in state:
        return state
    table, prefix, registers = state["pos_embed"], config.prefix_slots, config.registers
    if table.shape[1] == math.prod(config.grid) + prefix:
        return state
    added = table[:, prefix : prefix + registers]
    placed = {"reg_token": state["reg_token"] + added} if added.any() else {}
    return {**state, "pos_embed": torch.cat([table[:, :prefix], table[:, prefix + registers :]], 1), **placed}


def to_timms(config: ViTConfig, state: State) -> State:
    """Gives registers positions of zero if prefix tokens have positions, as timm's have them then."""
    if config.projection:
        state = {**state, "head.bias": state["projection.weight"].new_zeros(config.projection)}
        state = rename(state, {"projection": "head"})
    if config.rope not in HALVES:
        state = pair_neighbours(config, state)
    if config.registers and config.prefix_slots and "pos_embed" in state:
        table, prefix = state["pos_embed"], config.prefix_slots
        none = table.new_zeros(1, config.registers, config.width)
        state = {**state, "pos_embed": torch.cat([table[:, :prefix], none, table[:, prefix:]], 1)}
    if config.mlp == "swiglu" and (config.mlp_norm or config.norm == "rms"):
        state = rename(split_gates(state), GATE_AND_VALUE)
    return rename(state, TWO_HEADS)


def find_wrong(config: ViTConfig) -> dict[str, bool]:
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
        "classes after an image-text projection": bool(config.projection and config.classes),
    }


def _find_wrong(config: ViTConfig) -> dict[str, bool]:
    """`find_wrong`, and whether timm's ``VisionTransformer`` has such blocks at all."""
    blocks = f"{config.norm} norms ({config.norm_at}, eps {config.norm_eps:g}) beside the other parts of a block"
    return find_wrong(config) | {blocks: config.stem is None and not _find_entry(config)}


# what timm's class takes no argument for, the eps and kind of its norms and the kind of its MLP: an entry that has it
ENTRIES = {
    ("layer", 1e-5, "gelu"): "vit_base_patch16_clip_224",
    ("layer", 1e-6, "swiglu"): "vit_giant_patch14_reg4_dinov2",
    ("rms", 1e-5, "swiglu"): "aimv2_large_patch14_224",
}


def round_eps(config: ViTConfig) -> float:
    """Returns the eps of timm's entries that is nearest to a config's; what differs is described when a model is converted."""
    return 1e-5 if config.norm_eps == 1e-5 else 1e-6


def _find_entry(config: ViTConfig) -> str:
    """Returns the name of a timm entry that arguments change to this config, "" if there is none."""
    is_layer, is_bare, eps = config.norm == "layer", not config.patch_norm, round_eps(config)
    if config.mlp == "swiglu":  # packed and scaled as DINOv2's, or as AIMv2's
        is_like = not config.mlp_norm and (config.layer_scale is not None) == config.bias == is_bare == is_layer
    else:
        is_like = config.bias and is_bare and is_layer
    if not is_like or config.norm_at == "post":
        return "vit_base_patch16_rpn_224" if is_like and config.mlp == "gelu" and eps == 1e-6 else ""
    if (eps, config.mlp) == (1e-6, "gelu"):
        return _name_model(config)
    return ENTRIES.get((config.norm, eps, config.mlp), "")


def _name_model(config: ViTConfig) -> str:
    if "dist" in config.prefix:
        return f"deit_{DISTILLED.get(config.width, 'base')}_distilled_patch16_224"
    size, patches = SIZES.get((config.width, config.depth), ("base", ()))
    if config.stem is not None:
        return name_hybrid(config, size)
    patch = config.patch_size[0] if config.patch_size[0] in patches else patches[0] if patches else 16
    return f"vit_{size}_patch{patch}_224"


BLOCK_ARGUMENTS = {
    "pre_norm": "pre_norm",
    "final_norm": "final_norm",
    "scale_attn_norm": "attention_norm",
    "scale_mlp_norm": "mlp_norm",
    "proj_bias": "bias",
}


def _get_packed_ratio(config: ViTConfig) -> float:
    """Returns timm's MLP ratio, which counts both gate and value of a packed SwiGLU."""
    is_packed = (config.mlp, config.norm) == ("swiglu", "layer")
    return get_ratio(replace(config, mlp_width=2 * config.mlp_width) if is_packed else config)


def _state_unless_plain(field: str, config: ViTConfig) -> bool | None:
    """Returns a field, None where all are as in the paper: older versions of timm do not have the arguments."""
    values = {name: getattr(config, name) for name in BLOCK_ARGUMENTS.values()}
    is_plain = values == {name: getattr(ViTConfig(), name) for name in values}
    return None if is_plain and config.norm_eps <= 1e-6 and config.mlp == "gelu" else values[field]


POOLING: Arguments = {
    "global_pool": lambda config: invert(POOLS)[config.pool],
    "class_token": lambda config: bool(config.prefix),
    "no_embed_class": lambda config: not config.prefix_slots,
    "init_values": "layer_scale",
}
# others that follow from tensors, or have no effect on the outputs
UNREAD = frozenset({
    "fix_init", "dynamic_img_size", "dynamic_img_pad", "patch_drop_rate", "pos_embed", "qk_norm", "qkv_fused", "swiglu_mlp",
    "swiglu_align_to", "scale_mlp", "attn_type", "scale_attn_inner", "num_reg_tokens", "use_abs_pos_emb",
    "use_pre_transformer_norm", "use_post_transformer_norm", "use_fc_norm", "attn_pool_mlp_ratio", "head_init_scale",
})  # fmt: skip

VIT = Family(
    config=ViTConfig,
    mark="blocks.0.attn.qkv.weight",
    names={"head.pre_logits": "pre_logits.fc"},  # which timm had until version 0.5
    infer=_infer,
    needed=frozenset({"num_heads", "act_layer", "img_size", "pool_include_prefix"}) | POOLING.keys() | HIDDEN,
    written={
        **IMAGES,
        **BLOCKS,
        **POOLING,
        "mlp_ratio": _get_packed_ratio,
        "patch_size": lambda config: [length // config.stem_stride for length in config.patch_size],
        "qkv_bias": "qkv_bias",
        "reg_tokens": "registers",
        "pool_include_prefix": lambda config: config.pool == "map",
        "fc_norm": "pool_norm",
        "act_layer": lambda config: "silu" if config.mlp == "swiglu" else NAMES_OF_GELU[config.gelu],
        **{name: partial(_state_unless_plain, field) for name, field in BLOCK_ARGUMENTS.items()},
    },
    unread=UNREAD,
    find_wrong=_find_wrong,
    architecture=_find_entry,
    prepare=_prepare,
    to_own=_to_own,
    to_timms=to_timms,
)
