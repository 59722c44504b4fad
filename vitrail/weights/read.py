"""Reading weights of any layout into a model, from one network among the tensors of a checkpoint."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.hub import REMOTE
from vitrail.runtime.progress import LogFunction
from vitrail.text import plural, printable
from vitrail.weights.description import KEY, read_sidecar
from vitrail.weights.folders import CONFIG, OPEN_CLIP, OPEN_CLIP_CONFIG, read_folder
from vitrail.weights.google import read_google, read_npz
from vitrail.weights.huggingface import FIRST_LAYERS as FIRST_LAYERS_OF_HUGGINGFACE
from vitrail.weights.huggingface import PROCESSOR, read_huggingface
from vitrail.weights.layout import ReadModel, Weights
from vitrail.weights.names import rename
from vitrail.weights.native import load_model, parse_model_file
from vitrail.weights.onnx import read_onnx
from vitrail.weights.openvino import read_openvino
from vitrail.weights.peft import PeftAdapter, read_peft
from vitrail.weights.pickled import read_pickle
from vitrail.weights.public import find_repository
from vitrail.weights.resolve import GRAPH_FILES, ResolvedModel, resolve_model
from vitrail.weights.shapes import check_grid_allowed
from vitrail.weights.tensors import AGAIN, read_json, read_tensors
from vitrail.weights.timm import FIRST_LAYERS, read_timm
from vitrail.weights.timm.openclip import FIRST_LAYERS as FIRST_LAYERS_OF_OPEN_CLIP
from vitrail.weights.timm.openclip import TRUNK, read_open_clip

Size = tuple[int, int]
ADAPTED = ("huggingface folder", "timm folder", "file", "pickled file")  # with the names that adapters have
SIZED = ("native folder", *GRAPH_FILES, "huggingface folder", "open_clip folder")  # state their image size


def read_model(
    resolved: ResolvedModel,
    log: LogFunction,
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
    adapter = None
    if resolved.layout == "peft folder":
        adapter = read_peft(resolved.path)
        resolved = resolve_model(adapter.base if Path(adapter.base).exists() else f"{REMOTE}{adapter.base}")
        log(f"read     {adapter.path.name}: {plural(len(adapter.updates), 'layer')} of {resolved.origin} adapted")
    path = resolved.path
    tensors, metadata = read_tensors(path) if resolved.layout == "file" else ({}, {})
    states_size = resolved.layout in SIZED or KEY in metadata
    if grid is not None and states_size:
        check_grid_allowed(stated=True, has_table=True, path=path)
    if adapter is not None and (KEY in metadata or resolved.layout not in ADAPTED):
        what = f"{adapter.path} adapts {path}, which is not in the layout of transformers or timm"
        raise CheckpointError(what, "convert it, or give the model that the adapter was trained with")
    if resolved.layout == "native folder":
        return ReadModel(load_model(path), "native")
    if resolved.layout == "onnx file":
        return ReadModel(read_onnx(path), "onnx")
    if resolved.layout == "openvino file":
        return ReadModel(read_openvino(path), "openvino")
    if KEY in metadata:
        return ReadModel(parse_model_file(tensors, metadata, path), "native")
    sizes = {"grid": grid, "image_size": image_size}
    weights = _read_foreign(resolved, tensors, log, use_sidecar=use_sidecar, adapter=adapter, **sizes)
    name = resolved.origin if resolved.origin.startswith(REMOTE) else path.name
    if find_repository(name):  # what it does not state is known
        weights, has_names = replace(weights, assumed=()), True
    model = weights.build_model(path, log, has_names=has_names, stated=stated, name=name)
    return ReadModel(model, weights.layout, weights.unused)


def _read_foreign(
    resolved: ResolvedModel,
    tensors: dict[str, Tensor],
    log: LogFunction,
    *,
    use_sidecar: bool,
    adapter: PeftAdapter | None = None,
    **sizes: Size | None,
) -> Weights:
    """Reads weights in a foreign layout. ``tensors`` are those of a single file of safetensors; ``adapter`` is added to them."""
    path, layout = resolved.path, resolved.layout
    description = read_sidecar(path) if use_sidecar and layout in ("google file", "file") else None
    if layout == "google file":
        return read_google(read_npz(path), path, description, **sizes)
    config: dict[str, Any] = {}
    if layout == "pickled file":
        tensors = read_pickle(path)
    elif layout == "open_clip folder":
        config = read_json(path / OPEN_CLIP_CONFIG)
        tensors = rename(read_tensors(path / OPEN_CLIP)[0], TRUNK)
    elif layout != "file":
        # transformers keeps the checksum when it saves a model again
        config = read_json(path / CONFIG, log=log if layout == "huggingface folder" else None)
        if not use_sidecar:
            config.pop(KEY, None)
        tensors = read_folder(path, log=log)
    others = {"huggingface folder": FIRST_LAYERS_OF_HUGGINGFACE, "open_clip folder": FIRST_LAYERS_OF_OPEN_CLIP}
    first_layers = others.get(layout, FIRST_LAYERS)
    network = find_network(tensors, first_layers, path)
    if adapter is not None:
        network = replace(network, tensors=adapter.add_to(network.tensors))
    if network.prefix or network.others or network.wrappers or layout == "pickled file":
        log(f"read     {path.name}: {network.describe()}")
    if layout == "huggingface folder":
        preprocessor = read_json(path / PROCESSOR, log=log) if (path / PROCESSOR).is_file() else {}
        weights = read_huggingface(network.tensors, config, preprocessor, path)
    elif layout == "open_clip folder":
        weights = read_open_clip(network.tensors, config, path)
    else:
        weights = read_timm(network.tensors, config, path, config.get(KEY, description), **sizes)
    # by their names in the file
    unused = (*(f"{network.prefix}{name}" for name in weights.unused), *network.unused)
    return replace(weights, unused=unused)


# modules that torch.compile, FSDP, activation checkpointing and DeepSpeed put around others; they may stand anywhere in a name
WRAPPERS = re.compile(r"(?<![^.])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\.")
AVERAGED = frozenset({"state_dict_ema", "model_ema", "ema_model", "ema"})
# of several networks an averaged one is preferred, then one whose name says nothing of this, then these, in this order
LATER = ("teacher", "student", "momentum", "target", "encoder_k")
MAX_NAMED = 3


@dataclass(frozen=True)
class Network:
    """One network of a checkpoint.

    Args:
        tensors: its tensors, without the prefix.
        prefix: the beginning of their names in the checkpoint, such as ``teacher.backbone.``.
        others: the prefixes of other networks.
        unused: the names of all tensors outside of the network.
        wrappers: names of modules around others that were removed from the names.
    """

    tensors: dict[str, Tensor]
    prefix: str = ""
    others: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()

    def describe(self) -> str:
        """Describes what was chosen, for a line in the log."""
        text = f"{len(self.tensors)} tensors" + (f" under {printable(self.prefix)!r}" if self.prefix else "")
        text += f", without {', '.join(map(repr, self.wrappers))}" if self.wrappers else ""
        shown = [repr(printable(other)) for other in self.others[:MAX_NAMED]]
        more = ", ..." if len(self.others) > MAX_NAMED else ""
        return text + (f", not those under {', '.join(shown)}{more}" if shown else "")


def find_network(tensors: Mapping[str, Tensor], anchors: Collection[str], path: Path) -> Network:
    """Finds the network whose first layer has one of the names ``anchors``, with any prefix. Wrappers' names are removed.

    Of several networks that with averaged weights is taken, or else the first by the order of `LATER`, or else the one
    with the most tensors. Without any, all tensors are returned.

    Raises:
        CheckpointError: two tensors have the same name without the wrappers, or two networks could be meant.
    """
    state: dict[str, Tensor] = {}
    wrappers: set[str] = set()
    for name, tensor in tensors.items():
        wrappers.update(WRAPPERS.findall(name))
        plain = WRAPPERS.sub("", name)
        if plain in state:
            raise CheckpointError(f"{path} contains {printable(plain)!r} twice, with and without a wrapper", AGAIN)
        state[plain] = tensor
    found = {name[: -len(anchor)] for name in state for anchor in anchors if f".{name}".endswith(f".{anchor}")}
    prefixes: list[str] = []  # those that are in no other one: what is within a network is a part of it
    for prefix in sorted(found):
        if not prefixes or not prefix.startswith(prefixes[-1]):
            prefixes.append(prefix)
    if not prefixes:
        return Network(state, wrappers=tuple(sorted(wrappers)))
    order, names = list(state), sorted(state)
    place = {at: (_rank(at), bisect_left(names, at) - bisect_left(names, f"{at}\U0010ffff")) for at in prefixes}
    best, *others = sorted(prefixes, key=place.__getitem__)
    alike = [repr(printable(each)) for each in prefixes if place[each] == place[best]][:MAX_NAMED]
    if len(alike) > 1:
        raise CheckpointError(f"{path} holds several networks, under {', '.join(alike)}", "save the one that is meant")
    return Network(
        {name.removeprefix(best): state[name] for name in order if name.startswith(best)},
        prefix=best,
        others=tuple(others),
        unused=tuple(name for name in order if not name.startswith(best)),
        wrappers=tuple(sorted(wrappers)),
    )


def _rank(prefix: str) -> int:
    parts = prefix.split(".")
    if not AVERAGED.isdisjoint(parts):
        return -1
    words = (index for index, word in enumerate(LATER, 1) if any(part.startswith(word) for part in parts))
    return max(words, default=0)
