"""timm's layout of a plain ViT: its names are those of `vitrail.models.vit` but for a few, and what it leaves unsaid is
taken as timm has it.

D width, N patches, P prefix tokens, R registers, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.data.images import Preprocessing
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import ViTConfig
from vitrail.weights.layout import Weights
from vitrail.weights.tensors import AGAIN, printable

# width -> heads of the published sizes: 64 wide up to B and in L, 72 in So400m, 80 in H, 88 in g, 104 in G, 112 in e
HEADS = {192: 3, 384: 6, 512: 8, 768: 12, 1024: 16, 1152: 16, 1280: 16, 1408: 16, 1664: 16, 1792: 16}
# timm's name -> ours, where there is a head for each of two tokens
TWO_HEADS = {
    f"head{end}.{part}": f"head.{token}.{part}"
    for end, token in (("", "cls"), ("_dist", "dist"))
    for part in ("weight", "bias")
}
POOLS = {"token": "cls", "avg": "gap", "map": "map"}
ACTIVATIONS = {"gelu": "exact", "gelu_tanh": "tanh"}


def read_timm(tensors: dict[str, Tensor], described: Mapping[str, Any], path: Path) -> Weights:
    """What tensors in timm's layout hold.

    Args:
        described: the ``config.json`` beside them, ``{}`` for a bare file.

    Raises:
        CheckpointError: as `from_timm` and `preprocessing_of`; arguments of timm's that are not known here.
    """
    arguments = described.get("model_args") or {}
    if not isinstance(arguments, Mapping) or str(arguments.get("act_layer", "gelu")) not in ACTIVATIONS:
        what = f"{path} has model_args that are not known here: {printable(arguments, 200)}"
        raise CheckpointError(what, f"act_layer may be {' or '.join(ACTIVATIONS)}")
    heads, gelu = arguments.get("num_heads"), ACTIVATIONS[arguments.get("act_layer", "gelu")]
    config, state = from_timm(tensors, path, heads=heads, gelu=gelu, pool=described.get("global_pool"))
    preprocessing, assumed = preprocessing_of(described, config, path)
    if "act_layer" not in arguments:
        assumed.insert(0, "exact GELU")
    return Weights(
        layout="timm",
        config=config,
        tensors=state,
        preprocessing=preprocessing,
        classes=_names(described.get("label_names"), config.classes),
        assumed=(*assumed, f"LayerNorm eps {config.norm_eps:g}", f"{config.heads} heads"),
    )


def from_timm(
    state: Mapping[str, Tensor], where: Path, *, heads: int | None = None, gelu: str = "exact", pool: str | None = None
) -> tuple[ViTConfig, dict[str, Tensor]]:
    """The config that the shapes of a timm state dict show, and its tensors by our names.

    Args:
        where: the file, for messages.
        heads: attention heads; by default those of the published model of that width.
        gelu: "exact" or "tanh", which no shape shows.
        pool: timm's ``global_pool``; by default the class token where there is one, else the mean.

    Raises:
        CheckpointError: it is not a plain ViT, or something in it has no counterpart here.
    """
    _check_plain(state, where)
    projection = state["patch_embed.proj.weight"]  # (D, C, height, width of a patch)
    width, channels, *patch = projection.shape
    prefix = tuple(token for token in ("cls", "dist") if f"{token}_token" in state)
    registers = state["reg_token"].shape[1] if "reg_token" in state else 0
    state, grid = _with_slots(dict(state), prefix=len(prefix), registers=registers, where=where)
    if "head_dist.weight" in state:
        state = {TWO_HEADS.get(name, name): tensor for name, tensor in state.items()}
    head = state.get("head.weight", state.get("head.cls.weight"))
    pool = pool or ("map" if "attn_pool.latent" in state else "token" if prefix else "avg")
    if not isinstance(pool, str) or pool not in POOLS:
        raise CheckpointError(f"{where} pools by {printable(pool)!r}", f"{', '.join(POOLS)} are known here")
    try:
        config = ViTConfig(
            image_size=(grid * patch[0], grid * patch[1]),
            patch_size=(patch[0], patch[1]),
            in_channels=channels,
            classes=0 if head is None else len(head),
            width=width,
            depth=1 + max(int(name.split(".")[1]) for name in state if name.startswith("blocks.")),
            heads=heads or _heads(width, where),
            mlp_width=len(state["blocks.0.mlp.fc1.weight"]),
            prefix=prefix,
            registers=registers,
            pool=POOLS[pool],
            positions="learned",
            position_resize="bicubic-antialias",
            gelu=gelu,
            qkv_bias="blocks.0.attn.qkv.bias" in state,
            layer_scale=1e-5 if "blocks.0.ls1.gamma" in state else None,
        )
    except (ConfigError, ValueError, TypeError, IndexError) as error:
        what = f"the tensors of {where} are of no ViT that can be built: {printable(error, 300)}"
        raise CheckpointError(what, AGAIN) from error
    return config, state


def to_timm(config: ViTConfig, state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The inverse of `from_timm`: tensors by timm's names, and the arguments timm's ``VisionTransformer`` must be told.

    Raises:
        CheckpointError: the model has a part that timm's plain ViT has not.
    """
    if config.pre_logits or (config.positions, config.positions_at) != ("learned", "stem"):
        part = (
            "a hidden layer in the head"
            if config.pre_logits
            else f"{config.positions} positions, {config.positions_at}"
        )
        raise CheckpointError(f"timm's ViT has no counterpart of {part}", "keep it in vitrail's format")
    names = {ours: theirs for theirs, ours in TWO_HEADS.items()}
    told = {
        "act_layer": next(name for name, gelu in ACTIVATIONS.items() if gelu == config.gelu),
        "global_pool": next(name for name, pool in POOLS.items() if pool == config.pool),
        "num_heads": config.heads,
        "img_size": list(config.image_size),
        "no_embed_class": bool(config.registers),
    }
    renamed = {names.get(name, name): tensor for name, tensor in state.items()}
    if config.registers:
        # with registers timm's table has patches only; what it adds to the class token goes into the token itself
        slots = renamed["pos_embed"]
        for place, token in enumerate(config.prefix):
            renamed[f"{token}_token"] = renamed[f"{token}_token"] + slots[:, place : place + 1]
        renamed["pos_embed"] = slots[:, len(config.prefix) :]
    return renamed, told


