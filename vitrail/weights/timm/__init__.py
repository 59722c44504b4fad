"""Reading and writing timm's ``config.json``: architecture, arguments and preprocessing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError
from vitrail.models import Config, ViTConfig
from vitrail.tasks.classification.classifier import Classifier
from vitrail.text import printable
from vitrail.weights.description import parse_config
from vitrail.weights.layout import KEEP, Weights, describe_numerics, leave_out
from vitrail.weights.shapes import check_grid_allowed, describe_grid
from vitrail.weights.tensors import OTHER, refusing_values
from vitrail.weights.timm.authors import CLIP_MARK, TORCHVISION_MARK, separate_head, to_timm_names
from vitrail.weights.timm.entries import check_name, find_arguments
from vitrail.weights.timm.eva import EVA, is_eva
from vitrail.weights.timm.families import BEIT, BIT, CAIT, PVT_V2, SWIN
from vitrail.weights.timm.family import Family
from vitrail.weights.timm.vit import ACTIVATIONS, VIT

PREPROCESSING = "correct pretrained_cfg in config.json, or remove it and state --mean, --std, --resize"
# distinguished by their marks, in this order; a ViT has the fewest unique names
FAMILIES = (SWIN, CAIT, PVT_V2, BEIT, BIT, VIT)
TABLES = (CAIT, BEIT, VIT)  # with a table of positions, whose grid its size does not determine
# the first layer of each; `find_network` finds a network in a checkpoint by these
FIRST_LAYERS = ("patch_embed.proj.weight", "stem.conv.weight", TORCHVISION_MARK, CLIP_MARK)


def read_timm(
    tensors: dict[str, Tensor],
    described: Mapping[str, Any],
    path: Path,
    description: Mapping[str, Any] | None = None,
    *,
    grid: tuple[int, int] | None = None,
    image_size: tuple[int, int] | None = None,
) -> Weights:
    """Converts tensors in timm's layout, or one that `to_timm_names` renames.

    Args:
        described: timm's ``config.json`` beside them, ``{}`` for a bare file.
        description: vitrail's description, which takes precedence.
        grid, image_size: the rows and columns of patches of the table of positions, and the image size that is asked for;
            see `choose_grid`.

    Raises:
        CheckpointError: as `Family.read` and `parse_preprocessing`, or an unsupported model or argument.
        ConfigError: a grid is given, and the file or the description states it or the model has none.
    """
    with refusing_values(f"the tensors of {path} have other shapes than those of their layout", OTHER):
        renamed = to_timm_names(tensors, stated=bool(described))
    # a config.json beside the tensors belongs to this head
    tensors, head = (renamed.tensors, ()) if described or description else separate_head(renamed.tensors)
    family = _find_family(tensors, str(described.get("architecture", "")))
    if description is None:
        arguments = read_arguments(described, family, path)
    else:
        config = parse_config(description, path)
        arguments = _sized(family_of(config).arguments(config), config.image_size, path)
    has_table = family in TABLES and (family is not VIT or "pos_embed" in tensors)
    if grid is not None:
        check_grid_allowed(arguments.get("img_size"), has_table=has_table, path=path)
    config, state = family.read(tensors, path, {**arguments, "grid": grid, "image_size": image_size})
    config = replace(config, **renamed.fields)
    state, unused = leave_out(config, state)
    preprocessing, assumed = parse_preprocessing(described, config, path, renamed.defaults)
    stated = described.get("pretrained_cfg")
    # the second key is used if timm loaded and saved the model again
    names = described.get("label_names") or (stated.get("label_names") if isinstance(stated, Mapping) else None)
    placed: list[str] = []  # the image size, if neither a description nor an option states it: by a grid or in pixels
    if grid is None and not arguments.get("img_size") and arguments.get("input_size") != config.image_size:
        if has_table:
            placed = [describe_grid(config)]
        elif not image_size:
            placed = ["image size {}x{}".format(*config.image_size)]
    gelu = () if "act_layer" in arguments else ("gelu",)
    heads = () if arguments.get("num_heads") else ("heads",)
    guessed = ("rope",) if arguments.get("global_pool") else ("rope", "pool")
    guessed = () if {"use_rot_pos_emb", "rope_type"} & arguments.keys() else guessed
    return Weights(
        layout=renamed.layout,
        config=config,
        tensors=state,
        preprocessing=preprocessing,
        classes=_names(names, config.classes),
        assumed=(*describe_numerics(config, *gelu, "norm_eps", *heads, *guessed), *placed, *assumed),
        unused=(*unused, *head, *renamed.unused),
        description=description,
    )


def read_arguments(described: Mapping[str, Any], family: Family, path: Path) -> dict[str, Any]:
    """Returns the arguments in ``config.json`` that cannot be inferred from tensors, by the names of timm's class.

    Raises:
        CheckpointError: a model or an argument is unsupported.
    """
    arguments, name = described.get("model_args") or {}, str(described.get("architecture", ""))
    if family is VIT:
        check_name(name, path)
    unknown = sorted(set(arguments) - family.accepted) if isinstance(arguments, Mapping) else ["no object"]
    if unknown or arguments.get("norm_layer") not in (None, "layernorm"):
        what = f"{path} has unsupported model_args: {printable(arguments, 200)}"
        raise CheckpointError(what, "supported: LayerNorm, " + ", ".join(sorted(family.needed)))
    if str(arguments.get("act_layer") or "gelu") not in ACTIVATIONS:
        what = f"{path} has the act_layer {printable(arguments['act_layer'])}"
        raise CheckpointError(what, f"act_layer must be {' or '.join(ACTIVATIONS)}")
    pool = arguments.get("global_pool") or described.get("global_pool")
    if family.pool is not None and pool not in (None, family.pool):
        what = f"{path} pools by {printable(pool)!r}"
        raise CheckpointError(what, f"{family.config.about} supports only {family.pool}")
    known_arguments: dict[str, Any] = {"global_pool": pool}
    known_arguments |= find_arguments(name) if family is VIT else {}
    known_arguments |= {key: value for key, value in arguments.items() if key in family.needed}
    stated = described.get("pretrained_cfg")
    size = stated.get("input_size") if isinstance(stated, Mapping) else None
    return _sized(known_arguments, size[1:] if isinstance(size, list) else None, path)


def _sized(arguments: Mapping[str, Any], size: Any, path: Path) -> dict[str, Any]:
    """Returns (height, width) of the image size in the arguments and in the preprocessing."""
    return {**arguments, "img_size": _pair(arguments.get("img_size"), path), "input_size": _pair(size, path)}


def _pair(size: Any, path: Path) -> tuple[int, int] | None:
    pair = (size, size) if isinstance(size, int) else tuple(size) if isinstance(size, list) else size
    if pair is not None and (len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair)):
        raise CheckpointError(f"{path} has the img_size {printable(size)}", "give pixels, or [height, width]")
    return pair


def parse_preprocessing(
    described: Mapping[str, Any], config: Config, where: Path, published: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Preprocessing, list[str]]:
    """Returns the preprocessing in timm's ``config.json``, and what was assumed; ``{}`` for a bare file.

    Args:
        published: values to assume in place of timm's defaults, for images of three channels.

    Raises:
        CheckpointError: a value is unsupported.
    """
    stated = described.get("pretrained_cfg", described)
    defaults: dict[str, Any] = {
        "mean": [0.5] * config.in_channels,
        "std": [0.5] * config.in_channels,
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "crop_mode": "center",
        **(published if config.in_channels == 3 else {}),
    }
    if not isinstance(stated, Mapping):
        raise CheckpointError(f"pretrained_cfg in {where} is not a mapping but {printable(stated)}", PREPROCESSING)
    assumed = [f"{name} {value}" for name, value in defaults.items() if stated.get(name) is None]
    value = {name: default if stated.get(name) is None else stated[name] for name, default in defaults.items()}
    with refusing_values(f"the preprocessing in {where} cannot be used", PREPROCESSING):
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
    if value["crop_mode"] == "squash":
        # no crop unless stated: timm's models for 384 pixels use the whole picture
        cropped = stated.get("crop_pct") is not None and fraction < 1
        preprocessing = replace(preprocessing, resize="squash", resize_to=preprocessing.resize_to if cropped else None)
    elif value["crop_mode"] != "center":
        what = f"{where} has the unsupported crop_mode {printable(value['crop_mode'])!r}"
        raise CheckpointError(what, "set crop_mode to center or squash")
    return preprocessing, assumed


def _names(names: object, classes: int) -> tuple[str, ...] | None:
    """Returns the names if they are valid: unique strings, as many as classes."""
    strings = tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()
    return strings if len(strings) == len(set(strings)) == classes else None


def _find_family(tensors: Mapping[str, Tensor], name: str) -> Family:
    """Returns the family of tensors by their marks; BEiT shares that of EVA, which has no relative positions."""
    family = next((member for member in FAMILIES if member.mark in tensors), VIT)
    is_relative = any(tensor.endswith("relative_position_bias_table") for tensor in tensors)
    return VIT if family is BEIT and not is_relative and not name.startswith("beit") else family


def family_of(config: Config) -> Family:
    """Returns the family of a config. Raises `CheckpointError` for an unsupported architecture."""
    if isinstance(config, ViTConfig) and is_eva(config):
        return EVA
    for family in FAMILIES:
        if isinstance(config, family.config):
            return family
    raise CheckpointError(f"timm's layout has no counterpart of {config.about}", KEEP)


def as_timm(classifier: Classifier) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns the tensors by timm's names, and a ``config.json`` for ``timm.create_model`` with ``local-dir:FOLDER`` or
    ``hf-hub:owner/name``. Raises `CheckpointError` as `Family.check`.
    """
    config, family = classifier.config, family_of(classifier.config)
    arguments = family.arguments(config)
    tensors = family.write(config, classifier.backbone.state_dict())
    heads = [name for name in (*family.head, "head_dist") if f"{name}.weight" in tensors]
    return tensors, {
        "architecture": family.architecture(config),
        "num_classes": config.classes,
        "num_features": classifier.width,
        "global_pool": arguments.get("global_pool", "token" if classifier.prefix else "avg"),
        "label_names": list(classifier.classes),
        "model_args": arguments,
        "pretrained_cfg": {
            "custom_load": False,
            "input_size": [config.in_channels, *config.image_size],
            "fixed_input_size": "img_size" in arguments,
            **_stated(classifier.preprocessing),
            "num_classes": config.classes,
            "pool_size": None,
            "first_conv": classifier.backbone.first_layer.removesuffix(".weight"),
            "classifier": heads if len(heads) > 1 else family.head[0],
        },
    }


def _stated(preprocessing: Preprocessing) -> dict[str, Any]:
    """The inverse of `parse_preprocessing`. timm supports neither other rounding nor pictures without resizing.

    Raises `CheckpointError` for a border on one side.
    """
    if preprocessing.resize == "fit":
        what = "timm has no preprocessing that adds a border on one side"
        raise CheckpointError(what, "take resize 'squash' or 'short'")
    side, fraction = min(preprocessing.size), 1.0
    if preprocessing.resize_to is not None:
        fraction = side / preprocessing.resize_to
        while math.floor(side / fraction) < preprocessing.resize_to:
            fraction = math.nextafter(fraction, 0)
    return {
        "interpolation": preprocessing.interpolation,
        "crop_pct": fraction,
        "crop_mode": "squash" if preprocessing.resize == "squash" else "center",
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
    }
