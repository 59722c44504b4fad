"""Reading weights of any layout into a model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitrail.runtime.progress import Say
from vitrail.weights.arrays import read_npz
from vitrail.weights.description import KEY, read_sidecar
from vitrail.weights.folders import CONFIG, read_folder
from vitrail.weights.google import read_google
from vitrail.weights.grids import check_grid_is_open
from vitrail.weights.huggingface import FIRST_LAYERS as FIRST_LAYERS_OF_HUGGINGFACE
from vitrail.weights.huggingface import PROCESSOR, read_huggingface
from vitrail.weights.layout import ReadModel, Weights
from vitrail.weights.native import load_model, parse_model_file
from vitrail.weights.network import find_network
from vitrail.weights.onnx import read_onnx
from vitrail.weights.pickled import read_pickle
from vitrail.weights.resolve import ResolvedModel
from vitrail.weights.tensors import read_json, read_tensors
from vitrail.weights.timm import FIRST_LAYERS, read_timm

Size = tuple[int, int]


def read_model(
    resolved: ResolvedModel,
    log: Say,
    *,
    has_names: bool = False,
    stated: Collection[str] = (),
    use_sidecar: bool = True,
    grid: Size | None = None,
    image_size: Size | None = None,
) -> ReadModel:
    """Reads the model from a path found by `resolve_model`.

    Args:
        log: called with a line for everything that the weights do not state and that was assumed.
        has_names: whether class names are given elsewhere, so that missing ones are not reported.
        stated: the values of preprocessing that are given elsewhere, by the names of `Preprocessing.override`.
        use_sidecar: whether to use vitrail's description beside a foreign layout; if not, the file is read as by other tools.
        grid: rows and columns of patches of the table of positions, for weights that do not state them.
        image_size: the input size that is asked for, in pixels. If the table of positions has as many patches, it is taken
            for the grid of weights that do not state it.

    Raises:
        CheckpointError: the weights are damaged or unknown; lists the tensors that do not fit.
        ConfigError: a grid is given, and the weights state it or have none.
    """
    path = resolved.path
    tensors, metadata = read_tensors(path) if resolved.layout == "file" else ({}, {})
    states_size = resolved.layout in ("native folder", "onnx file", "huggingface folder") or KEY in metadata
    if grid is not None and states_size:
        check_grid_is_open(stated=True, has_table=True, path=path)
    if resolved.layout == "native folder":
        return ReadModel(load_model(path), "native")
    if resolved.layout == "onnx file":
        return ReadModel(read_onnx(path), "onnx")
    if KEY in metadata:
        return ReadModel(parse_model_file(tensors, metadata, path), "native")
    sizes = {"grid": grid, "image_size": image_size}
    weights = _read_foreign(resolved, tensors, log, use_sidecar=use_sidecar, **sizes)
    model = weights.build_model(path, log, has_names=has_names, stated=stated)
    return ReadModel(model, weights.layout, weights.unused)


def _read_foreign(
    resolved: ResolvedModel, tensors: dict[str, Tensor], log: Say, *, use_sidecar: bool, **sizes: Size | None
) -> Weights:
    """Reads weights in a foreign layout. ``tensors`` are those of a single file of safetensors."""
    path, layout = resolved.path, resolved.layout
    description = read_sidecar(path) if use_sidecar and layout in ("google file", "file") else None
    if layout == "google file":
        return read_google(read_npz(path), path, description, **sizes)
    config: dict[str, Any] = {}
    if layout == "pickled file":
        tensors = read_pickle(path)
    elif layout != "file":
        # transformers keeps the checksum when it saves a model again
        config = read_json(path / CONFIG, log=log if layout == "huggingface folder" else None)
        if not use_sidecar:
            config.pop(KEY, None)
        tensors = read_folder(path, log=log)
    first_layers = FIRST_LAYERS_OF_HUGGINGFACE if layout == "huggingface folder" else FIRST_LAYERS
    network = find_network(tensors, first_layers, path)
    if network.prefix or network.others or network.wrappers or layout == "pickled file":
        log(f"read     {path.name}: {network.describe()}")
    if layout == "huggingface folder":
        preprocessor = read_json(path / PROCESSOR, log=log) if (path / PROCESSOR).is_file() else {}
        weights = read_huggingface(network.tensors, config, preprocessor, path)
    else:
        weights = read_timm(network.tensors, config, path, config.get(KEY, description), **sizes)
    # by their names in the file
    unused = (*(f"{network.prefix}{name}" for name in weights.unused), *network.unused)
    return replace(weights, unused=unused)
