"""Export to ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from vitrail.errors import ConfigError
from vitrail.exports.graph import AXES, dynamic_size, quiet_exporters, trace_graph
from vitrail.files import disk_errors, replace_file
from vitrail.tasks.task import Task

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
        import onnxscript  # noqa: F401
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
    for node in written.model.graph.all_nodes():
        node.metadata_props.clear()  # source code lines with local paths
    written.model.metadata_props.update(metadata)
    if sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()) > LARGEST:
        with disk_errors(path):
            written.save(path, external_data=True)
    else:
        replace_file(path, written.model_proto.SerializeToString())
    return is_dynamic
