"""ONNX files from untrusted sources: what each claims or does, and the words with which it is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.weights.graphs import a_graph
from tests.weights.kinds import a_model
from vitrail.weights.description import KEY, describe

Make = Callable[[Path], Path]
Change = Callable[[onnx.ModelProto], None]
INSIDE = np.arange(9, dtype=np.float32).reshape(3, 3)  # the weight of the head, (K, C)
SECRET = "secret.bin"
HUGE = 1 << 15  # the side of a square that has 4.3 GB in fp32


def graph(change: Change = lambda model: None, *, more: bytes = b"") -> Make:
    """A sound graph with its description, changed; ``more`` is added to the end of the file."""

    def make(folder: Path) -> Path:
        model = a_graph()
        helper.set_model_props(model, {KEY: json.dumps(describe(a_model(classes=("ant", "bee", "cat"), depth=1)))})
        change(model)
        path = folder / "a.onnx"
        path.write_bytes(model.SerializeToString() + more)
        return path

    return make


def in_front(*nodes: onnx.NodeProto, **constants: object) -> Make:
    """A graph with nodes before its own; a result named "more" is added to the features, so that it is needed."""

    def change(model: onnx.ModelProto) -> None:
        values = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
        model.graph.initializer.extend(values)
        rest = list(model.graph.node)
        rest[0].output[0] = "means"
        least = helper.make_node("ReduceMin", ["more"], ["least"], keepdims=0)
        total = helper.make_node("Add", ["means", "least"], ["features"])
        del model.graph.node[:]
        model.graph.node.extend([*nodes, rest[0], least, total, *rest[1:]])

    return graph(change)


def node(name: str, inputs: Sequence[str], output: str = "more", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(name, inputs, [output], **attributes)


def claiming(*lengths: int, kind: int = TensorProto.FLOAT, **values: object) -> Make:
    """A graph with one more tensor of this shape."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(TensorProto(name="claims", dims=lengths, data_type=kind, **values))

    return graph(change)


def outside(location: str, prepare: Callable[[Path], object] = lambda folder: None, **places: str) -> Make:
    """A graph whose weight is in another file; ``prepare`` gets the folder of the graph, beside which is `SECRET`."""

    def change(model: onnx.ModelProto) -> None:
        weight = next(tensor for tensor in model.graph.initializer if tensor.name == "weight")
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        facts = {"location": location, "offset": "0", "length": str(INSIDE.nbytes), **places}
        for key, value in facts.items():
            weight.external_data.add(key=key, value=value)

    def make(folder: Path) -> Path:
        (folder / SECRET).write_bytes(INSIDE.tobytes())
        inner = folder / "inner"
        inner.mkdir()
        prepare(inner)
        return graph(change)(inner)

    return make


def written(folder: Path) -> None:
    (folder / "weights.bin").write_bytes(INSIDE.tobytes())


def shared(model: onnx.ModelProto) -> None:
    """Two tensors at the same place."""
    for name in ("one", "two"):
        tensor = TensorProto(name=name, dims=INSIDE.shape, data_type=TensorProto.FLOAT)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.bin")
        model.graph.initializer.append(tensor)


def with_weights(make: Make) -> Make:
    def both(folder: Path) -> Path:
        written(folder)
        return make(folder)

    return both


def nested(depth: int) -> onnx.GraphProto:
    inner = [] if depth == 0 else [helper.make_node("If", ["c"], [], then_branch=nested(depth - 1))]
    return helper.make_graph(inner, "inner", [], [])


def in_parts(folder: Path) -> Path:
    """An attribute whose tensor is written in two parts, which protobuf joins: the values of one, the lengths of both."""
    value = numpy_helper.from_array(np.zeros(1, np.float32))
    constant = node("Constant", [], value=value)
    constant.attribute[0].doc_string = "filler"
    path = in_front(constant)(folder)
    more = TensorProto(dims=[1 << 30]).SerializeToString()
    path.write_bytes(path.read_bytes().replace(b"\x6a\x06filler", b"\x2a\x06" + more))
    return path


def function(model: onnx.ModelProto) -> None:
    model.functions.append(helper.make_function("own", "F", ["x"], ["y"], [node("F", ["x"], "y")], []))


def many(model: onnx.ModelProto) -> None:
    model.graph.MergeFromString(b"\x0a\x00" * 50_001)


def trained(model: onnx.ModelProto) -> None:
    model.training_info.add()


