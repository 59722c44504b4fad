"""A graph small enough to be written by hand, under the description of a ViT: means of the channels, and a linear head."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.weights.kinds import a_model
from vitrail.weights.description import KEY, describe

OPSET = [helper.make_opsetid("", 18)]
DYNAMIC = ("H", "W")


def head_of(classes: int, channels: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Weight (K, C) and bias (K,)."""
    draw = np.random.default_rng(seed)
    return draw.normal(size=(classes, channels)).astype(np.float32), draw.normal(size=classes).astype(np.float32)


def a_graph(
    *,
    size: Sequence[int | str] = DYNAMIC,
    channels: int = 3,
    classes: int = 3,
    seed: int = 0,
    given: str = "images",
    head: tuple[np.ndarray, np.ndarray] | None = None,
) -> onnx.ModelProto:
    """Images (B, C, H, W) to features (B, C) and, with classes, logits (B, K)."""
    weight, bias = head or head_of(classes, channels, seed)
    nodes = [helper.make_node("ReduceMean", [given, "axes"], ["features"], keepdims=0)]
    outputs = [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["B", channels])]
    constants = [numpy_helper.from_array(np.array([2, 3]), "axes")]
    if classes:
        nodes.append(helper.make_node("Gemm", ["features", "weight", "bias"], ["logits"], transB=1))
        outputs.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B", classes]))
        constants += [numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(bias, "bias")]
    images = helper.make_tensor_value_info(given, TensorProto.FLOAT, ["B", channels, *size])
    return helper.make_model(
        helper.make_graph(nodes, "graph", [images], outputs, constants), opset_imports=OPSET, ir_version=10
    )


def write_graph(
    path: Path, *, classes: Sequence[str] = ("ant", "bee", "cat"), channels: int = 3, told: Any = None, **how: Any
) -> Path:
    """The graph, described as a ViT of 16 x 16 pixels unless ``told`` describes something else."""
    graph = a_graph(classes=len(classes), channels=channels, **how)
    told = describe(a_model(classes=tuple(classes), in_channels=channels, depth=1)) if told is None else told
    helper.set_model_props(graph, {KEY: json.dumps(told)})
    path.write_bytes(graph.SerializeToString())
    return path