def preprocessing_of(described: Mapping[str, Any], config: ViTConfig, where: Path) -> tuple[Preprocessing, list[str]]:
    """The preprocessing that timm's ``config.json`` states, with what of it was assumed; ``{}`` for a bare file.

    Raises:
        CheckpointError: it states something that is not known here.
    """
    stated = described.get("pretrained_cfg", described)
    defaults: dict[str, Any] = {
        "mean": [0.5] * config.in_channels,
        "std": [0.5] * config.in_channels,
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "crop_mode": "center",
    }
    if not isinstance(stated, Mapping):
        raise CheckpointError(f"{where} describes no preprocessing", AGAIN)
    assumed = [f"{name} {value}" for name, value in defaults.items() if stated.get(name) is None]
    value = {name: default if stated.get(name) is None else stated[name] for name, default in defaults.items()}
    try:
        fraction = float(value["crop_pct"])
        if not 0.1 <= fraction <= 1:
            raise ValueError(f"crop_pct is {fraction}")
        if len(value["mean"]) != config.in_channels:
            raise ValueError(f"{len(value['mean'])} means for {config.in_channels} channels")
        preprocessing = Preprocessing.timm(
            config.image_size,
            crop_fraction=fraction,
            interpolation=value["interpolation"],
            mean=tuple(map(float, value["mean"])),
            std=tuple(map(float, value["std"])),
        )
    except (TypeError, ValueError, OverflowError) as error:
        what = f"the preprocessing in {where} cannot be used: {printable(error, 300)}"
        raise CheckpointError(what, AGAIN) from error
    if value["crop_mode"] == "squash":
        preprocessing = replace(preprocessing, resize="squash", resize_to=None)
    elif value["crop_mode"] != "center":
        what = f"{where} asks for the crop mode {printable(value['crop_mode'])!r}"
        raise CheckpointError(what, "center and squash are known here; set crop_mode to one of them")
    return preprocessing, assumed