def sparse(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add()


SHAPE = (node("Shape", ["images"], "shape"), node("Mul", ["shape", "times"], "larger"))
STATIC = {
    "a tensor without its values": (claiming(1 << 20, 1 << 20), "claims 1,099,511,627,776 values of 4 bytes and holds 0"),
    "lengths beyond 64 bits": (claiming(1 << 40, 1 << 40), "and holds 0 values and 0 bytes"),
    "a negative length": (claiming(-1, 3, float_data=[1.0]), "2 axes or negative lengths"),
    "33 axes": (claiming(*[1] * 33, float_data=[1.0]), "33 axes or negative lengths"),
    "more values than claimed": (claiming(2, float_data=[1, 2, 3]), "claims 2 values of 4 bytes and holds 3"),
    "fewer bytes than claimed": (claiming(9, raw_data=b"1234"), "claims 9 values of 4 bytes and holds 0 values and 4 bytes"),
    "values stored twice": (claiming(1, float_data=[1.0], raw_data=b"1234"), "holds 1 values and 4 bytes"),
    "packed integers": (claiming(9, kind=TensorProto.INT64, int64_data=[1, 300, -1]), "claims 9 values of 8 bytes and holds 3"),
    "text": (claiming(1, kind=TensorProto.STRING, string_data=[b"a"]), "unsupported data type 8"),
    "an unknown type": (claiming(1, kind=99), "unsupported data type 99"),
    "a tensor in segments": (claiming(1, segment=TensorProto.Segment(begin=0, end=9)), "a tensor in segments"),
    "a tensor in two parts": (in_parts, "claims 1,073,741,824 values of 4 bytes and holds 0 values and 4 bytes"),
    "sparse tensors": (graph(sparse), "has sparse tensors"),
    "functions that call themselves": (graph(function), "has functions"),
    "a training graph": (graph(trained), "has a training graph"),
    "50,001 nodes": (graph(many), "has more than 50,000 nodes"),
    "graphs inside of graphs": (in_front(helper.make_node("If", ["c"], [], then_branch=nested(9))), "has the operator 'If'"),
    "an unknown field": (graph(more=b"\xfa\x01\x00"), "it has unknown fields"),
    "a group": (graph(more=b"\x3b"), "is not an ONNX file"),
    "a number without an end": (graph(more=b"\xff" * 20), "is not an ONNX file, or is damaged"),
    "a length beyond the file": (graph(more=b"\x72\xff\xff\xff\xff\x07"), "is not an ONNX file, or is damaged"),
    "a loop": (in_front(helper.make_node("Loop", ["n"], ["more"], body=nested(0))), "has the operator 'Loop'"),
    "a branch": (in_front(helper.make_node("If", ["c"], ["more"], then_branch=nested(0))), "has the operator 'If'"),
    "an operator of its own": (in_front(node("F", ["images"], domain="own")), "has the operator 'own.F'"),
    "a file of an engine": (
        in_front(node("EPContext", ["images"], domain="com.microsoft", ep_cache_context=SECRET)),
        "has the operator 'com.microsoft.EPContext'",
    ),
    "random numbers": (in_front(node("RandomNormal", [], shape=[9])), "has the operator 'RandomNormal'"),
    "as many values as are not zero": (in_front(node("NonZero", ["images"])), "has the operator 'NonZero'"),
    "a shape of pixels": (
        in_front(
            node("ReduceMax", ["images"], "brightest", keepdims=0),
            node("Cast", ["brightest"], "n", to=TensorProto.INT64),
            node("Reshape", ["n", "one"], "lengths"),
            node("Expand", ["zero", "lengths"]),
            one=[1], zero=np.float32(0),
        ),
        "'Expand' with a shape that depends on the content",
    ),
    "a shape of what comes later": (in_front(node("Expand", ["zero", "later"]), zero=[0]), "depends on the content"),
    "a file by its absolute path": (outside("/etc/hostname"), "in '/etc/hostname'; only files in the same folder"),
    "a file in the folder above": (outside(f"../{SECRET}"), f"in '../{SECRET}'; only files in the same folder"),
    "a file in a folder below": (outside("a/b.bin"), "in 'a/b.bin'; only files in the same folder"),
    "the folder itself": (outside("."), "in '.'; only files in the same folder"),
    "the memory of the process": (outside("*/_ORT_MEM_ADDR_/*", offset="140737"), "only files in the same folder"),
    "a symbolic link": (outside("w.bin", lambda folder: (folder / "w.bin").symlink_to(f"../{SECRET}")), "which is a link"),
    "a hard link": (outside("w.bin", lambda folder: os.link(folder.parent / SECRET, folder / "w.bin")), "is a hard link"),
    "a pipe": (outside("w.bin", lambda folder: os.mkfifo(folder / "w.bin")), "no regular file"),
    "a file that is not there": (outside("w.bin"), "'w.bin', which is not in its folder"),
    "bytes beyond the end": (outside("weights.bin", written, offset="1"), "from byte 1 of 'weights.bin', which has 36"),
    "fewer bytes": (outside("weights.bin", written, length="4"), "claims 36 bytes"),
    "a negative offset": (outside("weights.bin", written, offset="-4"), "at a place that is not described"),
    "an offset beyond 64 bits": (outside("weights.bin", written, offset="9" * 25), "at a place that is not described"),
    "prepared weights": (outside("weights.bin", written, prepacked_0="0|9|x"), "at a place that is not described"),
    "the same bytes twice": (with_weights(graph(shared)), "use the same bytes of 'weights.bin' several times"),
}  # fmt: skip
# what only shows when it runs: each of them would take 4 GB
TRIED = {
    "zeros": in_front(node("ConstantOfShape", ["lengths"]), lengths=[HUGE, HUGE]),
    "one value, expanded": in_front(node("Expand", ["zero", "lengths"]), zero=np.float32(0), lengths=[HUGE, HUGE]),
    "repetition": in_front(node("Tile", ["zeros", "times"]), zeros=np.zeros(1000, np.float32), times=[1 << 20]),
    "a range": in_front(
        node("Range", ["zero", "most", "one"]), zero=np.float32(0), most=np.float32(1 << 30), one=np.float32(1)
    ),
    "the square of the image": in_front(
        *SHAPE, node("Expand", ["one", "larger"]), times=[1, 1, 1 << 11, 1 << 11], one=np.float32(1)
    ),
    "a padded image": in_front(node("Pad", ["images", "sides"]), sides=[0, 0, 0, 0, 0, 0, HUGE, HUGE]),
}
GRAPHS = {**STATIC, **{name: (make, "MB for one image") for name, make in TRIED.items()}}
