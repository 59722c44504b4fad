"""The files of `vitrail export`: written, compared with the model, and put in place.

B images, C channels, H and W their size, K classes, N images in all.
"""

from __future__ import annotations

import errno
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.data.loader import Bad
from vitrail.data.sources.contents import choose_evenly
from vitrail.data.sources.source import Source
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.exports.comparison import (
    BATCHES,
    Answers,
    Verb,
    choose_sizes,
    compare,
    generate_pictures,
    measure_speeds,
    scale_pictures,
)
from vitrail.exports.graph import to_onnx, to_program
from vitrail.exports.quantise import to_int8
from vitrail.exports.sidecar import write_sums
from vitrail.files import disk_errors, free_bytes, move_files, stage_folder, sync_folder
from vitrail.images.decode import BadImage
from vitrail.inference.inputs import find_inputs, open_split
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import read_inputs
from vitrail.runtime.machine import versions
from vitrail.runtime.progress import ProgressBar, Say, say_nothing
from vitrail.tasks.metric import Targets
from vitrail.tasks.pictures import to_pixels
from vitrail.tasks.task import Task
from vitrail.weights.adapt import fit_to_crop
from vitrail.weights.description import KEY, describe
from vitrail.weights.onnx import PARITY, ExportedBackbone, open_session, seal_onnx
from vitrail.weights.read import read_model
from vitrail.weights.resolve import REMOTE, resolve_model

