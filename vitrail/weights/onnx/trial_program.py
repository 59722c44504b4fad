"""The program that tries a graph in a process of its own, started by `vitrail.weights.onnx.trial`.

onnxruntime computes parts of a graph when it opens it, and a small file can describe results of any size. Here that costs a
process with limited memory and time. The program takes one JSON argument and prints why it failed, if it did. Of vitrail it
imports only `vitrail.runtime.confined` and `vitrail.runtime.onnx_runtime`.
"""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import Any

MEMORY = "memory"


def run_once(onnxruntime: ModuleType, path: str, name: str, shape: list[int]) -> None:
    """Opens the graph as `vitrail.weights.onnx.open_session` does, and runs it on one black image if it takes such images."""
    import numpy

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # the stacks of threads would count as memory
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = [(value.name, value.type) for value in session.get_inputs()]
    lengths = session.get_inputs()[0].shape if inputs == [(name, "tensor(float)")] else []
    if [length if isinstance(length, int) else wanted for length, wanted in zip(lengths, shape)] == shape:
        session.run(None, {name: numpy.zeros(shape, numpy.float32)})


def main() -> None:
    told: dict[str, Any] = json.loads(sys.argv[1])
    sys.path[:] = told["sys_path"]
    from vitrail.runtime.confined import limit, limit_memory
    from vitrail.runtime.onnx_runtime import import_onnxruntime

    limit("RLIMIT_CORE", 0)
    limit("RLIMIT_FSIZE", 0)
    limit("RLIMIT_CPU", told["seconds"])
    onnxruntime = import_onnxruntime()  # its own memory does not count
    limit_memory(told["spare_bytes"])
    try:
        run_once(onnxruntime, told["path"], told["name"], told["shape"])
    except Exception as error:  # exceptions of onnxruntime's C++ code have no common base class
        is_memory = isinstance(error, MemoryError) or "alloc" in str(error)
        print(MEMORY if is_memory else ascii(str(error)[:1000]))


if __name__ == "__main__":
    main()
