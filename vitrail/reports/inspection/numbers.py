"""The contents of ``numbers.json``: all numbers of an inspection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.analysis.head_statistics import HeadFigures
from vitrail.files import replace_nan
from vitrail.reports.inspection.facts import Biases, Inspection, Positions, Rotations, Tokens


def numbers(inspection: Inspection) -> dict[str, Any]:
    """Returns plain values for JSON. Undefined values are None; values that were not measured are omitted."""
    figures: dict[str, Any] = {
        "model": inspection.model,
        "images": inspection.images,
        "data": inspection.data,
        "filters_explained": _round(inspection.filters.explained),
        "findings": {finding.claim: finding.holds for finding in inspection.findings},
    }
    if inspection.positions is not None:
        figures |= _list_positions(inspection.positions)
    if inspection.rotations is not None:
        figures |= _list_rotations(inspection.rotations)
    if inspection.heads:
        figures |= _list_heads(inspection.heads)
    if inspection.biases is not None:
        figures |= _list_biases(inspection.biases)
    if inspection.tokens is not None:
        figures |= _list_tokens(inspection.tokens)
    if (register := inspection.register) is not None:
        figures["register"] = {
            "neurons": [neuron._asdict() for neuron in register.neurons],
            "norms_before": [{"median": map_.median, "largest": map_.largest} for map_ in register.before],
            "same_answers": register.same_answers,
        }
    if inspection.painted is not None:
        found = inspection.painted.components
        figures |= {
            "components_images": len(found.maps),
            "components_explained": _round(found.explained),
            "components_between_images": _round(found.between),
        }
    if inspection.cost:
        figures["cost"] = [point._asdict() for point in inspection.cost]
        figures["cost_by_patch"] = [point._asdict() for point in inspection.cost_by_patch]
    if shown := inspection.samples or inspection.queries:
        figures["samples"] = [
            {"path": sample.key, "label": sample.label, "score": sample.score}
            | {name: _round(attention) for name, attention in sample.maps.items()}
            for sample in shown
        ]
    return replace_nan(figures)


def _list_positions(positions: Positions) -> dict[str, Any]:
    return {
        "position_neighbour_rate": positions.neighbour_rate,
        "position_neighbour_rate_with_corners": positions.neighbour_rate_with_corners,
        "position_similarity_row": positions.lines.row,
        "position_similarity_column": positions.lines.column,
        "position_similarity_elsewhere": positions.lines.elsewhere,
        "position_similarity": _round(positions.similarity),
    }


def _list_rotations(rotations: Rotations) -> dict[str, Any]:
    kernel = rotations.kernel
    return {
        "rope": rotations.rule,
        "rope_wavelengths_patches": _round(rotations.wavelengths),
        "rope_kernel_neighbour_rate": kernel.neighbour_rate,
        "rope_kernel_row": kernel.lines.row,
        "rope_kernel_column": kernel.lines.column,
        "rope_kernel_elsewhere": kernel.lines.elsewhere,
        "attention_by_offset": [_round(layer.attention) for layer in rotations.layers],
        "rope_kernel_by_offset": [_round(layer.kernel) for layer in rotations.layers],
    }


def _list_heads(layers: Sequence[HeadFigures]) -> dict[str, Any]:
    return {
        "attention_distance_px": [_round(layer.distance) for layer in layers],
        "attention_distance_uniform_px": [layer.uniform for layer in layers],
        "attention_entropy": [_round(layer.entropy) for layer in layers],
        "attention_to_prefix": [_round(layer.prefix) for layer in layers],
    }


def _list_biases(biases: Biases) -> dict[str, Any]:
    pixels, unplaced, unrotated = biases.permutation
    rotary = {} if unrotated is None else {"permuted_without_rotation": unrotated._asdict()}
    return {
        "shift_response": {str(shift): response._asdict() for shift, response in biases.shifts.items()},
        "map_equivariance": [response._asdict() for response in biases.maps],
        "locality_px": [locality._asdict() for locality in biases.locality],
        "permuted_pixels": pixels._asdict(),
        "permuted_without_positions": None if unplaced is None else unplaced._asdict(),
    } | rotary


def _list_tokens(tokens: Tokens) -> dict[str, Any]:
    return {
        "patch_norms": [
            {
                "median": map_.median,
                "percentile_98": map_.high,
                "largest": map_.largest,
                "above_3_medians": map_.outliers,
                "from_2_to_3_medians": map_.near,
                "artefacts": map_.is_bimodal,
                "outliers_by_place": _round(map_.places),
            }
            for map_ in tokens.maps
        ],
        "artefacts_from": tokens.onset,
        "artefacts_neuron": None if tokens.neuron is None else tokens.neuron._asdict(),
    }


def _round(values: np.ndarray | Tensor | Sequence[float]) -> Any:
    return np.asarray(values, dtype=np.float64).round(6).tolist()
