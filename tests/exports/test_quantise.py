"""int8 of a graph: which layers, how near it stays, and what goes with it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from vitrail.errors import ConfigError
from vitrail.exports.quantise import to_int8

WIDTH, HIDDEN = 64, 256
ERF = (  # GELU as an older opset has it
    ("Div", ["hidden", "root"], "scaled"),
    ("Erf", ["scaled"], "erf"),
    ("Add", ["erf", "one"], "shifted"),
    ("Mul", ["hidden", "shifted"], "doubled"),
    ("Mul", ["doubled", "half"], "activated"),
)


def an_mlp(path: Path, *, activation: tuple = (("Gelu", ["hidden"], "activated"),), opset: int = 20) -> Path:
    """x (B, D) to y (B, D) by two linear layers with an activation function between, and some shapes noted wrongly."""
    draw = np.random.default_rng(0)
    constants = {
        "up": draw.normal(0, 0.2, (WIDTH, HIDDEN)),
        "up_bias": draw.normal(0, 0.2, HIDDEN),
        "down": draw.normal(0, 0.2, (HIDDEN, WIDTH)),
        "root": np.array(2**0.5),
        "one": np.array(1.0),
        "half": np.array(0.5),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["product"], "first"),
        helper.make_node("Add", ["product", "up_bias"], ["hidden"], "bias"),
        *(helper.make_node(kind, given, [made], made) for kind, given, made in activation),
        helper.make_node("MatMul", ["activated", "down"], ["y"], "second"),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", WIDTH]) for name in "xy")
    used = {name for node in nodes for name in node.input}
    tensors = [
        numpy_helper.from_array(each.astype(np.float32), name) for name, each in constants.items() if name in used
    ]
    graph = helper.make_graph(nodes, "mlp", [x], [y], tensors)
    graph.value_info.append(helper.make_tensor_value_info("product", TensorProto.FLOAT, ["B", 7]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    helper.set_model_props(model, {"vitrail": "told"})
    path.write_bytes(model.SerializeToString())
    return path


def answer(path: Path, x: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


@pytest.mark.parametrize(("activation", "opset"), [((("Gelu", ["hidden"], "activated"),), 20), (ERF, 18)])
def test_a_layer_behind_an_activation_function_keeps_its_activations_and_all_weights_have_8_bits(
    tmp_path, activation, opset
):
    source = an_mlp(tmp_path / "a.onnx", activation=activation, opset=opset)
    assert to_int8(source, tmp_path / "b.onnx") == 2
    model = onnx.load(tmp_path / "b.onnx")
    kinds = Counter(node.op_type for node in model.graph.node)
    assert (kinds["MatMulInteger"], kinds["DequantizeLinear"], kinds["MatMul"]) == (1, 1, 1)
    matrices = [each for each in model.graph.initializer if len(each.dims) == 2]
    assert {each.data_type for each in matrices} == {TensorProto.INT8}
    assert (tmp_path / "b.onnx").stat().st_size < source.stat().st_size / 3


def test_answers_stay_near_even_where_one_activation_is_huge(tmp_path):
    source = an_mlp(tmp_path / "a.onnx")
    to_int8(source, tmp_path / "b.onnx")
    x = np.random.default_rng(1).normal(size=(16, WIDTH)).astype(np.float32)
    exact, found = answer(source, x), answer(tmp_path / "b.onnx", x)
    assert 0 < np.abs(exact - found).max() < 0.03 * np.abs(exact).max()


def test_a_column_of_zeros_stays_one(tmp_path):
    source = an_mlp(tmp_path / "a.onnx")
    model = onnx.load(source)
    (down,) = (each for each in model.graph.initializer if each.name == "down")
    weight = numpy_helper.to_array(down).copy()
    weight[:, 3] = 0
    down.CopyFrom(numpy_helper.from_array(weight, "down"))
    onnx.save(model, source)
    to_int8(source, tmp_path / "b.onnx")
    found = answer(tmp_path / "b.onnx", np.ones((1, WIDTH), np.float32))
    assert abs(found[0, 3]) < 1e-20
    assert np.isfinite(found).all()


def test_metadata_go_with_it(tmp_path):
    to_int8(an_mlp(tmp_path / "a.onnx"), tmp_path / "b.onnx")
    told = {each.key: each.value for each in onnx.load(tmp_path / "b.onnx").metadata_props}
    assert told["vitrail"] == "told"


def test_a_graph_without_linear_layers_is_refused(tmp_path):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], "relu")], "none", [x], [y])
    (tmp_path / "a.onnx").write_bytes(helper.make_model(graph, ir_version=10).SerializeToString())
    with pytest.raises(ConfigError, match="no linear layer"):
        to_int8(tmp_path / "a.onnx", tmp_path / "b.onnx")


def test_without_the_packages_the_command_that_brings_them_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(ConfigError) as error:
        to_int8(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert error.value.remedy == "pip install 'vitrail[onnx]'"
