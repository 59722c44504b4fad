"""Reading the tensors of a folder in Hugging Face's format: one file, or shards with an index; safetensors or pickled."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.errors import CheckpointError, ConfigError
from vitrail.text import printable
from vitrail.weights.pickled import read_pickle
from vitrail.weights.tensors import AGAIN, MAX_TENSORS, read_json, read_tensors

CONFIG = "config.json"
WHOLE, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX, PICKLED_INDEX = f"{WHOLE}.index.json", f"{PICKLED}.index.json"
OPEN_CLIP_CONFIG, OPEN_CLIP = "open_clip_config.json", "open_clip_model.safetensors"
PEFT_CONFIG, PEFT = "adapter_config.json", "adapter_model.safetensors"
OF_A_FOLDER = (CONFIG, WHOLE, INDEX, PICKLED, PICKLED_INDEX)
# variants, such as model.fp16.safetensors; the index of their shards is model.safetensors.index.fp16.json
VARIANTS = tuple(
    re.compile(pattern, re.ASCII)
    for pattern in (
        r"model\.(\w+)\.safetensors",
        r"model\.safetensors\.index\.(\w+)\.json",
        r"pytorch_model\.(\w+)\.bin",
        r"pytorch_model\.bin\.index\.(\w+)\.json",
    )
)
MAX_SHARDS, MAX_LISTED = 1_000, 8


def read_folder(folder: Path, *, log: Callable[[str], None]) -> dict[str, Tensor]:
    """Reads the tensors of ``folder``. Safetensors are preferred to pickled files, and all of these to variants.

    Args:
        log: called with a line if the weights are a variant.

    Raises:
        CheckpointError: there are no tensors, several variants, or they are damaged.
    """
    for name in (WHOLE, INDEX, PICKLED, PICKLED_INDEX):
        if (folder / name).is_file():
            return _read_file(folder / name)
    names = sorted(path.name for path in folder.iterdir())
    variants = {name: match[1] for pattern in VARIANTS for name in names if (match := pattern.fullmatch(name))}
    if not variants:
        listed = ", ".join(printable(name) for name in names[:MAX_LISTED])
        what = f"{folder} has a {CONFIG}, but no weights that can be read: it contains {listed}"
        raise CheckpointError(what, f"fetch {WHOLE}, or save the model again with save_pretrained")
    if len(set(variants.values())) > 1:
        what = f"{folder} has several variants of its weights: {', '.join(variants)}"
        raise CheckpointError(what, f"rename one of them to {WHOLE}")
    name, kind = next(iter(variants.items()))
    log(f"read     {name}: the variant {kind!r} of the weights")
    return _read_file(folder / name)


def _read_file(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".json":
        return read_sharded(path)
    return read_tensors(path)[0] if path.suffix == ".safetensors" else read_pickle(path)


def read_sharded(index: Path) -> dict[str, Tensor]:
    """Reads the tensors of all shards in an index. Each shard must contain exactly the tensors listed for it.

    Raises:
        CheckpointError: the index names a file outside the folder, a tensor that is missing or in another shard, or a
            wrong total size.
    """
    promised, total = _read_index(index)
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(promised.values())):
        path = _inside(index.parent, shard)
        shard_tensors = _read_file(path)
        strange = next((name for name in shard_tensors if promised.get(name) != shard), None)
        if strange is not None:
            where = f"lists in {promised[strange]}" if strange in promised else "does not list"
            raise CheckpointError(f"{path} contains {printable(strange)!r}, which {index.name} {where}", AGAIN)
        tensors |= shard_tensors
    if (name := next((name for name in promised if name not in tensors), None)) is not None:
        what = f"{index} lists {printable(name)!r} in {promised[name]}, which does not contain it"
        raise CheckpointError(what, AGAIN)
    size = sum(tensor.nbytes for tensor in tensors.values())
    # shards of pickled files may share memory, which counts once there
    if total is not None and total != size and all(name.endswith(".safetensors") for name in promised.values()):
        raise CheckpointError(f"{index} declares {total} bytes, but its shards contain {size}", AGAIN)
    return tensors


def _read_index(index: Path) -> tuple[dict[str, str], Any]:
    """Returns the file of each tensor, and the total size in bytes, if stated."""
    described = read_json(index)
    ending = ".safetensors" if index.name.startswith(WHOLE) else ".bin"
    promised, metadata = described.get("weight_map"), described.get("metadata") or {}
    if not isinstance(promised, dict) or not promised or not isinstance(metadata, dict):
        raise CheckpointError(f"{index} has no valid weight_map", AGAIN)
    for shard in promised.values():
        # a plain name, without the path separators of any system
        is_name = isinstance(shard, str) and shard.isprintable() and not set(shard) & set('/\\:*?"<>|')
        if not is_name or not shard.endswith(ending):
            what = f"{index} lists {printable(repr(shard))}, which is not a file name in its folder"
            raise CheckpointError(what, "fetch the folder from a source you trust")
    shards = len(set(promised.values()))
    if len(promised) > MAX_TENSORS or shards > MAX_SHARDS:
        what = f"{index} lists {len(promised):,} tensors in {shards:,} files"
        raise CheckpointError(what, f"at most {MAX_TENSORS:,} tensors in {MAX_SHARDS:,} files are supported")
    total = metadata.get("total_size")
    if isinstance(total, bool) or not isinstance(total, int | float | None):
        raise CheckpointError(f"{index} has the invalid total size {printable(repr(total))}", AGAIN)
    return promised, total


def _inside(folder: Path, name: str) -> Path:
    """Returns the path of a file of the folder. Raises `CheckpointError` for a link that leaves the folder."""
    path = folder / name
    # in the hub's cache, models--x/snapshots/revision/name is a link into models--x/blobs
    root = folder.absolute().parents[1] if folder.absolute().parent.name == "snapshots" else folder
    if not path.resolve().is_relative_to(root.resolve()):
        what = f"{path} is a link that leaves its folder, to {path.resolve()}"
        raise CheckpointError(what, "fetch the folder from a source you trust")
    return path


def check_replaceable(folder: Path, names: Collection[str] = (WHOLE, CONFIG)) -> None:
    """Raises `ConfigError` if a folder to be replaced contains anything but the files of a model.

    Args:
        names: names of the files of a model.
    """
    files = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if files - set(names) or folder.is_file():
        other = ", ".join(sorted(files - set(names))[:5]) or "it is a file"
        raise ConfigError(f"{folder} exists and is not a model folder ({other})", "choose a new or empty folder")
