"""Attention by the offset of the key from the query, and the part of it that rotary positions give whatever an image shows.

Position embeddings that are added can be compared with one another; a rotation of q and k (`vitrail.models.rope`) is only seen in
what it does to attention.

B images, H heads, E channels of a head, h x w = N patches, P other tokens, (2 h - 1) x (2 w - 1) = O offsets, R of the queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitrail.analysis.equivariance import Model, Pair, check_images
from vitrail.models import AttentionRecord
from vitrail.models.backbone import eval_mode
from vitrail.models.rope import Rotation, coordinates, make_rotations
from vitrail.tasks import Task

AT_ONCE = 8  # images per pass
PARTS = 64  # of a step from one patch to the next


@dataclass(frozen=True)
class OffsetFigures:
    """Attention of one layer by offset, (H, 2 h - 1, 2 w - 1) each. The offset zero is in the centre; keys below and to the right
    of their query are below and to the right of it.
    """

    attention: Tensor  # mean weight of a key, over queries and images
    kernel: Tensor  # E[q]' R(offset) E[k] / sqrt(E) of the mean q and k, before rotation, of all patches and images


class _Layer:
    """Sums of one layer over images, in fp64."""

    def __init__(self, heads: int, width: int, rotation: Rotation, ids: Tensor) -> None:
        self.back, self.ids = Rotation(rotation.cos, -rotation.sin), ids
        how: dict[str, Any] = {"dtype": torch.float64, "device": ids.device}
        self.q, self.k = torch.zeros(heads, width, **how), torch.zeros(heads, width, **how)
        self.weights = torch.zeros(heads, int(ids.max()) + 1, **how)  # (H, O)

    def add(self, record: AttentionRecord) -> None:
        leading = record.shape[3] - len(self.ids)
        q, k, _ = (part[:, :, leading:] for part in record.parts)
        self.q += self.back.apply(q).double().mean(2).sum(0)
        self.k += self.back.apply(k).double().mean(2).sum(0)
        for part in record.slices():
            rows = slice(max(part.start, leading), max(part.stop, leading))
            weights = record.weights(rows)[..., leading:].double().sum(0)  # (H, R, N)
            ids = self.ids[rows.start - leading : rows.stop - leading]
            self.weights.index_add_(1, ids.flatten(), weights.flatten(1))


def measure_offsets(model: Model, images: Tensor) -> list[OffsetFigures]:
    """Measures attention by offset in each layer of a ViT with rotary positions, on normalised images (B, C, H, W).

    Raises `ConfigError` for other images.
    """
    images = check_images(images)
    height, width = _grid_of(model, (images.shape[2], images.shape[3]))
    ends, shape = (height - 1, width - 1), (2 * height - 1, 2 * width - 1)
    layers: list[_Layer] = []
    with eval_mode(model) as device:
        rotations = _rotate(model, coordinates(model.config, (height, width), device))
        rows, columns = (
            torch.arange(side, device=device) - torch.arange(side, device=device)[:, None] + end
            for side, end in zip((height, width), ends)
        )
        ids = (rows[:, None, :, None] * shape[1] + columns[None, :, None, :]).reshape(height * width, -1)  # (N, N)
        for part in images.split(AT_ONCE):
            seen = 0

            def add(record: AttentionRecord) -> None:
                nonlocal seen
                if seen == len(layers):
                    q, _, _ = record.parts  # (B, H, P + N, E)
                    layers.append(_Layer(q.shape[1], q.shape[3], rotations[seen % len(rotations)], ids))
                layers[seen].add(record)
                seen += 1

            model.forward_recording(part.to(device), add)
        down, right = (torch.arange(-end, end + 1, device=device) for end in ends)
        steps = _find_steps(model, (height, width), device)
        moves = _rotate(model, steps @ torch.stack(torch.meshgrid(down, right, indexing="ij")).flatten(1).float())
    figures = []
    for number, layer in enumerate(layers):
        pairs = ids.flatten().bincount() * len(images)  # (O,)
        q, k = layer.q.float() / len(images), layer.k.float() / len(images)
        turned = moves[number % len(moves)].apply(k[None, :, None].expand(-1, -1, len(pairs), -1))[0]  # (H, O, E)
        kernel = (q[:, None] * turned).sum(-1) / math.sqrt(q.shape[-1])
        attention = (layer.weights / pairs).float()
        figures.append(OffsetFigures(*(values.unflatten(1, shape).cpu() for values in (attention, kernel))))
    return figures


def pair_offsets(values: Tensor) -> Tensor:
    """Returns the value of the offset of each pair of patches: (2 h - 1, 2 w - 1) to (h, w, h, w)."""
    height, width = (side // 2 + 1 for side in values.shape)
    turned = values.flip(0, 1).unfold(0, height, 1).unfold(1, width, 1)  # (h, w, h, w): of the first patch, in reverse
    return turned.flip(2, 3)


def compute_wavelengths(model: Model, size: Pair) -> Tensor:
    """Returns the distances in patches after which the rotation of a pair of channels repeats, in rising order.

    They are those along rows and along columns, or, of learned frequencies, along their own directions in all layers and heads.

    Args:
        size: of an image (height, width).
    """
    with eval_mode(model) as device:
        # a part of a step, as angles are known up to whole turns
        steps = _find_steps(model, _grid_of(model, size), device) / PARTS  # (2, 2)
        angles = [torch.atan2(-rotation.sin, rotation.cos) for rotation in _rotate(model, steps)]  # (2, E) or (H, 2, E)
        turns = torch.cat([angle[..., : angle.shape[-1] // 2].movedim(-2, 0).flatten(1) for angle in angles], 1).norm(
            dim=0
        )
        return (2 * math.pi / PARTS / turns[turns > 0]).sort().values.cpu()


def _grid_of(model: Model, size: Pair) -> Pair:
    return model.attention_grids(size)[0].queries


def _rotate(model: Model, places: Tensor) -> list[Rotation]:
    """Returns the rotations of the places (2, N) in each layer, or one for all layers."""
    learned: Any = (model.backbone if isinstance(model, Task) else model).rope
    return make_rotations(model.config, None if learned is None else learned.freqs, None, 0, places)


def _find_steps(model: Model, grid: Pair, device: torch.device) -> Tensor:
    """Returns how far a step to the next row, and to the next column, moves the coordinates: (2, 2), zero for a single one."""
    places = coordinates(model.config, grid, device).unflatten(1, grid)  # (2, h, w)
    still = torch.zeros(2, device=device)
    down = places[:, 1, 0] - places[:, 0, 0] if grid[0] > 1 else still
    right = places[:, 0, 1] - places[:, 0, 0] if grid[1] > 1 else still
    return torch.stack([down, right], 1)
