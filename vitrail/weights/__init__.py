"""Weights: whatever MODEL names becomes a `Classifier`; name tables of foreign layouts both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.runtime.progress import Say, to_stderr
from vitrail.tasks.classification import Classifier
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
) -> Classifier:
    """The classifier that ``model`` names, on the CPU and ready to predict.

    Args:
        model: a run directory, a ``model/`` folder, a ``.safetensors`` file of vitrail or in timm's layout, a folder as
            timm's ``save_for_hf`` or the ``save_pretrained`` of transformers writes it, ``hf:owner/name`` or
            ``hf:owner/name@revision`` for such a folder on the Hugging Face hub, an ``.npz`` as Google saves ViTs, hybrids
            and BiT's ResNets, a pickled checkpoint (.pt, .pth, .bin) in timm's layout, which a process of its own opens, an
            ``.onnx`` that vitrail exported, which gives answers and features and runs on the CPU, or ``latest``: the newest
            finished run under ``./runs``. What vitrail wrote beside a file of a foreign layout, in ``NAME.json``, holds.
        classes_file: a text file that names the outputs, one a line; for weights that carry no names.
        image_size: pixels, or (height, width), to use it at; positions are resized by the config's rule.
        in_channels: of other images than it was trained on; see `vitrail.weights.adapt.fit_first_layer`.
        classes: other classes to train it for; the head is then one linear layer of zeros.
        preprocessing: what is known better than the weights tell, as `Preprocessing.stated` takes it.
        log: takes each line on what the weights do not say and was assumed.

    Raises:
        ConfigError: there is nothing of that name; names that do not fit.
        CheckpointError: damaged or foreign weights; says which tensors do not fit, or which formats are read.
    """
    resolved = resolve_model(model)
    loaded = read_model(resolved, log, has_names=classes_file is not None)
    warn_of_broken(loaded.classifier.backbone.state_dict(), resolved.path, log)
    classifier = apply_changes(
        loaded.classifier, classes_file, image_size=image_size, in_channels=in_channels, classes=classes
    )
    if preprocessing:
        classifier.preprocessing = classifier.preprocessing.stated(**preprocessing)
    return classifier.eval()