SUFFIXES = {"onnx": ".onnx", "program": ".pt2"}  # of what holds a graph; the others are layouts of weights
LAYOUTS = {"huggingface": "-huggingface", "timm": "-timm", "google": ".npz"}  # and how a name ends that is made up here
ROOM = 2.5  # bytes on the disk while an export is made, as a multiple of the weights'
EXACT, LOST, OTHERWISE = 1e-4, 0.02, 0.05  # what is allowed: see `Tolerances`
IMAGES, GENERATED = 300, 64  # that are compared by default


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The kind of file: ``onnx``, ``program`` (a .pt2 of torch.export), or a layout of weights as `convert` writes it.

    With ``int8`` its weights have 8 bits (`vitrail.exports.quantise`); with ``pictures`` the graph takes pictures of any size,
    uint8 (B, C, H, W), and prepares them itself. Raises `ConfigError` where the file cannot have these.
    """

    to: str = "onnx"
    int8: bool = False
    pictures: bool = False

    def __post_init__(self) -> None:
        for flag in ("int8", "pictures"):
            if getattr(self, flag) and self.to != "onnx":
                what = f"--{flag} is for ONNX, and not for {self.to}"
                raise ConfigError(what, f"leave --{flag} out, or use --to onnx")

    def default_path(self, model: str | Path | Task) -> Path:
        """Returns a path in the working folder, by the name of the model."""
        if isinstance(model, Task):
            raise ConfigError("a model in memory has no name", "give out, a path")
        if str(model).startswith(REMOTE):
            name = str(model).rpartition("/")[2].partition("@")[0]
        else:
            path = resolve_model(model).path.resolve()
            name = path.parent.name if path.name == "model" else path.stem if path.is_file() else path.name
        marks = "-pictures" * self.pictures + "-int8" * self.int8
        return Path(name + marks + (SUFFIXES | LAYOUTS)[self.to])


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
    log: Say,
) -> Exported:
    """Writes the graph of ``model`` to ``path``, compares the two on images, and leaves nothing where they differ."""
    _check_destination(path, options, force=force)
    task = replace(inference, device="cpu").load(model, log)
    if isinstance(task.backbone, ExportedBackbone):
        raise ConfigError(f"{model} is an export already", "export the model that it was made from")
    task = fit_to_crop(task, log)
    # before minutes are spent on a graph that could not be compared
    source = None if check is None else open_source(task, check, images or IMAGES, log)
    count = images or GENERATED if source is None else len(source)
    needed = int(ROOM * sum(tensor.nbytes for tensor in task.backbone.state_dict().values()))
    with disk_errors(path, needed=needed):
        path.parent.mkdir(parents=True, exist_ok=True)
        if free_bytes(path) < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with stage_folder(path, {}) as aside:
            log(f"writing  {options.to}{', int8' if options.int8 else ''}")
            made = aside / path.name
            dynamic, graph = _write_graph(task, made, options)
            proof = Proof(task=task, graph=graph, pictures=options.pictures, dynamic=dynamic)
            figures = proof.figures(source, count, inference)
            limits.check(figures, higher_is_better=task.metric().higher_is_better)
            facts = {"precision": "int8" if options.int8 else "fp32", "dynamic": dynamic, **round_figures(figures)}
            _add_figures(made, options, json.dumps({**facts, "torch": versions()["torch"]}))
            files = list(aside.iterdir())  # weights beyond 1.5 GB stand in a second one, NAME.onnx.data
            size = sum(part.stat().st_size for part in files)
            write_sums(made, files)
            for part in files:
                with open(part, "rb") as file:
                    os.fsync(file.fileno())
            sync_folder(aside)
            move_files(path, aside)
            return Exported(path, options, dynamic, size, figures)


def _write_graph(model: Task, made: Path, options: ExportOptions) -> tuple[bool, Verb]:
    """Returns whether the graph takes images of any size, and what it answers when it is read back from the file."""
    metadata = {KEY: json.dumps(describe(model), ensure_ascii=False)}
    if options.to == "program":
        dynamic = to_program(model, made, metadata=metadata)
        return dynamic, torch.export.load(made).module()
    whole = {"pictures": True} if options.pictures else {}
    if options.int8:
        with stage_folder(made, {}) as aside:
            dynamic = to_onnx(model, aside / made.name, metadata=metadata, **whole)
            to_int8(aside / made.name, made)
    else:
        dynamic = to_onnx(model, made, metadata=metadata, **whole)
    if options.pictures:
        return dynamic, _make_verb(open_session(made))
    return dynamic, _make_verb(read_model(resolve_model(made), say_nothing).model.backbone.session)


def _make_verb(session: Any) -> Verb:
    names = [output.name for output in session.get_outputs()]
    (graph_input,) = session.get_inputs()

    def answer(images: Tensor) -> dict[str, Tensor]:
        outputs = session.run(names, {graph_input.name: images.contiguous().numpy()})
        return dict(zip(names, map(torch.from_numpy, outputs)))

    return answer


def _add_figures(made: Path, options: ExportOptions, figures: str) -> None:
    """Adds the figures and a checksum to a file and leaves all else in it as it was compared."""
    if options.to == "program":
        with zipfile.ZipFile(made, "a") as archive:
            root = archive.namelist()[0].partition("/")[0]
            archive.writestr(f"{root}/extra/{PARITY}", figures)
        return
    import onnx

    entry = onnx.StringStringEntryProto(key=PARITY, value=figures)
    with open(made, "ab") as file:  # of a repeated field, what comes later in the file is added to what came before
        file.write(onnx.ModelProto(metadata_props=[entry]).SerializeToString())
    seal_onnx(made)


def _check_destination(path: Path, options: ExportOptions, *, force: bool) -> None:
    """Refuses to write over anything but an export of the same kind. Raises `ConfigError`."""
    suffix = SUFFIXES[options.to]
    if path.suffix != suffix:
        raise ConfigError(f"{path} is not a file name for {options.to}", f"give a name that ends in {suffix}")
    if path.is_dir():
        raise ConfigError(f"{path} is a folder", "choose another name")
    if path.exists() and not force and not _is_export(path):
        raise ConfigError(f"{path} exists and is not an export of vitrail", "choose another name, or give --force")


def _is_export(path: Path) -> bool:
    try:
        if path.suffix == SUFFIXES["program"]:
            with zipfile.ZipFile(path) as archive:
                return any(name.endswith(f"/extra/{KEY}") for name in archive.namelist())
        import onnx

        return any(entry.key == KEY for entry in onnx.load(path, load_external_data=False).metadata_props)
    except Exception:  # whatever is wrong with it, it is none
        return False


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """How far a file may be off; ``tolerance`` stands for the one that holds.

    Where it computes what the model does (``exact``): the largest difference of an output, as a share of the largest output,
    0.0001. Where it computes less, int8, or prepares pictures in another way: with labels the accuracy that it loses, 0.02;
    without them the share of images with another answer, 0.05.
    """

    exact: bool
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise ConfigError(f"tolerance is {self.tolerance}", "give a share between 0 and 1, such as 0.02")

    def check(self, figures: dict[str, Any], *, higher_is_better: bool = True) -> None:
        """Raises `CheckpointError` for what is beyond; of the metric in ``figures`` more or less is better."""
        metric = figures.get("metric")
        if self.exact:
            off, most, what = figures["difference"], EXACT, "outputs differ by {} of the largest"
        elif metric:
            lost = figures[f"{metric}_before"] - figures[f"{metric}_after"]
            lost, words = (lost, "lower") if higher_is_better else (-lost, "higher")
            off, most, what = round(lost, 9), LOST, f"{metric} is {words} by {{}}"
        else:
            off, most = round(1 - figures["agreement"], 9), OTHERWISE
            what = "predictions differ for a share of {} of the images"
        most = most if self.tolerance is None else self.tolerance
        if off <= most:
            return
        remedy = "nothing was written; --tolerance allows more"
        if not self.exact and not metric:
            remedy += ", and labelled images of yours (--check DATA) say what it costs"
        listing = "\n".join(f"{name} {value}" for name, value in round_figures(figures).items())
        what = what.format(f"{off:.3g}")
        raise CheckpointError(f"what was exported is not the model: {what}, {most:g} is allowed", remedy, value=listing)


def round_figures(figures: dict[str, Any]) -> dict[str, Any]:
    """Rounds floats to four significant digits."""
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in figures.items()}


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A model ``task`` and its export ``graph``, which should give the same outputs.

    With ``pictures`` its inputs are whole pictures (B, C, H, W) uint8, not normalised images; ``dynamic``: of any size.
    """

    task: Task
    graph: Verb
    pictures: bool
    dynamic: bool

    def figures(self, source: Source | None, count: int, options: InferenceOptions) -> dict[str, Any]:
        """Returns the proof in figures, flat, by the ``count`` images of ``source``, best labelled; None generates some.

        Raises `CheckpointError` for answers that are no finite numbers, and `DataError` where no image can be read.
        """
        truths: list[tuple[Targets, Frames]] = []  # of each batch
        judged = source is not None and source.labelled and bool(self.task.classes)
        metrics = [self.task.metric() for _ in range(2)] if judged else []
        seen, agreed, worst = 0, 0.0, 0.0
        with ProgressBar("comparing", count, quiet=options.quiet) as show:
            images = self._generate(count) if source is None else self._read_inputs(source, truths, options)
            for pair in compare(self.model, self.graph, images):
                batch = len(next(iter(pair[0].values())))
                seen, agreed = seen + batch, agreed + batch * self.task.agreement(*pair)
                show.update(seen)
                worst = max(worst, self.task.difference(*pair))
                for metric, answers in zip(metrics, pair):
                    metric.update(self.task.read_graph(answers), truths[-1][0], [""] * batch, truths[-1][1])
        if not seen:
            what = "no image could be read: the split is empty or all of it is bad"
            raise DataError(what, "see `vitrail data check`")
        sizes = choose_sizes(self.task.config)[: None if self.dynamic or self.pictures else 1]
        shapes = compare(self.model, self.graph, map(self._to_input, scale_pictures(self._draw(seed=1), sizes)))
        compared = {}
        if metrics:
            before, after = (metric.compute() for metric in metrics)
            name = next(iter(before))
            compared = {"metric": name, f"{name}_before": before[name], f"{name}_after": after[name]}
        return {
            "images": seen,
            "real_images": source is not None,
            "batches": ",".join(map(str, BATCHES)),
            "sizes": ",".join(f"{height}x{width}" for height, width in sizes),
            "difference": max([worst, *(self.task.difference(*pair) for pair in shapes)]),
            "agreement": agreed / seen,
            **compared,
            **self._measure_speeds(),
        }

    def model(self, inputs: Tensor) -> Answers:
        return self.task.graph(self.task.preprocess(inputs) if self.pictures else inputs)

    def _draw(self, count: int = max(BATCHES), *, seed: int = 0) -> Tensor:
        return generate_pictures(count, self.task.config.in_channels, self.task.config.image_size, seed=seed)

    def _generate(self, count: int) -> Iterator[Tensor]:
        for first in range(0, count, max(BATCHES)):
            yield self._to_input(self._draw(min(max(BATCHES), count - first), seed=first))

    def _to_input(self, pictures: Tensor) -> Tensor:
        return pictures if self.pictures else self.task.preprocessing.normalise(pictures)

    def _read_inputs(self, source: Source, truths: list[Any], options: InferenceOptions) -> Iterator[Tensor]:
        """Yields the good images of ``source``; notes their targets, and what they show of their pictures."""
        bad = options.record_bad(source)
        if self.pictures:
            yield from _read_pictures(source, truths, self.task, bad)
            return
        reading = replace(options, batch=max(BATCHES))
        for batch, images in read_inputs(self.task, source, reading, bad=bad):
            truths.append((batch.targets, batch.frames))
            yield images

    def _measure_speeds(self) -> dict[str, float]:
        """Milliseconds an image, of one alone and of the largest batch."""
        times = {}
        for count in (1, max(BATCHES)):
            before, after = measure_speeds(self.model, self.graph, self._to_input(self._draw(count)))
            times |= {f"ms_before_batch_{count}": before, f"ms_after_batch_{count}": after}
        return {**times, "threads": torch.get_num_threads()}


