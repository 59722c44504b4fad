"""Chooses how a model computes the outputs for many images on a CPU, as a training chooses: by timing its own blocks.

The precision is that of the options; ways differ in what changes numbers by rounding at most.
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
from vitrail.runtime.tuning import Way, list_threads
from vitrail.runtime.tuning_cache import recall_way
from vitrail.tasks.task import WINDOWS, Task
from vitrail.torch_private import has_fused, takes_fused
from vitrail.weights.onnx import ExportedBackbone


def tune(
    options: InferenceOptions, model: Task, say: Say, *, images: float = math.inf, ranks: Ranks = SINGLE
) -> InferenceOptions:
    """``options`` with the way that is fastest for ``model`` on this processor, where they let it be measured.

    What was measured before is taken; otherwise it is measured if so many ``images`` are worth it (`choose_way`). The ranks
    take what the first one finds.
    """
    if not options.tune or device_of(model).type != "cpu" or isinstance(model.backbone, ExportedBackbone):
        return options
    network = sketch(model.config)
    ways = list_ways(options.precision, torch.get_num_threads(), maps=convolves_maps(network), ranks=ranks)
    if len(ways) == 1:
        return options
    batch = options.batch if options.zoom == 1 else min(options.batch, WINDOWS)
    image = (model.config.in_channels, *model.preprocessing.size)
    named = {"config": repr(model.config), "about": model.about}
    how = {"batch": batch, "gradient": False, "images": images / ranks.world}
    choice = ranks.broadcast(recall_way(network, image, ways, **how, **named))
    if choice is None:
        return options
    say(f"tuned    {choice}")
    return replace(options, way=choice.way)


def list_ways(precision: str, threads: int, *, maps: bool, ranks: Ranks = SINGLE) -> list[Way]:
    """The ways that are timed, in their order; ``maps`` is that of `convolves_maps`."""
    counts = list_threads(threads) if ranks.is_single else [threads]
    layouts = [False, True] if maps else [False]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    layers = sorted([True, False], key=lambda fused: fused != takes_fused(dtype)) if has_fused(dtype) else [None]
    return [Way(precision, count, layout, fused) for layout in layouts for fused in layers for count in counts]


def convolves_maps(network: nn.Module) -> bool:
    """Whether ``network`` has convolutions besides the projection of patches, which is a dense layer."""
    return any(isinstance(module, Conv) for module in network.modules())
