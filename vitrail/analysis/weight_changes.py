"""What a training changed of the dense layers of a network: how much, and in how many directions.

O rows and I columns of a weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.models.adapters import SLICED
from vitrail.models.backbone import Backbone
from vitrail.models.layers import Dense


@dataclass(frozen=True)
class WeightChange:
    """The change of the weight of a ``layer``, or of its ``part`` q, k or v: its Frobenius norm ``relative`` to that of the
    weight before; and its `participation_ratio`, of at most ``full`` directions.
    """

    layer: str
    part: str
    relative: float
    directions: float
    full: int


@torch.no_grad()
def measure_changes(before: Backbone, after: Backbone) -> list[WeightChange]:
    """Returns the changes from ``before`` to ``after`` in the order of the layers, without those of the head; empty unless both
    networks have the same dense layers. Rows of a layer that computes several of q, k and v are separate parts.
    """
    first, second = (
        {
            name: module.weight
            for name, module in model.named_modules()
            if isinstance(module, Dense) and not name.startswith("head")
        }
        for model in (before, after)
    )
    if {name: tuple(weight.shape) for name, weight in first.items()} != {
        name: tuple(weight.shape) for name, weight in second.items()
    }:
        return []
    changes = []
    for name, weight in first.items():
        end = name.rpartition(".")[2]
        parts: Sequence[str] = end if end in SLICED and len(end) > 1 else [""]
        rows = zip(parts, weight.double().chunk(len(parts)), second[name].double().chunk(len(parts)))
        for part, old, new in rows:
            change = new.to(old.device) - old
            relative = float(change.norm() / old.norm()) if old.any() else math.nan
            changes.append(WeightChange(name, part, relative, participation_ratio(change), min(change.shape)))
    return changes


def participation_ratio(matrix: Tensor) -> float:
    """Returns the effective number of directions of a matrix (O, I): the square of the sum of s² over the sum of s⁴ of its
    singular values s; 0 for zeros. Directions of little energy, as those of rounding, count little.
    """
    shorter = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT
    gram = shorter @ shorter.mT  # its trace is the sum of s², its square norm that of s⁴
    return float(gram.trace().square() / gram.square().sum()) if gram.any() else 0.0
