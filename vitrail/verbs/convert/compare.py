"""Two checkpoints compared, tensor by tensor and fact by fact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.runtime.progress import LogFunction
from vitrail.weights.description import describe
from vitrail.weights.folders import read_folder
from vitrail.weights.google import read_npz
from vitrail.weights.pickled import read_pickle
from vitrail.weights.read import read_model
from vitrail.weights.resolve import ResolvedModel, resolve_model
from vitrail.weights.tensors import read_tensors, shape_of

SMALLEST = 1e-30  # stands for the largest number where all are 0


@dataclass(frozen=True)
class TensorDifference:
    """A tensor that both have: the largest difference of a number, and the same as a share of the largest number."""

    name: str
    absolute: float
    relative: float


@dataclass(frozen=True)
class Difference:
    """The differences between two checkpoints."""

    as_models: bool  # both could be read as models, so that tensors go by our names and facts are known
    equal: int  # tensors that are equal bit for bit
    differing: tuple[TensorDifference, ...]  # tensors of one shape that are not, the most different first
    shapes: Mapping[str, tuple[str, str]]  # tensors of two shapes, or of two types, by name
    only_first: tuple[str, ...]  # names that the other does not have
    only_second: tuple[str, ...]
    facts: Mapping[str, tuple[Any, Any]]  # config, preprocessing, classes and the like where they differ

    @property
    def is_none(self) -> bool:
        return not (self.differing or self.shapes or self.only_first or self.only_second or self.facts)


def compare(first: str | Path, second: str | Path, *, log: LogFunction = lambda line: None) -> Difference:
    """Compares two models that `vitrail.load` takes: as models if both can be read as such, else by the names in the files.

    Raises `ConfigError` where no model of that name exists, and `CheckpointError` for a file that cannot be read.
    """
    places = (resolve_model(first), resolve_model(second))
    try:
        models = [read_model(place, log, has_names=True).model for place in places]
        one, other = (model.backbone.state_dict() for model in models)
        facts = [flatten_description(describe(model)) for model in models]
    except CheckpointError as error:
        log(f"raw      compared by the names in the files, not as models: {error.what}")
        one, other = (_read_raw_tensors(place, log) for place in places)
        facts = [{}, {}]
    shared = [name for name in one if name in other]
    alike = [name for name in shared if one[name].shape == other[name].shape and one[name].dtype == other[name].dtype]
    differing = [
        _compare_tensors(name, one[name], other[name]) for name in alike if not equal_bits(one[name], other[name])
    ]
    described = {name: tuple(each.get(name, "-") for each in facts) for name in facts[0] | facts[1]}
    return Difference(
        as_models=bool(facts[0]),
        equal=len(alike) - len(differing),
        differing=tuple(sorted(differing, key=lambda item: (not isnan(item.relative), -item.relative, item.name))),
        shapes={name: (_format_shape(one[name]), _format_shape(other[name])) for name in shared if name not in alike},
        only_first=tuple(name for name in one if name not in other),
        only_second=tuple(name for name in other if name not in one),
        facts={name: values for name, values in described.items() if values[0] != values[1]},
    )


def equal_bits(one: Tensor, other: Tensor) -> bool:
    """Equal in shape, type and every bit; so that -0 is not 0, and NaN is itself."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    return torch.equal(*(tensor.contiguous().flatten().view(torch.uint8) for tensor in (one, other)))


def _compare_tensors(name: str, one: Tensor, other: Tensor) -> TensorDifference:
    one, other = one.double(), other.double()
    absolute = (one - other).abs().max()
    return TensorDifference(name, float(absolute), float(absolute / one.abs().max().clamp(min=SMALLEST)))


def _read_raw_tensors(resolved: ResolvedModel, log: LogFunction) -> dict[str, Tensor]:
    """Returns the tensors of a place by the names that stand there."""
    match resolved.layout:
        case "file":
            return read_tensors(resolved.path)[0]
        case "pickled file":
            return read_pickle(resolved.path)
        case "google file":
            return {name: torch.from_numpy(array.copy()) for name, array in read_npz(resolved.path).items()}
    return read_folder(resolved.path, log=log)


def flatten_description(description: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a description flat: ``config.gelu``, ``preprocessing.mean``, ``classes``; without where it comes from."""
    flat: dict[str, Any] = {}
    for name, value in description.items():
        if name in ("config", "preprocessing"):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        elif name not in ("metrics", "provenance", "format_version"):
            flat[name] = value
    return flat


def _format_shape(tensor: Tensor) -> str:
    return f"{shape_of(tensor)} {str(tensor.dtype).removeprefix('torch.')}"
