"""Measurements inside the final models of a study: attention distances, similarities of position embeddings, and how much
the output changes when the image is shifted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from vitrail.analysis.embeddings import (
    compute_line_similarity,
    compute_neighbour_rate,
    compute_position_similarity,
    extract_position_embeddings,
)
from vitrail.analysis.equivariance import measure_shift_response
from vitrail.analysis.head_statistics import HeadFigures, HeadStatistics
from vitrail.data.sources.contents import choose_evenly
from vitrail.data.sources.source import Source
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import read_inputs
from vitrail.models import create_backbone
from vitrail.runtime.process import keep_generators

WATCHED = 128  # images, as in the paper (section 4.5: figure 11)
# of the distance of uniform attention, below and above which a head is called local and global
LOCAL, GLOBAL = 0.5, 0.9
SHIFTS = (1, 2, 4)  # pixels


def measure_findings(measures: Sequence[str], model: Any, source: Source, seed: int) -> dict[str, Any]:
    """The findings by measure; those that a network does not have are left out.

    Args:
        measures: some of `design.MEASURES`.
        source: the images that attention is averaged over, of which `WATCHED` are taken.
        seed: of the untrained twin that the position embeddings are compared with.
    """
    found: dict[str, Any] = {}
    if "heads" in measures and model.attention_grids(model.preprocessing.size):
        found["heads"] = summarise_heads(_measure_heads(model, source))
    if "positions" in measures and (positions := _measure_positions(model, seed)):
        found["positions"] = positions
    if "shifts" in measures:
        found["shifts"] = _measure_shifts(model, source)
    return found


@torch.inference_mode()
def _measure_heads(model: Any, source: Source) -> list[HeadFigures]:
    statistics = HeadStatistics(model)
    watched = source.subset(choose_evenly(len(source), WATCHED))
    for _, images in read_inputs(model, watched, InferenceOptions(batch=32)):
        statistics.add(images)
    return statistics.figures()


def summarise_heads(layers: Sequence[HeadFigures]) -> dict[str, Any]:
    """Of the lowest third of the layers the ``share_mixed`` that has both local and global heads (section 4.5: "attention heads
    attend to most of the image already in the lowest layers ... other attention heads have consistently small attention
    distances"), and the ``share_local`` of their heads; and ``distance_by_depth``, Spearman's correlation of a layer's mean
    distance with its number.
    """
    from scipy.stats import spearmanr

    lowest = layers[: math.ceil(len(layers) / 3)]
    shares = [layer.distance / layer.uniform for layer in lowest]
    mixed = [bool((share < LOCAL).any() and (share > GLOBAL).any()) for share in shares]
    means = [float(layer.distance.mean()) for layer in layers]
    ordered = float(spearmanr(np.arange(len(means)), means).statistic) if len(set(means)) > 2 else None
    return {
        "share_mixed": sum(mixed) / len(mixed),
        "share_local": (torch.cat(shares) < LOCAL).double().mean().item(),
        **({} if ordered is None else {"distance_by_depth": ordered}),
        "layers": [{"distance": layer.distance.tolist(), "uniform": layer.uniform} for layer in layers],
    }


def _measure_positions(model: Any, seed: int) -> dict[str, float]:
    """Of the embeddings of a model and of its untrained twin; empty for a network that adds none."""
    with keep_generators():
        torch.manual_seed(seed)
        twin = create_backbone(model.config)
    trained, untrained = (extract_position_embeddings(each) for each in (model, twin))
    if trained is None or untrained is None or min(trained.shape[:2]) < 3:  # lines are compared at distances from 2
        return {}
    similarity = compute_position_similarity(trained)
    lines = compute_line_similarity(similarity)
    return {
        "neighbour_rate": compute_neighbour_rate(similarity),
        "row_column_excess": (lines.row + lines.column) / 2 - lines.elsewhere,
        "untrained_neighbour_rate": compute_neighbour_rate(compute_position_similarity(untrained)),
    }


@torch.inference_mode()
def _measure_shifts(model: Any, source: Source) -> dict[str, float]:
    """For shifts by 1, 2 and 4 pixels, borders reflected: how far the features ``moved``, relative to the distance of different
    images, and the share of answers that ``changed``; means over the shifts.
    """
    watched = source.subset(choose_evenly(len(source), WATCHED))
    images = torch.cat([batch for _, batch in read_inputs(model, watched, InferenceOptions(batch=WATCHED))])
    room = F.pad(images, (0, max(SHIFTS), 0, max(SHIFTS)), mode="reflect")
    responses = measure_shift_response(model, room, SHIFTS).values()
    return {
        "moved": float(np.mean([each.moved / each.apart if each.apart else 0.0 for each in responses])),
        "changed": float(np.mean([each.changed or 0.0 for each in responses])),
    }
