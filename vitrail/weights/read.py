"""Reading weights of any layout into a model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

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
from vitrail.weights.network import Network, find_network
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
    path, sizes = resolved.path, {"grid": grid, "image_size": image_size}
    if grid is not None and resolved.layout in ("native folder", "onnx file", "huggingface folder"):
        check_grid_is_open(stated=True, has_table=True, path=path)
    if resolved.layout == "native folder":
        return ReadModel(load_model(path), "native")
    if resolved.layout == "onnx file":
        return ReadModel(read_onnx(path), "onnx")
    if resolved.layout == "file":
        tensors, metadata = read_tensors(path)
        if KEY in metadata and grid is not None:
            check_grid_is_open(stated=True, has_table=True, path=path)
        if KEY in metadata:
            return ReadModel(parse_model_file(tensors, metadata, path), "native")
        network = _find_network(tensors, FIRST_LAYERS, resolved, log)
        weights = read_timm(network.tensors, {}, path, read_sidecar(path) if use_sidecar else None, **sizes)
        weights = _with_unused(weights, network)
    else:
        weights = _read_foreign(resolved, log, use_sidecar=use_sidecar, **sizes)
    model = weights.build_model(path, log, has_names=has_names, stated=stated)
    return ReadModel(model, weights.layout, weights.unused)


def _read_foreign(
    resolved: ResolvedModel, log: Say, *, use_sidecar: bool, grid: Size | None, image_size: Size | None
) -> Weights:
    """Reads weights in a foreign layout."""
    path, sizes = resolved.path, {"grid": grid, "image_size": image_size}
    if resolved.layout == "pickled file":
        network = _find_network(read_pickle(path), FIRST_LAYERS, resolved, log)
        return _with_unused(read_timm(network.tensors, {}, path, **sizes), network)
    if resolved.layout == "google file":
        return read_google(read_npz(path), path, read_sidecar(path) if use_sidecar else None, **sizes)
    # transformers keeps the checksum when it saves a model again
    is_lenient = resolved.layout == "huggingface folder"
    config = read_json(path / CONFIG, log=log if is_lenient else None)
    if not use_sidecar:
        config.pop(KEY, None)
    tensors = read_folder(path, log=log)
    if resolved.layout == "timm folder":
        network = _find_network(tensors, FIRST_LAYERS, resolved, log)
        return _with_unused(read_timm(network.tensors, config, path, config.get(KEY), **sizes), network)
    preprocessor = read_json(path / PROCESSOR, log=log) if (path / PROCESSOR).is_file() else {}
    network = _find_network(tensors, FIRST_LAYERS_OF_HUGGINGFACE, resolved, log)
    return _with_unused(read_huggingface(network.tensors, config, preprocessor, path), network)


def _find_network(tensors: dict[str, Tensor], first: Collection[str], resolved: ResolvedModel, log: Say) -> Network:
    """Finds the network by its first layer, and logs what was chosen of a checkpoint that has more than it."""
    network = find_network(tensors, first, resolved.path)
    if network.prefix or network.others or network.wrappers or resolved.layout == "pickled file":
        log(f"read     {resolved.path.name}: {network.describe()}")
    return network


def _with_unused(weights: Weights, network: Network) -> Weights:
    """Adds the tensors outside of the network to those that it does not use, all by their names in the file."""
    inside = tuple(f"{network.prefix}{name}" for name in weights.unused)
    return replace(weights, unused=(*inside, *network.unused))
