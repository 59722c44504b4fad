"""Reading weights of any layout into a model."""

from __future__ import annotations

from collections.abc import Collection

from vitrail.runtime.progress import Say
from vitrail.weights.arrays import read_npz
from vitrail.weights.description import KEY, read_sidecar
from vitrail.weights.folders import CONFIG, read_folder
from vitrail.weights.google import read_google
from vitrail.weights.huggingface import PROCESSOR, read_huggingface
from vitrail.weights.layout import ReadModel, Weights
from vitrail.weights.native import load_model, parse_model_file
from vitrail.weights.onnx import read_onnx
from vitrail.weights.pickled import read_pickle
from vitrail.weights.resolve import ResolvedModel
from vitrail.weights.tensors import read_json, read_tensors
from vitrail.weights.timm import read_timm


def read_model(
    resolved: ResolvedModel,
    log: Say,
    *,
    has_names: bool = False,
    stated: Collection[str] = (),
    use_sidecar: bool = True,
) -> ReadModel:
    """Reads the model from a path found by `resolve_model`.

    Args:
        log: called with a line for everything that the weights do not state and that was assumed.
        has_names: whether class names are given elsewhere, so that missing ones are not reported.
        stated: the values of preprocessing that are given elsewhere, by the names of `Preprocessing.override`.
        use_sidecar: whether to use vitrail's description beside a foreign layout; if not, the file is read as by other tools.

    Raises:
        CheckpointError: the weights are damaged or unknown; lists the tensors that do not fit.
    """
    path = resolved.path
    if resolved.layout == "native folder":
        return ReadModel(load_model(path), "native")
    if resolved.layout == "onnx file":
        return ReadModel(read_onnx(path), "onnx")
    if resolved.layout == "file":
        tensors, metadata = read_tensors(path)
        if KEY in metadata:
            return ReadModel(parse_model_file(tensors, metadata, path), "native")
        weights = read_timm(tensors, {}, path, read_sidecar(path) if use_sidecar else None)
    else:
        weights = _read_foreign(resolved, log, use_sidecar=use_sidecar)
    model = weights.build_model(path, log, has_names=has_names, stated=stated)
    return ReadModel(model, weights.layout, weights.unused)


def _read_foreign(resolved: ResolvedModel, log: Say, *, use_sidecar: bool) -> Weights:
    """Reads weights in a foreign layout."""
    path = resolved.path
    if resolved.layout == "pickled file":
        return read_timm(read_pickle(path, log=log), {}, path)
    if resolved.layout == "google file":
        return read_google(read_npz(path), path, read_sidecar(path) if use_sidecar else None)
    # transformers keeps the checksum when it saves a model again
    is_lenient = resolved.layout == "huggingface folder"
    config = read_json(path / CONFIG, log=log if is_lenient else None)
    if not use_sidecar:
        config.pop(KEY, None)
    tensors = read_folder(path, log=log)
    if resolved.layout == "timm folder":
        return read_timm(tensors, config, path, config.get(KEY))
    preprocessor = read_json(path / PROCESSOR, log=log) if (path / PROCESSOR).is_file() else {}
    return read_huggingface(tensors, config, preprocessor, path)
