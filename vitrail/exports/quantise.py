"""Dynamic int8 quantisation of an ONNX graph: weights are stored in 8 bits, and activations are quantised at run time.

Linear layers compute in int8 with one scale per output, except those after an activation function, where outliers of GELU
would dominate the range of the tensor; of these, only the weights are quantised. The head and projections that are not a
product with a constant are not quantised. Activations have one scale per batch, so outputs depend slightly on the other
images of a batch. ViT-Ti/16 on 300 images of ImageNet, batch size 10 (speed: 1), by what is quantised, in a graph of fixed
size (with dynamic size, this method gives 72.3 %, 95.7 % unchanged, 6.9 MB):

==================================================  ======  =========  =====  ============
layers                                              top-1   unchanged  MB     ms, 1 thread
==================================================  ======  =========  =====  ============
none: fp32                                          72.7 %  100 %      23.5   26.8
all, one scale per tensor                           70.3 %  84.3 %     7.3    13.7
all, one scale per output                           71.3 %  87.3 %     7.4    14.1
all, one scale per output, 7 bits                   72.0 %  88.7 %     7.4    13.8
the same, after an activation function fp32         73.3 %  97.0 %     12.7   18.2
the same, after one weights only (this method)      72.0 %  97.3 %     7.4    16.8
==================================================  ======  =========  =====  ============
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.errors import ConfigError
from vitrail.exports.graph import quiet_exporters
from vitrail.runtime.onnx_runtime import import_onnxruntime

ACTIVATIONS = {"Gelu", "Erf", "Tanh", "Relu", "Sigmoid"}
# operators of which an activation function may consist
ELEMENTWISE = {"Mul", "Add", "Sub", "Div", "Pow", "Cast", "Identity"}
LARGEST = 127  # maximum of an int8 weight
SMALLEST = 1e-30  # lower bound of the maximum weight, to avoid division by zero


def to_int8(source: Path, path: Path) -> int:
    """Writes the graph ``source`` with 8-bit weights and the same metadata.

    Returns:
        The number of quantised linear layers.

    Raises:
        ConfigError: the graph has no linear layer with a constant weight; or onnx or onnxruntime is not installed.
    """
    try:
        import onnx

        import_onnxruntime()
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as missing:
        raise ConfigError("int8 needs the packages onnx and onnxruntime", "pip install 'vitrail[onnx]'") from missing
    model = onnx.load(source)
    # the exporter's shape annotations contradict the shapes that the quantiser infers
    del model.graph.value_info[:]
    matrices = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2}
    layers = [node for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in matrices]
    if not layers:
        raise ConfigError("the graph has no linear layer to quantise", "leave --int8 out")
    producers = {output: node for node in model.graph.node for output in node.output}
    behind = [node for node in layers if _follows_activation(node, producers)]
    for node in behind:
        _store_in_8_bits(model.graph, node)
    with quiet_exporters():  # of the advice to simplify the graph first, which the exporter has done
        quantize_dynamic(
            model,
            path,
            op_types_to_quantize=["MatMul"],
            nodes_to_exclude=[node.name for node in behind],
            per_channel=True,
            reduce_range=True,  # CPUs without VNNI add two products in 16 bits, which 8-bit weights overflow
            weight_type=QuantType.QInt8,
        )
    return len(layers)


def _follows_activation(node: Any, producers: Mapping[str, Any]) -> bool:
    """Whether ``node`` follows an activation function, with only elementwise sums and products in between."""
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
    """Stores the weight of ``node`` as int8 with one scale per output; it is dequantised when the graph is loaded."""
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
