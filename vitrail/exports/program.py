"""Export as `torch.export` programs, which torch loads without this package and AOTInductor compiles."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import torch

from vitrail.exports.graph import dynamic_size, quiet_exporters, trace_graph
from vitrail.files import replace_file
from vitrail.tasks.task import Task


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
