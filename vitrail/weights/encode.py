"""Encoding a model as the files of a layout, the counterpart of `read`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.checksums import add_checksum, sha256_of
from vitrail.errors import ConfigError
from vitrail.files import dump_json
from vitrail.tasks import Classifier, Task
from vitrail.tasks.queries.task import QueryTask
from vitrail.weights.description import KEY, describe, sidecar_path
from vitrail.weights.folders import CONFIG, WHOLE
from vitrail.weights.google import to_google, to_npz
from vitrail.weights.huggingface import PROCESSOR, to_huggingface
from vitrail.weights.native import collect_tensors, encode_file, encode_folder
from vitrail.weights.tensors import encode_tensors
from vitrail.weights.timm import as_timm


@dataclass(frozen=True)
class EncodedModel:
    """The files of a model in some layout by name, and whether one of them is vitrail's sidecar.

    They are written into a folder, or beside each other if the destination is a file, which is the last entry.
    """

    files: Mapping[str, bytes]
    sidecar: bool = False


def encode_native(model: Task, path: Path) -> EncodedModel:
    """Encodes a model folder, or a file with the description in its header."""
    description = describe(model)
    if path.suffix == ".safetensors":
        return EncodedModel({path.name: encode_file(model, description)})
    return EncodedModel(encode_folder(collect_tensors(model), description))


def encode_google(model: Task, path: Path) -> EncodedModel:
    """Encodes an .npz as Google's code writes it, and a sidecar with everything that it cannot express."""
    if path.suffix != ".npz":
        what = f"{path} does not end in .npz, as files in Google's layout do"
        raise ConfigError(what, "choose a name that ends in .npz")
    classifier = check_classifier(model)
    content = to_npz(to_google(classifier.config, classifier.backbone.state_dict()))
    return _add_sidecar(classifier, path, content)


def encode_timm(model: Task, path: Path) -> EncodedModel:
    """Encodes a folder as timm's ``save_for_hf`` writes it, or the tensors alone with a sidecar."""
    classifier = check_classifier(model)
    tensors, config = as_timm(classifier)
    content = encode_tensors({name: tensor.contiguous() for name, tensor in tensors.items()}, {"format": "pt"})
    if path.suffix == ".safetensors":
        return _add_sidecar(classifier, path, content)
    return EncodedModel({WHOLE: content, CONFIG: _seal({**config, KEY: describe(classifier)})})


def encode_huggingface(model: Task, path: Path) -> EncodedModel:
    """Encodes a folder as transformers' ``save_pretrained`` writes it."""
    folder = to_huggingface(model if isinstance(model, QueryTask) else check_classifier(model))
    content = encode_tensors(folder.tensors, {"format": "pt"})
    return EncodedModel({WHOLE: content, CONFIG: _seal(folder.config), PROCESSOR: _seal(folder.preprocessor)})


def check_classifier(model: Task) -> Classifier:
    """Returns the model if it is a classifier. Raises `ConfigError` for other tasks, which foreign layouts do not support."""
    if not isinstance(model, Classifier):
        what = f"a model of the task {model.name} can only be written in vitrail's own layout"
        raise ConfigError(what, "give --to native")
    return model


def _add_sidecar(classifier: Classifier, path: Path, content: bytes) -> EncodedModel:
    # the description is written first: it is refused beside other weights, but weights without it would be accepted
    description = {**describe(classifier), "sha256": sha256_of(content)}
    return EncodedModel({sidecar_path(path).name: _seal(description), path.name: content}, sidecar=True)


def _seal(document: Mapping[str, Any]) -> bytes:
    return dump_json(add_checksum(document)).encode()


ENCODERS: dict[str, Callable[[Task, Path], EncodedModel]] = {
    "native": encode_native,
    "google": encode_google,
    "timm": encode_timm,
    "huggingface": encode_huggingface,
}