def open_source(task: Task, data: Any, most: int, say: Say) -> Source:
    """Returns at most ``most`` evaluation images, spread evenly; without labels where the labels are not the model's.

    Raises `DataError`.
    """
    try:
        _, source = open_split(task, data, None, say, labelled=False)
    except DataError as error:
        if not (isinstance(data, str | Path) and Path(data).is_dir()):
            raise
        say(f"warning  compared without labels: {error.what}")
        source = find_inputs([str(data)]).source
    if task.classes and source.labelled and source.multi_label != task.multi_label:
        kinds = ("one label an image", "several")
        what = f"the data have {kinds[source.multi_label]}, the model gives {kinds[task.multi_label]}"
        raise DataError(what, "give data of the kind that the model was trained on")
    return source.subset(choose_evenly(len(source), most))


def _read_pictures(source: Source, truths: list[Any], task: Task, bad: Bad) -> Iterator[Tensor]:
    """Pictures as they lie there, decoded: (1, C, H, W) uint8."""
    channels = task.config.in_channels
    for row in range(len(source)):
        try:
            item = source.read(row)
            pixels = np.asarray(to_pixels(item.content, task.preprocessing))
        except BadImage as error:
            bad(source.keys[row], error.reason)
            continue
        pixels = pixels if pixels.dtype == np.uint8 else np.rint(pixels * 255).astype(np.uint8)
        frames = Frames.seen(task.preprocessing, [pixels.shape[:2]])
        truths.append((task.targets.collate(np.asarray(item.target)[None]), frames))
        yield torch.tensor(pixels.reshape(*pixels.shape[:2], channels)).permute(2, 0, 1)[None]
