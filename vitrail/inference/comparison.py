"""Compares what computes a model faster with what computes it exactly, by the outputs for some images.

B images, C channels, H and W their size, D features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.sources.contents import choose_evenly
from vitrail.data.sources.source import Source
from vitrail.files import dump_json, replace_file
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import read_inputs
from vitrail.models.backbone import device_of
from vitrail.tasks.task import Task, largest_difference
from vitrail.text import plural
from vitrail.weights.onnx import FEATURES

COMPARED_IMAGES, COMPARED_BATCH = 32, 8
MIN_AGREEMENT, MAX_DIFFERENCE = 0.96, 0.05  # share of images with the same answer; of the largest output


@dataclass(frozen=True)
class Comparison:
    """Outputs compared with those that are exact.

    Args:
        images: that were compared.
        agreement: share of them with the same answer, in [0, 1]; None of features.
        difference: the largest of an output, as a share of the largest output.
        runtime: what computed them, such as ``PyTorch bf16``.
    """

    images: int
    agreement: float | None
    difference: float
    runtime: str = ""

    def holds(self, max_difference: float = MAX_DIFFERENCE) -> bool:
        """Whether the answers are those of the exact outputs: for NaN they are not."""
        same = self.agreement is None or self.agreement >= MIN_AGREEMENT
        return self.images > 0 and same and self.difference <= max_difference

    def __str__(self) -> str:
        answers = "" if self.agreement is None else f"{100 * self.agreement:.3g} % of the answers agree, "
        return f"of {plural(self.images, 'image')} {answers}largest difference {100 * self.difference:.2g} %"


def write_agreement(out: Path, comparison: Comparison | None) -> None:
    """Writes ``OUT.agreement.json`` beside the results ``out``; without a comparison, that of earlier results is removed."""
    path = out.with_name(f"{out.name}.agreement.json")
    if comparison is None:
        path.unlink(missing_ok=True)
    else:
        replace_file(path, dump_json({**asdict(comparison), "exact": "PyTorch fp32"}))


@torch.inference_mode()
def compare_outputs(
    exact: Callable[[Tensor], Tensor],
    fast: Callable[[Tensor], Tensor],
    batches: Iterable[Tensor],
    task: Task | None = None,
) -> Comparison:
    """Compares what ``fast`` returns for ``batches`` of images (B, C, H, W) with what ``exact`` returns.

    Args:
        task: whose outputs are computed, and which tells how far its answers agree; None for features.
    """
    name_outputs = _name_features if task is None else task.name_outputs
    count, agreed, worst = 0, 0.0, 0.0
    for images in batches:
        expected, actual = name_outputs(exact(images)), name_outputs(fast(images))
        count += len(images)
        difference = (largest_difference if task is None else task.difference)(expected, actual)
        worst = difference if math.isnan(difference) else max(worst, difference)
        if task is not None:
            agreed += len(images) * task.agreement(expected, actual)
    return Comparison(count, None if task is None else agreed / max(count, 1), worst)


def _name_features(features: Tensor) -> dict[str, Tensor]:
    return {FEATURES: features}


def read_few(
    model: Task, source: Source | None, options: InferenceOptions, count: int = COMPARED_IMAGES
) -> Iterator[Tensor]:
    """Yields batches of ``count`` images (B, C, H, W) of ``source``, spread evenly; None generates some.

    Images that cannot be read are left out: reading all of them reports these.
    """
    if source is None:
        yield from _generate_inputs(model, count)
        return
    few = source.subset(choose_evenly(len(source), count))
    reading: Any = replace(options, batch=min(options.batch, COMPARED_BATCH), workers=0, plan=None)
    for _, images in read_inputs(model, few, reading, bad=lambda key, reason: None):
        yield images


def _generate_inputs(model: Task, count: int) -> Iterator[Tensor]:
    size, channels = model.preprocessing.size, model.config.in_channels
    for seed in range(count // COMPARED_BATCH):
        pictures = generate_pictures(COMPARED_BATCH, channels, size, seed=seed)
        yield model.preprocessing.normalise(pictures.to(device_of(model)))


def generate_pictures(count: int, channels: int, size: tuple[int, int], *, seed: int = 0) -> Tensor:
    """Returns synthetic pictures (B, C, H, W) uint8: noise of several scales, with a different contrast per picture."""
    generator = torch.Generator().manual_seed(seed)
    clouds = torch.zeros(count, channels, *size)
    for cells in (2, 5, 16):
        coarse = torch.randn(count, channels, cells, cells, generator=generator)
        clouds += F.interpolate(coarse, size, mode="bilinear", align_corners=False)
    contrast = 20 + 60 * torch.rand(count, 1, 1, 1, generator=generator)
    return (128 + contrast * clouds).clamp(0, 255).to(torch.uint8)
