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
    """Loads a model on the CPU and in evaluation mode. Foreign layouts give a `Classifier`.

    Args:
        model: a run directory, a ``model/`` folder, a ``.safetensors`` file of vitrail or in timm's layout, a folder as
            timm's ``save_for_hf`` or the ``save_pretrained`` of transformers writes it, ``hf:owner/name`` or
            ``hf:owner/name@revision`` for such a folder on the Hugging Face hub, an ``.npz`` as Google saves ViTs, hybrids
            and BiT's ResNets, a pickled checkpoint (.pt, .pth, .bin) in timm's layout, which is opened in a sandboxed
            process, an ``.onnx`` file exported by vitrail, which returns logits and features and runs on the CPU, or
            ``latest``: the newest finished run under ``./runs``. A description ``NAME.json`` that vitrail wrote beside a
            foreign file is used.
        classes_file: a text file with class names, one per line, for weights that have none.
        image_size: pixels, or (height, width); positions are resized by the config's rule.
        in_channels: number of image channels, if different from training; see `vitrail.weights.adapt.fit_first_layer`.
        classes: new classes to train; the head is replaced by a linear layer of zeros.
        preprocessing: values that override those of the weights, as accepted by `Preprocessing.stated`.
        log: called with a line for everything that the weights do not state and that was assumed.

    Raises:
        ConfigError: the model does not exist, or the class names do not fit.
        CheckpointError: damaged or unknown weights; lists the tensors that do not fit, or the formats that are read.
    """
    resolved = resolve_model(model)
    loaded = read_model(resolved, log, has_names=classes_file is not None)
    warn_of_broken(loaded.model.backbone.state_dict(), resolved.path, log)
    task = apply_changes(loaded.model, classes_file, image_size=image_size, in_channels=in_channels, classes=classes)
    if preprocessing:
        task.preprocessing = task.preprocessing.override(**preprocessing)
    return task.eval()
