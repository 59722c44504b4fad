"""Measures images per second of several models over image sizes, and the largest batch that fits in memory (Dosovitskiy et
al. 2021, appendix D.5, figure 12).

B images, C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.analysis.cost import measure_peak_bytes
from vitrail.analysis.equivariance import Model, Pair
from vitrail.models import Config, sketch
from vitrail.models.backbone import at_rest, device_of
from vitrail.models.config import changed
from vitrail.runtime.timing import time_in_turns

MOST = 8192  # images; the search for the largest batch ends here
NEAR = 32  # the search ends when the largest batch is known to one part in 32


class Speed(NamedTuple):
    """Images per second in passes of ``batch`` images: the median of the passes, the slowest and the fastest."""

    batch: int
    median: float
    slowest: float
    fastest: float


def measure_speeds(
    models: Mapping[str, Model],
    size: Pair,
    batches: Mapping[str, int],
    *,
    repeats: int = 5,
    on_pass: Callable[[], object] = lambda: None,
) -> dict[str, Speed]:
    """Measures passes without gradients at one image size, by wall-clock time, on random images.

    The models take turns (`time_in_turns`), after one pass of each to warm up.

    Args:
        models: by name, all on one device.
        size: (height, width) in pixels.
        batches: B by model.
        repeats: number of timed passes of each model.
        on_pass: called after each pass, such as for progress.
    """
    device = device_of(next(iter(models.values())))
    images = {name: _make_images(model, batches[name], size) for name, model in models.items()}
    passes = {name: partial(model, images[name]) for name, model in models.items()}
    timings = time_in_turns(
        passes,
        rounds=repeats,
        device=device,
        within=lambda name: at_rest(models[name]),
        on_call=on_pass,
    )
    speeds = {}
    for name, timing in timings.items():
        batch = batches[name]
        speeds[name] = Speed(batch, batch / timing.median, batch / max(timing.seconds), batch / timing.fastest)
    return speeds


def find_largest_batch(step: Callable[[int], object], most: int = MOST) -> int:
    """Finds the largest batch for which ``step`` does not run out of memory, by doubling, then by bisection.

    The result was run. Batches larger by more than one part in `NEAR`, or by more than one image, were not possible.

    Returns:
        The batch; 0 if one image is too many; ``most`` if that fits.
    """
    low = 0
    while low < most and _fits(step, min(2 * low or 1, most)):
        low = min(2 * low or 1, most)
    high = min(2 * low or 1, most)  # does not fit, unless it is ``most``
    while low < most and high - low > max(low // NEAR, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if _fits(step, middle) else (low, middle)
    return low


def _fits(step: Callable[[int], object], batch: int) -> bool:
    fits = True
    try:
        step(batch)
    except torch.OutOfMemoryError:
        fits = False
    torch.cuda.empty_cache()  # only now: the traceback of the error kept all tensors alive
    return fits


def run_largest_batch(model: Model, size: Pair) -> int:
    """Returns `find_largest_batch` of a pass without gradients, for a model on a GPU."""

    def step(batch: int) -> None:
        model(_make_images(model, batch, size))
        torch.accelerator.synchronize(device)

    with at_rest(model) as device:
        return find_largest_batch(step)


class Memory(NamedTuple):
    """Bytes of the tensors of a pass: ``fixed``, and for each image."""

    fixed: int
    each: int

    def largest_batch(self, free: int) -> int:
        """Returns the largest batch whose tensors take at most ``free`` bytes."""
        return max((free - self.fixed) // self.each, 0)


def measure_memory(model: Model, size: Pair) -> Memory:
    """Measures the tensors of passes of one and two images, including the images."""

    def peak(batch: int) -> int:
        return measure_peak_bytes(lambda: model(_make_images(model, batch, size)), device_of(model))

    # inference mode dispatches composite operations whole, so that their inner tensors would not be counted
    with torch.inference_mode(False), at_rest(model):
        one, two = peak(1), peak(2)
    return Memory(max(2 * one - two, 0), max(two - one, 1))


def bound_bytes(config: Config, size: Pair) -> int:
    """Returns an upper bound of the bytes of a pass of one image at ``size``, counted without allocating memory.

    It includes whole attention matrices, which fused attention does not need.

    Raises:
        ConfigError: the model does not support the size.
    """
    network = sketch(changed(config, image_size=size)).eval()
    images = torch.empty(1, config.in_channels, *size, device="meta")
    with torch.no_grad():
        return measure_peak_bytes(lambda: network(images), images.device) + images.nbytes


def _make_images(model: Model, batch: int, size: Pair) -> Tensor:
    like = next(model.parameters())
    return torch.randn(batch, model.config.in_channels, *size, dtype=like.dtype, device=like.device)
