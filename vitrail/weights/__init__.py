"""Weights: whatever MODEL names becomes a `Classifier`; name tables of foreign layouts both ways."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.data.images import Preprocessing
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import configure
from vitrail.tasks.classification import Classifier, check_classes
from vitrail.weights.arrays import read_npz
from vitrail.weights.find import find
from vitrail.weights.folders import read_folder
from vitrail.weights.google import from_google
from vitrail.weights.native import KEY, from_single_file, load_model
from vitrail.weights.pickled import read_pickle
from vitrail.weights.tensors import filled_backbone, read_json, read_tensors
from vitrail.weights.timm import ACTIVATIONS, from_timm, preprocessing_of

Log = Callable[[str], None]


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def load(
    model: str | Path,
    *,
    classes_file: str | Path | None = None,
    image_size: int | tuple[int, int] | None = None,
    classes: Sequence[str] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    log: Log = to_stderr,
) -> Classifier:
    """The classifier that ``model`` names, on the CPU and ready to predict.

    Args:
        model: a run directory, a ``model/`` folder, a ``.safetensors`` file of vitrail or in timm's layout, a folder as
            timm's ``save_for_hf`` writes it, ``hf:owner/name`` or ``hf:owner/name@revision`` for such a folder on the
            Hugging Face hub, an ``.npz`` as Google saves ViTs, a pickled checkpoint (.pt, .pth, .bin) in timm's layout,
            which a process of its own opens, or ``latest``: the newest finished run under ``./runs``.
        classes_file: a text file that names the outputs, one a line; for weights that carry no names.
        image_size: pixels, or (height, width), to use it at; positions are resized by the config's rule.
        classes: other classes to train it for; the head is then one linear layer of zeros.
        preprocessing: what is known better than the weights tell, as `Preprocessing.stated` takes it.
        log: takes each line on what the weights do not say and was assumed.

    Raises:
        ConfigError: there is nothing of that name; names that do not fit.
        CheckpointError: damaged or foreign weights; says which tensors do not fit, or which formats are read.
    """
    found = find(model)
    if found.layout == "native folder":
        classifier = load_model(found.path)
    elif found.layout == "timm folder":
        described = read_json(found.path / "config.json")
        tensors = read_folder(found.path, log=log)
        classifier = _from_timm(tensors, described, found.path, log, named=classes_file is not None)
    elif found.layout == "pickled file":
        tensors = read_pickle(found.path, log=log)
        classifier = _from_timm(tensors, {}, found.path, log, named=classes_file is not None)
    elif found.layout == "google file":
        classifier = _from_google(found.path, log, named=classes_file is not None)
    else:
        tensors, metadata = read_tensors(found.path)
        if KEY in metadata:
            classifier = from_single_file(tensors, metadata, found.path)
        else:
            classifier = _from_timm(tensors, {}, found.path, log, named=classes_file is not None)
    if classes_file is not None:
        classifier.classes = read_classes(Path(classes_file), outputs=len(classifier.classes))
    if classes is not None or image_size is not None:
        classifier = adapt(classifier, classes=classes, image_size=image_size)
    if preprocessing:
        classifier.preprocessing = classifier.preprocessing.stated(**preprocessing)
    return classifier.eval()


def adapt(
    start: Classifier,
    *,
    classes: Sequence[str] | None = None,
    image_size: int | tuple[int, int] | None = None,
    multi_label: bool | None = None,
    **changes: Any,
) -> Classifier:
    """A new classifier with the weights of ``start``, for training it further; in training mode.

    Args:
        classes: what it is to tell apart. Other names than before get a zero head (paper, appendix B.1.1), the same names
            keep theirs; either way its calibration is forgotten.
        image_size: pixels, or (height, width); positions are resized by the config's rule, and the resize before the
            crop in proportion.
        multi_label: by default as before.
        changes: other fields of the config that leave its tensors as they are, such as ``drop_path=0.1``.

    Raises:
        ConfigError: a field or value that cannot be meant.
        CheckpointError: lists the tensors that the changed config needs otherwise.
    """
    multi_label = start.multi_label if multi_label is None else multi_label
    size = start.config.image_size if image_size is None else image_size
    config = configure(start.config, image_size=size, **changes)
    tensors = start.backbone.resized(start.backbone.state_dict(), start.config, config)
    backbone = filled_backbone(config, tensors, "the checkpoint")
    names = start.classes if classes is None else check_classes(classes, outputs=len(classes))
    if (names, multi_label) != (start.classes, start.multi_label):
        backbone.new_head(len(names))
    return Classifier(
        backbone,
        names,
        start.preprocessing.at(config.image_size),
        multi_label=multi_label,
        temperature=start.temperature if classes is None else 1.0,
        provenance=start.provenance,
    )


def read_classes(file: Path, *, outputs: int) -> tuple[str, ...]:
    """The names in a text file, one a line, in the order of the outputs. Raises `ConfigError` where they do not fit."""
    try:
        names = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the class names in {file} cannot be read: {error}", "give a text file, one name a line"
        ) from error
    return check_classes([name for name in names if name], outputs=outputs)


def _from_timm(
    tensors: dict[str, Tensor], described: Mapping[str, Any], path: Path, log: Log, *, named: bool
) -> Classifier:
    """A classifier from timm's tensors and config.json, saying what was assumed."""
    arguments = described.get("model_args") or {}
    if not isinstance(arguments, Mapping) or str(arguments.get("act_layer", "gelu")) not in ACTIVATIONS:
        what = f"{path} has model_args that are not known here: {str(arguments)[:200]}"
        raise CheckpointError(what, f"act_layer may be {' or '.join(ACTIVATIONS)}")
    heads, gelu = arguments.get("num_heads"), ACTIVATIONS[arguments.get("act_layer", "gelu")]
    config, state = from_timm(tensors, path, heads=heads, gelu=gelu, pool=described.get("global_pool"))
    preprocessing, assumed = preprocessing_of(described, config, path)
    names = described.get("label_names")
    if not isinstance(names, list) or len(names) != config.classes:
        names = _numbered(config.classes, path, log, named=named)
    if "act_layer" not in arguments:
        assumed.insert(0, "exact GELU")
    log(
        f"assumed  timm's layout: {', '.join([*assumed, f'LayerNorm eps {config.norm_eps:g}', f'{config.heads} heads'])}"
    )
    backbone = filled_backbone(config, state, path)
    return Classifier(backbone, names, preprocessing, provenance={"weights": path.name, "layout": "timm"})


def _from_google(path: Path, log: Log, *, named: bool) -> Classifier:
    """A classifier from Google's arrays, which say nothing but the weights: all else is as in the paper's code."""
    config, state = from_google(read_npz(path), path)
    names = _numbered(config.classes, path, log, named=named)
    preprocessing = Preprocessing.paper(config.image_size, channels=config.in_channels)
    size = "x".join(map(str, config.image_size))
    log(f"assumed  Google's layout: tanh GELU, LayerNorm eps {config.norm_eps:g}, images of {size} scaled to [-1, 1]")
    backbone = filled_backbone(config, state, path)
    return Classifier(backbone, names, preprocessing, provenance={"weights": path.name, "layout": "google"})


def _numbered(classes: int, path: Path, log: Log, *, named: bool) -> list[str]:
    """Numbers for names, saying so unless names are given elsewhere."""
    if classes and not named:
        log(f"assumed  {path.name} carries no class names: its outputs are numbered from 0 (--classes FILE names them)")
    return [str(number) for number in range(classes)]
