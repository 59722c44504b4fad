"""Comparison of the outputs of an exported graph with those of its model on the same images.

B images, C channels, H x W image size, F features, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.models import Config
from vitrail.runtime.timing import time_in_turns

BATCHES = (1, 3, 8)  # batch sizes
MOST_ROUNDS, LEAST_ROUNDS, SECONDS = 30, 5, 3.0  # limits of the speed measurement: rounds and time

Answers = Mapping[str, Tensor]  # outputs by name, as in `Task.graph`
Verb = Callable[[Tensor], Answers]


def compare(model: Verb, graph: Verb, batches: Iterable[Tensor]) -> Iterator[tuple[Answers, Answers]]:
    """Runs model and graph on every batch and yields the outputs of both.

    Raises:
        CheckpointError: an output of either is not finite, or the graph has other outputs.
    """
    for images in batches:
        with torch.inference_mode():
            expected, actual = model(images), graph(images)
        _check_answers(expected, actual)
        yield expected, actual


def _check_answers(expected: Answers, actual: Answers) -> None:
    shapes = [{name: tuple(output.shape) for name, output in answers.items()} for answers in (expected, actual)]
    if shapes[0] != shapes[1]:
        what = f"the outputs of the graph are {shapes[1]}, those of the model {shapes[0]}"
        raise CheckpointError(what, "report this as a bug in vitrail")
    for name in expected:
        if not expected[name].isfinite().all():
            raise CheckpointError(f"the {name} of the model are not finite", "export a model with finite outputs")
        if not actual[name].isfinite().all():
            raise CheckpointError(f"the {name} of the graph are not finite", "report this as a bug in vitrail")


def choose_sizes(config: Config) -> list[tuple[int, int]]:
    """Returns (height, width) of the model, a larger size and a non-square size; whole patches if the first is."""
    (height, width), (down, across) = config.image_size, config.cell
    oblong = (height + down, width + (3 if height == width else 2) * across)
    return [(height, width), (height + 2 * down, width + 2 * across), oblong]


def generate_pictures(count: int, channels: int, size: tuple[int, int], *, seed: int = 0) -> Tensor:
    """Returns synthetic pictures (B, C, H, W) uint8: noise of several scales, with a different contrast per picture."""
    generator = torch.Generator().manual_seed(seed)
    clouds = torch.zeros(count, channels, *size)
    for cells in (2, 5, 16):
        coarse = torch.randn(count, channels, cells, cells, generator=generator)
        clouds += F.interpolate(coarse, size, mode="bilinear", align_corners=False)
    contrast = 20 + 60 * torch.rand(count, 1, 1, 1, generator=generator)
    return (128 + contrast * clouds).clamp(0, 255).to(torch.uint8)


def scale_pictures(pictures: Tensor, sizes: Iterable[tuple[int, int]]) -> Iterator[Tensor]:
    """Resizes pictures (B, C, H, W) uint8 to every size, in batches of the sizes in `BATCHES`."""
    for size in sizes:
        scaled = F.interpolate(pictures.float(), size, mode="bilinear", align_corners=False, antialias=True)
        for count in BATCHES:
            yield scaled[:count].clamp(0, 255).to(torch.uint8)


@torch.inference_mode()
def measure_speeds(
    model: Callable[[Tensor], object], graph: Callable[[Tensor], object], images: Tensor
) -> tuple[float, float]:
    """Returns median milliseconds per image (B, C, H, W) of the model and of the graph, measured alternately."""
    verbs = {"model": partial(model, images), "graph": partial(graph, images)}
    timings = time_in_turns(verbs, rounds=MOST_ROUNDS, min_rounds=LEAST_ROUNDS, seconds=SECONDS)
    first, second = (1e3 * timing.median / len(images) for timing in timings.values())
    return first, second
