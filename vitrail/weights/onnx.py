"""ONNX files exported by vitrail: a model whose backbone is the graph, run by onnxruntime on the CPU.

B images, C channels, H x W image size, F features, K classes.
"""

from __future__ import annotations

import hashlib
import os
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from vitrail.checksums import ONNX_BYTES, onnx_checksum, read_onnx_checksum, sha256_of
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import AttentionGrid, Backbone, Config, configure, sketch
from vitrail.tasks import Task
from vitrail.weights.description import KEY, build_model_around, check_version, hash_file
from vitrail.weights.tensors import AGAIN, parse_json, printable

INSTALL = "pip install 'vitrail[onnx]'"
IMAGES, LOGITS, FEATURES = "images", "logits", "features"
PARITY = "parity"  # metadata key of the comparison with the source
PICTURES = "pictures"  # the input of a graph that includes resizing, cropping and normalisation


def read_onnx(path: Path) -> Task:
    """Loads the model of a file written by `vitrail export`.

    Raises:
        ConfigError: onnxruntime is not installed.
        CheckpointError: the file is damaged or foreign.
    """
    digest = _read_digest(path)
    session = open_session(path)
    metadata = session.get_modelmeta().custom_metadata_map
    if KEY not in metadata:
        what = f"{path} has no description of the model: it was not written by `vitrail export`, or modified afterwards"
        raise CheckpointError(what, "export the model again: vitrail export MODEL --to onnx")
    description = parse_json(metadata[KEY], f"the metadata of {path}")
    check_version(description, path)
    model = build_model_around(partial(_backbone, session, path, digest), description, path)
    outputs = {value.name: value.shape[1:] for value in session.get_outputs()}
    classes = model.backbone.config.classes
    if outputs.keys() != set(model.graph_outputs) or outputs.get(LOGITS, [classes]) != [classes]:
        raise _other_graph(session, path)
    assert isinstance(model.backbone, ExportedBackbone)
    model.run_graph(model.backbone.run_graph)
    return model


def open_session(path: Path) -> Any:
    """Opens and optimises the graph for the CPU, with the number of threads of torch.

    Raises:
        ConfigError: onnxruntime is not installed.
        CheckpointError: onnxruntime cannot run the file.
    """
    try:
        import onnxruntime
    except ImportError as missing:
        raise ConfigError("running an .onnx file requires onnxruntime, which is not installed", INSTALL) from missing
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # failures are reported by exceptions
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # exceptions of its C++ code have no common base class
        what = f"onnxruntime cannot run {path}: {printable(error, 200)}"
        raise CheckpointError(what, AGAIN) from error


def _backbone(session: Any, path: Path, digest: str, config: Config) -> ExportedBackbone:
    """Builds the backbone. Raises `CheckpointError` if the inputs and outputs of the graph do not match ``config``."""
    inputs = {value.name: value for value in session.get_inputs()}
    if list(inputs) == [PICTURES]:
        what = f"{path} includes preprocessing and is for use without vitrail"
        raise CheckpointError(what, "to use it in vitrail, export it without --pictures")
    shape = inputs[IMAGES].shape if list(inputs) == [IMAGES] else []
    sound = len(shape) == 4 and shape[1] == config.in_channels and inputs[IMAGES].type == "tensor(float)"
    if not sound:
        raise _other_graph(session, path)
    return ExportedBackbone(config, session, digest)


def _other_graph(session: Any, path: Path) -> CheckpointError:
    ends = (*session.get_inputs(), *session.get_outputs())
    signature = ", ".join(f"{value.name} {value.type} {value.shape}" for value in ends)
    what = f"the graph in {path} does not match its description: it has {printable(signature, 300)}"
    return CheckpointError(what, AGAIN)


def _read_digest(path: Path) -> str:
    """Returns the SHA-256 of the file and, if it exists, of the separate file with its weights.

    Raises:
        CheckpointError: the file was changed after vitrail wrote it, or cannot be read.
    """
    weights = path.with_name(f"{path.name}.data")
    hashed_weights = hash_file(weights) if weights.is_file() else ""
    hashed, end = _hash_to_end(path)
    checksum = read_onnx_checksum(end)
    # a separate file may also be left from an earlier export
    if checksum not in (None, hashed.hexdigest(), sha256_of(f"{hashed.hexdigest()}{hashed_weights}".encode())):
        what = f"{path} was changed after vitrail wrote it: its content does not match its SHA-256"
        raise CheckpointError(what, AGAIN)
    hashed.update(end)
    digest = hashed.hexdigest()
    return sha256_of(f"{digest}{hashed_weights}".encode()) if hashed_weights else digest


def seal_onnx(path: Path) -> None:
    """Appends the checksum of a file, and of the separate file with its weights, as the last entry of its metadata."""
    weights, digest = path.with_name(f"{path.name}.data"), hash_file(path)
    if weights.is_file():
        digest = sha256_of(f"{digest}{hash_file(weights)}".encode())
    with open(path, "ab") as file:
        file.write(onnx_checksum(digest))


def _hash_to_end(path: Path) -> tuple[Any, bytes]:
    """Returns the hash object of all but the last `ONNX_BYTES`, and those bytes, so that a file is read once."""
    hashed = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            rest = os.fstat(file.fileno()).st_size - ONNX_BYTES
            while rest > 0 and (piece := file.read(min(rest, 2**20))):
                hashed.update(piece)
                rest -= len(piece)
            return hashed, file.read()
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror}"
        raise CheckpointError(what, "check the path and its permissions") from error


class ExportedBackbone(Backbone):
    """An exported graph as a backbone. It returns logits and features, has no parameters, and runs on the CPU.

    Args:
        config: config of the source model, with the image size to use.
        session: as returned by `open_session`.
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
        return self.run_graph(LOGITS if self.config.classes else FEATURES, images)

    def features(self, images: Tensor) -> Tensor:
        return self.run_graph(FEATURES, images)

    def run_graph(self, output: str, images: Tensor) -> Tensor:
        """Returns one output for images (B, C, H, W), on their device."""
        self._check(images)
        self._check_size(tuple(images.shape[2:]))
        (values,) = self.session.run([output], {IMAGES: images.detach().float().cpu().contiguous().numpy()})
        return torch.from_numpy(values).to(images.device)

    def _check_size(self, size: tuple[int, ...]) -> None:
        if self.fixed is not None and size != self.fixed:
            expected, actual = ("x".join(map(str, pair)) for pair in (self.fixed, size))
            what = f"the graph requires images of {expected} pixels, but got {actual}"
            raise ConfigError(what, f"export it for that size: vitrail export MODEL --to onnx --size {actual}")

    def _refuse(self, *arguments: Any, **options: Any) -> NoReturn:
        what = "an exported graph has outputs and features, but no access to weights, layers or attention"
        raise ConfigError(what, "use the model that it was exported from")

    def attention_grids(self, size: tuple[int, int]) -> list[AttentionGrid]:
        """Returns an empty list: a graph does not expose attention."""
        return []

    patchify = place = encode = pool = head = heads = _refuse
    feature_maps = forward_recording = pooling_shares = _refuse
    layers = no_decay = new_head = _refuse
    resize_tensors = classmethod(_refuse)
