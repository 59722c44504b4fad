"""The operators of networks for images. With these, the memory that a graph needs is set by the size of the images alone.

Left out are operators that run other graphs (Loop, If, Scan), those whose output has as many values as their input tells them
to (NonZero, Unique, Compress), random numbers, sequences, text, and the operators of onnxruntime's own and of others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

DOMAINS = ("", "ai.onnx")
# operators with inputs whose values decide on the shape of the output, by their places
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


class Node(NamedTuple):
    """A node of a graph."""

    op_type: str
    domain: str
    inputs: list[str]
    outputs: list[str]


def find_unwanted(nodes: Iterable[Node], constants: Collection[str]) -> str:
    """Returns what a graph has that is not run: other operators, or shapes that depend on the values of its images.

    Args:
        nodes: in the order in which they are computed.
        constants: the names of the tensors that are stored in the graph.

    Returns:
        The end of a sentence that begins with the file's path; empty if there is nothing.
    """
    known = {"", *constants}  # values that are the same for all images of one size; "" is an input that is left out
    for node in nodes:
        name = node.op_type if node.domain in DOMAINS else f"{node.domain}.{node.op_type}"
        if node.domain not in DOMAINS or not (node.op_type in PLAIN or node.op_type in SHAPED):
            return f"has the operator {name!r}, which vitrail does not run"
        if not known.issuperset(node.inputs[place] for place in SHAPED.get(name, ()) if place < len(node.inputs)):
            return f"has the operator {name!r} with a shape that depends on the content of an image"
        if name in ("Shape", "Size") or known.issuperset(node.inputs):
            known.update(node.outputs)
    return ""
