"""Occlusion maps: the dependence of a prediction on each part of an image (Zeiler and Fergus 2014, section 4.2), from outputs
for many versions of an image.

B images, C channels, H and W their size, R x S windows, V versions of each image, b versions per batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count

import torch
from torch import Tensor

from vitrail.models import Config
from vitrail.models.backbone import device_of, eval_mode
from vitrail.models.config import StagedConfig, grid_of
from vitrail.tasks import Task

Measure = Callable[[Tensor, Tensor], Tensor]  # outputs for versions of images (b, ...), their images (b,) -> (b,)
Make = Callable[[Tensor, Tensor, Tensor], Tensor]  # pixels (b, C, H, W), image (b,), version (b,) -> (b, C, H, W)
GRID = 14  # approximate number of windows per side for pyramids, as for a ViT/16 at 224 pixels


def occlusion(
    model: Task, images: Tensor, measure: Measure, *, window: tuple[int, int] | None = None, batch: int = 64
) -> Tensor:
    """Computes the decrease of a number when a window of the image is covered with the mean colour; negative if it rises.

    Windows tile the image and are cropped at the lower and right edges: (B, R, S) in fp32, R = ceil(H / height) and
    S = ceil(W / width).

    Args:
        measure: the number, such as a probability (`measure_class`), from the outputs and the index of the image of each.
        window: (height, width) in pixels; by default `choose_window`.
        batch: covered images per forward pass.
    """
    size = images.shape[2], images.shape[3]
    window = choose_window(model.config, size) if window is None else window
    rows, columns = (_mark_covered(*lengths).to(device_of(model)) for lengths in zip(size, window))  # (R, H), (S, W)

    def cover(pixels: Tensor, _: Tensor, number: Tensor) -> Tensor:
        row, column = rows[number // len(columns)], columns[number % len(columns)]  # (b, H), (b, W)
        return pixels.masked_fill((row[:, :, None] & column[:, None, :])[:, None], 0.0)  # (b, C, H, W)

    plain = measure_versions(model, images, measure, 1, lambda pixels, *_: pixels, batch=batch)  # (B, 1)
    windows = len(rows) * len(columns)
    covered = measure_versions(model, images, measure, windows, cover, batch=batch)  # (B, R S)
    return (plain - covered).view(len(images), len(rows), len(columns))


def choose_window(config: Config, size: tuple[int, int]) -> tuple[int, int]:
    """Returns the default window (height, width) in pixels: the patch size, or a fourteenth of the image for pyramids.

    The first patches of a pyramid are too small to hide anything.
    """
    is_staged = isinstance(config, StagedConfig)
    patch = tuple(round(length / GRID) for length in size) if is_staged else config.patch_size
    height, width = (min(max(side, 1), length) for side, length in zip(patch, size))
    return height, width


def coarsen_window(config: Config, size: tuple[int, int], most: int) -> tuple[int, int]:
    """Returns the default window (height, width), enlarged by a whole factor until at most ``most`` windows tile an image."""
    height, width = choose_window(config, size)
    factor = next(n for n in count(1) if math.prod(grid_of(size, (n * height, n * width))) <= max(most, 1))
    return min(factor * height, size[0]), min(factor * width, size[1])


def measure_class(model: Task, targets: Tensor) -> Measure:
    """Returns the probability of the class ``targets`` (B,) of each image as a measure."""
    targets = targets.to(device_of(model))
    return lambda logits, image: model.probabilities(logits).gather(1, targets[image][:, None])[:, 0]


def measure_versions(model: Task, images: Tensor, measure: Measure, versions: int, make: Make, *, batch: int) -> Tensor:
    """Computes a number for each version of each image, at most ``batch`` at a time: (B, V) in fp32, on the device of the images.

    ``make`` gets its arguments on the model's device.
    """
    with eval_mode(model) as device:
        found = torch.empty(len(images) * versions, device=device)
        for start in range(0, len(found), batch):
            stop = min(start + batch, len(found))
            numbers = torch.arange(start, stop, device=device)  # (b,)
            image, version = numbers // versions, numbers % versions
            first, last = start // versions, (stop - 1) // versions
            pixels = images[first : last + 1].to(device)
            found[start:stop] = measure(model(make(pixels[image - first], image, version)), image)
    return found.view(len(images), versions).to(images.device)


def _mark_covered(length: int, window: int) -> Tensor:
    """Returns a mask of the pixels that each window covers along one side: (windows, length) bool."""
    pixel, start = torch.arange(length), torch.arange(0, length, window)[:, None]
    return (pixel >= start) & (pixel < start + window)
