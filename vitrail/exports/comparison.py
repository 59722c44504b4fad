"""Compares the outputs of an exported graph with those of its model on the same images.

B images, C channels, H and W their size, F width of what the head reads, K classes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.models import Config

BATCHES = (1, 3, 8)  # images at a time
MOST_ROUNDS, LEAST_ROUNDS, SECONDS = 30, 5, 3.0  # of measuring speed: rounds, or so long
SMALLEST = 1e-30  # stands for the largest number where all are 0

Answers = Mapping[str, Tensor]  # as `Task.graph` gives them
Verb = Callable[[Tensor], Answers]


@dataclass(frozen=True)
class Compared:
    """The outputs of both, and their difference.

    Args:
        difference: the largest between two numbers of one output, as a share of the largest number of that output in
            its batch.
        expected, actual: of the model and of the graph, for all images.
    """

    difference: float
    expected: Answers
    actual: Answers


@torch.inference_mode()
def compare(model: Verb, graph: Verb, batches: Iterable[Tensor]) -> Compared:
    """Runs both on every batch.

    Raises:
        CheckpointError: an output that is NaN or infinite, of whichever; a graph with other outputs.
    """
    worst, expected, actual = 0.0, [], []
    for images in batches:
        expected.append(model(images))
        actual.append(graph(images))
        worst = max(worst, _measure_difference(expected[-1], actual[-1]))
    return Compared(worst, _concatenate(expected), _concatenate(actual))


def _measure_difference(expected: Answers, actual: Answers) -> float:
    shapes = [{name: tuple(output.shape) for name, output in answers.items()} for answers in (expected, actual)]
    if shapes[0] != shapes[1]:
        raise CheckpointError(f"the graph gives {shapes[1]}, the model {shapes[0]}", "this is a fault of vitrail")
    for name in expected:
        if not expected[name].isfinite().all():
            raise CheckpointError(f"the {name} of the model are not finite", "export a model with finite outputs")
        if not actual[name].isfinite().all():
            raise CheckpointError(f"the {name} of the graph are not finite", "this is a fault of vitrail")
    shares = (
        (expected[name] - actual[name]).abs().max() / expected[name].abs().max().clamp(min=SMALLEST)
        for name in expected
    )
    return max(map(float, shares))


def _concatenate(batches: list[Answers]) -> Answers:
    return {name: torch.cat([batch[name] for batch in batches]) for name in (batches[0] if batches else ())}


def choose_sizes(config: Config) -> list[tuple[int, int]]:
    """(height, width): the model's own, a larger one, and one that is no square; all of whole patches where its own is."""
    (height, width), (down, across) = config.image_size, config.cell
    oblong = (height + down, width + (3 if height == width else 2) * across)
    return [(height, width), (height + 2 * down, width + 2 * across), oblong]


def generate_pictures(count: int, channels: int, size: tuple[int, int], *, seed: int = 0) -> Tensor:
    """Pictures (B, C, H, W) uint8 where no real ones are given: clouds of several scales, each picture of another contrast."""
    generator = torch.Generator().manual_seed(seed)
    clouds = torch.zeros(count, channels, *size)
    for cells in (2, 5, 16):
        coarse = torch.randn(count, channels, cells, cells, generator=generator)
        clouds += F.interpolate(coarse, size, mode="bilinear", align_corners=False)
    contrast = 20 + 60 * torch.rand(count, 1, 1, 1, generator=generator)
    return (128 + contrast * clouds).clamp(0, 255).to(torch.uint8)


def scale_pictures(pictures: Tensor, sizes: Iterable[tuple[int, int]]) -> Iterator[Tensor]:
    """The pictures (B, C, H, W) uint8 scaled to every size, as many at a time as `BATCHES` says."""
    for size in sizes:
        scaled = F.interpolate(pictures.float(), size, mode="bilinear", align_corners=False, antialias=True)
        for count in BATCHES:
            yield scaled[:count].clamp(0, 255).to(torch.uint8)


@torch.inference_mode()
def measure_speeds(
    model: Callable[[Tensor], object], graph: Callable[[Tensor], object], images: Tensor
) -> tuple[float, float]:
    """Milliseconds an image of ``images`` (B, C, H, W), of the model and of the graph: medians, measured by turns."""
    verbs = (model, graph)
    taken: tuple[list[float], list[float]] = ([], [])
    for verb in verbs:
        verb(images)
    started = time.perf_counter()
    while len(taken[0]) < LEAST_ROUNDS or (len(taken[0]) < MOST_ROUNDS and time.perf_counter() - started < SECONDS):
        for verb, times in zip(verbs, taken):
            before = time.perf_counter()
            verb(images)
            times.append(time.perf_counter() - before)
    first, second = (1e3 * statistics.median(times) / len(images) for times in taken)
    return first, second
