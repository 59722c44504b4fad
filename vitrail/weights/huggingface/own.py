"""What vitrail itself says of a model in a folder of transformers: the key "vitrail" of its config.json.

Transformers cannot express some of what a model of ours is: how positions follow another size, the temperature. The key
holds our whole description beside the digest of the tensors that it describes. It is believed where the tensors are still
those, and only as far as it does not contradict what transformers reads.
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
from vitrail.tasks.classification import Classifier
from vitrail.tasks.task import check_classes
from vitrail.weights.description import check_version, describe
from vitrail.weights.huggingface.family import Family, State
from vitrail.weights.huggingface.processor import from_processor, to_processor
from vitrail.weights.layout import Weights

OTHERWISE = "what vitrail once said of it (its config.json) is of other weights or settings, and was left out"


def describe_with_digest(classifier: Classifier, tensors: State) -> dict[str, Any]:
    """What the key holds for a model whose tensors are these by their names."""
    return {**describe(classifier), "digest": digest(tensors)}


def digest(tensors: State) -> str:
    """SHA-256 of names, types, shapes and values, whatever the order and the files they lie in."""
    sha256 = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha256.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha256.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return sha256.hexdigest()


def merge_description(
    description: Any, tensors: State, weights: Weights, family: Family, *, processed: bool, path: Path
) -> Weights:
    """``weights``, as transformers' own files describe them, completed by what our description states in more detail.

    Args:
        description: the value of the key, from anyone.
        tensors: all of the file, by their names.
        processed: there is a preprocessor_config.json, which counts where it says otherwise.
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
    """``weights`` as the description has them; None where transformers would read another model from it."""
    check_version(description, path)
    config = ARCHITECTURES[description["architecture"]].from_dict(description["config"])
    _, fields, _ = family.write(family.express(config)[0])
    classes = weights.classes or check_classes(description["classes"], outputs=config.classes)
    temperature = float(description["temperature"])
    read = family.set_size(family.read({**family.defaults, **fields}, weights.tensors), weights.preprocessing)
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
    """What transformers makes of it; None where it cannot express it."""
    try:
        return from_processor(to_processor(preprocessing)[0], "ViT", config, path)[0]
    except CheckpointError:
        return None
