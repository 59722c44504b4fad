"""Conversion between preprocessor_config.json of transformers and `Preprocessing`.

Image processors resize, crop, rescale and normalise. They differ in their defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.data.preprocessing import CLIP_COLOURS, IMAGENET_COLOURS, Interpolation, Preprocessing
from vitrail.errors import CheckpointError
from vitrail.models import Config
from vitrail.models.config import is_whole
from vitrail.text import printable
from vitrail.weights.tensors import refusing_values

HALF = (0.5, 0.5, 0.5)
ALWAYS = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
SQUARE = {"height": 224, "width": 224}


def _silent(
    size: Mapping[str, int], resample: int, mean: Sequence[float], std: Sequence[float], *, crop: bool = False
) -> dict[str, Any]:
    normal = {"resample": resample, "image_mean": mean, "image_std": std}
    return {**ALWAYS, **normal, "size": size, "do_center_crop": crop, "crop_size": SQUARE}


# the defaults of each; a single number as the size of Bit's and CLIP's is the shorter side
PROCESSORS = {
    "ViT": _silent(SQUARE, 2, HALF, HALF),
    "DeiT": _silent({"height": 256, "width": 256}, 3, HALF, HALF, crop=True),
    "Beit": _silent(SQUARE, 3, HALF, HALF),
    "Pvt": _silent(SQUARE, 3, *IMAGENET_COLOURS),
    "Bit": _silent({"shortest_edge": 224}, 3, *CLIP_COLOURS, crop=True),
    "CLIP": _silent({"shortest_edge": 224}, 3, *CLIP_COLOURS, crop=True),
    "Siglip": _silent(SQUARE, 3, HALF, HALF),
    "DINOv3ViT": _silent(SQUARE, 2, *IMAGENET_COLOURS),
    "Eomt": _silent({"shortest_edge": 640, "longest_edge": 640}, 2, *IMAGENET_COLOURS),
    "Tipsv2": {**_silent({"height": 448, "width": 448}, 2, HALF, HALF), "do_normalize": False},
}
BORDER = "a border of the mean colour, where transformers has a black one"
MAX_CHANNELS = 10_000
ENDS = ("FeatureExtractor", "ImageProcessor", "ImageProcessorFast", "ImageProcessorPil")
# by Pillow's constants
FILTERS: dict[int, Interpolation] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box"}


def from_processor(
    stated: Mapping[str, Any], kind: str, config: Config, where: Path
) -> tuple[Preprocessing, list[str]]:
    """Returns the preprocessing of a file, and what was assumed.

    Args:
        stated: preprocessor_config.json; ``{}`` for the processor's defaults at the size of the model.
        kind: one of `PROCESSORS`, for a file that does not name its processor.
        where: for messages.

    Raises:
        CheckpointError: a value is unsupported or invalid.
    """
    kind = _kind(stated, where) or kind
    silent = PROCESSORS[kind] if config.in_channels == 3 else {**PROCESSORS[kind], "image_mean": 0.5, "image_std": 0.5}
    value = {**silent, **{name: field for name, field in stated.items() if field is not None}}
    remedy = "correct preprocessor_config.json, or remove it and state --mean, --std, --resize"
    with refusing_values(f"the preprocessing in {where} cannot be used", remedy):
        if kind == "Eomt" and value["do_resize"]:
            preprocessing, assumed = _fit(value["size"])
        else:
            preprocessing, assumed = _framing(value, config, square=kind not in ("Bit", "CLIP"))
        mean, std = _normal(value, config.in_channels)
        preprocessing = replace(preprocessing, interpolation=FILTERS[value["resample"]], mean=mean, std=std)
        preprocessing = preprocessing if stated else preprocessing.at(config.image_size)
    if stated:
        return preprocessing, assumed
    # not supported by transformers
    if preprocessing.resize == "short" and config.image_size[0] != config.image_size[1]:
        preprocessing = replace(preprocessing, resize="squash", resize_to=None)
    to = "x".join(map(str, preprocessing.size))
    way = preprocessing.resize + ("" if preprocessing.resize_to is None else f" {preprocessing.resize_to}")
    assumptions = [f"mean {list(preprocessing.mean)}", f"std {list(preprocessing.std)}", f"resize {way}", f"crop {to}"]
    return preprocessing, [*assumptions, f"interpolation {preprocessing.interpolation}"]


def to_processor(preprocessing: Preprocessing, of: str = "ViT") -> tuple[dict[str, Any], list[str]]:
    """The inverse of `from_processor`: returns the content of preprocessor_config.json, and notes on differences. Only the
    processor ``of`` EoMT adds a border.

    Raises:
        CheckpointError: no image processor of transformers supports the preprocessing.
    """
    size, way, to = preprocessing.size, preprocessing.resize, preprocessing.resize_to
    is_padded = way == "fit" and of == "Eomt" and size[0] == size[1]
    if way == "fit" and not is_padded:
        what = "no image processor of transformers scales an image to fit and adds a border on one side"
        raise CheckpointError(what, "take resize 'squash' or 'short'")
    if way == "short" and size[0] != size[1]:
        what = f"transformers has no counterpart of a shorter side of {to} pixels before a crop of {size[0]}x{size[1]}"
        raise CheckpointError(what, "squash instead, with `stated(resize='squash')`, or take a square image size")
    crop = {"height": size[0], "width": size[1]}
    crops = not is_padded and (way != "squash" or to is not None)
    # in older versions of transformers only these two crop, and DeiT's does not support a shorter side
    kind = of if is_padded else "ViT" if not crops else "DeiT" if way == "squash" else "Bit"
    larger = dict(zip(crop, preprocessing.resized(*size))) if way == "squash" else {"shortest_edge": to or min(size)}
    fields = {
        "image_processor_type": f"{kind}ImageProcessor",
        "do_resize": way != "none",
        "size": larger,
        "resample": next(number for number, name in FILTERS.items() if name == preprocessing.interpolation),
        "do_center_crop": crops,
        "crop_size": crop,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
        "do_convert_rgb": preprocessing.channels == 3,
    }
    notes = []
    if is_padded:
        fields |= {"size": dict.fromkeys(("shortest_edge", "longest_edge"), size[0]), "do_pad": True}
        notes.append(BORDER)
    if way == "short" and preprocessing.rounding != "floor":
        notes.append("the longer side is rounded down by transformers, and to nearest by vitrail")
    if crops and preprocessing.crop_rounding != "floor":
        notes.append("a centre crop at half a pixel is rounded down by transformers, and to even by vitrail")
    return fields, notes


def _kind(stated: Mapping[str, Any], where: Path) -> str:
    """Returns the entry of `PROCESSORS` that a file names, or "" if it names none."""
    name = stated.get("image_processor_type") or stated.get("feature_extractor_type") or ""
    known = {f"{kind}{end}": kind for kind in PROCESSORS for end in ENDS}
    if name and (not isinstance(name, str) or name not in known):
        what = f"the preprocessing in {where} has the unsupported image processor {printable(repr(name))}"
        raise CheckpointError(what, f"supported are those of {', '.join(PROCESSORS)}")
    return known[name] if name else ""


def _framing(value: Mapping[str, Any], config: Config, *, square: bool) -> tuple[Preprocessing, list[str]]:
    """Returns resize and crop. A centre crop is assumed if the processor would return images of varying size."""
    crop = _size(value["crop_size"], square=True) if value["do_center_crop"] else None
    size = _size(value["size"], square=square) if value["do_resize"] else None
    assumed = []
    if crop is None and not isinstance(size, tuple):
        crop = config.image_size if size is None else (size, size)
        assumed.append(f"a centre crop of {crop[0]}x{crop[1]}")
    if isinstance(crop, int):
        raise ValueError(f"crop_size is {crop}")
    if isinstance(size, tuple) and crop in (None, size):
        return Preprocessing(size=size), assumed
    assert crop is not None
    if size is None:
        return Preprocessing(size=crop, resize="none", crop_rounding="floor"), assumed
    if isinstance(size, int):
        if crop[0] != crop[1]:
            raise ValueError(f"a shorter side of {size} before a crop that is not square, {crop}")
        return Preprocessing(size=crop, resize="short", resize_to=size, crop_rounding="floor"), assumed
    squashed = Preprocessing(size=crop, resize="squash", resize_to=min(size), crop_rounding="floor")
    if squashed.resized(*size) != size:
        raise ValueError(f"the size {size} has another aspect ratio than the crop {crop}")
    return squashed, assumed


def _fit(size: Any) -> tuple[Preprocessing, list[str]]:
    """Returns the resize of EoMT, to a square with a border."""
    sides = {size[edge] for edge in ("shortest_edge", "longest_edge") if size.get(edge) is not None}
    side = min(sides)
    if len(sides) > 1 or not is_whole(side, 1):
        raise ValueError(f"a size of {size}")
    return Preprocessing(size=(side, side), resize="fit"), [BORDER]


def _size(size: Any, *, square: bool) -> tuple[int, int] | int:
    """Returns (height, width), or the shorter side."""
    if isinstance(size, Mapping):
        stated = {name: length for name, length in size.items() if length is not None}
        lengths = [stated[name] for name in (["shortest_edge"] if "shortest_edge" in stated else ["height", "width"])]
        known = len(stated) == len(lengths)
    else:
        lengths = [size] if isinstance(size, int) else list(size)
        lengths *= 2 if len(lengths) == 1 and square else 1
        known = len(lengths) in (1, 2)
    if not known or not all(is_whole(length, 1) for length in lengths):
        raise ValueError(f"a size of {size}")
    return (lengths[0], lengths[1]) if len(lengths) == 2 else lengths[0]


def _normal(value: Mapping[str, Any], channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and std for values in [0, 1], for a processor that first rescales values in [0, 255]."""
    scale = 255 * float(value["rescale_factor"] if value["do_rescale"] else 1)
    mean, std = (value["image_mean"], value["image_std"]) if value["do_normalize"] else (0.0, 1.0)
    if channels > MAX_CHANNELS:
        raise ValueError(f"images of {channels:,} channels")
    scaled = []
    for numbers in (mean, std):
        channel_values = list(numbers) if isinstance(numbers, Sequence) else [numbers] * channels
        if len(channel_values) != channels:
            raise ValueError(f"mean {mean} and std {std} for {channels} channels")
        scaled.append(tuple(float(number) / scale for number in channel_values))
    if not all(map(math.isfinite, scaled[0] + scaled[1])):
        raise ValueError(f"mean {mean} and std {std}")
    return scaled[0], scaled[1]
