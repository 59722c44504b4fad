"""Faithfulness of heat maps: the probability of the target while important cells are covered, or revealed.

Deletion and insertion are of Petsiuk et al. 2018 (RISE, section 4.2), the order of regions of Samek et al. 2017. A curve
holds probabilities of the target as they are, not shares of the first one. A map that says what the answer rests on
has a small area under the deletion curve and a large one under the insertion curve.

B images, C channels, H and W their size, r x c = N cells of a map, S steps, b versions at one time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.analysis.perturbation import choose_targets, compute_probabilities
from vitrail.data.rng import uniforms
from vitrail.errors import ConfigError
from vitrail.tasks import Task

STEPS = 28  # 7 cells each on a grid of 14 x 14
# the sigma of the blur that insertion starts from, of the longer side: a ViT-Ti/16 at 224 pixels, whose answer has a mean
# probability of 0.77 on 32 photographs, gives it 0.05 at a twentieth, where outlines remain, and 0.003 at a tenth
BLUR = 1 / 10
BASELINE = "random"  # the name of the maps that every other is compared with


@dataclass(frozen=True)
class Faithfulness:
    """Probabilities of the target, (B, S + 1) each, and the area under each curve, (B,)."""

    deletion: Tensor
    insertion: Tensor

    @property
    def deletion_area(self) -> Tensor:
        """(B,), small for a good map."""
        return compute_area(self.deletion)

    @property
    def insertion_area(self) -> Tensor:
        """(B,), large for a good map."""
        return compute_area(self.insertion)


def deletion(
    model: Task,
    images: Tensor,
    heat: Tensor,
    *,
    targets: Tensor | None = None,
    steps: int | None = None,
    fill: float = 0.0,
    batch: int = 64,
    seed: int = 0,
) -> Tensor:
    """The probability of the target as cells are covered, the most important first.

    Cell (i, j) is the rows from floor(i H / r) up to floor((i + 1) H / r) of the image, and columns likewise.

    Args:
        images: normalised, (B, C, H, W).
        heat: (B, r, c), larger where it matters more, of any grid up to the size of the image.
        targets: (B,) the class of each image; by default what the model answers to the plain image.
        steps: equal steps from no cell to all, the last of them rounded down to whole cells; by default 28, or one a cell
            where there are fewer.
        fill: what cells are covered with, in normalised pixels; 0 is the mean colour of the data set.
        batch: covered images shown to the model at one time.
        seed: of the order of cells of equal heat, see `rank`.

    Returns:
        (B, S + 1) in fp32, from the plain image to one that is covered.

    Raises:
        ConfigError: heat that is NaN, or no map an image, or finer than the image; steps that are not from 1 to the number
            of cells; targets that are not one class an image; a model without a head.
    """
    targets = choose_targets(model, images, targets, batch=batch)
    covered = _Order(images, heat, steps, seed, targets.device)

    def cover(pixels: Tensor, image: Tensor, step: Tensor) -> Tensor:
        return pixels.masked_fill(covered.mask_after(image, step), fill)

    return compute_probabilities(model, images, targets, covered.steps + 1, cover, batch=batch)


def insertion(
    model: Task,
    images: Tensor,
    heat: Tensor,
    *,
    targets: Tensor | None = None,
    steps: int | None = None,
    sigma: float | None = None,
    batch: int = 64,
    seed: int = 0,
) -> Tensor:
    """The probability of the target as cells of a blurred image are revealed, the most important first.

    Args:
        sigma: of the blur in pixels; by default a tenth of the longer side.

    The others, and the errors, are those of `deletion`; ``sigma`` must be above 0.

    Returns:
        (B, S + 1) in fp32, from the blurred image to the plain one.
    """
    targets = choose_targets(model, images, targets, batch=batch)
    revealed = _Order(images, heat, steps, seed, targets.device)
    blur = _make_blur(images, sigma, targets.device)

    def reveal(pixels: Tensor, image: Tensor, step: Tensor) -> Tensor:
        return torch.where(revealed.mask_after(image, step), pixels, blur(pixels))

    return compute_probabilities(model, images, targets, revealed.steps + 1, reveal, batch=batch)


def compare(
    model: Task,
    images: Tensor,
    heats: Mapping[str, Tensor],
    *,
    targets: Tensor | None = None,
    grid: tuple[int, int] | None = None,
    steps: int | None = None,
    fill: float = 0.0,
    sigma: float | None = None,
    draws: int = 5,
    batch: int = 64,
    seed: int = 0,
) -> dict[str, Faithfulness]:
    """The curves of several maps of the same images, with equal cells and equal targets, and those of random maps.

    Args:
        heats: (B, r, c) by the name of the method that made it, each of its own grid.
        grid: (rows, columns) that all are brought to, see `resample`; by default the coarsest of them (`find_coarsest`).
        draws: random maps of each image; the curves under "random" are their means.

    The others are those of `deletion` and `insertion`.

    Raises:
        ConfigError: also for no maps, a map called "random", or no draws.
    """
    _check_methods(heats, len(images), draws)
    grid = find_coarsest(heats.values()) if grid is None else grid
    targets = choose_targets(model, images, targets, batch=batch)
    common = {"targets": targets, "steps": steps, "batch": batch, "seed": seed}

    def compute_curves(heat: Tensor) -> Faithfulness:
        return Faithfulness(
            deletion(model, images, heat, fill=fill, **common),
            insertion(model, images, heat, sigma=sigma, **common),
        )

    curves_by_method = {name: compute_curves(resample(heat, grid)) for name, heat in heats.items()}
    drawn = [compute_curves(draw_random_heat(len(images), grid, seed, draw=draw)) for draw in range(draws)]
    curves_by_method[BASELINE] = Faithfulness(
        torch.stack([scores.deletion for scores in drawn]).mean(0),
        torch.stack([scores.insertion for scores in drawn]).mean(0),
    )
    return curves_by_method


def find_coarsest(heats: Iterable[Tensor]) -> tuple[int, int]:
    """The smallest number of rows and of columns among maps (B, r, c)."""
    rows, columns = zip(*(heat.shape[1:] for heat in heats))
    return min(rows), min(columns)


def compute_area(curve: Tensor) -> Tensor:
    """Under a curve over the share of cells, from 0 to 1, by the trapezoid rule: (B, S + 1) to (B,)."""
    return torch.trapezoid(curve, dx=1 / (curve.shape[1] - 1), dim=1)


def rank(heat: Tensor, seed: int) -> Tensor:
    """The cells of each map, (B, r, c) to (B, N), the most important first.

    Cells of equal heat come in a random order, another one for each image. In the order of their places a map of zeros
    would cover an image from the upper left on, and its score would depend on where photographs have their subjects.

    Raises:
        ConfigError: heat that is NaN.
    """
    values = heat.detach().cpu().flatten(1).double().numpy()  # (B, N)
    if wrong := int(np.isnan(values).sum()):
        raise ConfigError(
            f"heat is NaN in {wrong} of {values.size} cells",
            "correct the method that made the map; NaN cannot be ranked",
        )
    noise = uniforms(seed, "equal heat", 0, np.arange(len(values)), 0, values.shape[1])  # (B, N)
    return torch.from_numpy(np.lexsort((noise, -values), axis=1)).to(heat.device)


def draw_random_heat(images: int, grid: tuple[int, int], seed: int, *, draw: int = 0) -> Tensor:
    """A random map for each of ``images`` images: (B, r, c), uniform in [0, 1). Image i has the same one in any number."""
    rows, columns = grid
    noise = uniforms(seed, "random heat", 0, np.arange(images), draw, rows * columns)
    return torch.from_numpy(noise).float().view(images, rows, columns)


def resample(heat: Tensor, grid: tuple[int, int]) -> Tensor:
    """Maps of another grid: (B, r, c) to (B, rows, columns) in fp32, each cell the mean of the area under it.

    A mean by area uses every old cell for its share, whichever way the numbers divide. Interpolation would skip cells on
    the way to a coarser grid, and on the way to a finer one invent an order within a cell that the method never gave.

    Raises:
        ConfigError: what is no map an image; a grid that is not positive.
    """
    _check_heat(heat, len(heat))
    if min(grid) < 1:
        raise ConfigError(f"grid is {grid}", "grid = (rows, columns), each from 1")
    down, across = (_compute_overlaps(old, new).to(heat.device) for old, new in zip(heat.shape[1:], grid))
    # the overlaps are whole numbers, and fp64 holds their sums with fp32 heat exactly: equal cells stay equal
    return (down @ heat.float().double() @ across.T / (heat.shape[1] * heat.shape[2])).float()


def _compute_overlaps(old: int, new: int) -> Tensor:
    """What each of ``new`` equal cells shares with each of ``old`` on a side of ``old x new`` units: (new, old) fp64."""
    start, first = torch.arange(old) * new, torch.arange(new)[:, None] * old
    shared = torch.minimum(start + new, first + old) - torch.maximum(start, first)
    return shared.clamp_min(0).double()


class _Order:
    """The cells of each image in the order of their heat, and the pixels under the first of them."""

    def __init__(self, images: Tensor, heat: Tensor, steps: int | None, seed: int, device: torch.device) -> None:
        _check_heat(heat, len(images))
        grid, size = heat.shape[1:], images.shape[2:]
        if any(cells > length for cells, length in zip(grid, size)):
            written, pixels = ("x".join(map(str, lengths)) for lengths in (grid, size))
            raise ConfigError(
                f"a map of {written} for images of {pixels} pixels", "bring it to a coarser grid with `resample`"
            )
        self.cells = grid.numel()
        self.steps = min(STEPS, self.cells) if steps is None else steps
        if not 1 <= self.steps <= self.cells:
            raise ConfigError(f"steps is {steps} on a map of {self.cells} cells", "steps = from 1 to one a cell")
        self.place = rank(heat, seed).argsort(1).view(heat.shape).to(device)  # (B, r, c)
        # the cell over each pixel: the last one that starts at it or before, cell i at floor(i H / r)
        self.row, self.column = (
            ((torch.arange(length, device=device) + 1) * cells - 1) // length for length, cells in zip(size, grid)
        )  # (H,), (W,)

    def mask_after(self, image: Tensor, step: Tensor) -> Tensor:
        """Which pixels of these images, (b,), are under the cells of the steps up to this one, (b,): (b, 1, H, W) bool."""
        place = self.place[image][:, self.row][:, :, self.column]  # (b, H, W)
        return (place < (step * self.cells // self.steps)[:, None, None])[:, None]


def _make_blur(images: Tensor, sigma: float | None, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Blurs images of this size with a Gaussian of ``sigma`` pixels; at the edges its weights are those of the pixels there."""
    sigma = BLUR * max(images.shape[2:]) if sigma is None else sigma
    if not 0 < sigma < math.inf:
        raise ConfigError(f"sigma is {sigma}", "sigma = the width of the blur in pixels, a number above 0")
    down, across = (_make_gaussian(length, sigma).to(device, images.dtype) for length in images.shape[2:])

    def blur(pixels: Tensor) -> Tensor:
        with torch.autocast(device.type, enabled=False):  # a caller's precision is for the model
            return down @ pixels @ across.T  # (b, C, H, W)

    return blur


def _make_gaussian(length: int, sigma: float) -> Tensor:
    """The weight of every pixel in each blurred one: (length, length) fp64, rows with the sum 1."""
    pixel = torch.arange(length, dtype=torch.float64)
    return (-((pixel - pixel[:, None]) ** 2) / (2 * sigma**2)).softmax(1)


def _check_heat(heat: Tensor, images: int) -> None:
    if heat.ndim != 3 or len(heat) != images or 0 in heat.shape[1:]:
        what = f"heat of shape {tuple(heat.shape)} for {images} images"
        raise ConfigError(what, "give one map an image, (B, rows, columns)")


def _check_methods(heats: Mapping[str, Tensor], images: int, draws: int) -> None:
    if not heats or BASELINE in heats:
        what = f"a method is called {BASELINE!r}" if heats else "there is no heat map to compare"
        raise ConfigError(what, f"give maps by the names of their methods; {BASELINE!r} is added to them")
    if draws < 1:
        raise ConfigError(f"draws is {draws}", "draws = how many random maps an image, from 1")
    for heat in heats.values():
        _check_heat(heat, images)
