"""Reading and writing weights in all known layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.runtime.progress import Say, to_stderr
from vitrail.tasks import Task
from vitrail.weights.adapt import adapt as adapt
from vitrail.weights.adapt import apply_changes
from vitrail.weights.read import read_model
from vitrail.weights.resolve import resolve_model
from vitrail.weights.tensors import warn_of_broken


def load(
    model: str | Path,
    *,
    classes_file: str | Path | None = None,
    image_size: int | tuple[int, int] | None = None,
    in_channels: int | None = None,
    classes: Sequence[str] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    log: Say = to_stderr,
) -> Task:
    """Loads a model, a `Classifier` for all but vitrail's own files of other tasks, on the CPU and in evaluation mode.

    Args:
        model: a run directory, a ``model/`` folder, a ``.safetensors`` file of vitrail or in timm's layout, a folder as
            timm's ``save_for_hf`` or the ``save_pretrained`` of transformers writes it, ``hf:owner/name`` or
            ``hf:owner/name@revision`` for such a folder on the Hugging Face hub, an ``.npz`` as Google saves ViTs, hybrids
            and BiT's ResNets, a pickled checkpoint (.pt, .pth, .bin) in timm's layout, which a process of its own opens, an
            ``.onnx`` that vitrail exported, which gives logits and features and runs on the CPU, or ``latest``: the newest
            finished run under ``./runs``. A description that vitrail wrote beside a foreign file, ``NAME.json``, is used.
        classes_file: a text file with class names, one per line, for weights that have none.
        image_size: pixels, or (height, width); positions are resized by the config's rule.
        in_channels: of the images, if other than in training; see `vitrail.weights.adapt.fit_first_layer`.
        classes: other classes, to train for; the head is then a linear layer of zeros.
        preprocessing: values that override those of the weights, as `Preprocessing.stated` takes them.
        log: takes a line for everything that the weights do not state and was assumed.

    Raises:
        ConfigError: no such model; class names that do not fit.
        CheckpointError: damaged or unknown weights; lists the tensors that do not fit, or the formats that are read.
    """
    resolved = resolve_model(model)
    loaded = read_model(resolved, log, has_names=classes_file is not None)
    warn_of_broken(loaded.model.backbone.state_dict(), resolved.path, log)
    task = apply_changes(loaded.model, classes_file, image_size=image_size, in_channels=in_channels, classes=classes)
    if preprocessing:
        task.preprocessing = task.preprocessing.override(**preprocessing)
    return task.eval()
