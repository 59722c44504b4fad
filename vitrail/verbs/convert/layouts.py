"""From one layout of weights into another: written aside, read back, compared output by output, and only then put in place.

B images, C channels, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vitrail.errors import CheckpointError, ConfigError, nearest
from vitrail.files import move_files, replace_folder, stage_folder
from vitrail.models.config import INITIALISATION_FIELDS, TRAINING_FIELDS
from vitrail.runtime.progress import LogFunction, log_nothing
from vitrail.tasks import Task
from vitrail.tasks.classification.classifier import Classifier
from vitrail.tasks.dense.task import DenseTask
from vitrail.tasks.queries.task import QueryTask
from vitrail.verbs.convert.compare import SMALLEST, equal_bits, flatten_description
from vitrail.weights.adapt import apply_changes, fit_to_crop
from vitrail.weights.description import KEY, describe, read_sidecar, sidecar_path
from vitrail.weights.encode import ENCODERS
from vitrail.weights.folders import CONFIG, OF_A_FOLDER, check_replaceable
from vitrail.weights.huggingface import PROCESSOR
from vitrail.weights.huggingface.eomt import express_model
from vitrail.weights.read import read_model
from vitrail.weights.resolve import GRAPH_FILES, ResolvedModel, hash_model, resolve_model
from vitrail.weights.tensors import read_tensors

FAULT = "report this as a bug in vitrail; nothing was written"
TOLERANCE = 1e-5  # of the largest output
DRAWS, IMAGES = 3, 2  # how often outputs are compared, and on how many images at a time
ROUNDINGS = {
    "preprocessing.rounding",
    "preprocessing.crop_rounding",
}  # of halves: they move a picture by a pixel at most
RESIZES = {"config.position_resize", "config.bias_resize"}  # how tables follow another size changes nothing at this one
NOT_ANSWERS = INITIALISATION_FIELDS | TRAINING_FIELDS  # fields of a config that leave the outputs as they are


@dataclass(frozen=True)
class Converted:
    """The written model, and how it was verified."""

    path: Path
    source: str  # the layouts from which and into which
    layout: str
    model: str  # its architecture and size in words
    tensors: int
    parameters: int
    unused: tuple[str, ...]  # names of the tensors in the source that the model has no use for
    difference: float  # between outputs of source and copy, the largest of all, as a share of the largest output
    unsaid: tuple[str, ...] = ()  # numerics and steps of preprocessing that the layout cannot express
    notes: tuple[str, ...] = ()  # further facts that it cannot express, which change no output at the model's own size
    alone: float | None = None  # the difference without what vitrail wrote beside it; None where it cannot be read then
    sha256: str | None = None  # of the source, if it is foreign and so has no checksum of its own


def write_layout(
    source: str | Path,
    destination: str | Path,
    to: str,
    *,
    force: bool = False,
    classes_file: str | Path | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    grid: tuple[int, int] | None = None,
    log: LogFunction = log_nothing,
    **changes: Any,
) -> Converted:
    """Writes the model ``source`` in the layout ``to``; the copy is verified before it is put in place.

    Of a detector or segmenter other layouts than vitrail's get the backbone, but transformers has EoMT, the models with queries.
    """
    if to not in ENCODERS:
        raise ConfigError(f"there is no layout {to!r}", nearest(to, ENCODERS))
    resolved, path = resolve_model(source), Path(destination).expanduser()
    if resolved.layout in GRAPH_FILES:
        what = f"{resolved.path} is an exported graph, whose weights are folded into it"
        raise CheckpointError(what, "convert the model that it was exported from")
    _check_destination(path, to, resolved)
    known = {"grid": grid, "image_size": changes.get("image_size")}
    loaded = read_model(resolved, log, has_names=classes_file is not None, stated=preprocessing or (), **known)
    model = fit_to_crop(apply_changes(loaded.model, classes_file, preprocessing, **changes).eval(), log)
    if to == "huggingface" and isinstance(model, QueryTask):
        model, changed = express_model(model)
        for note in changed:
            log(f"changed  {note}")
    elif to != "native" and isinstance(model, DenseTask):
        log(f"backbone only: the {to} layout has no counterpart for the head of a model of {model.name}")
        # no other layout has pictures with a border on one side
        preprocessed = replace(model.preprocessing, resize="squash", resize_to=None)
        model = Classifier(model.backbone, (), preprocessed).eval()
    if model.false_alarms is not None and model.preprocessing != loaded.model.preprocessing:
        log(
            "warning  the threshold of images unlike those of the training was fitted with other preprocessing: fit it again"
        )
    if to != "native" and isinstance(model, Classifier) and model.false_alarms is not None:
        log(f"left out: what tells images unlike those of the training, which the {to} layout has no place for")
        model.set_unlikeness(None)
    written = ENCODERS[to](model, path)
    with stage_folder(path, written.files) as aside:
        copy = resolve_model(aside / path.name if path.name in written.files else aside)
        difference = _prove(model, copy)
        unsaid, notes, alone = ((), (), None) if to == "native" else _read_alone(model, copy)
        if unsaid and not (force or written.sidecar):
            what = f"the {to} layout cannot express {len(unsaid)} of the model's numerics"
            remedy = "--force writes it all the same; what reads it without vitrail then computes something else"
            raise CheckpointError(what, remedy, value="\n".join(unsaid))
        if path.name in written.files:
            move_files(path, aside)
        else:
            replace_folder(path, aside)
    return Converted(
        path=path,
        source=loaded.layout,
        layout=to,
        model=_describe_model(model),
        tensors=len(model.backbone.state_dict()),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        unused=loaded.unused,
        difference=difference,
        unsaid=unsaid,
        notes=notes,
        alone=alone,
        sha256=None if loaded.layout == "native" else hash_model(resolved),
    )


def _check_destination(path: Path, to: str, source: ResolvedModel) -> None:
    """Refuses to write over anything but a model in the same layout, and over the source. Raises `ConfigError`."""
    if path.resolve() == source.path.resolve():
        raise ConfigError(f"{path} is the source itself", "give another destination")
    if path.name in OF_A_FOLDER and (path.parent / CONFIG).is_file():
        raise ConfigError(f"{path} is a part of the model folder {path.parent}", "give a folder, or another name")
    if path.is_dir():
        check_replaceable(path, (*OF_A_FOLDER, PROCESSOR))
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        if sidecar_path(path).is_file() and path.suffix in (".npz", ".safetensors") and to in ("google", "timm"):
            raise ConfigError(f"{sidecar_path(path)} exists without {path.name}", "remove it, or choose another name")
        return
    existing = resolve_model(path)
    layout = existing.layout.split()[0]
    if layout == "file":
        layout = "native" if KEY in read_tensors(path)[1] else "timm"
    if layout != to:
        raise ConfigError(f"{path} exists, in the {layout} layout", f"choose another name, or --to {layout}")
    if layout != "native" and path.is_file() and sidecar_path(path).is_file() and read_sidecar(path) is None:
        raise ConfigError(
            f"{sidecar_path(path)} exists and was not written by vitrail", "move it away, or choose another name"
        )


def _prove(model: Task, copy: ResolvedModel) -> float:
    """Returns the difference of outputs between ``model`` and its copy, which is zero or very small.

    Raises `CheckpointError` if a tensor, a fact or an output of the copy is another one.
    """
    again = read_model(copy, log_nothing).model.eval()
    facts, copied = _collect_facts(model), _collect_facts(again)
    wrong = [name for name in facts if facts[name] != copied[name]]
    tensors, same = model.backbone.state_dict(), again.backbone.state_dict()
    if tensors.keys() == same.keys():
        wrong += [name for name in tensors if not equal_bits(tensors[name], same[name])]
        difference = compare_outputs(model, again)
    else:
        wrong, difference = sorted(tensors.keys() ^ same.keys()), float("nan")
    if wrong or not difference <= TOLERANCE:
        off = f"outputs differ by {difference:.2g} of the largest, {TOLERANCE:g} is allowed"
        shown = f"{len(wrong)} of its parts differ: {', '.join(wrong[:5])}" if wrong else ""
        raise CheckpointError(f"the copy is not the source: {off}", FAULT, value=shown)
    return difference


def _read_alone(model: Task, copy: ResolvedModel) -> tuple[tuple[str, ...], tuple[str, ...], float | None]:
    """Returns what is lost where the copy is read without vitrail's description: numerics, other facts, output difference.

    Raises `CheckpointError` if its outputs are off though nothing is missing.
    """
    try:
        alone = read_model(copy, log_nothing, use_sidecar=False).model.eval()
    except CheckpointError as error:
        return (f"without its description the copy cannot be read: {error.what}",), (), None
    facts, facts_alone = _collect_facts(model), _collect_facts(alone)
    missed = {name for name in facts if facts[name] != facts_alone.get(name)}
    if model.preprocessing.resize == "squash":
        # no side is left to round; and without a crop there is no corner
        missed -= {"preprocessing.rounding"}
        missed -= {"preprocessing.crop_rounding"} if model.preprocessing.resize_to is None else set()
    difference = compare_outputs(model, alone)
    heavy = {name for name in missed if name.startswith("preprocessing.")} - ROUNDINGS
    if difference > TOLERANCE:
        # which of them it is that changes outputs is not known
        heavy |= {name for name in missed if name.startswith("config.")} - RESIZES
    words = {
        name: f"{name.rpartition('.')[2]} {facts[name]}, read as {facts_alone.get(name)}" for name in sorted(missed)
    }
    words |= {"classes": "the names of the classes"} if "classes" in missed else {}
    unsaid = tuple(words[name] for name in words if name in heavy)
    if not difference <= TOLERANCE and not unsaid:
        off = f"outputs read from it differ by {difference:.2g} of the largest"
        raise CheckpointError(f"the layout says all of the model, and yet {off}", FAULT)
    return unsaid, tuple(words[name] for name in words if name not in heavy), difference


def _collect_facts(model: Task) -> dict[str, Any]:
    """Returns all of a description that matters once a model is trained, flat."""
    facts = flatten_description(describe(model))
    return {name: value for name, value in facts.items() if name.removeprefix("config.") not in NOT_ANSWERS}


@torch.inference_mode()
def compare_outputs(one: Task, other: Task) -> float:
    """The largest difference between the outputs for random images at the size of ``one``, as a share of the largest output.

    Outputs are the logits (B, K) and, since those of a new head are all zero, the features that the head reads (B, F).

    Raises `CheckpointError` if those of ``one`` are not finite.
    """
    size, worst = (IMAGES, one.config.in_channels, *one.config.image_size), 0.0
    for seed in range(DRAWS):
        images = torch.randn(size, generator=torch.Generator().manual_seed(seed))  # (B, C, H, W)
        outputs = ((model(images), model.backbone.pool(model.forward_features(images))) for model in (one, other))
        for expected, actual in zip(*outputs):
            if not expected.isfinite().all():
                raise CheckpointError("the outputs of the model are not finite", "convert a model that works")
            share = float((expected - actual).abs().max() / expected.abs().max().clamp(min=SMALLEST))
            worst = share if share > worst or share != share else worst
    return worst


def _describe_model(model: Task) -> str:
    config = model.config
    size, patch = ("x".join(map(str, pair)) for pair in (config.image_size, config.patch_size))
    return f"{config.architecture} of {config.blocks} blocks, {model.width} wide, {size} pixels in patches of {patch}"
