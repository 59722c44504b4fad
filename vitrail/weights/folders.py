"""The tensors of a folder as Hugging Face's tools write it: whole, in shards under an index, or pickled."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.errors import CheckpointError, ConfigError
from vitrail.weights.pickled import read_pickle
from vitrail.weights.tensors import AGAIN, MOST_TENSORS, printable, read_json, read_tensors

CONFIG = "config.json"
WHOLE, INDEX, PICKLED = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
OF_A_FOLDER = (CONFIG, WHOLE, INDEX, PICKLED)
MOST_SHARDS = 1_000


def read_folder(folder: Path, *, log: Callable[[str], None]) -> dict[str, Tensor]:
    """The tensors of ``folder``, from safetensors where there are any.

    Args:
        log: takes a line on what was taken from a pickled file.

    Raises:
        CheckpointError: there are none, or they are damaged.
    """
    if (folder / INDEX).is_file() and not (folder / WHOLE).is_file():
        return read_sharded(folder)
    if (folder / PICKLED).is_file() and not (folder / WHOLE).is_file():
        return read_pickle(folder / PICKLED, log=log)
    return read_tensors(folder / WHOLE)[0]


def read_sharded(folder: Path) -> dict[str, Tensor]:
    """The tensors of all shards that the index in ``folder`` names, each of which holds what it promises and no more.

    Raises:
        CheckpointError: the index lies: of a file outside the folder, of a tensor that is not there or in another
            shard, or of the size of all.
    """
    index = folder / INDEX
    promised, total = _read_index(index)
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(promised.values())):
        path = _inside(folder, shard)
        shard_tensors, _ = read_tensors(path)
        strange = [name for name in shard_tensors if promised.get(name) != shard]
        if strange:
            other = promised.get(strange[0])
            where = f"promises in {other}" if other else "does not name"
            raise CheckpointError(f"{path} holds {printable(strange[0])!r}, which {index.name} {where}", AGAIN)
        tensors |= shard_tensors
    missing = [name for name in promised if name not in tensors]
    if missing:
        name = missing[0]
        what = f"{index} promises {printable(name)!r} in {promised[name]}, which has no such tensor"
        raise CheckpointError(what, AGAIN)
    size = sum(tensor.nbytes for tensor in tensors.values())
    if total is not None and total != size:
        raise CheckpointError(f"{index} promises {total} bytes, its shards hold {size}", AGAIN)
    return tensors


def _read_index(index: Path) -> tuple[dict[str, str], Any]:
    """The file of each tensor, and the bytes of all where they are stated."""
    described = read_json(index)
    promised, metadata = described.get("weight_map"), described.get("metadata") or {}
    if not isinstance(promised, dict) or not promised or not isinstance(metadata, dict):
        raise CheckpointError(f"{index} names no tensors and their files", AGAIN)
    for shard in promised.values():
        if not isinstance(shard, str) or not _is_plain(shard):
            what = f"{index} names the file {printable(repr(shard))}, which is none of its folder"
            raise CheckpointError(what, "fetch the folder from a source you trust")
    shards = len(set(promised.values()))
    if len(promised) > MOST_TENSORS or shards > MOST_SHARDS:
        what = f"{index} names {len(promised):,} tensors in {shards:,} files"
        raise CheckpointError(what, f"up to {MOST_TENSORS:,} in {MOST_SHARDS:,} are read")
    total = metadata.get("total_size")
    if isinstance(total, bool) or not isinstance(total, int | float | None):
        raise CheckpointError(f"{index} gives the total size as {printable(repr(total))}", AGAIN)
    return promised, total


def _is_plain(name: str) -> bool:
    """The name of a safetensors file, without a way to elsewhere on any system."""
    return name.endswith(".safetensors") and name.isprintable() and not set(name) & set('/\\:*?"<>|')


def _inside(folder: Path, name: str) -> Path:
    """The path of a file of the folder, behind no link that leads out of it."""
    path = folder / name
    # in the hub's cache, models--x/snapshots/revision/name is a link into models--x/blobs
    root = folder.absolute().parents[1] if folder.absolute().parent.name == "snapshots" else folder
    if not path.resolve().is_relative_to(root.resolve()):
        what = f"{path} is a link that leaves its folder, to {path.resolve()}"
        raise CheckpointError(what, "fetch the folder from a source you trust")
    return path


def check_replaceable(folder: Path, names: Collection[str] = (WHOLE, CONFIG)) -> None:
    """Refuses to replace a folder that holds anything but the files of a model. Raises `ConfigError`.

    Args:
        names: of those files.
    """
    files = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if files - set(names) or folder.is_file():
        other = ", ".join(sorted(files - set(names))[:5]) or "it is a file"
        raise ConfigError(f"{folder} is there and is no model folder ({other})", "choose a folder that is new or empty")
