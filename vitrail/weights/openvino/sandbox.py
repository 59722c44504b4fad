"""The program that reads and tries an OpenVINO IR in a process with limits, started by `vitrail.weights.openvino`.

It takes one JSON argument. Without a shape of an image it prints what the files contain, as JSON; with one it runs the graph on
a black image and prints why it failed, if it did. Of vitrail it imports only `vitrail.runtime`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

MEMORY = "memory"
MAX_NODES = 50_000  # many times those of the deepest model
METADATA = ("vitrail", "parity")
# Operators of networks for images, as in `vitrail.weights.onnx.sandbox`. First those with inputs whose values decide on the shape
# of the output, by the positions of these inputs:
SHAPED = {
    **{f"Reduce{kind}": (1,) for kind in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum", "LogicalAnd", "LogicalOr")},
    **dict.fromkeys(("Broadcast", "OneHot", "Reshape", "Split", "Squeeze", "Tile", "TopK", "Unsqueeze"), (1,)),
    **dict.fromkeys(("Interpolate", "Pad", "VariadicSplit"), (1, 2)),
    "Range": (0, 1, 2),
    "Slice": (1, 2, 3, 4),
    "StridedSlice": (1, 2, 3),
}
_PLAIN = """
    Abs Add AvgPool BatchNormInference Ceiling Clamp Concat Constant Convert ConvertLike Convolution ConvolutionBackpropData Cos
    CumSum DepthToSpace Divide Einsum Elu Equal Erf Exp FakeQuantize Floor FloorMod Gather GatherElements GatherND Gelu Greater
    GreaterEqual GroupConvolution GroupNormalization HSigmoid HSwish HardSigmoid IsFinite IsInf IsNaN Less LessEqual Log
    LogSoftmax LogicalAnd LogicalNot LogicalOr LogicalXor MVN MatMul MaxPool Maximum Minimum Mish Mod Multiply Negative
    NormalizeL2 NotEqual PRelu Parameter Power ROPE Relu Result Round ScaledDotProductAttention ScatterElementsUpdate
    ScatterNDUpdate ScatterUpdate Select Selu ShapeOf Sigmoid Sign Sin SoftPlus Softmax SpaceToDepth Sqrt SquaredDifference
    Subtract Swish Tan Tanh Transpose
"""
PLAIN = frozenset(_PLAIN.split())


def read(core: Any, path: str) -> dict[str, Any]:
    """Returns the fields of `vitrail.weights.onnx.Contents` of a graph."""
    graph = core.read_model(path)
    found = [key for key in METADATA if graph.has_rt_info([key])]
    return {
        "metadata": {key: graph.get_rt_info([key]).astype(str) for key in found},
        "inputs": [value.any_name for value in graph.inputs],
        "external": [Path(path).with_suffix(".bin").name],
        "unwanted": find_unwanted(graph),
    }


def find_unwanted(graph: Any) -> str:
    """Returns what a graph has that is not run: other operators, or shapes that depend on the values of its images.

    The end of a sentence that begins with the file's path; empty if there is nothing.
    """
    nodes = graph.get_ordered_ops()
    if len(nodes) > MAX_NODES:
        return f"has more than {MAX_NODES:,} nodes"
    known: set[str] = set()  # nodes with the same values for all images of one size
    for node in nodes:
        kind, opset = node.get_type_name(), node.get_type_info().version_id
        if not opset.startswith("opset") or not (kind in PLAIN or kind in SHAPED):
            return f"has the operator {kind!r}, which vitrail does not run"
        inputs = [value.get_node().get_name() for value in node.input_values()]
        if not known.issuperset(inputs[at] for at in SHAPED.get(kind, ()) if at < len(inputs)):
            return f"has the operator {kind!r} with a shape that depends on the content of an image"
        if kind in ("Constant", "ShapeOf") or (inputs and known.issuperset(inputs)):
            known.add(node.get_name())
    return ""


def run_once(core: Any, path: str, name: str, shape: list[int]) -> None:
    """Compiles the graph as `OpenVINOSession` does, and runs it on one black image if it takes such images."""
    import numpy

    graph = core.read_model(path)
    options = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(graph, "CPU", options).create_infer_request()
    (value,) = graph.inputs
    is_for_images = value.any_name == name and value.element_type.get_type_name() == "f32"
    if is_for_images and value.partial_shape.compatible(type(value.partial_shape)(shape)):
        request.infer({name: numpy.zeros(shape, numpy.float32)})


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    sys.path[:] = options["sys_path"]
    from vitrail.runtime.confined import limit, limit_memory
    from vitrail.runtime.openvino_runtime import import_openvino

    limit("RLIMIT_CORE", 0)
    limit("RLIMIT_FSIZE", 0)
    limit("RLIMIT_CPU", options["seconds"])
    core = import_openvino().Core()  # its own memory does not count
    core.set_property({"ENABLE_MMAP": False})
    core.get_property("CPU", "FULL_DEVICE_NAME")  # loads the library of the device
    limit_memory(options["spare_bytes"])
    try:
        if options["shape"] is None:
            print(json.dumps(read(core, options["path"])))
        else:
            run_once(core, options["path"], options["name"], options["shape"])
    except Exception as error:  # exceptions of OpenVINO's C++ code have no common base class
        reason = str(error).strip()[-1000:]
        if options["shape"] is None:
            print(json.dumps({"fault": f"cannot be read by OpenVINO: {reason}"}))
        else:
            is_memory = isinstance(error, MemoryError) or "alloc" in reason
            print(MEMORY if is_memory else ascii(reason))


if __name__ == "__main__":
    main()
