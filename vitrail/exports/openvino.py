"""OpenVINO IR, NAME.xml and its weights in NAME.bin, made from an ONNX graph; with int8 quantised by NNCF.

N images, C channels, H x W pixels.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from torch import Tensor

from vitrail.files import replace_file
from vitrail.runtime.openvino_runtime import import_openvino, keep_signal_stack

END = "</rt_info>\n</net>"  # of an IR: its metadata are the last element


def to_openvino(
    source: Path, path: Path, *, metadata: Mapping[str, str] = {}, calibration: Sequence[Tensor] | None = None
) -> None:
    """Writes the ONNX graph ``source`` as an IR with fp32 weights and the same inputs and outputs.

    Args:
        metadata: strings to store in the file (``rt_info``).
        calibration: images (N, C, H, W), normalised, that set the ranges of activations; the graph is quantised to int8.

    Raises:
        ConfigError: openvino, or for int8 nncf, is not installed.
    """
    openvino = import_openvino()
    graph = openvino.Core().read_model(source)
    if calibration is not None:
        graph = _quantise(graph, calibration)
    for key, value in metadata.items():
        graph.set_rt_info(value, [key])
    openvino.save_model(graph, path, compress_to_fp16=False)


@keep_signal_stack()
def _quantise(graph: Any, calibration: Sequence[Tensor]) -> Any:
    """Quantises weights to int8 with one scale per output and activations with one per tensor, except layers after a GELU.

    Weights use half of the range, because processors without VNNI add two products in 16 bits, which saturate otherwise.
    ViT-Ti/16 on 300 images of ImageNet and such a processor (fp32: 72.7 %), calibrated on 64 to 100 of them:

    ==========================================  ==============  =========
    quantised                                   top-1           unchanged
    ==========================================  ==============  =========
    all layers, weights of full range           72.0 %          84 %
    all layers                                  70.7 to 73.0 %  91-93 %
    all but those after a GELU (this method)    72.3 to 72.7 %  95 %
    ==========================================  ==============  =========
    """
    nncf = import_openvino("nncf")
    nncf.set_log_level(logging.ERROR)
    behind = [node.get_friendly_name() for node in graph.get_ops() if _follows_gelu(node)]
    with redirect_stdout(StringIO()):  # bars of progress
        return nncf.quantize(
            graph,
            nncf.Dataset(calibration, lambda images: images.numpy()),
            model_type=nncf.ModelType.TRANSFORMER,
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=len(calibration),
            ignored_scope=nncf.IgnoredScope(names=behind),
            advanced_parameters=nncf.AdvancedQuantizationParameters(overflow_fix=nncf.OverflowFix.ENABLE),
        )


def _follows_gelu(node: Any) -> bool:
    return node.get_type_name() == "MatMul" and node.input_value(0).get_node().get_type_name() == "Gelu"


def add_metadata(path: Path, key: str, value: str) -> None:
    """Adds a string to the metadata of an IR and leaves all else as it is."""
    head, end, rest = path.read_text("utf-8").rpartition(END)
    assert end, path
    replace_file(path, f"{head}\t<{key} value={quoteattr(value)} />\n\t{end}{rest}")
