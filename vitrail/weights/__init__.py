"""Weights: whatever MODEL names becomes a `Classifier`; name tables of foreign layouts both ways."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.errors import ConfigError
from vitrail.tasks.classification import Classifier, check_classes
from vitrail.weights.adapt import adapt as adapt
from vitrail.weights.arrays import read_npz
from vitrail.weights.find import Found, find
from vitrail.weights.folders import read_folder
from vitrail.weights.google import read_google
from vitrail.weights.layout import Log, Weights
from vitrail.weights.native import KEY, from_single_file, load_model
from vitrail.weights.pickled import read_pickle
from vitrail.weights.tensors import read_json, read_tensors
from vitrail.weights.timm import read_timm


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
            Hugging Face hub, an ``.npz`` as Google saves ViTs, hybrids and BiT's ResNets, a pickled checkpoint (.pt, .pth,
            .bin) in timm's layout, which a process of its own opens, or ``latest``: the newest finished run under
            ``./runs``.
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
    held = _read(found, log)
    named = classes_file is not None
    classifier = held.classifier(found.path, log, named=named) if isinstance(held, Weights) else held
    _warn_of_broken(classifier, found.path, log)
    if classes_file is not None:
        classifier.classes = read_classes(Path(classes_file), outputs=len(classifier.classes))
    if classes is not None or image_size is not None:
        classifier = adapt(classifier, classes=classes, image_size=image_size)
    if preprocessing:
        classifier.preprocessing = classifier.preprocessing.stated(**preprocessing)
    return classifier.eval()


def _read(found: Found, log: Log) -> Classifier | Weights:
    """A model of our own, or what a foreign layout holds."""
    path = found.path
    match found.layout:
        case "native folder":
            return load_model(path)
        case "timm folder":
            return read_timm(read_folder(path, log=log), read_json(path / "config.json"), path)
        case "pickled file":
            return read_timm(read_pickle(path, log=log), {}, path)
        case "google file":
            return read_google(read_npz(path), path)
    tensors, metadata = read_tensors(path)
    return from_single_file(tensors, metadata, path) if KEY in metadata else read_timm(tensors, {}, path)


def _warn_of_broken(classifier: Classifier, path: Path, log: Log) -> None:
    """Says where numbers are none: such weights are whole and can be looked into, but not used."""
    broken = [name for name, tensor in classifier.backbone.state_dict().items() if not tensor.isfinite().all()]
    if broken:
        log(
            f"warning  {path.name}: NaN or infinity in {len(broken)} tensors, such as {broken[0]}: answers mean nothing"
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