def _names(names: object, classes: int) -> tuple[str, ...] | None:
    """The names, where they can be those of so many classes: words that stand once each."""
    words = tuple(names) if isinstance(names, list) and all(isinstance(each, str) for each in names) else ()
    return words if len(words) == len(set(words)) == classes else None


def _check_plain(state: Mapping[str, Tensor], where: Path) -> None:
    needed = {"patch_embed.proj.weight": 4, "blocks.0.attn.qkv.weight": 2, "blocks.0.mlp.fc1.weight": 2}
    for name, axes in needed.items():
        if name not in state or state[name].ndim != axes:
            held = printable(", ".join(list(state)[:3]), 200) or "nothing"
            what = f"{where} is no plain ViT in timm's layout: it has no {name!r} of {axes} axes; it holds {held}, ..."
            raise CheckpointError(what, "plain ViTs by timm's names are read, and vitrail's own files")
    width = len(state["patch_embed.proj.weight"])
    for name in ("cls_token", "dist_token", "reg_token", "pos_embed"):
        tensor = state.get(name)
        if tensor is None:
            continue
        if tensor.ndim != 3 or tensor.shape[::2] != (1, width) or not tensor.is_floating_point():
            what = f"{where} has {name!r} of shape {tuple(tensor.shape)}, {tensor.dtype}"
            raise CheckpointError(what, f"in a model {width} wide it is (1, n, {width}), of floats")
    if "fc_norm.weight" in state:
        what = f"{where} has 'fc_norm': it takes the mean of the patches before the last norm, not after it"
        raise CheckpointError(what, "such models cannot be built here yet")


def _with_slots(state: dict[str, Tensor], *, prefix: int, registers: int, where: Path) -> tuple[dict[str, Tensor], int]:
    """The state with a position for each prefix token and patch and none for registers, and the side of the grid.

    timm's table (1, S, D) has slots for all tokens, or for patches only (DeiT III, models with registers).
    """
    if "pos_embed" not in state:
        raise CheckpointError(f"{where} has no 'pos_embed', from which its image size follows", "it cannot be read")
    table = state["pos_embed"]
    before = prefix + registers
    bare, slotted = _side(table.shape[1]), _side(table.shape[1] - before)
    # where both would be squares: published models with registers have slots for patches only
    if bare is not None and (registers or slotted is None):
        side = bare
        state["pos_embed"] = torch.cat([table.new_zeros(1, prefix, table.shape[2]), table], 1)
    elif slotted is not None:
        side = slotted
        if registers:
            state["reg_token"] = state["reg_token"] + table[:, prefix:before]
        state["pos_embed"] = torch.cat([table[:, :prefix], table[:, before:]], 1)
    else:
        what = f"{where} has {table.shape[1]} positions, which is no square grid beside {before} other tokens"
        raise CheckpointError(what, "models for square images are read")
    return state, side


def _side(patches: int) -> int | None:
    side = math.isqrt(max(patches, 0))
    return side if side and side * side == patches else None


def _heads(width: int, where: Path) -> int:
    if width not in HEADS:
        known = ", ".join(f"{width} ({heads})" for width, heads in HEADS.items())
        what = f"{where} is {width} wide, and no shape shows its number of attention heads"
        raise CheckpointError(
            what,
            'put it in a folder with a config.json that has "model_args": {"num_heads": ...}',
            value=f"the widths (heads) that are known: {known}",
        )
    return HEADS[width]
