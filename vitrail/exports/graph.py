"""The graph to export: images to named outputs, traced once for any batch size and, if possible, any image size. It is written
as ONNX, or as a `torch.export` program, which torch loads without this package and AOTInductor compiles.

B images, C channels, H x W pixels, K classes, F features.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from vitrail.errors import ConfigError
from vitrail.exports.graph_preprocessing import Preparation
from vitrail.files import disk_errors, replace_file
from vitrail.models.layers import StdConv
from vitrail.models.registered import RegisteredConfig
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
        for module in self.model.modules():
            if isinstance(module, StdConv):
                module.fix_kernel()

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return self.model.graph(self.prepare(images))


def dynamic_size(model: Task) -> bool:
    """Whether height and width are dynamic in a graph of this model. The batch size always is.

    The exceptions are registered networks that take one size, and BEiT with tables that are resized by a cubic spline
    ("geometric-cubic"): the spline requires solving linear equations, for which ONNX has no operator.
    """
    config = model.backbone.config
    if isinstance(config, RegisteredConfig):
        return config.takes_any_size
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
    """Suppresses warnings and log messages of torch's exporters, of onnxruntime's quantiser and of their libraries."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(torch|onnxscript|onnx_ir|copyreg)\b")
            yield
    finally:
        logging.disable(before)


OPSET = 20  # the opset of torch's exporter
LARGEST = 1536 * 2**20  # maximum bytes of weights in one file; protobuf messages are limited to 2 GB


def to_onnx(
    model: Task,
    path: Path,
    *,
    metadata: Mapping[str, str] = {},
    pictures: bool = False,
    opset: int = OPSET,
) -> bool:
    """Writes `Graph` as ONNX, from "images" (batch, C, height, width) to the outputs in `Task.graph_outputs`.

    Weights of more than `LARGEST` bytes are stored in a separate file beside it.

    Args:
        metadata: strings to store in the file (``metadata_props``).
        pictures: whether the input is "pictures", uint8 of any one size after EXIF orientation, with preprocessing in the
            graph, instead of "images".
        opset: version of ONNX's operators.

    Returns:
        Whether height and width are dynamic: always for pictures, otherwise `dynamic_size`.

    Raises:
        ConfigError: the packages onnx and onnxscript are not installed.
        DiskError: the file cannot be written.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript.optimizer
    except ImportError as error:
        raise ConfigError("exporting to ONNX needs onnx and onnxscript", "pip install 'vitrail[onnx]'") from error
    program = trace_graph(model, pictures=pictures)
    is_dynamic = pictures or dynamic_size(model)
    with quiet_exporters():
        written = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            opset_version=opset,
            input_names=["pictures" if pictures else "images"],
            output_names=list(model.graph_outputs),
            dynamic_shapes={"images": {axis: name for axis, name in AXES.items() if axis == 0 or is_dynamic}},
        )
        assert written is not None
        # what is computed from weights alone, such as kernels of patches, becomes a weight, as quantisers and TensorRT need it
        onnxscript.optimizer.fold_constants(written.model, input_size_limit=LARGEST, output_size_limit=LARGEST)
    for node in written.model.graph.all_nodes():
        node.metadata_props.clear()  # source code lines with local paths
    written.model.metadata_props.update(metadata)
    if sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()) > LARGEST:
        with disk_errors(path):
            written.save(path, external_data=True)
    else:
        replace_file(path, written.model_proto.SerializeToString())
    return is_dynamic


def to_program(model: Task, path: Path, *, metadata: Mapping[str, str] = {}) -> bool:
    """Writes `Graph` as a program. ``torch.export.load(path).module()(images)`` returns a dict of outputs.

    Args:
        metadata: strings to store in the file (``extra_files`` of `torch.export.load`).

    Returns:
        Whether height and width are dynamic, as given by `dynamic_size`.

    Raises:
        DiskError: the file cannot be written.
    """
    program = trace_graph(model)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # source code lines with local paths
    content = BytesIO()
    with quiet_exporters():
        torch.export.save(program, content, extra_files=dict(metadata))
    replace_file(path, content.getvalue())
    return dynamic_size(model)
