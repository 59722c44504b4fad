"""The files of `vitrail export`: written, compared with the model, and put in place.

B images, C channels, H and W their size, K classes, N images in all.
"""

from __future__ import annotations

import errno
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.exports.graph import to_onnx, to_program
from vitrail.exports.openvino import add_metadata, to_openvino
from vitrail.exports.quantise import to_int8
from vitrail.exports.sidecar import write_sums
from vitrail.files import disk_errors, free_bytes, move_files, stage_folder, sync_folder
from vitrail.inference.comparison import read_few
from vitrail.inference.options import InferenceOptions
from vitrail.runtime.machine import versions
from vitrail.runtime.progress import LogFunction, log_nothing
from vitrail.tasks.task import Task
from vitrail.verbs.export.parity import (
    Forward,
    ParityCheck,
    Tolerances,
    describe_slowness,
    open_source,
    round_figures,
)
from vitrail.weights.adapt import fit_to_crop
from vitrail.weights.description import KEY, describe
from vitrail.weights.onnx import PARITY, ExportedBackbone, add_checksum_to_onnx, open_session
from vitrail.weights.openvino import add_checksum_to_openvino
from vitrail.weights.read import read_model
from vitrail.weights.resolve import resolve_model

# of what holds a graph; the others are layouts of weights
SUFFIXES = {"onnx": ".onnx", "openvino": ".xml", "program": ".pt2"}
LAYOUTS = {"huggingface": "-huggingface", "timm": "-timm", "google": ".npz"}  # and how a name ends that is made up here
# where a file is slower than its model
FASTER = {
    "onnx": "--int8 computes in 8 bits, and --to openvino in bf16 where the processor has it",
    "openvino": "--int8 computes in 8 bits",
    "program": "--to onnx is faster on most processors",
}
ROOM = 2.5  # bytes on the disk while an export is made, as a multiple of the weights'
IMAGES, GENERATED = 300, 64  # that are compared by default
CALIBRATED = 64  # images that set the ranges of activations in int8


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The kind of file: ``onnx``, ``openvino``, ``program`` (a .pt2 of torch.export), or a layout of weights of `convert`.

    With ``int8`` its weights have 8 bits (`vitrail.exports.quantise`, `vitrail.exports.openvino`); with ``pictures`` the graph
    takes pictures of any size, uint8 (B, C, H, W), and prepares them itself. Raises `ConfigError` for what the file cannot have.
    """

    to: str = "onnx"
    int8: bool = False
    pictures: bool = False

    def __post_init__(self) -> None:
        for flag, formats in {"int8": ("onnx", "openvino"), "pictures": ("onnx",)}.items():
            if getattr(self, flag) and self.to not in formats:
                what = f"--{flag} is not for {self.to}"
                raise ConfigError(what, f"leave --{flag} out, or use --to {' or --to '.join(formats)}")

    def default_path(self, model: str | Path | Task) -> Path:
        """Returns a path in the working folder, by the name of the model."""
        if isinstance(model, Task):
            raise ConfigError("a model in memory has no name", "give out, a path")
        marks = "-pictures" * self.pictures + "-int8" * self.int8
        return Path(resolve_model(model).name + marks + (SUFFIXES | LAYOUTS)[self.to])


@dataclass(frozen=True)
class Exported:
    """The written file, or two where one cannot hold the weights; ``dynamic``: it takes images of any size.

    ``figures`` are those of the proof, flat; they stand in the file too, as JSON under "parity".
    """

    path: Path
    options: ExportOptions
    dynamic: bool
    bytes: int
    figures: Mapping[str, Any]


def write_export(
    model: str | Path | Task,
    path: Path,
    options: ExportOptions,
    limits: Tolerances,
    *,
    check: Any,
    images: int | None,
    force: bool,
    inference: InferenceOptions,
    log: LogFunction,
) -> Exported:
    """Writes the graph of ``model`` to ``path``, compares the two on images, and leaves nothing where they differ."""
    _check_destination(path, options, force=force)
    task = replace(inference, device="cpu").load(model, log)
    if isinstance(task.backbone, ExportedBackbone):
        raise ConfigError(f"{model} is an export already", "export the model that it was made from")
    task = fit_to_crop(task, log)
    if options.to == "openvino" and options.int8 and check is None:
        what = "the ranges of int8 in an OpenVINO file are measured on images, and none were given"
        raise ConfigError(what, "give some of yours, --check DATA, or leave --int8 out")
    # before minutes are spent on a graph that could not be compared
    source = None if check is None else open_source(task, check, images or IMAGES, log)
    count = images or GENERATED if source is None else len(source)
    # images that cannot be read are counted in the comparison
    few = read_few(task, source, inference, CALIBRATED) if options.to == "openvino" and options.int8 else ()
    calibration = [image for images in few for image in images.split(1)] or None  # (1, C, H, W) each
    needed = int(ROOM * sum(tensor.nbytes for tensor in task.backbone.state_dict().values()))
    with disk_errors(path, needed=needed):
        if free_bytes(path) < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with stage_folder(path, {}) as aside:
            log(f"writing  {options.to}{', int8' if options.int8 else ''}")
            made = aside / path.name
            dynamic, graph = _write_graph(task, made, options, calibration)
            proof = ParityCheck(task=task, graph=graph, pictures=options.pictures, dynamic=dynamic)
            figures = proof.figures(source, count, inference)
            limits.check(figures, higher_is_better=task.metric().higher_is_better)
            facts = {"precision": "int8" if options.int8 else "fp32", "dynamic": dynamic, **round_figures(figures)}
            _add_figures(made, options, json.dumps({**facts, "torch": versions()["torch"]}))
            files = list(aside.iterdir())  # with the weights of OpenVINO, and those beyond 1.5 GB, NAME.onnx.data
            size = sum(part.stat().st_size for part in files)
            write_sums(made, files)
            for part in files:
                with open(part, "rb") as file:
                    os.fsync(file.fileno())
            sync_folder(aside)
            move_files(path, aside)
            if slowness := describe_slowness(figures):
                remedy = "leave --int8 out" if options.int8 else FASTER[options.to]
                log(f"warning  on this machine the file is slower than the model: {slowness}; {remedy}")
            return Exported(path, options, dynamic, size, figures)


def _write_graph(
    model: Task, made: Path, options: ExportOptions, calibration: list[Tensor] | None
) -> tuple[bool, Forward]:
    """Returns whether the graph takes images of any size, and what it answers when it is read back from the file."""
    metadata = {KEY: json.dumps(describe(model), ensure_ascii=False)}
    if options.to == "program":
        dynamic = to_program(model, made, metadata=metadata)
        return dynamic, torch.export.load(made).module()
    whole = {"pictures": True} if options.pictures else {}
    if options.int8 or options.to == "openvino":
        with stage_folder(made, {}) as aside:
            source = aside / f"{made.stem}.onnx"
            dynamic = to_onnx(model, source, metadata=metadata, **whole)
            if options.to == "openvino":
                to_openvino(source, made, metadata=metadata, calibration=calibration)
            else:
                to_int8(source, made)
    else:
        dynamic = to_onnx(model, made, metadata=metadata, **whole)
    if options.pictures:
        return dynamic, _make_forward(open_session(made))
    return dynamic, _make_forward(read_model(resolve_model(made), log_nothing).model.backbone.session)


def _make_forward(session: Any) -> Forward:
    names = [output.name for output in session.get_outputs()]
    (graph_input,) = session.get_inputs()

    def forward(images: Tensor) -> dict[str, Tensor]:
        outputs = session.run(names, {graph_input.name: images.contiguous().numpy()})
        return dict(zip(names, map(torch.from_numpy, outputs)))

    return forward


def _add_figures(made: Path, options: ExportOptions, figures: str) -> None:
    """Adds the figures and a checksum to a file and leaves all else in it as it was compared."""
    if options.to == "program":
        with zipfile.ZipFile(made, "a") as archive:
            root = archive.namelist()[0].partition("/")[0]
            archive.writestr(f"{root}/extra/{PARITY}", figures)
        return
    if options.to == "openvino":
        add_metadata(made, PARITY, figures)
        add_checksum_to_openvino(made)
        return
    import onnx

    entry = onnx.StringStringEntryProto(key=PARITY, value=figures)
    with open(made, "ab") as file:  # of a repeated field, what comes later in the file is added to what came before
        file.write(onnx.ModelProto(metadata_props=[entry]).SerializeToString())
    add_checksum_to_onnx(made)


def _check_destination(path: Path, options: ExportOptions, *, force: bool) -> None:
    """Refuses to write over anything but an export of the same kind. Raises `ConfigError`."""
    suffix = SUFFIXES[options.to]
    if path.suffix != suffix:
        others = [f", or --to {name}" for name, ending in SUFFIXES.items() if ending == path.suffix]
        remedy = f"give a name that ends in {suffix}{''.join(others)}"
        raise ConfigError(f"{path} is not a file name for {options.to}", remedy)
    if path.is_dir():
        raise ConfigError(f"{path} is a folder", "choose another name")
    for file in (path, path.with_suffix(".bin")) if options.to == "openvino" else (path,):
        if file.exists() and not force and not _is_export(path):
            raise ConfigError(f"{file} exists and is not an export of vitrail", "choose another name, or give --force")


def _is_export(path: Path) -> bool:
    try:
        if path.suffix == SUFFIXES["program"]:
            with zipfile.ZipFile(path) as archive:
                return any(name.endswith(f"/extra/{KEY}") for name in archive.namelist())
        if path.suffix == SUFFIXES["openvino"]:
            return f"<{KEY} value=" in path.read_text("utf-8")
        import onnx

        return any(entry.key == KEY for entry in onnx.load(path, load_external_data=False).metadata_props)
    except Exception:  # whatever is wrong with it, it is none
        return False
