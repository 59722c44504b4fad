"""An ``.onnx`` that vitrail exported: a model whose backbone is the graph, run by onnxruntime on the CPU.

B images, C channels, H and W their size, F width of what the head reads, K classes.
"""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import AttentionGrid, Backbone, Config, configure, sketch
from vitrail.tasks import Task
from vitrail.weights.description import KEY, build_model_around, check_version, hash_file
from vitrail.weights.tensors import AGAIN, parse_json, printable

INSTALL = "pip install 'vitrail[onnx]'"
IMAGES, LOGITS, FEATURES = "images", "logits", "features"
PARITY = "parity"  # under which the figures of the comparison stand in the metadata
PICTURES = "pictures"  # the input of a graph that resizes, crops and normalises by itself


def read_onnx(path: Path) -> Task:
    """The model of a file that `vitrail export` wrote, ready to predict.

    Raises:
        ConfigError: onnxruntime is not installed.
        CheckpointError: a damaged or foreign file; says what is missing in it.
    """
    session = open_session(path)
    metadata = session.get_modelmeta().custom_metadata_map
    if KEY not in metadata:
        what = f"{path} has no description of its classes: it is not of `vitrail export`, or was changed since"
        raise CheckpointError(what, "export the model again: vitrail export MODEL --to onnx")
    description = parse_json(metadata[KEY], f"the metadata of {path}")
    check_version(description, path)
    model = build_model_around(partial(_backbone, session, path), description, path)
    outputs = {value.name: value.shape[1:] for value in session.get_outputs()}
    classes = model.backbone.config.classes
    if outputs.keys() != set(model.graph_outputs) or outputs.get(LOGITS, [classes]) != [classes]:
        raise _other_graph(session, path)
    assert isinstance(model.backbone, ExportedBackbone)
    model.run_graph(model.backbone.run_graph)
    return model


def open_session(path: Path) -> Any:
    """The graph, optimised and ready to run on the CPU by as many threads as torch has.

    Raises:
        ConfigError: onnxruntime is not installed.
        CheckpointError: what lies there is no graph that it can run.
    """
    try:
        import onnxruntime
    except ImportError as missing:
        raise ConfigError("an .onnx is run by onnxruntime, which is not installed", INSTALL) from missing
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # of failures the exception tells enough
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # those of its C++ side have no class in common
        what = f"{path} is no graph that onnxruntime can run: {printable(error, 200)}"
        raise CheckpointError(what, AGAIN) from error


def _backbone(session: Any, path: Path, config: Config) -> ExportedBackbone:
    """Raises `CheckpointError` where the graph has not the inputs and outputs of a model of ``config``."""
    inputs = {value.name: value for value in session.get_inputs()}
    if list(inputs) == [PICTURES]:
        what = f"{path} prepares whole pictures by itself, for programs that have no vitrail"
        raise CheckpointError(what, "for use in vitrail export it without --pictures")
    shape = inputs[IMAGES].shape if list(inputs) == [IMAGES] else []
    sound = len(shape) == 4 and shape[1] == config.in_channels and inputs[IMAGES].type == "tensor(float)"
    if not sound:
        raise _other_graph(session, path)
    return ExportedBackbone(config, session, _digest(path))


def _other_graph(session: Any, path: Path) -> CheckpointError:
    ends = (*session.get_inputs(), *session.get_outputs())
    signature = ", ".join(f"{value.name} {value.type} {value.shape}" for value in ends)
    what = f"the graph in {path} is not the one that its description is of: it has {printable(signature, 300)}"
    return CheckpointError(what, AGAIN)


def _digest(path: Path) -> str:
    """SHA-256 of the file, and of the one beside it that holds its weights where they are too large for one."""
    beside = path.with_name(f"{path.name}.data")
    if not beside.is_file():
        return hash_file(path)
    return hashlib.sha256(f"{hash_file(path)}{hash_file(beside)}".encode()).hexdigest()


class ExportedBackbone(Backbone):
    """A graph: logits and features, and none of the other verbs. It has no parameters, and runs on the CPU.

    Args:
        config: of the model it was exported from, at the size that images are to have.
        session: as `open_session` gives it.
        sha256: of what it was read from; kept as a buffer, which tells it from another graph where weights would.

    Raises:
        ConfigError: from every verb that needs more than answers; images of another size than a fixed graph takes.
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
        """Of the features; of a graph that does not give them, that of the network it was made from."""
        shapes = {value.name: value.shape for value in self.session.get_outputs()}
        return shapes[FEATURES][1] if FEATURES in shapes else sketch(self.config).width

    @property
    def parity(self) -> dict[str, Any] | None:
        """The figures by which the export was compared with its source, where it carries them."""
        text = self.session.get_modelmeta().custom_metadata_map.get(PARITY)
        return None if text is None else parse_json(text, "the figures of the export")

    def at(self, size: int | tuple[int, int]) -> ExportedBackbone:
        """The same graph for images of another size. Raises `ConfigError` where it takes none."""
        return ExportedBackbone(configure(self.config, image_size=size), self.session, self.sha256)

    def forward(self, images: Tensor) -> Tensor:
        return self.run_graph(LOGITS if self.config.classes else FEATURES, images)

    def features(self, images: Tensor) -> Tensor:
        return self.run_graph(FEATURES, images)

    def run_graph(self, output: str, images: Tensor) -> Tensor:
        """One output for images (B, C, H, W), on their device."""
        self._check(images)
        self._check_size(tuple(images.shape[2:]))
        (values,) = self.session.run([output], {IMAGES: images.detach().float().cpu().contiguous().numpy()})
        return torch.from_numpy(values).to(images.device)

    def _check_size(self, size: tuple[int, ...]) -> None:
        if self.fixed is not None and size != self.fixed:
            expected, actual = ("x".join(map(str, pair)) for pair in (self.fixed, size))
            what = f"the graph is made for images of {expected} pixels, and these have {actual}"
            raise ConfigError(what, f"export the model again for these: vitrail export MODEL --to onnx --size {actual}")

    def _refuse(self, *arguments: Any, **options: Any) -> NoReturn:
        what = "an exported graph gives answers and features, and nothing of its weights, layers or attention"
        raise ConfigError(what, "take the model that it was exported from")

    def attention_grids(self, size: tuple[int, int]) -> list[AttentionGrid]:
        """None: whatever attention there was, the graph does not show it."""
        return []

    patchify = place = encode = pool = head = heads = _refuse
    feature_maps = forward_recording = pooling_shares = _refuse
    layers = no_decay = new_head = _refuse
    resize_tensors = classmethod(_refuse)
