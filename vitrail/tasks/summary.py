"""A model in a few words, for whoever prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from vitrail.data.preprocessing import Preprocessing
from vitrail.models import MODELS, Config, device_of

FITTED = {"classes", "image_size", "in_channels"}  # fields of a config that follow the data
LISTED = 5  # names of classes


def describe_model(model: Any) -> dict[str, str]:
    """What one wants to know of a `vitrail.tasks.Task`: its name, sizes, classes, parameters, preprocessing, origin."""
    config, parameters = model.config, list(model.parameters())
    height, width = model.preprocessing.size
    count = f"{sum(parameter.numel() for parameter in parameters):,}" if parameters else "in the exported graph"
    kinds = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters})
    facts = {
        "model": find_name(config) or f"{config.about} with {config.blocks} blocks",
        "image size": f"{height} x {width} pixels, {config.in_channels} channel{'s' if config.in_channels > 1 else ''}",
        "classes": _list_classes(model.classes),
        "parameters": ", ".join([count, *kinds, f"on {device_of(model)}"]),
        "preprocessing": _describe_preprocessing(model.preprocessing),
    }
    origin = _describe_origin(model.provenance)
    return {**facts, **({"from": origin} if origin else {})}


def find_name(config: Config) -> str | None:
    """The name in `MODELS` of a config for any image size, channels and classes; None if it has none."""
    compared = [field.name for field in fields(config) if field.name not in FITTED]
    for name, known in MODELS.items():
        if type(known) is type(config) and all(getattr(known, each) == getattr(config, each) for each in compared):
            return name
    return None


def _describe_origin(provenance: Mapping[str, Any]) -> str:
    """The file of the weights, or the training; empty if the weights come from neither."""
    names = ("weights", "layout") if "weights" in provenance else ("init", "data", "recipe", "date")
    return ", ".join(f"{name} {provenance[name]}" for name in names if provenance.get(name))


def _list_classes(names: tuple[str, ...]) -> str:
    if not names:
        return "none, it gives features"
    more = f", ... and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return f"{len(names):,}: {', '.join(names[:LISTED])}{more}"


def _describe_preprocessing(preprocessing: Preprocessing) -> str:
    first = "" if preprocessing.resize_to is None else f" to {preprocessing.resize_to}, crop"
    size = "x".join(map(str, preprocessing.size))
    resize = f"{preprocessing.resize}{first} {size}" if preprocessing.resize != "none" else f"crop {size}"
    mean, std = map(_list_numbers, (preprocessing.mean, preprocessing.std))
    return f"{resize}, {preprocessing.interpolation}, mean {mean}, std {std}"


def _list_numbers(numbers: tuple[float, ...]) -> str:
    """The numbers; only one if all of them are equal."""
    return ", ".join(f"{number:.4g}" for number in (numbers if len(set(numbers)) > 1 else numbers[:1]))
