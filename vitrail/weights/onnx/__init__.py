"""ONNX files exported by vitrail: a model whose backbone is the graph, run by onnxruntime on the CPU.

A file may come from anybody. Before onnxruntime opens it, `sandbox` checks what it contains and runs it on one image, in
processes with limits.

B images, C channels, H x W image size, F features, K classes.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from vitrail.checksums import ONNX_SEAL, Seal, sha256_of
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import AttentionGrid, Backbone, Config, configure, sketch
from vitrail.runtime.confined import describe_end, list_import_paths, run_alone
from vitrail.runtime.onnx_runtime import import_onnxruntime
from vitrail.tasks import Task
from vitrail.text import printable
from vitrail.weights.description import KEY, build_model_around, check_version, hash_file
from vitrail.weights.onnx import sandbox
from vitrail.weights.pickled import BYTES_PER_SECOND
from vitrail.weights.tensors import AGAIN, parse_json, unreadable

IMAGES, LOGITS, FEATURES = "images", "logits", "features"
PARITY = "parity"  # metadata key of the comparison with the source
PICTURES = "pictures"  # the input of a graph that includes resizing, cropping and normalisation


def read_onnx(path: Path) -> Task:
    """Loads the model of a file written by `vitrail export`.

    Raises:
        ConfigError: onnxruntime is not installed.
        CheckpointError: the file is damaged or foreign, or does more than a network for images.
    """
    _import_runtime()
    return build_exported(path, read_contents(path), open_session, ONNX_SEAL)


def build_exported(
    path: Path,
    contents: Contents,
    open_session: Callable[[Path], Any],
    seal: Seal,
    program: str = sandbox.__file__,
) -> Task:
    """Builds the model around an exported graph, whose session is opened after ``program`` has tried it.

    Args:
        open_session: opens a file with the methods of `onnxruntime.InferenceSession` that `ExportedBackbone` calls.
        seal: where the file has its checksum.

    Raises:
        CheckpointError: the file is damaged or foreign, or does more than a network for images.
    """
    files = contents.list_files(path)
    digest = read_digest(seal, *files)
    if KEY not in contents.metadata:
        what = f"{path} has no description of the model: it was not written by `vitrail export`, or modified afterwards"
        raise CheckpointError(what, "export the model again: vitrail export MODEL")
    if contents.inputs == [PICTURES]:
        what = f"{path} includes preprocessing and is for use without vitrail"
        raise CheckpointError(what, "to use it in vitrail, export it without --pictures")
    if contents.unwanted:
        raise CheckpointError(f"{path} {printable(contents.unwanted, 300)}", DISTRUST)
    description = parse_json(contents.metadata[KEY], f"the metadata of {path}")
    check_version(description, path)
    size = sum(file.stat().st_size for file in files)
    make = partial(_backbone, path, size, digest, open_session, program)
    model = build_model_around(make, description, path)
    assert isinstance(model.backbone, ExportedBackbone)
    outputs = {value.name: value.shape[1:] for value in model.backbone.session.get_outputs()}
    classes, (first, *_) = model.backbone.config.classes, model.graph_outputs
    if outputs.keys() != set(model.graph_outputs) or (classes and outputs[first] != [classes]):
        raise _other_graph(model.backbone.session, path)
    if model.own or first not in (LOGITS, FEATURES):  # what the task has of its own is in the graph, too
        model.own, run = nn.ModuleDict(), model.backbone.run_graph
        model.forward = lambda images: model.read_graph(run(images))  # type: ignore[method-assign]
    return model


def _import_runtime() -> Any:
    try:
        return import_onnxruntime()
    except ImportError as missing:
        raise ConfigError("running an .onnx file requires onnxruntime, which is not installed", INSTALL) from missing


def open_session(path: Path) -> Any:
    """Opens and optimises the graph for the CPU, with the number of threads of torch. For files that are known to be harmless.

    Raises:
        ConfigError: onnxruntime is not installed.
        CheckpointError: onnxruntime cannot run the file.
    """
    onnxruntime = _import_runtime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # failures are reported by exceptions
    try:
        return onnxruntime.InferenceSession(str(path.resolve()), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # exceptions of its C++ code have no common base class
        what = f"onnxruntime cannot run {path}: {printable(error, 200)}"
        raise CheckpointError(what, AGAIN) from error


def _backbone(
    path: Path, size: int, digest: str, open_session: Callable[[Path], Any], program: str, config: Config
) -> ExportedBackbone:
    """Builds the backbone. Raises `CheckpointError` if its trial fails, or its inputs and outputs do not match ``config``."""
    try_out(path, size, (1, config.in_channels, *config.image_size), program)
    session = open_session(path)
    inputs = {value.name: value for value in session.get_inputs()}
    shape = inputs[IMAGES].shape if list(inputs) == [IMAGES] else []
    is_for_images = len(shape) == 4 and shape[1] == config.in_channels and inputs[IMAGES].type == "tensor(float)"
    if not is_for_images or (isinstance(shape[0], int) and shape[0] != 1):
        raise _other_graph(session, path)
    return ExportedBackbone(config, session, digest)


def _other_graph(session: Any, path: Path) -> CheckpointError:
    ends = (*session.get_inputs(), *session.get_outputs())
    signature = ", ".join(f"{value.name} {value.type} {value.shape}" for value in ends)
    what = f"the graph in {path} does not match its description: it has {printable(signature, 300)}"
    return CheckpointError(what, AGAIN)


class ExportedBackbone(Backbone):
    """An exported graph as a backbone. It returns logits and features, has no parameters, and runs on the CPU.

    Args:
        config: config of the source model, with the image size to use.
        session: an `onnxruntime.InferenceSession`, or an object with its methods.
        sha256: hash of the files, stored as a buffer, so that different graphs have different digests.

    Raises:
        ConfigError: a method needs more than outputs, or the image size differs from that of a fixed graph.
    """

    def __init__(self, config: Config, session: Any, sha256: str) -> None:
        super().__init__(config)
        self.session, self.sha256 = session, sha256
        self.register_buffer("graph", torch.frombuffer(bytearray.fromhex(sha256), dtype=torch.uint8))
        size = session.get_inputs()[0].shape[2:]
        self.fixed = tuple(size) if all(isinstance(side, int) for side in size) else None
        self._check_size(self.config.image_size)

    @property
    def about(self) -> str:
        return "an exported graph"

    @property
    def width(self) -> int:
        """Number of features F; if the graph does not return features, that of the source model."""
        shapes = {value.name: value.shape for value in self.session.get_outputs()}
        return shapes[FEATURES][1] if FEATURES in shapes else sketch(self.config).width

    @property
    def parity(self) -> dict[str, Any] | None:
        """The comparison of the export with its source, if stored in the file."""
        text = self.session.get_modelmeta().custom_metadata_map.get(PARITY)
        return None if text is None else parse_json(text, "the comparison in the export")

    def at(self, size: int | tuple[int, int]) -> ExportedBackbone:
        """Returns the graph for another image size. Raises `ConfigError` if the size of the graph is fixed."""
        return ExportedBackbone(configure(self.config, image_size=size), self.session, self.sha256)

    def forward(self, images: Tensor) -> Tensor:
        output = LOGITS if self.config.classes else FEATURES
        return self.run_graph(images, [output])[output]

    def features(self, images: Tensor) -> Tensor:
        if FEATURES not in {value.name for value in self.session.get_outputs()}:
            what = "the exported graph of a detector or a segmenter gives no features of whole images"
            raise ConfigError(what, "use the model that it was exported from")
        return self.run_graph(images, [FEATURES])[FEATURES]

    def run_graph(self, images: Tensor, outputs: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Returns the outputs with these names, by default all, for images (B, C, H, W), on their device."""
        self._check(images)
        self._check_size(tuple(images.shape[2:]))
        names = [value.name for value in self.session.get_outputs()] if outputs is None else list(outputs)
        given = images.detach().float().cpu().contiguous().numpy()
        try:
            arrays = self.session.run(names, {IMAGES: given})
        except Exception as error:  # exceptions of C++ code have no common base class
            what = f"the runtime cannot run the graph on images of {tuple(given.shape)}: {printable(error, 200)}"
            raise CheckpointError(what, "use fewer images at once, or the model that it was exported from") from error
        return {name: torch.from_numpy(values).to(images.device) for name, values in zip(names, arrays)}

    def _check_size(self, size: tuple[int, ...]) -> None:
        if self.fixed is not None and size != self.fixed:
            expected, actual = ("x".join(map(str, pair)) for pair in (self.fixed, size))
            what = f"the graph requires images of {expected} pixels, but got {actual}"
            raise ConfigError(what, f"export it for that size: vitrail export MODEL --size {actual}")

    def _refuse(self, *arguments: Any, **options: Any) -> NoReturn:
        what = "an exported graph has outputs and features, but no access to weights, layers or attention"
        raise ConfigError(what, "use the model that it was exported from")

    def attention_grids(self, size: tuple[int, int]) -> list[AttentionGrid]:
        """Returns an empty list: a graph does not expose attention."""
        return []

    patchify = place = encode = pool = head = heads = _refuse
    feature_maps = dense_maps = forward_recording = pooling_shares = _refuse
    layers = no_decay = reset_head = _refuse
    resize_tensors = classmethod(_refuse)


