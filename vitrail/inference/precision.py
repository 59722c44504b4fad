"""Chooses the precision of inference: bf16 where it is faster and gives the answers of fp32, and fp32 elsewhere."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from vitrail.data.sources.source import Source
from vitrail.inference.comparison import Comparison, compare_outputs, read_few
from vitrail.inference.options import InferenceOptions
from vitrail.models import sketch
from vitrail.models.backbone import device_of
from vitrail.runtime.device import default_precision
from vitrail.runtime.progress import LogFunction
from vitrail.runtime.tuning import MIN_IMAGES, PRECISIONS, recall_precision
from vitrail.tasks.task import Task
from vitrail.torch_private import has_bf16
from vitrail.weights.onnx import ExportedBackbone


def settle_precision(
    options: InferenceOptions,
    model: Task,
    log: LogFunction,
    *,
    verb: Literal["predict", "embed"] = "predict",
    source: Source | None = None,
) -> tuple[InferenceOptions, Comparison | None]:
    """Returns ``options`` with fp32 or bf16 in place of the precision ``auto``, and the comparison by which bf16 was taken.

    A line of the log states which one and why.

    bf16 is taken if it is faster (on a CPU measured by `choose_precision`, forward only; on a GPU if it has bf16) and its
    outputs are those of fp32 on some images (`Comparison`). fp32 is taken for an exported graph, for fewer than
    `MIN_IMAGES` images, and on a CPU if ``options.tune`` is off.

    Args:
        source: the images to come, of which `COMPARED_IMAGES` are compared; None for a server, which compares generated ones.
    """
    if options.precision != "auto":
        return options, None
    fp32, device = replace(options, precision="fp32"), device_of(model)
    is_short = source is not None and len(source) < MIN_IMAGES
    if isinstance(model.backbone, ExportedBackbone) or is_short:
        return fp32, None
    faster = ""
    if device.type == "cpu":
        if not (options.tune and has_bf16()):
            return fp32, None
        image = (model.config.in_channels, *model.preprocessing.size)
        named = {"config": repr(model.config), "about": model.about}
        choice = recall_precision(sketch(model.config), image, gradient=False, **named)
        slow, fast = (choice.seconds[plan] for plan in PRECISIONS)
        faster = f"{slow / fast:.2g} times as fast as fp32; "
        if choice.plan.precision == "fp32":
            log(f"precision fp32: bf16 is {faster.removesuffix('; ')}")
            return fp32, None
    elif default_precision(device) != "bf16":
        return fp32, None
    is_embedding = verb == "embed" or not model.classes
    compute = model.features if is_embedding else model
    bf16, images = replace(options, precision="bf16"), read_few(model, source, fp32)
    exact, fast = (partial(InferenceOptions(precision=name).compute, compute) for name in ("fp32", "bf16"))
    found = compare_outputs(exact, fast, images, None if is_embedding else model)
    said = f"{faster}{found}{' (generated images)' if source is None else ''}"
    if found.holds():
        log(f"precision bf16: {said}")
        return bf16, replace(found, runtime="PyTorch bf16")
    log(f"precision fp32: bf16 is {said}; --precision bf16 takes it all the same")
    return fp32, None
