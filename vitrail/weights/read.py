"""From a place of weights to a classifier, whatever the layout."""

from __future__ import annotations

from vitrail.runtime.progress import Say
from vitrail.weights.arrays import read_npz
from vitrail.weights.description import KEY, read_sidecar
from vitrail.weights.folders import CONFIG, read_folder
from vitrail.weights.google import read_google
from vitrail.weights.huggingface import PROCESSOR, read_huggingface
from vitrail.weights.layout import Loaded, Weights
from vitrail.weights.native import from_single_file, load_model
from vitrail.weights.onnx import read_onnx
from vitrail.weights.pickled import read_pickle
from vitrail.weights.resolve import ResolvedModel
from vitrail.weights.tensors import read_json, read_tensors
from vitrail.weights.timm import read_timm


def read(found: ResolvedModel, log: Say, *, named: bool = False, alone: bool = False) -> Loaded:
    """The classifier that lies there.

    Args:
        log: takes each line on what the weights do not say and was assumed.
        named: the outputs get their names elsewhere, so that none need be missed here.
        alone: a foreign layout is read as others read it, without what vitrail wrote beside it.

    Raises:
        CheckpointError: damaged or foreign weights; lists the tensors that do not fit.
    """
    held = _held(found, log, alone=alone)
    if isinstance(held, Loaded):
        return held
    return Loaded(held.classifier(found.path, log, named=named), held.layout, held.unused)


def _held(found: ResolvedModel, log: Say, *, alone: bool) -> Loaded | Weights:
    """A model of our own, or what a foreign layout holds."""
    path = found.path
    match found.layout:
        case "native folder":
            return Loaded(load_model(path), "native")
        case "timm folder":
            told = read_json(path / CONFIG)
            return read_timm(read_folder(path, log=log), told, path, None if alone else told.get(KEY))
        case "huggingface folder":
            told = {name: value for name, value in read_json(path / CONFIG).items() if not (alone and name == KEY)}
            preprocessor = read_json(path / PROCESSOR) if (path / PROCESSOR).is_file() else {}
            return read_huggingface(read_folder(path, log=log), told, preprocessor, path)
        case "pickled file":
            return read_timm(read_pickle(path, log=log), {}, path)
        case "onnx file":
            return Loaded(read_onnx(path), "onnx")
        case "google file":
            return read_google(read_npz(path), path, None if alone else read_sidecar(path))
    tensors, metadata = read_tensors(path)
    if KEY in metadata:
        return Loaded(from_single_file(tensors, metadata, path), "native")
    return read_timm(tensors, {}, path, None if alone else read_sidecar(path))
