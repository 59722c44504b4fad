"""The program that reads and tries an .onnx file in a process with limits, started by `vitrail.weights.onnx`.

A small file can stand for any amount of memory: protobuf makes 78 bytes of one byte of empty nodes, and onnxruntime computes
parts of a graph when it opens it. The program takes one JSON argument. Without a shape of an image it prints what the file
contains, as JSON; with one it runs the graph on a black image and prints why it failed, if it did. Of vitrail it imports only
`vitrail.runtime.confined` and `vitrail.runtime.onnx_runtime`.
"""

from __future__ import annotations

import json
import math
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

MEMORY = "memory"
MAX_NODES = 50_000  # many times those of the deepest model
MAX_AXES = 32
# bytes per value of a tensor by its data_type: float, 8 to 64 bit integers, bool, float16, double, bfloat16
SIZES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}
NUMBERS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
EXTERNAL = {"location", "offset", "length", "checksum"}
DOMAINS = ("", "ai.onnx")
# The operators of networks for images. With these, the memory that a graph needs is set by the size of the images alone. Left
# out are operators that run other graphs (Loop, If, Scan), those whose output has as many values as their input tells them to
# (NonZero, Unique, Compress), random numbers, sequences, text, and the operators of onnxruntime's own and of others.
# First those with inputs whose values decide on the shape of the output, by the positions of these inputs:
SHAPED = {
    **{
        name: (1,) for name in ("Expand", "Pad", "Reshape", "Split", "Squeeze", "Tile", "TopK", "Unsqueeze", "Upsample")
    },
    **{f"Reduce{kind}": (1,) for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum")},
    "ReduceSumSquare": (1,),
    "AffineGrid": (1,),
    "ConstantOfShape": (0,),
    "OneHot": (1,),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
}
_PLAIN = """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool BatchNormalization BitShift BitwiseAnd
    BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Celu Clip Concat Constant Conv ConvInteger ConvTranspose Cos Cosh CumSum
    DepthToSpace DequantizeLinear Div Dropout DynamicQuantizeLinear Einsum Elu Equal Erf Exp EyeLike Flatten Floor Gather
    GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample
    GroupNormalization HardSigmoid HardSwish Hardmax Identity InstanceNormalization IsInf IsNaN LRN LayerNormalization LeakyRelu
    Less LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul MatMulInteger Max MaxPool Mean MeanVarianceNormalization Min
    Mish Mod Mul Neg Not Or PRelu Pow QLinearConv QLinearMatMul QuantizeLinear RMSNormalization Reciprocal Relu
    RotaryEmbedding Round ScatterElements ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh Size Softmax Softplus Softsign
    SpaceToDepth Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Transpose Trilu Where Xor
"""
PLAIN = frozenset(_PLAIN.split())


def read(path: Path) -> dict[str, Any]:
    """Returns the fields of `vitrail.weights.onnx.Contents` of a file.

    Raises:
        ValueError: the file is damaged, or has something that is not read, as the end of a sentence that begins with its path.
    """
    from google.protobuf.message import DecodeError
    from onnx import ModelProto

    model = ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError:
        raise ValueError("is not an ONNX file, or is damaged") from None
    size = model.ByteSize()
    model.DiscardUnknownFields()
    if model.ByteSize() != size:  # onnxruntime could know them
        raise ValueError("is not an ONNX file, or is damaged: it has unknown fields")
    if not model.HasField("graph"):
        raise ValueError("is not an ONNX file: it has no graph")
    if model.functions or model.training_info:
        raise ValueError(f"has {'functions' if model.functions else 'a training graph'}, which vitrail does not read")
    external: Counter[str] = Counter()
    for tensor in list_tensors(model.graph):
        check_tensor(tensor, path.resolve().parent, external)  # the folder of the file, not that of a link to it
    return {
        "metadata": {entry.key: entry.value for entry in model.metadata_props},
        "inputs": [value.name for value in model.graph.input],
        "external": sorted(external),
        "unwanted": find_unwanted(model.graph),
    }


def list_tensors(graph: Any) -> Iterator[Any]:
    """Yields the tensors of a graph, of its nodes, and of graphs inside of these."""
    if len(graph.node) > MAX_NODES:
        raise ValueError(f"has more than {MAX_NODES:,} nodes")
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    if graph.sparse_initializer or any(each.sparse_tensors or each.HasField("sparse_tensor") for each in attributes):
        raise ValueError("has sparse tensors, which vitrail does not read")
    yield from graph.initializer
    for attribute in attributes:
        yield from (attribute.t, *attribute.tensors) if attribute.HasField("t") else attribute.tensors
        for inner in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
            yield from list_tensors(inner)


def check_tensor(tensor: Any, folder: Path, external: Counter[str]) -> None:
    """Raises `ValueError` for a tensor that does not hold as many values as it claims, or is not in a file of ``folder``.

    Args:
        external: the bytes that tensors use of each file, to which those of this one are added.
    """
    if tensor.HasField("segment"):
        raise ValueError("has a tensor in segments, which vitrail does not read")
    if tensor.data_type not in SIZES:
        raise ValueError(f"has the tensor {tensor.name!r} of the unsupported data type {tensor.data_type}")
    if len(tensor.dims) > MAX_AXES or min(tensor.dims, default=0) < 0:
        raise ValueError(f"has the tensor {tensor.name!r} with {len(tensor.dims)} axes or negative lengths")
    claimed, size = math.prod(tensor.dims), SIZES[tensor.data_type]
    held, raw = sum(len(getattr(tensor, name)) for name in NUMBERS), len(tensor.raw_data)
    if tensor.external_data:
        check_external(tensor, claimed * size, folder, external)
    elif (held, raw) not in ((claimed, 0), (0, claimed * size)):
        what = f"claims {claimed:,} values of {size} bytes and holds {held:,} values and {raw:,} bytes"
        raise ValueError(f"has the tensor {tensor.name!r} that {what}")


def check_external(tensor: Any, size: int, folder: Path, external: Counter[str]) -> None:
    """Checks that the ``size`` bytes of a tensor are in a regular file in the folder, each byte used once."""
    name, facts = tensor.name, {entry.key: entry.value for entry in tensor.external_data}
    numbers = [facts.get("offset", "0"), facts.get("length", str(size))]
    if facts.keys() - EXTERNAL or not all(number.isdecimal() and len(number) < 20 for number in numbers):
        raise ValueError(f"has the tensor {name!r} at a place that is not described as in ONNX: {facts}")
    offset, length = map(int, numbers)
    location = facts.get("location", "")
    if location in ("", ".", "..") or any(mark in location for mark in "/\\:\0"):
        raise ValueError(f"has the tensor {name!r} in {location!r}; only files in the same folder are read")
    try:
        status = os.lstat(folder / location)
    except FileNotFoundError:
        raise ValueError(f"has weights in {location!r}, which is not in its folder: copy both") from None
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        kind = "a hard link to another file" if stat.S_ISREG(status.st_mode) else "a link or no regular file"
        raise ValueError(f"has weights in {location!r}, which is {kind}: copy the file itself")
    if length != size or offset + length > status.st_size:
        what = f"claims {size:,} bytes from byte {offset:,} of {location!r}, which has {status.st_size:,}"
        raise ValueError(f"has the tensor {name!r} that {what}")
    external[location] += length
    if external[location] > status.st_size:
        raise ValueError(f"has tensors that use the same bytes of {location!r} several times")


def find_unwanted(graph: Any) -> str:
    """Returns what a graph has that is not run: other operators, or shapes that depend on the values of its images.

    The end of a sentence that begins with the file's path; empty if there is nothing.
    """
    # values that are the same for all images of one size; "" is an input that is left out
    known = {"", *(tensor.name for tensor in graph.initializer)}
    for node in graph.node:  # in the order in which they are computed
        name = node.op_type if node.domain in DOMAINS else f"{node.domain}.{node.op_type}"
        has_graphs = any(attribute.graphs or attribute.HasField("g") for attribute in node.attribute)
        if node.domain not in DOMAINS or has_graphs or not (name in PLAIN or name in SHAPED):
            return f"has the operator {name!r}, which vitrail does not run"
        inputs, outputs = list(node.input), list(node.output)
        if not known.issuperset(inputs[at] for at in SHAPED.get(name, ()) if at < len(inputs)):
            return f"has the operator {name!r} with a shape that depends on the content of an image"
        if name in ("Shape", "Size") or known.issuperset(inputs):
            known.update(outputs)
    return ""


def run_once(onnxruntime: ModuleType, path: str, name: str, shape: list[int]) -> None:
    """Opens the graph as `vitrail.weights.onnx.open_session` does, and runs it on one black image if it takes such images."""
    import numpy

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # the stacks of threads would count as memory
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    ends = [*session.get_inputs(), *session.get_outputs()]
    signature = [(value.name, value.type, value.shape) for value in ends]  # raises for text that is not UTF-8
    is_for_images = len(session.get_inputs()) == 1 and signature[0][:2] == (name, "tensor(float)")
    lengths = signature[0][2] if is_for_images else []
    if [length if isinstance(length, int) else wanted for length, wanted in zip(lengths, shape)] == shape:
        session.run(None, {name: numpy.zeros(shape, numpy.float32)})


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    sys.path[:] = options["sys_path"]
    from vitrail.runtime.confined import limit, limit_memory
    from vitrail.runtime.onnx_runtime import import_onnxruntime

    limit("RLIMIT_CORE", 0)
    limit("RLIMIT_FSIZE", 0)
    limit("RLIMIT_CPU", options["seconds"])
    if options["shape"] is None:
        import onnx  # noqa: F401

        limit_memory(options["spare_bytes"])
        try:
            print(json.dumps(read(Path(options["path"]))))
        except UnicodeDecodeError:
            print(json.dumps({"fault": "is damaged: it has a name that is not UTF-8"}))
        except (OSError, ValueError) as error:
            print(json.dumps({"fault": str(error)[:1000]}))
        return
    onnxruntime = import_onnxruntime()  # its own memory does not count
    limit_memory(options["spare_bytes"])
    try:
        run_once(onnxruntime, options["path"], options["name"], options["shape"])
    except Exception as error:  # exceptions of onnxruntime's C++ code have no common base class
        is_memory = isinstance(error, MemoryError) or "alloc" in str(error)
        print(MEMORY if is_memory else ascii(str(error)[:1000]))


if __name__ == "__main__":
    main()
