"""vitrail's description of a model in a folder of transformers: the key "vitrail" of config.json.

transformers cannot express everything, such as the resizing of positions and the temperature. The key contains vitrail's
description and a digest of the tensors. It is used if the tensors are unchanged, and as far as it does not contradict what
transformers reads.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError, VitrailError
from vitrail.models import ARCHITECTURES, Config
from vitrail.tasks.task import check_classes
from vitrail.weights.description import check_version
from vitrail.weights.huggingface.family import Family, State
from vitrail.weights.huggingface.processor import from_processor, to_processor
from vitrail.weights.layout import Weights

OTHERWISE = "vitrail's description in config.json does not match the weights or settings and was ignored"


def digest(tensors: State) -> str:
    """Returns the SHA-256 of names, types, shapes and values, independent of order and sharding."""
    sha256 = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha256.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha256.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return sha256.hexdigest()


def merge_description(
    description: Any, tensors: State, weights: Weights, family: Family, *, processed: bool, path: Path
) -> Weights:
    """Completes ``weights``, as described by transformers' files, with the details of vitrail's description.

    Args:
        description: the value of the key; untrusted.
        tensors: all tensors of the file, by transformers' names.
        processed: whether there is a preprocessor_config.json, which takes precedence.
    """
    try:
        known = _apply_description(description, weights, family, path)
    except (VitrailError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        known = None
    if known is None or description.get("digest") != digest(tensors):
        return replace(weights, assumed=(*weights.assumed, OTHERWISE))
    if processed and _round_trip(known.preprocessing, known.config, path) != weights.preprocessing:
        known = replace(known, preprocessing=weights.preprocessing)
    return known


def _apply_description(description: Any, weights: Weights, family: Family, path: Path) -> Weights | None:
    """Returns ``weights`` as described, or None if transformers would read a different model from it."""
    check_version(description, path)
    config = ARCHITECTURES[description["architecture"]].from_dict(description["config"])
    fields, _ = family.write_config(family.express(config)[0])
    classes = weights.classes or check_classes(description["classes"], outputs=config.classes)
    temperature = float(description["temperature"])
    read = family.set_size(family.read_config(fields, weights.tensors), weights.preprocessing)
    if read != weights.config or not 0 < temperature < math.inf:
        return None
    return replace(
        weights,
        config=config,
        tensors=family.restore_state(config, weights.tensors),
        preprocessing=Preprocessing.from_dict(description["preprocessing"]),
        classes=classes or None,
        temperature=temperature,
        assumed=(),
    )


def _round_trip(preprocessing: Preprocessing, config: Config, path: Path) -> Preprocessing | None:
    """Returns what transformers reads from a description, or None if it cannot express it."""
    try:
        return from_processor(to_processor(preprocessing)[0], "ViT", config, path)[0]
    except CheckpointError:
        return None