INSTALL = "pip install 'vitrail[onnx]'"
MAX_BYTES = 2**31 - 1  # of a protobuf message; larger weights are in separate files
SPARE_BYTES = 2**30  # for the activations of one image
EXPANSION = 8  # bytes more for each byte of the files; 2 are enough for weights, large images need more for activations
MIN_SECONDS = 60
DISTRUST = "fetch it again from a source you trust, or export the model again: vitrail export MODEL"


@dataclass(frozen=True)
class Contents:
    """The content of an exported file.

    Args:
        inputs: the names of the inputs of the graph.
        external: the names of the files in its folder that hold its weights.
        unwanted: why vitrail does not run the graph, as the end of a sentence that begins with the path; empty if it does.
    """

    metadata: dict[str, str]
    inputs: list[str]
    external: list[str]
    unwanted: str

    def list_files(self, path: Path) -> list[Path]:
        """Returns the file itself, and those in its folder that hold its weights."""
        return [path, *(path.resolve().parent / name for name in self.external)]


def read_contents(path: Path, program: str = sandbox.__file__) -> Contents:
    """Reads what an exported file contains, by a program as `sandbox`. docs/export.md lists what is refused.

    Raises:
        ConfigError: the package onnx is not installed.
        CheckpointError: the file cannot be read, is damaged or beyond a limit, or has weights elsewhere than in its folder.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error
    if size > MAX_BYTES:
        raise CheckpointError(f"{path} has more than 2 GB, the limit of its format", DISTRUST)
    if program == sandbox.__file__ and find_spec("onnx") is None:
        raise ConfigError("reading an .onnx file requires onnx, which is not installed", INSTALL)
    report = parse_json(_run(program, path, size), f"the content of {path}")
    if "fault" in report:
        raise CheckpointError(f"{path} {printable(report['fault'], 300)}", DISTRUST)
    return Contents(**report)


def try_out(path: Path, size: int, shape: Sequence[int], program: str) -> None:
    """Runs a graph on one image in a process with limited memory and time.

    Args:
        path: file with the graph.
        size: bytes of all files of the graph, which set the limits.
        shape: of one image, (1, C, H, W).
        program: the file of the program that runs it, as `sandbox`.

    Raises:
        CheckpointError: the graph cannot be run, needs more than the limits, or ended the process.
    """
    failure = _run(program, path, size, shape)
    if failure == sandbox.MEMORY:
        what = f"{path} of {size / 1e6:,.1f} MB needs more than {_spare_bytes(size) / 1e6:,.0f} MB for one image"
        raise CheckpointError(what, f"{DISTRUST}; for large images, use the model that it was exported from")
    if failure:
        raise CheckpointError(f"{path} cannot be run: {printable(failure, 300)}", AGAIN)


def _spare_bytes(size: int) -> int:
    return SPARE_BYTES + EXPANSION * size


def _run(program: str, path: Path, size: int, shape: Sequence[int] | None = None) -> str:
    """Returns what a program as `sandbox` prints. Raises `CheckpointError` if it does not end by itself."""
    seconds = MIN_SECONDS + size // BYTES_PER_SECOND
    options = {
        "path": str(path.resolve()),
        "name": IMAGES,
        "shape": shape and list(shape),
        "sys_path": list_import_paths(),
        "seconds": seconds,
        "spare_bytes": _spare_bytes(size),
    }
    folder = tempfile.gettempdir()
    try:
        ended = run_alone(program, json.dumps(options), folder=folder, seconds=seconds, stdout=subprocess.PIPE)
    except subprocess.TimeoutExpired as error:
        what = f"{path} {'was not read' if shape is None else 'did not process one image'} in {seconds:,} s"
        raise CheckpointError(what, DISTRUST) from error
    if ended.returncode != 0:
        raise CheckpointError(f"{path} ended the process that tried it ({describe_end(ended.returncode)})", DISTRUST)
    return ended.stdout.decode("utf-8", "replace").strip()


def read_digest(seal: Seal, path: Path, *external: Path) -> str:
    """Returns the SHA-256 of an exported file and of the files with its weights.

    Raises:
        CheckpointError: a file was changed after vitrail wrote it, or cannot be read.
    """
    hashed, end = _hash_to_end(path, seal.length)
    checksum = seal.read(end)
    if checksum not in (None, _join(hashed.hexdigest(), *external)):
        what = f"{path} was changed after vitrail wrote it: its content does not match its SHA-256"
        raise CheckpointError(what, AGAIN)
    hashed.update(end)
    return _join(hashed.hexdigest(), *external)


def add_checksum_to_onnx(path: Path) -> None:
    """Appends the checksum of a file, and of the files with its weights, as the last entry of its metadata."""
    add_checksum(ONNX_SEAL, *read_contents(path).list_files(path))


def add_checksum(seal: Seal, path: Path, *external: Path) -> None:
    """Appends the checksum of an exported file and of the files with its weights."""
    digest = _join(hash_file(path), *external)
    with open(path, "ab") as file:
        file.write(seal.write(digest))


def _join(digest: str, *external: Path) -> str:
    return sha256_of("".join([digest, *map(hash_file, external)]).encode()) if external else digest


def _hash_to_end(path: Path, length: int) -> tuple[Any, bytes]:
    """Returns the hash object of all but the last ``length`` bytes, and those bytes, so that a file is read once."""
    hashed = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            rest = os.fstat(file.fileno()).st_size - length
            while rest > 0 and (piece := file.read(min(rest, 2**20))):
                hashed.update(piece)
                rest -= len(piece)
            return hashed, file.read()
    except OSError as error:
        raise unreadable(path, error) from error
