"""Chooses how a model computes the outputs for many images on a CPU, as a training chooses: by timing its own blocks.

The precision is that of the options; plans differ in what changes numbers by rounding at most.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import nn

from vitrail.inference.options import InferenceOptions
from vitrail.models import device_of, sketch
from vitrail.models.layers import Conv
from vitrail.runtime.distributed import SINGLE, Ranks
from vitrail.runtime.progress import Say
from vitrail.runtime.tuning import ExecutionPlan, list_threads, recall_plan
from vitrail.tasks.task import WINDOWS, Task
from vitrail.torch_private import has_fused, takes_fused
from vitrail.weights.onnx import ExportedBackbone


def tune_options(
    options: InferenceOptions, model: Task, say: Say, *, images: float = math.inf, ranks: Ranks = SINGLE
) -> InferenceOptions:
    """Returns ``options`` with the plan that is fastest for ``model`` on this processor, where they let it be measured.

    What was measured before is taken; otherwise it is measured if so many ``images`` are worth it (`choose_plan`). The ranks
    take what the first one finds.
    """
    if not options.tune or device_of(model).type != "cpu" or isinstance(model.backbone, ExportedBackbone):
        return options
    network = sketch(model.config)
    plans = list_plans(options.precision, torch.get_num_threads(), maps=convolves_maps(network), ranks=ranks)
    if len(plans) == 1:
        return options
    batch = options.batch if options.zoom == 1 else min(options.batch, WINDOWS)
    image = (model.config.in_channels, *model.preprocessing.size)
    named = {"config": repr(model.config), "about": model.about}
    how = {"batch": batch, "gradient": False, "images": images / ranks.world}
    choice = ranks.broadcast(recall_plan(network, image, plans, **how, **named))
    if choice is None:
        return options
    say(f"tuned    {choice}")
    return replace(options, plan=choice.plan)


def list_plans(precision: str, threads: int, *, maps: bool, ranks: Ranks = SINGLE) -> list[ExecutionPlan]:
    """Returns the plans that are timed, in their order; ``maps`` is that of `convolves_maps`."""
    counts = list_threads(threads) if ranks.is_single else [threads]
    layouts = [False, True] if maps else [False]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    layers = sorted([True, False], key=lambda fused: fused != takes_fused(dtype)) if has_fused(dtype) else [None]
    return [
        ExecutionPlan(precision, count, layout, fused) for layout in layouts for fused in layers for count in counts
    ]


def convolves_maps(network: nn.Module) -> bool:
    """Whether ``network`` has convolutions besides the projection of patches, which is a dense layer."""
    return any(isinstance(module, Conv) for module in network.modules())
