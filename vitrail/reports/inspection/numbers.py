"""Every number of an inspection, as ``numbers.json`` holds it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.analysis.head_statistics import HeadFigures
from vitrail.reports.inspection.facts import Biases, Inspection, Positions


def numbers(found: Inspection) -> dict[str, Any]:
    """Plain values for JSON; what is undefined is None, and what was not measured is not there."""
    figures: dict[str, Any] = {
        "model": found.model,
        "images": found.images,
        "data": found.data,
        "filters_explained": _plain(found.filters.explained),
        "findings": {each.claim: each.holds for each in found.findings},
    }
    if found.positions is not None:
        figures |= _of_positions(found.positions)
    if found.heads:
        figures |= _of_heads(found.heads)
    if found.biases is not None:
        figures |= _of_biases(found.biases)
    if found.cost:
        figures["cost"] = [each._asdict() for each in found.cost]
        figures["cost_by_patch"] = [each._asdict() for each in found.cost_by_patch]
    if found.samples:
        figures["samples"] = [
            {"path": each.key, "label": each.label, "score": each.score}
            | {name: _plain(looked) for name, looked in each.maps.items()}
            for each in found.samples
        ]
    return _defined(figures)


def _of_positions(found: Positions) -> dict[str, Any]:
    return {
        "position_neighbour_rate": found.neighbour_rate,
        "position_neighbour_rate_with_corners": found.neighbour_rate_with_corners,
        "position_similarity_row": found.lines.row,
        "position_similarity_column": found.lines.column,
        "position_similarity_elsewhere": found.lines.elsewhere,
        "position_similarity": _plain(found.similarity),
    }


def _of_heads(found: Sequence[HeadFigures]) -> dict[str, Any]:
    return {
        "attention_distance_px": [_plain(each.distance) for each in found],
        "attention_distance_uniform_px": [each.uniform for each in found],
        "attention_entropy": [_plain(each.entropy) for each in found],
        "attention_to_prefix": [_plain(each.prefix) for each in found],
    }


def _of_biases(found: Biases) -> dict[str, Any]:
    pixels, unplaced = found.permutation
    return {
        "shift_response": {str(shift): each._asdict() for shift, each in found.shifts.items()},
        "map_equivariance": [each._asdict() for each in found.maps],
        "locality_px": [each._asdict() for each in found.locality],
        "permuted_pixels": pixels._asdict(),
        "permuted_without_positions": None if unplaced is None else unplaced._asdict(),
    }


def _plain(values: np.ndarray | Tensor | Sequence[float]) -> Any:
    return np.asarray(values, dtype=np.float64).round(6).tolist()


def _defined(value: Any) -> Any:
    """The same with None for every number that is none: JSON has no NaN."""
    if isinstance(value, Mapping):
        return {key: _defined(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_defined(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
