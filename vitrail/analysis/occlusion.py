"""Occlusion maps: the dependence of a prediction on each part of an image (Zeiler and Fergus 2014, section 4.2).

B images, C channels, H and W their size, R x S windows, b covered images per batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.analysis.perturbation import Measure, choose_targets, measure_class, measure_versions
from vitrail.errors import ConfigError
from vitrail.models import Config
from vitrail.models.backbone import device_of
from vitrail.models.config import is_whole
from vitrail.tasks import Task

Lengths = int | tuple[int, int]  # (height, width) in pixels, or the side of a square
GRID = 14  # approximate number of windows per side for pyramids, as for a ViT/16 at 224 pixels


def occlusion(
    model: Task,
    images: Tensor,
    *,
    targets: Tensor | None = None,
    window: Lengths | None = None,
    stride: Lengths | None = None,
    fill: float = 0.0,
    batch: int = 64,
) -> Tensor:
    """Computes the decrease of the probability of a class when a window of the image is covered; negative if it rises.

    Windows start at every multiple of the stride inside the image and are cropped at the lower and right edges. Window
    (i, j) gives the value of cell (i, j), even if windows overlap.

    Args:
        images: normalised, (B, C, H, W).
        targets: (B,) class indices; by default the predictions.
        window: (height, width) in pixels, or the side of a square; by default the patch size of the model, for pyramids about
            a fourteenth of the image.
        stride: pixels from one window to the next; by default the window size, so that windows tile the image.
        fill: value of covered pixels, normalised; 0 is the mean colour of the data set.
        batch: covered images per forward pass.

    Returns:
        (B, R, S) in fp32, differences of probabilities in [-1, 1], R = ceil(H / stride) and S = ceil(W / stride).

    Raises:
        ConfigError: a window that is not positive or larger than the image; a stride that is not positive; targets that are
            not one class per image; a model without a head.
    """
    targets = choose_targets(model, images, targets, batch=batch)
    measure = measure_class(model, targets)
    return measure_occlusion(model, images, measure, window=window, stride=stride, fill=fill, batch=batch)


def measure_occlusion(
    model: Task,
    images: Tensor,
    measure: Measure,
    *,
    window: Lengths | None = None,
    stride: Lengths | None = None,
    fill: float = 0.0,
    batch: int = 64,
) -> Tensor:
    """Computes `occlusion` of any number of an image, which ``measure`` takes from outputs; see `measure_versions`."""
    size = images.shape[2], images.shape[3]
    window = choose_window(model.config, size) if window is None else _check_window(window, size)
    stride = window if stride is None else _check_lengths("stride", stride)
    rows, columns = (
        _mark_covered(*lengths).to(device_of(model)) for lengths in zip(size, window, stride)
    )  # (R, H), (S, W) bool

    def cover(pixels: Tensor, _: Tensor, place: Tensor) -> Tensor:
        row, column = rows[place // len(columns)], columns[place % len(columns)]  # (b, H), (b, W)
        return pixels.masked_fill((row[:, :, None] & column[:, None, :])[:, None], fill)  # (b, C, H, W)

    plain = measure_versions(model, images, measure, 1, lambda pixels, *_: pixels, batch=batch)  # (B, 1)
    windows = len(rows) * len(columns)
    covered = measure_versions(model, images, measure, windows, cover, batch=batch)  # (B, R S)
    return (plain - covered).view(len(images), len(rows), len(columns))


def choose_window(config: Config, size: tuple[int, int]) -> tuple[int, int]:
    """Returns the default window (height, width) in pixels: the patch size, or a fourteenth of the image for pyramids.

    The first patches of a pyramid are too small to hide anything.
    """
    patch = tuple(round(length / GRID) for length in size) if config.STAGES else config.patch_size
    height, width = (min(max(side, 1), length) for side, length in zip(patch, size))
    return height, width


def coarsen_window(config: Config, size: tuple[int, int], most: int) -> tuple[int, int]:
    """Returns the default window (height, width), enlarged by a whole factor until at most ``most`` windows tile an image.

    An image is covered as a whole by one window only if ``most`` is 1.
    """
    height, width = choose_window(config, size)
    factor = 1
    while -(-size[0] // (factor * height)) * -(-size[1] // (factor * width)) > max(most, 1):
        factor += 1
    return min(factor * height, size[0]), min(factor * width, size[1])


def _check_window(window: Lengths, size: tuple[int, int]) -> tuple[int, int]:
    window = _check_lengths("window", window)
    if any(side > length for side, length in zip(window, size)):
        written, pixels = ("x".join(map(str, lengths)) for lengths in (window, size))
        raise ConfigError(
            f"a window of {written} on images of {pixels} pixels", "use a window that fits into the image"
        )
    return window


def _check_lengths(name: str, value: Lengths) -> tuple[int, int]:
    pair = value if isinstance(value, tuple) else (value, value)
    if len(pair) != 2 or not all(is_whole(side, 1) for side in pair):
        raise ConfigError(f"{name} is {value!r}", f"{name} = pixels from 1, such as 16, or (height, width)")
    return pair


def _mark_covered(length: int, window: int, stride: int) -> Tensor:
    """Returns a mask of the pixels that each window covers along one side: (windows, length) bool."""
    pixel, start = torch.arange(length), torch.arange(0, length, stride)[:, None]
    return (pixel >= start) & (pixel < start + window)
