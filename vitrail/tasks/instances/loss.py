"""What an instance segmenter learns: targets from the object of every pixel, and the loss of masks.

B images, M objects at most, N cells, P prototypes, S cells of the grid of masks, C cells of an image that learn a mask. Boxes are
(left, top, right, bottom) in pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.geometry import resample_maps
from vitrail.data.augment.placement import Placement
from vitrail.data.sources.annotations import LABEL_BITS, UNCOUNTED, OutlinedObjects
from vitrail.models.layers import by_hand, gather_rows
from vitrail.tasks.dense.pixels import PixelTargets
from vitrail.tasks.dense.task import check_placed
from vitrail.tasks.detection.loss import MIN_AREA, ROWS, Assignment

LEARNED = 48  # cells of an image that learn a mask, those with the highest scores
MARGIN = 4.0  # pixels around a box within which its mask is learned


@dataclass(frozen=True)
class OutlineTargets(PixelTargets):
    """Rows of label, crowd and box, and the row of every pixel, from maps of `OutlinedObjects`."""

    annotations: type[OutlinedObjects] = OutlinedObjects  # type: ignore[bad-override]
    needs: str = "objects with outlines"

    def move(self, targets: Tensor, placement: Placement) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the objects (B, M, 6) in pixels of the images, the weight (B,) of each image, and a map (B, h, w) of the row
        of each pixel's object, from 1.

        ``targets`` (B, H, W) were read with the same crops as the images. A box is that of the pixels that are shown, also of an
        object that was turned. Objects of which an image shows less than 4 pixels are left out, and their pixels uncounted.
        The weight is as in `BoxTargets`.
        """
        check_placed(placement)
        return list_objects(resample_maps(targets, placement.sampling, size=placement.size, pixel_format=self.format))


