"""Chooses the precision of inference: bf16 where it is faster and gives the answers of fp32, and fp32 elsewhere.

B images, C channels, H and W their size, D features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.sources.contents import choose_evenly
from vitrail.data.sources.source import Source
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import read_inputs
from vitrail.models import sketch
from vitrail.models.backbone import device_of
from vitrail.runtime.device import default_precision
from vitrail.runtime.progress import LogFunction
from vitrail.runtime.tuning import MIN_IMAGES, PRECISIONS, recall_precision
from vitrail.tasks.task import Task, largest_difference
from vitrail.text import plural
from vitrail.torch_private import has_bf16
from vitrail.weights.onnx import FEATURES, ExportedBackbone

PROOF_IMAGES, PROOF_BATCH = 32, 8  # on which bf16 is compared with fp32
MIN_AGREEMENT, MAX_DIFFERENCE = 0.96, 0.05  # share of images with the same answer; of the largest output


@dataclass(frozen=True)
class PrecisionProof:
    """Outputs in bf16 compared with those in fp32.

    Args:
        images: that were compared.
        agreement: share of them with the same answer, in [0, 1]; None of features.
        difference: the largest of an output, as a share of the largest output.
    """

    images: int
    agreement: float | None
    difference: float

    @property
    def holds(self) -> bool:
        """Whether bf16 gives the answers of fp32: for NaN it does not."""
        same = self.agreement is None or self.agreement >= MIN_AGREEMENT
        return self.images > 0 and same and self.difference <= MAX_DIFFERENCE

    def __str__(self) -> str:
        answers = "" if self.agreement is None else f"{100 * self.agreement:.3g} % of the answers agree, "
        return f"of {plural(self.images, 'image')} {answers}largest difference {100 * self.difference:.2g} %"


def settle_precision(
    options: InferenceOptions,
    model: Task,
    log: LogFunction,
    *,
    verb: Literal["predict", "embed"] = "predict",
    source: Source | None = None,
) -> InferenceOptions:
    """Returns ``options`` with fp32 or bf16 in place of the precision ``auto``, and logs which one and why.

    bf16 is taken if it is faster (on a CPU measured by `choose_precision`, forward only; on a GPU if it has bf16) and its
    outputs are those of fp32 on some images (`PrecisionProof`). fp32 is taken for an exported graph, for fewer than
    `MIN_IMAGES` images, and on a CPU if ``options.tune`` is off.

    Args:
        source: the images to come, of which `PROOF_IMAGES` are compared; None for a server, which compares generated ones.
    """
    if options.precision != "auto":
        return options
    fp32, device = replace(options, precision="fp32"), device_of(model)
    is_short = source is not None and len(source) < MIN_IMAGES
    if isinstance(model.backbone, ExportedBackbone) or is_short:
        return fp32
    faster = ""
    if device.type == "cpu":
        if not (options.tune and has_bf16()):
            return fp32
        image = (model.config.in_channels, *model.preprocessing.size)
        named = {"config": repr(model.config), "about": model.about}
        choice = recall_precision(sketch(model.config), image, gradient=False, **named)
        slow, fast = (choice.seconds[plan] for plan in PRECISIONS)
        faster = f"{slow / fast:.2g} times as fast as fp32; "
        if choice.plan.precision == "fp32":
            log(f"precision fp32: bf16 is {faster.removesuffix('; ')}")
            return fp32
    elif default_precision(device) != "bf16":
        return fp32
    images = _generate_inputs(model) if source is None else _read_inputs(model, source, fp32)
    is_embedding = verb == "embed" or not model.classes
    proof = compare_precisions(model.features if is_embedding else model, images, None if is_embedding else model)
    said = f"{faster}{proof}{' (generated images)' if source is None else ''}"
    if proof.holds:
        log(f"precision bf16: {said}")
        return replace(options, precision="bf16")
    log(f"precision fp32: bf16 is {said}; --precision bf16 takes it all the same")
    return fp32


@torch.inference_mode()
def compare_precisions(
    compute: Callable[[Tensor], Tensor], batches: Iterable[Tensor], task: Task | None = None
) -> PrecisionProof:
    """Compares what ``compute`` returns for ``batches`` of images (B, C, H, W) in bf16 with what it returns in fp32.

    Args:
        task: whose outputs are computed, and which tells how far its answers agree; None for features.
    """
    name_outputs = _name_features if task is None else task.name_outputs
    count, agreed, worst = 0, 0.0, 0.0
    for images in batches:
        expected, actual = (
            name_outputs(InferenceOptions(precision=precision).compute(compute, images))
            for precision in ("fp32", "bf16")
        )
        count += len(images)
        difference = (largest_difference if task is None else task.difference)(expected, actual)
        worst = difference if math.isnan(difference) else max(worst, difference)
        if task is not None:
            agreed += len(images) * task.agreement(expected, actual)
    return PrecisionProof(count, None if task is None else agreed / max(count, 1), worst)


def _name_features(features: Tensor) -> dict[str, Tensor]:
    return {FEATURES: features}


def _read_inputs(model: Task, source: Source, options: InferenceOptions) -> Iterator[Tensor]:
    """Yields images of ``source``, spread evenly; those that cannot be read are left out, and reported later."""
    few = source.subset(choose_evenly(len(source), PROOF_IMAGES))
    reading: Any = replace(options, batch=min(options.batch, PROOF_BATCH), workers=0, plan=None)
    for _, images in read_inputs(model, few, reading, bad=lambda key, reason: None):
        yield images


def _generate_inputs(model: Task) -> Iterator[Tensor]:
    size, channels = model.preprocessing.size, model.config.in_channels
    for seed in range(PROOF_IMAGES // PROOF_BATCH):
        pictures = generate_pictures(PROOF_BATCH, channels, size, seed=seed)
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
