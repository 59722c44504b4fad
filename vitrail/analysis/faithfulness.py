"""Faithfulness of heat maps: the probability of the target while important cells are covered or revealed.

Deletion and insertion follow Petsiuk et al. 2018 (RISE, section 4.2), the order of regions Samek et al. 2017. Curves hold
probabilities of the target, not normalised by the first one. A faithful map has a small area under the deletion curve
and a large area under the insertion curve.

B images, C channels, H and W their size, r x c = N cells of a map, S steps, b versions per batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.analysis.occlusion import measure_class, measure_versions
from vitrail.data.rng import uniforms
from vitrail.errors import ConfigError
from vitrail.models.backbone import device_of
from vitrail.tasks import Task

# sigma of the initial blur of insertion, relative to the longer side: for a ViT-Ti/16 at 224 pixels on 32 photographs the
# mean probability of the prediction falls from 0.77 to 0.05 at 1/20, where outlines remain, and to 0.003 at 1/10
BLUR = 1 / 10
BASELINE = "random"  # name of the random maps that all methods are compared with


@dataclass(frozen=True)
class Faithfulness:
    """Probabilities of the target, (B, S + 1) each, and the area under each curve, (B,)."""

    deletion: Tensor
    insertion: Tensor

    @property
    def deletion_area(self) -> Tensor:
        """(B,), small for a faithful map."""
        return compute_area(self.deletion)

    @property
    def insertion_area(self) -> Tensor:
        """(B,), large for a faithful map."""
        return compute_area(self.insertion)


def compare(
    model: Task,
    images: Tensor,
    heats: Mapping[str, Tensor],
    targets: Tensor,
    *,
    steps: int,
    draws: int,
    batch: int = 64,
    seed: int = 0,
) -> dict[str, Faithfulness]:
    """Computes the curves of several maps of the same images on their coarsest common grid, and those of random maps.

    Args:
        images: normalised, (B, C, H, W).
        heats: (B, r, c) by name of the method, each with its own grid, larger for more important cells.
        targets: (B,) class indices.
        steps: number of equal steps from no cell to all cells, rounded down to whole cells, or the number of cells if that
            is smaller.
        draws: random maps per image; the curves under "random" are their means.
        batch: covered images per forward pass.
        seed: seed of the random maps, and of the order of cells with equal heat, see `rank`.

    Raises:
        ConfigError: heat that contains NaN, or steps or draws below 1.
    """
    if min(steps, draws) < 1:
        raise ConfigError(f"steps is {steps} and draws {draws}", "give whole numbers from 1")
    rows, columns = zip(*(heat.shape[1:] for heat in heats.values()))
    grid = min(rows), min(columns)  # of the coarsest maps
    how = {"steps": steps, "batch": batch, "seed": seed}

    def compute_curves(heat: Tensor) -> Faithfulness:
        deleted, inserted = (curve(model, images, heat, targets, **how) for curve in (deletion, insertion))
        return Faithfulness(deleted, inserted)

    curves = {name: compute_curves(resample(heat, grid)) for name, heat in heats.items()}
    drawn = [compute_curves(draw_random_heat(len(images), grid, seed, draw=draw)) for draw in range(draws)]
    pairs = zip(*((one.deletion, one.insertion) for one in drawn))
    return {**curves, BASELINE: Faithfulness(*(torch.stack(each).mean(0) for each in pairs))}


def deletion(
    model: Task, images: Tensor, heat: Tensor, targets: Tensor, *, steps: int, batch: int = 64, seed: int = 0
) -> Tensor:
    """Computes the probability of the target while cells are covered with the mean colour, the most important first.

    Cell (i, j) covers the rows from floor(i H / r) up to floor((i + 1) H / r) of the image, and columns likewise. Arguments
    are those of `compare`, ``heat`` (B, r, c) of a grid up to the size of the image. Returns (B, S + 1) in fp32, from the
    unmodified to the fully covered image.
    """
    covered = _Order(images, heat, steps, seed, device_of(model))

    def cover(pixels: Tensor, image: Tensor, step: Tensor) -> Tensor:
        return pixels.masked_fill(covered.mask_after(image, step), 0.0)

    return measure_versions(model, images, measure_class(model, targets), covered.steps + 1, cover, batch=batch)


def insertion(
    model: Task, images: Tensor, heat: Tensor, targets: Tensor, *, steps: int, batch: int = 64, seed: int = 0
) -> Tensor:
    """Computes the probability of the target while cells of a blurred image are revealed, the most important first: as in
    `deletion`, (B, S + 1) in fp32, from the blurred to the unmodified image.
    """
    device = device_of(model)
    revealed = _Order(images, heat, steps, seed, device)
    sigma = BLUR * max(images.shape[2:])
    down, across = (_make_gaussian(length, sigma).to(device, images.dtype) for length in images.shape[2:])

    def reveal(pixels: Tensor, image: Tensor, step: Tensor) -> Tensor:
        with torch.autocast(device.type, enabled=False):  # the precision of the caller applies to the model only
            blurred = down @ pixels @ across.T  # (b, C, H, W)
        return torch.where(revealed.mask_after(image, step), pixels, blurred)

    return measure_versions(model, images, measure_class(model, targets), revealed.steps + 1, reveal, batch=batch)


def compute_area(curve: Tensor) -> Tensor:
    """Returns the area under curves over the share of cells in [0, 1], by the trapezoid rule: (B, S + 1) to (B,)."""
    return torch.trapezoid(curve, dx=1 / (curve.shape[1] - 1), dim=1)


def rank(heat: Tensor, seed: int) -> Tensor:
    """Sorts the cells of each map by descending heat, (B, r, c) to indices (B, N).

    Cells of equal heat are ordered randomly for each image. In index order, a constant map would cover images from the
    upper left, and its score would depend on the typical position of subjects in photographs. Raises `ConfigError` for NaN.
    """
    values = heat.detach().cpu().flatten(1).double().numpy()  # (B, N)
    if wrong := int(np.isnan(values).sum()):
        what = f"heat is NaN in {wrong} of {values.size} cells"
        raise ConfigError(what, "look for NaN in the image and in the weights")
    noise = uniforms(seed, "equal heat", 0, np.arange(len(values)), 0, count=values.shape[1])  # (B, N)
    return torch.from_numpy(np.lexsort((noise, -values), axis=1)).to(heat.device)


def draw_random_heat(images: int, grid: tuple[int, int], seed: int, *, draw: int = 0) -> Tensor:
    """Draws a random map per image: (B, r, c), uniform in [0, 1). The map of image i does not depend on their number."""
    rows, columns = grid
    noise = uniforms(seed, "random heat", 0, np.arange(images), draw, count=rows * columns)
    return torch.from_numpy(noise).float().view(images, rows, columns)


def resample(heat: Tensor, grid: tuple[int, int]) -> Tensor:
    """Resamples maps by area averaging: (B, r, c) to (B, rows, columns) in fp32.

    Each old cell is weighted by its overlap with the new cell. Interpolation would skip cells when downsampling and
    introduce an order within cells when upsampling.
    """
    down, across = (_compute_overlaps(old, new).to(heat.device) for old, new in zip(heat.shape[1:], grid))
    # overlaps are whole numbers, and fp64 represents their sums with fp32 heat exactly: equal cells stay equal
    return (down @ heat.float().double() @ across.T / (heat.shape[1] * heat.shape[2])).float()


def _compute_overlaps(old: int, new: int) -> Tensor:
    """Returns the overlap of each of ``new`` cells with each of ``old`` cells, side ``old x new`` units: (new, old) fp64."""
    start, first = torch.arange(old) * new, torch.arange(new)[:, None] * old
    shared = torch.minimum(start + new, first + old) - torch.maximum(start, first)
    return shared.clamp_min(0).double()


class _Order:
    """The cells of each image in order of heat, and masks of the pixels under the first cells."""

    def __init__(self, images: Tensor, heat: Tensor, steps: int, seed: int, device: torch.device) -> None:
        grid, size = heat.shape[1:], images.shape[2:]
        self.cells = grid.numel()
        self.steps = min(steps, self.cells)
        self.place = rank(heat, seed).argsort(1).view(heat.shape).to(device)  # (B, r, c)
        # cell of each pixel: the last one whose start floor(i H / r) is not after the pixel
        self.row, self.column = (
            ((torch.arange(length, device=device) + 1) * cells - 1) // length for length, cells in zip(size, grid)
        )  # (H,), (W,)

    def mask_after(self, image: Tensor, step: Tensor) -> Tensor:
        """Returns a mask of the pixels under the cells of all steps up to ``step`` (b,) of ``image`` (b,): (b, 1, H, W) bool."""
        place = self.place[image][:, self.row][:, :, self.column]  # (b, H, W)
        return (place < (step * self.cells // self.steps)[:, None, None])[:, None]


def _make_gaussian(length: int, sigma: float) -> Tensor:
    """Returns the weight of each pixel in each blurred pixel: (length, length) fp64, rows sum to 1."""
    pixel = torch.arange(length, dtype=torch.float64)
    return (-((pixel - pixel[:, None]) ** 2) / (2 * sigma**2)).softmax(1)
