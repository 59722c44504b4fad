"""The graph that is exported: images in, named outputs out, traced once for all batches and, if possible, all sizes.

B images, C channels, H x W pixels, K classes, F width of what the head reads.
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
    """Normalised images (B, C, H, W) in fp32 to the named outputs of `Task.graph`, such as "logits" (B, K) and "features" (B, F).

    It holds a copy of the model, in fp32, on the CPU and in evaluation mode: the model stays as it is.

    Args:
        pictures: what comes in is whole pictures, uint8, which a `Preparation` makes images of.
    """

    def __init__(self, model: Task, *, pictures: bool = False) -> None:
        super().__init__()
        self.prepare = Preparation(model.preprocessing) if pictures else nn.Identity()
        self.model: Task = copy.deepcopy(model).float().cpu().eval().requires_grad_(False)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return self.model.graph(self.prepare(images))


def dynamic_size(model: Task) -> bool:
    """Whether height and width are left open in a graph of this model; the batch always is.

    They are in all architectures but one case: BEiT's tables that are resized by a cubic spline ("geometric-cubic"), because
    drawing it for another size means solving linear equations, for which ONNX has no operator.
    """
    config = model.backbone.config
    is_spline = getattr(config, "bias_resize", None) == "geometric-cubic"
    return not (is_spline and config.relative_bias != "none")


def trace_graph(model: Task, *, pictures: bool = False) -> ExportedProgram:
    """The graph of a model, with names for the axes that are open: ``batch``, and where `dynamic_size` ``height`` and ``width``.

    With its lengths left open a graph holds for any number of images, and for the sizes that the model takes itself; a program
    refuses others, and so it does less than two patches along a side, as torch traces one as a case of its own. A graph that
    takes whole ``pictures`` takes all sizes, and its network sees one.
    """
    graph, is_dynamic = Graph(model, pictures=pictures), pictures or dynamic_size(model)
    config = graph.model.config
    # twice the model's size: no length of any map, in any stage, is 1 or what a table was made for
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
