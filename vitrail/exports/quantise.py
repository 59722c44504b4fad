"""Dynamic int8 of an ONNX graph: weights are stored in 8 bits, and activations are quantised as they come.

Linear layers multiply in int8, a scale for each output, but for those that read an activation function: the few large numbers
that GELU lets through would take the whole range of their tensor. Of these the weights alone are quantised. The head and a
projection that is no product with a constant stay as they are. Activations have one scale for a whole batch, so that answers
depend a little on what else is in it. ViT-Ti/16 on 300 images of ImageNet, ten at a time (speed: one), by what is in int8, in
a graph of one size (with open sizes this file gives 72.3 %, 95.7 % as before, 6.9 MB):

==================================================  ======  =========  =====  ============
layers                                              top-1   as before  MB     ms, 1 thread
==================================================  ======  =========  =====  ============
none: fp32                                          72.7 %  100 %      23.5   26.8
all, one scale a tensor                             70.3 %  84.3 %     7.3    13.7
all, a scale for each output                        71.3 %  87.3 %     7.4    14.1
all, a scale for each output, 7 bits                72.0 %  88.7 %     7.4    13.8
the same, behind an activation function fp32        73.3 %  97.0 %     12.7   18.2
the same, behind one the weights alone (this file)  72.0 %  97.3 %     7.4    16.8
==================================================  ======  =========  =====  ============
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.errors import ConfigError

ACTIVATIONS = {"Gelu", "Erf", "Tanh", "Relu", "Sigmoid"}
ELEMENTWISE = {"Mul", "Add", "Sub", "Div", "Pow", "Cast", "Identity"}  # of which a graph may build one
LARGEST = 127  # of a weight in 8 bits
SMALLEST = 1e-30  # stands for the largest weight of an output where all are 0


def to_int8(source: Path, path: Path) -> int:
    """Writes the graph ``source`` with 8-bit weights, its metadata kept.

    Returns:
        How many linear layers have them.

    Raises:
        ConfigError: the graph has no linear layer with a constant weight; or onnx or onnxruntime is not installed.
    """
    try:
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as missing:
        raise ConfigError("int8 needs the packages onnx and onnxruntime", "pip install 'vitrail[onnx]'") from missing
    model = onnx.load(source)
    # shapes that the exporter noted contradict those that the quantiser infers
    del model.graph.value_info[:]
    layers = list(_list_linear(model.graph))
    if not layers:
        raise ConfigError("the graph has no linear layer that int8 could make smaller", "leave --int8 out")
    producers = {output: node for node in model.graph.node for output in node.output}
    behind = [node for node in layers if _follows_activation(node, producers)]
    for node in behind:
        _store_in_8_bits(model.graph, node)
    with _quiet_quantiser():
        quantize_dynamic(
            model,
            path,
            op_types_to_quantize=["MatMul"],
            nodes_to_exclude=[node.name for node in behind],
            per_channel=True,
            reduce_range=True,  # processors without VNNI add two products in 16 bits, which weights of 8 overflow
            weight_type=QuantType.QInt8,
        )
    return len(layers)


def _list_linear(graph: Any) -> Iterator[Any]:
    """The MatMul nodes whose second factor is a constant matrix."""
    matrices = {tensor.name for tensor in graph.initializer if len(tensor.dims) == 2}
    return (node for node in graph.node if node.op_type == "MatMul" and node.input[1] in matrices)


def _follows_activation(node: Any, producers: Mapping[str, Any]) -> bool:
    """Whether an activation function stands before ``node``, with elementwise sums and products at most between."""
    names, visited = [node.input[0]], set()
    while names:
        name = names.pop()
        before = producers.get(name)
        if before is None or name in visited:
            continue
        visited.add(name)
        if before.op_type in ACTIVATIONS:
            return True
        if before.op_type in ELEMENTWISE:
            names += before.input
    return False


def _store_in_8_bits(graph: Any, node: Any) -> None:
    """The weight of ``node`` as int8 and a scale for each output, from which it is made again when the graph is loaded."""
    from onnx import helper, numpy_helper

    name = node.input[1]
    stored = next(tensor for tensor in graph.initializer if tensor.name == name)
    weight = numpy_helper.to_array(stored)  # (D, F)
    scale = np.maximum(np.abs(weight).max(0), SMALLEST) / np.float32(LARGEST)  # (F,)
    parts = {f"{name}_int8": np.rint(weight / scale).astype(np.int8), f"{name}_scale": scale}
    graph.initializer.extend(numpy_helper.from_array(value, part) for part, value in parts.items())
    node.input[1] = f"{name}_restored"
    restored = helper.make_node("DequantizeLinear", list(parts), [node.input[1]], name=node.input[1], axis=1)
    graph.node.insert(list(graph.node).index(node), restored)
    if not any(name in other.input for other in graph.node):
        graph.initializer.remove(stored)


@contextmanager
def _quiet_quantiser() -> Iterator[None]:
    """Suppresses onnxruntime's advice to simplify the graph first, which the exporter has done."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
