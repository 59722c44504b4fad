"""timm's layout of a ViT, plain or hybrid. Most names are those of `vitrail.models.vit`. What cannot be inferred from tensors
is given as arguments of timm's ``VisionTransformer``.

D width, N patches, P prefix tokens, R registers, S slots of the position table, K classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.models import ViTConfig
from vitrail.weights.layout import choose_grid, most_likely
from vitrail.weights.tensors import OTHER, printable, refusing_values
from vitrail.weights.timm.family import COMMON, Family, heads_of, ratio_of, refuse
from vitrail.weights.timm.resnet import hybrid_architecture, is_timms_stem, stem_fields

# timm's name -> ours, for models with a head for each of two tokens
TWO_HEADS = {
    f"head{end}.{part}": f"head.{token}.{part}"
    for end, token in (("", "cls"), ("_dist", "dist"))
    for part in ("weight", "bias")
}
# the hidden layer of the head, which timm had until version 0.5
HIDDEN = {f"pre_logits.fc.{part}": f"head.pre_logits.{part}" for part in ("weight", "bias")}
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
        "is a CLIP model, which normalises before the first block",
        "such models are not supported",
    ),
    r"^blocks\.\d+\.mlp\.w12\.": (
        "has SwiGLU layers (mlp.w12), as DINOv2's giant",
        "only MLP layers are supported: take a smaller model",
    ),
    r"\.conv_bn_relu_\d+\.": ("has a stem of convolutions before the ViT", "such models are not supported"),
    r"\.lora_[AB]\.": (
        "has adapters beside the weights of the layers",
        "merge them and save the model again: model.merge_and_unload()",
    ),
}
DISTILLED = {192: "tiny", 384: "small", 768: "base"}


def from_timm(
    state: Mapping[str, Tensor], where: Path, arguments: Mapping[str, Any] | None = None
) -> tuple[ViTConfig, dict[str, Tensor]]:
    """Returns the config of a timm state dict, and its tensors by our names.

    Args:
        where: the file, for messages.
        arguments: arguments of timm's ``VisionTransformer`` that cannot be inferred from tensors: ``num_heads``, by default
            that of the published model of that width; ``act_layer``; ``global_pool``, by default the class token if there
            is one, otherwise the mean; ``grid`` or ``img_size``, see `choose_grid`; ``no_embed_class``; and ``norm_eps``.

    Raises:
        CheckpointError: it is not such a ViT, or has unsupported parts.
    """
    arguments, state = dict(arguments or {}), {HIDDEN.get(name, name): tensor for name, tensor in state.items()}
    _check_plain(state, where)
    width, channels, *cells = state["patch_embed.proj.weight"].shape  # (D, C, height, width of a patch)
    cut: dict[str, Any] = {"patch_size": cells, "in_channels": channels, **stem_fields(state, cells, where)}
    patch = cut["patch_size"]
    prefix = tuple(token for token in ("cls", "dist") if f"{token}_token" in state)
    registers = state["reg_token"].shape[1] if "reg_token" in state else 0
    grid, slotted = _grid(state, arguments, patch, before=len(prefix) + registers, registers=registers, where=where)
    renamed = _by_our_names(state, prefix=len(prefix), registers=registers if slotted else 0)
    head = state.get("head.weight")
    if "head.pre_logits.weight" in state and state["head.pre_logits.weight"].shape != (width, width):
        hidden = len(state["head.pre_logits.weight"])
        what = f"{where} has a hidden layer of {hidden} in its head, and its width is {width}"
        raise CheckpointError(what, "supported is a hidden layer of the width of the model")
    with refusing_values(f"the ViT of {where} cannot be built", OTHER):
        config = ViTConfig(
            image_size=(grid[0] * patch[0], grid[1] * patch[1]),
            classes=0 if head is None else len(head),
            width=width,
            depth=1 + max(int(name.split(".")[1]) for name in state if name.startswith("blocks.")),
            heads=arguments.get("num_heads") or heads_of(width, where),
            mlp_width=len(state["blocks.0.mlp.fc1.weight"]),
            prefix=prefix,
            registers=registers,
            pool=_pool(state, arguments, prefix, registers, where),
            pool_norm="fc_norm.weight" in state,
            pre_logits="head.pre_logits.weight" in state,
            positions="learned",
            prefix_positions=slotted or not prefix,
            position_resize="bicubic-antialias",
            gelu=ACTIVATIONS[arguments.get("act_layer") or "gelu"],
            norm_eps=arguments.get("norm_eps", 1e-6),
            qkv_bias="blocks.0.attn.qkv.bias" in state,
            layer_scale=(arguments.get("init_values") or 1e-5) if "blocks.0.ls1.gamma" in state else None,
            **cut,
        )
    return config, renamed


def to_timm(config: ViTConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `from_timm`: returns tensors by timm's names, for a model with the arguments of `arguments_of`.

    Raises:
        CheckpointError: the model has a part without a counterpart in timm's ViT.
    """
    check(config)
    names = {ours: theirs for theirs, ours in TWO_HEADS.items()}
    renamed = {names.get(name, name): tensor for name, tensor in state.items()}
    if config.registers and config.prefix_slots:
        # if timm's prefix tokens have slots, so have registers
        table, prefix = renamed["pos_embed"], config.prefix_slots
        none = table.new_zeros(1, config.registers, config.width)
        renamed["pos_embed"] = torch.cat([table[:, :prefix], none, table[:, prefix:]], 1)
    return renamed


