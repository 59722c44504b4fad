"""Reading and writing weights in all known layouts; and the two ways to a model, `load` and `create_model`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import ConfigError
from vitrail.models import Config, configure
from vitrail.runtime.progress import LogFunction, to_stderr
from vitrail.tasks import Classifier, Task, create_task, find_task
from vitrail.tasks.task import list_names
from vitrail.weights.adapt import adapt as adapt
from vitrail.weights.adapt import apply_changes
from vitrail.weights.hub import list_hashes
from vitrail.weights.public import find_public, find_repository
from vitrail.weights.read import read_model
from vitrail.weights.resolve import resolve_model
from vitrail.weights.tensors import warn_of_broken


def load(
    model: str | Path,
    *,
    classes_file: str | Path | None = None,
    image_size: int | tuple[int, int] | None = None,
    grid: tuple[int, int] | None = None,
    in_channels: int | None = None,
    classes: Sequence[str] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
    log: LogFunction = to_stderr,
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
        grid: rows and columns of patches of the table of positions, for weights that do not state them. By default those of
            ``image_size`` if the table has as many patches, otherwise a square.
        in_channels: number of image channels, if different from training; see `vitrail.weights.adapt.fit_first_layer`.
        classes: new classes to train; the head is replaced by a linear layer of zeros.
        preprocessing: values that override those of the weights, as accepted by `Preprocessing.override`.
        log: called with a line for everything that the weights do not state and that was assumed.

    Raises:
        ConfigError: the model does not exist, or the class names do not fit.
        CheckpointError: damaged or unknown weights; lists the tensors that do not fit, or the formats that are read.
    """
    resolved = resolve_model(model)
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    named = classes_file is not None
    loaded = read_model(resolved, log, has_names=named, stated=preprocessing or (), grid=grid, image_size=size)
    warn_of_broken(loaded.model.backbone.state_dict(), resolved.path, log)
    changes = {"image_size": image_size, "in_channels": in_channels, "classes": classes}
    return apply_changes(loaded.model, classes_file, preprocessing, **changes).eval()


def create_model(
    name: str | Config,
    *,
    pretrained: bool | str = False,
    classes: int | Sequence[str] | None = None,
    preprocessing: Preprocessing | None = None,
    multi_label: bool = False,
    task: str = "classification",
    arguments: Mapping[str, Any] | None = None,
    log: LogFunction = to_stderr,
    **changes: Any,
) -> Task:
    """A model in training mode, freshly initialised or with public weights; by default a `Classifier`.

    Args:
        name: a name of `vitrail.MODELS`, or a config.
        pretrained: True for the default public weights of the model, or the tag of others, such as
            "augreg-in21k-ft-in1k"; `vitrail.list_models` lists them. They are downloaded from the Hugging Face hub once.
        classes: the names of the outputs, or their number. With pretrained weights these get a new head of zeros; by
            default the head of the weights is kept. Without weights the default is 1,000.
        preprocessing: by default that of the weights, else the paper's, at the model's image size.
        multi_label: an image may have several classes.
        task: "classification", "segmentation" or "detection"; the last two require ``classes``, and have a new head.
        arguments: further arguments of the task, such as ``{"head": "linear"}`` of `vitrail.tasks.Segmenter`.
        log: called with a line for the origin of weights, and for everything that they do not state.
        changes: fields of the model's config, such as ``image_size=384``, ``in_channels=5`` or ``drop_path=0.1``; positions
            and the first layer of pretrained weights are adapted as by `vitrail.load`.

    Raises:
        ConfigError: an unknown model, field or tag, with the nearest names; a value that cannot be meant.
        CheckpointError: the weights cannot be downloaded, or are damaged.
    """
    kind, arguments = find_task(task, arguments or {}), dict(arguments or {})
    if kind is Classifier:
        arguments |= {"multi_label": True} if multi_label else {}
    elif classes is None or multi_label:
        raise ConfigError(f"the task {task} takes names of classes, and no multi_label", 'classes = ["cat", "dog"]')
    if classes is not None or not pretrained:
        arguments["classes"] = list_names(1000 if classes is None else classes)
    if not pretrained:
        return create_task(kind, name, arguments, preprocessing=preprocessing, **changes)
    if not isinstance(name, str):
        raise ConfigError("pretrained weights for a config", "give the name of a model, such as 'vit-b16'")
    if public := find_repository(name):
        what, tag = f"{name!r} is not the name of a model here", public.tag
        raise ConfigError(what, f"its weights are create_model({public.model!r}, pretrained={tag!r})")
    configure(name, **changes)  # an unknown name or field is refused before anything is downloaded
    public = find_public(name, None if pretrained is True else pretrained)
    log(f"weights  {public.source}, licence {public.licence}")
    resolved = resolve_model(public.source)
    for file, digest in list_hashes(resolved.path).items():
        log(f"SHA-256  {digest}  {file}")
    start = read_model(resolved, log, has_names=classes is not None).model
    warn_of_broken(start.backbone.state_dict(), resolved.path, log)
    model = adapt(start, task=kind, arguments=arguments or None, **changes)
    if preprocessing is not None:
        model.preprocessing = preprocessing
    return model