def list_objects(maps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns objects, weights and the row of each pixel's object, as `OutlineTargets.move` does, from maps (B, h, w)."""
    images = [number_objects(each) for each in maps.cpu().numpy()]
    most = ROWS * max(math.ceil(max(len(rows) for rows, _ in images) / ROWS), 1)
    objects = np.zeros((len(images), most, 6), np.float32)
    objects[..., 0] = -1
    for filled, (rows, _) in zip(objects, images):
        filled[: len(rows)] = rows
    weight = torch.full((len(images),), len(images) / max(int((objects[..., 0] >= 0).sum()), 1))
    return torch.from_numpy(objects), weight, torch.from_numpy(np.stack([numbers for _, numbers in images]))


def number_objects(values: NDArray[np.int32]) -> tuple[NDArray[np.float64], NDArray[np.int16]]:
    """Returns the objects (n, 6) of a map of `OutlinedObjects` (h, w), and the row of each pixel's object, from 1: (h, w)."""
    from scipy.ndimage import find_objects  # a dependency of scikit-learn

    numbers = np.where(values > 0, values >> LABEL_BITS, 0)
    areas = np.bincount(numbers.reshape(-1), minlength=1)
    shown = np.flatnonzero(areas >= MIN_AREA)
    shown = shown[shown > 0]  # not the background
    table = np.full(len(areas), UNCOUNTED, np.int16)
    table[0], table[shown] = 0, np.arange(1, len(shown) + 1)
    places, rows = find_objects(numbers), []
    for number in shown.tolist():
        down, across = places[number - 1]
        label = values[down, across][numbers[down, across] == number][0] & ((1 << LABEL_BITS) - 1)
        rows.append((label, 0, across.start, down.start, across.stop, down.stop))
    return np.array(rows, np.float64).reshape(-1, 6), np.where(values < 0, values, table[numbers]).astype(np.int16)


def find_uncounted(centres: Tensor, numbers: Tensor) -> Tensor:
    """Returns which cells have their centre (B, N, 2) on a pixel that is not counted, of a map (B, h, w): (B, N)."""
    height, width = numbers.shape[1:]
    column, row = centres.floor().long().unbind(-1)
    places = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
    return numbers.flatten(1).gather(1, places) == UNCOUNTED


def measure_shares(
    numbers: Tensor, objects: int, grid: tuple[int, int], cell: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """Returns the share of each object in the known pixels of each cell, (B, M, S), and the share that is known, (B, S).

    Args:
        numbers: (B, h, w) the row of each pixel's object, from 1; 0 for the background, negative where it is not known.
        objects: M.
        grid: rows and columns of the cells.
        cell: height and width of a cell in pixels.
    """
    height, width = numbers.shape[1:]
    down, across = (
        ((torch.arange(pixels, device=numbers.device) + 0.5) / side).long().clamp(max=cells - 1)
        for pixels, side, cells in zip((height, width), cell, grid)
    )
    cells = (down[:, None] * grid[1] + across).flatten()  # (h w,)
    total, flat = math.prod(grid), numbers.flatten(1)
    places = flat.clamp(min=0).long() * total + cells
    counts = torch.zeros(len(flat), (objects + 1) * total, device=numbers.device)
    counts = counts.scatter_add_(1, places, (flat >= 0).float()).unflatten(1, (objects + 1, total))
    known = counts.sum(1)
    pixels = torch.zeros(total, device=numbers.device).scatter_add_(
        0, cells, torch.ones_like(cells, dtype=torch.float32)
    )
    return counts[:, 1:] / known.clamp(min=1)[:, None], known / pixels.clamp(min=1)


def sum_mask_losses(
    coefficients: Tensor,
    prototypes: Tensor,
    assigned: Assignment,
    boxes: Tensor,
    numbers: Tensor,
    cell: tuple[float, float],
) -> Tensor:
    """The loss of masks, the sum over the cells of an image that have an object, times their score: (B,).

    Binary cross-entropy, averaged, plus the Dice loss (Milletari et al. 2016) of the mask of a cell and the object's, both within
    the box of the object, enlarged by `MARGIN`. Only the `LEARNED` cells that `choose_cells` returns count.

    Args:
        coefficients: (B, N, P).
        prototypes: (B, P, r, c).
        boxes: (B, M, 4) of the objects.
        numbers: (B, h, w) the row of each pixel's object, as `OutlineTargets.move` returns it.
        cell: height and width of a cell of the prototypes in pixels.
    """
    grid = prototypes.shape[2], prototypes.shape[3]
    chosen = choose_cells(assigned, boxes.shape[1])  # (B, C)
    scores, owners = assigned.scores.gather(1, chosen), assigned.objects.gather(1, chosen)
    scores, owners = scores * (owners >= 0), owners.clamp(min=0)
    # of the objects that no chosen cell has, no share is needed: each of the others gets the place of one of its cells
    places = torch.zeros(len(boxes), boxes.shape[1] + 1, dtype=torch.int64, device=boxes.device)
    order = torch.arange(1, chosen.shape[1] + 1, device=boxes.device).expand_as(chosen)
    places = places.scatter_reduce(1, owners + 1, order, "amax")  # (B, M + 1)
    flat = numbers.flatten(1).long()
    numbers = places.gather(1, flat.clamp(min=0)).where(flat > 0, flat).view_as(numbers)
    shares, known = measure_shares(numbers, chosen.shape[1], grid, cell)
    own = places.gather(1, owners + 1) - 1
    wanted = gather_rows(shares, own).to(prototypes.dtype)  # (B, C, S)
    weight = _cover(gather_rows(boxes, owners), grid, cell) * known[:, None].to(prototypes.dtype)  # (B, C, S)
    with by_hand(prototypes):  # not in the type of autocast, as the layers before
        logits = gather_rows(coefficients, chosen) @ prototypes.flatten(2)
    entropy = F.binary_cross_entropy_with_logits(logits, wanted, weight=weight, reduction="none").sum(2)
    found = logits.sigmoid() * weight
    dice = 1 - (2 * (found * wanted).sum(2) + 1) / (found.sum(2) + (wanted * weight).sum(2) + 1)
    return ((entropy / weight.sum(2).clamp(min=1) + dice) * scores).sum(1)


def choose_cells(assigned: Assignment, objects: int) -> Tensor:
    """Returns the cells that learn a mask, (B, C): the best of each of the objects first, then those of the highest scores."""
    scores, owners = assigned.scores * (assigned.objects >= 0), assigned.objects.clamp(min=0)  # (B, N)
    best = torch.zeros(len(scores), objects, dtype=scores.dtype, device=scores.device)
    best = best.scatter_reduce(1, owners, scores, "amax")
    is_best = (scores > 0) & (scores == best.gather(1, owners))
    return (scores + is_best).topk(min(LEARNED, scores.shape[1]), dim=1).indices


def _cover(boxes: Tensor, grid: tuple[int, int], cell: tuple[float, float]) -> Tensor:
    """Returns which cells of the grid have their centre in each box, enlarged by `MARGIN`: (B, C, S)."""
    left, top, right, bottom = boxes[..., None].unbind(2)  # each (B, C, 1)
    y, x = ((torch.arange(cells, device=boxes.device) + 0.5) * side for cells, side in zip(grid, cell))
    down, across = (y > top - MARGIN) & (y < bottom + MARGIN), (x > left - MARGIN) & (x < right + MARGIN)
    return (down[..., None] & across[..., None, :]).flatten(2)