def arguments_of(config: ViTConfig) -> dict[str, Any]:
    """Returns the arguments of timm's ``VisionTransformer`` for ``config``. Raises as `to_timm`."""
    check(config)
    arguments = {
        "img_size": list(config.image_size),
        "patch_size": [length // config.stem_stride for length in config.patch_size],
        "in_chans": config.in_channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": ratio_of(config.mlp_width, config.width),
        "qkv_bias": config.qkv_bias,
        "class_token": bool(config.prefix),
        "reg_tokens": config.registers,
        "no_embed_class": not config.prefix_slots,
        "global_pool": next(theirs for theirs, ours in POOLS.items() if ours == config.pool),
        "pool_include_prefix": config.pool == "map",
        "fc_norm": config.pool_norm,
        "act_layer": next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.gelu),
    }
    return arguments if config.layer_scale is None else {**arguments, "init_values": config.layer_scale}


def architecture_of(config: ViTConfig) -> str:
    """Returns the name of a timm model of this size, or of one that the arguments change to this size."""
    if "dist" in config.prefix:
        return f"deit_{DISTILLED.get(config.width, 'base')}_distilled_patch16_224"
    size, patches = SIZES.get((config.width, config.depth), ("base", ()))
    if config.stem is not None:
        return hybrid_architecture(config, size)
    patch = config.patch_size[0] if config.patch_size[0] in patches else patches[0] if patches else 16
    return f"vit_{size}_patch{patch}_224"


def check(config: ViTConfig) -> None:
    """Raises `CheckpointError` for a part without a counterpart in timm's ViT."""
    alone = config.pool == "cls" and not config.registers and config.prefix_positions
    whole = all(side % patch == 0 for side, patch in zip(config.image_size, config.patch_size))
    learned = (config.positions, config.positions_at) == ("learned", "stem")
    stemmed = config.stem is not None
    wrong = {
        "a hidden layer in the head": config.pre_logits,
        f"{config.positions} positions, {config.positions_at}": not learned,
        f"pooling by {config.pool}": config.pool not in POOLS.values(),
        f"windows of {config.window} patches": config.window > 0,
        "layers without skips": not config.skips,
        f"a stem of {config.stem} blocks, {config.stem_width} wide": stemmed and not is_timms_stem(config),
        "a second token behind a stem": stemmed and "dist" in config.prefix,
        "a second token that is not read, beside registers or without a position": "dist" in config.prefix
        and not alone,
        "images that are not whole patches": not whole,
    }
    refuse("ViT", wrong)


def _by_our_names(state: Mapping[str, Tensor], *, prefix: int, registers: int) -> dict[str, Tensor]:
    """Returns the tensors without position slots of ``registers``, which are added to the registers themselves."""
    renamed = dict(state)
    if "head_dist.weight" in state:
        renamed = {TWO_HEADS.get(name, name): tensor for name, tensor in state.items()}
    if registers:
        table = state["pos_embed"]
        added = table[:, prefix : prefix + registers]
        renamed["pos_embed"] = torch.cat([table[:, :prefix], table[:, prefix + registers :]], 1)
        if added.any():
            renamed["reg_token"] = state["reg_token"] + added
    return renamed


def _grid(
    state: Mapping[str, Tensor],
    arguments: Mapping[str, Any],
    patch: list[int],
    *,
    before: int,
    registers: int,
    where: Path,
) -> tuple[tuple[int, int], bool]:
    """Returns rows and columns of patches, and whether the ``before`` prefix tokens have slots in timm's table (1, S, D)."""
    if "pos_embed" not in state:
        raise CheckpointError(
            f"{where} has no 'pos_embed', so its image size is unknown", "such models are not supported"
        )
    slots = state["pos_embed"].shape[1]
    # published models with registers have slots for patches only
    counts = (slots, slots - before) if registers or arguments.get("no_embed_class") else (slots - before, slots)
    grid = choose_grid(
        lambda grid: slots in (grid[0] * grid[1], grid[0] * grid[1] + before),
        most_likely(counts),
        patch,
        arguments,
        where,
        f"{slots} positions for patches" + (f" and up to {before} other tokens" if before else ""),
    )
    return grid, slots > grid[0] * grid[1]


def _pool(
    state: Mapping[str, Tensor], arguments: Mapping[str, Any], prefix: tuple[str, ...], registers: int, where: Path
) -> str:
    """Returns our type of pooling. Raises `CheckpointError` for an unsupported one."""
    averaged = not prefix or "fc_norm.weight" in state
    pool = arguments.get("global_pool") or ("map" if "attn_pool.latent" in state else "avg" if averaged else "token")
    if not isinstance(pool, str) or pool not in POOLS:
        raise CheckpointError(f"{where} pools by {printable(pool)!r}", f"supported: {', '.join(POOLS)}")
    if (prefix or registers) and pool != "token" and bool(arguments.get("pool_include_prefix")) != (pool == "map"):
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
    if "norm_pre.weight" in state:
        what = f"{where} has 'norm_pre': it normalises before the first block, as CLIP's models do"
        raise CheckpointError(what, "such models are not supported")


VIT = Family(
    config=ViTConfig,
    mark="blocks.0.attn.qkv.weight",
    needed=frozenset(
        {"num_heads", "act_layer", "global_pool", "img_size", "no_embed_class", "init_values", "pool_include_prefix"}
    ),
    derived=COMMON | {"class_token", "reg_tokens", "fc_norm", "pre_norm", "qk_norm", "fix_init", "dynamic_img_size"},
    read=from_timm,
    check=check,
    write=to_timm,
    arguments=arguments_of,
    architecture=architecture_of,
)
