"""OpenVINO IR exported by vitrail: a model whose backbone is the graph NAME.xml with the weights NAME.bin, run on the CPU.

Files may come from anybody. Before they are compiled, `sandbox` checks what they contain and runs them on one image, in processes
with limits.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from vitrail.checksums import XML_SEAL
from vitrail.errors import CheckpointError
from vitrail.runtime.openvino_runtime import import_openvino, keep_signal_stack
from vitrail.tasks import Task
from vitrail.text import printable
from vitrail.weights.description import KEY
from vitrail.weights.onnx import PARITY, add_checksum, build_exported, read_contents
from vitrail.weights.openvino import sandbox
from vitrail.weights.tensors import AGAIN

PRECISIONS = {"fp32": "f32", "bf16": "bf16"}  # and the names that OpenVINO has for them


def read_openvino(path: Path) -> Task:
    """Loads the model of an IR written by `vitrail export`.

    Raises:
        ConfigError: openvino is not installed.
        CheckpointError: a file is missing, damaged or foreign, or does more than a network for images.
    """
    import_openvino()
    return build_exported(path, read_contents(path, sandbox.__file__), OpenVINOSession, XML_SEAL, sandbox.__file__)


def list_files(path: Path) -> list[Path]:
    """Returns the files of an IR: the graph, and its weights beside it."""
    return [path, path.resolve().with_suffix(".bin")]


def add_checksum_to_openvino(path: Path) -> None:
    """Appends the checksum of an IR and of its weights as a comment."""
    add_checksum(XML_SEAL, *list_files(path))


class OpenVINOSession:
    """A compiled graph with those methods of `onnxruntime.InferenceSession` that `ExportedBackbone` calls.

    Raises:
        CheckpointError: OpenVINO cannot compile the file.
    """

    def __init__(self, path: Path) -> None:
        core = import_openvino().Core()
        core.set_property({"ENABLE_MMAP": False})  # weights do not change with their file
        self.core = core
        try:
            self.graph = core.read_model(path.resolve())
            self.compile("fp32")
        except RuntimeError as error:
            what = f"OpenVINO cannot run {path}: {printable(error, 200)}"
            raise CheckpointError(what, AGAIN) from error

    @keep_signal_stack()
    def compile(self, precision: str) -> None:
        """Compiles the graph for fp32 or bf16. On a processor without bf16 OpenVINO computes in fp32."""
        options = {
            "INFERENCE_PRECISION_HINT": PRECISIONS[precision],  # by default bf16 where the processor has it
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,  # several processes would share the same cores
        }
        self.compiled = self.core.compile_model(self.graph, "CPU", options)

    def get_inputs(self) -> list[SimpleNamespace]:
        return [_describe(value) for value in self.graph.inputs]

    def get_outputs(self) -> list[SimpleNamespace]:
        return [_describe(value) for value in self.graph.outputs]

    def get_modelmeta(self) -> SimpleNamespace:
        keys = [key for key in (KEY, PARITY) if self.graph.has_rt_info([key])]
        return SimpleNamespace(custom_metadata_map={key: self.graph.get_rt_info([key]).astype(str) for key in keys})

    def run(self, names: list[str], inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        request = self.compiled.create_infer_request()  # threads cannot share one
        outputs = request.infer(inputs, share_inputs=True)
        return [outputs[name] for name in names]


def _describe(value: Any) -> SimpleNamespace:
    shape = [side.get_length() if side.is_static else None for side in value.partial_shape]
    kind = "tensor(float)" if value.element_type.get_type_name() == "f32" else value.element_type.get_type_name()
    return SimpleNamespace(name=value.any_name, type=kind, shape=shape)
