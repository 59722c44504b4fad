"""The graph to export: images to named outputs, traced once for any batch size and, if possible, any image size.

B images, C channels, H x W pixels, K classes, F features.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from vitrail.exports.pictures import Preparation
from vitrail.tasks.task import Task

AXES = {0: "batch", 2: "height", 3: "width"}  # of the images


class Graph(nn.Module):
    """Maps normalised fp32 images (B, C, H, W) to the named outputs of `Task.graph`, such as "logits" (B, K).

    The module holds a copy of the model in fp32, on the CPU and in evaluation mode. The model itself is not changed.

    Args:
        pictures: whether the input is whole uint8 pictures, which a `Preparation` converts to images.
    """

    def __init__(self, model: Task, *, pictures: bool = False) -> None:
        super().__init__()
        self.prepare = Preparation(model.preprocessing) if pictures else nn.Identity()
        self.model: Task = copy.deepcopy(model).float().cpu().eval().requires_grad_(False)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return self.model.graph(self.prepare(images))


def dynamic_size(model: Task) -> bool:
    """Whether height and width are dynamic in a graph of this model. The batch size always is.

    The only exception is BEiT with tables that are resized by a cubic spline ("geometric-cubic"): the spline requires
    solving linear equations, for which ONNX has no operator.
    """
    config = model.backbone.config
    is_spline = getattr(config, "bias_resize", None) == "geometric-cubic"
    return not (is_spline and config.relative_bias != "none")


def trace_graph(model: Task, *, pictures: bool = False) -> ExportedProgram:
    """Traces a model with the dynamic axes ``batch`` and, if `dynamic_size`, ``height`` and ``width``.

    The graph supports any batch size and the image sizes that the model supports. A program refuses other sizes, and fewer
    than two patches per side, because torch specialises on a length of one. A graph with ``pictures`` as input accepts
    pictures of any size and resizes them to one image size.
    """
    graph, is_dynamic = Graph(model, pictures=pictures), pictures or dynamic_size(model)
    config = graph.model.config
    # twice the model's size, so that torch does not specialise on a map length of 1 or of a table's size
    scale = 2 if is_dynamic else 1
    size = [scale * length for length in config.image_size]
    images = torch.zeros(2, config.in_channels, *size, dtype=torch.uint8 if pictures else torch.float32)
    axes = {axis: Dim.DYNAMIC for axis in AXES if axis == 0 or is_dynamic}
    with quiet_exporters(), torch.no_grad():
        return torch.export.export(graph, (images,), dynamic_shapes={"images": axes})


@contextmanager
def quiet_exporters() -> Iterator[None]:
    """Suppresses warnings and log messages of torch's exporters and their libraries."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(torch|onnxscript|onnx_ir|copyreg)\b")
            yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)
