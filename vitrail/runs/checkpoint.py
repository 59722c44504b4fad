"""Atomic checkpoints: a folder per step, written under another name, synced, hashed, renamed and verified.

A checkpoint is ``step-00000120/`` with the tensors, ``state.json``, and ``manifest.json`` that states the size and SHA-256 of the
other files. In format 1, which a single process writes, the tensors are one safetensors file per group; in format 2 they are
``tensors/`` with a safetensors file for each rank (`runs.tensor_shards`). The newest whole checkpoint counts; a damaged one is
named and passed over. Nothing is ever unpickled.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as bytes_from_tensors
from torch import Tensor

from vitrail.checksums import add_checksum, digest_file, hash_file, sha256_of
from vitrail.errors import CheckpointError, DiskError
from vitrail.files import disk_errors, dump_json, free_bytes, parse_checksummed, sync_folder, write_bytes
from vitrail.runtime import fault_injection
from vitrail.runtime.distributed import SINGLE, Ranks

WHOLE, SHARDED = 1, 2  # versions of the format
SHARDS = "tensors"
Facts = dict[str, Any]  # bytes and sha256 of a file
_NAME = re.compile(r"step-(\d{8,})(-evaluated)?")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read: the step, groups of named tensors on the CPU, and the plain state.

    Where several ranks read shards there are no tensors: `shards` is the folder from which each takes its part.
    """

    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]
    path: Path
    refused: tuple[str, ...] = field(default=())

    @property
    def shards(self) -> Path | None:
        """The folder with the tensors of a checkpoint of format 2."""
        folder = self.path / SHARDS
        return folder if folder.is_dir() else None


def save(
    folder: Path,
    step: int,
    tensors: dict[str, dict[str, Tensor]],
    state: dict[str, Any],
    *,
    keep: int,
    evaluated: bool = False,
) -> Path:
    """Writes the checkpoint of ``step``, before or after its evaluation, and retires all but the newest ``keep``.

    A step that was saved before its evaluation is saved again after it, under another name: nothing is ever replaced.

    Raises `DiskError` when the disk is full or refuses; the earlier checkpoints are then as they were.
    """
    final, aside = name_folders(folder, step, evaluated=evaluated)
    if is_whole(final):
        return final
    files = {}
    for group, named in tensors.items():
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in named.items()}
        files[f"{group}.safetensors"] = bytes_from_tensors(whole)
    needed = sum(map(len, files.values()))
    try:
        with disk_errors(final, needed=needed):
            if needed > free_bytes(folder):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            begin(aside)
            for count, (name, content) in enumerate(files.items()):
                write_bytes(aside / name, content)
                if count == 0:
                    fault_injection.hit("checkpoint.after_first_tensors")
            publish(aside, final, state, {name: _digest(content) for name, content in files.items()}, WHOLE)
    except DiskError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    if damage := find_damage(final):
        raise DiskError(f"the checkpoint {final} reads back damaged: {damage}", "check the disk before going on")
    fault_injection.hit("checkpoint.after_verify")
    retire(final, keep)
    return final


def name_folders(folder: Path, step: int, *, evaluated: bool) -> tuple[Path, Path]:
    """The name of the checkpoint of a step, before or after its evaluation, and that under which it is written."""
    name = f"step-{step:08d}{'-evaluated' if evaluated else ''}"
    return folder / name, folder / f".writing-{step:08d}-{os.getpid()}"


def is_whole(checkpoint: Path) -> bool:
    """Whether it is there already: its content is a function of the step and its evaluation."""
    return checkpoint.exists() and not find_damage(checkpoint)


def begin(aside: Path) -> None:
    """Makes the folder in which a checkpoint is written."""
    fault_injection.hit("checkpoint.begin")
    aside.mkdir(parents=True)
    fault_injection.hit("checkpoint.after_folder")


def publish(aside: Path, final: Path, state: dict[str, Any], files: Mapping[str, Facts], version: int) -> None:
    """Completes a checkpoint whose tensors are in ``files`` of the folder ``aside``, and gives it its name."""
    fault_injection.hit("checkpoint.after_tensors")
    content = dump_json(state).encode()
    write_bytes(aside / "state.json", content)
    fault_injection.hit("checkpoint.after_state")
    manifest = add_checksum({"format_version": version, "files": {**files, "state.json": _digest(content)}})
    write_bytes(aside / "manifest.json", dump_json(manifest).encode())
    for each in (*filter(Path.is_dir, aside.iterdir()), aside):
        sync_folder(each)
    fault_injection.hit("checkpoint.after_manifest")
    fault_injection.hit("checkpoint.before_rename")
    if final.exists():
        shutil.rmtree(final)
    os.rename(aside, final)
    sync_folder(final.parent)
    fault_injection.hit("checkpoint.after_rename")


def retire(newest: Path, keep: int) -> None:
    """Removes all but the last ``keep`` checkpoints up to ``newest``, and what killed processes left."""
    moments = list_checkpoints(newest.parent)
    for old in moments[: moments.index(newest) + 1][:-keep]:
        shutil.rmtree(old, ignore_errors=True)
        fault_injection.hit("checkpoint.while_retiring")
    for leftover in newest.parent.glob(".writing-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    fault_injection.hit("checkpoint.end")


def _digest(content: bytes) -> Facts:
    return {"bytes": len(content), "sha256": sha256_of(content)}


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoint folders from the oldest to the newest; those still being written do not count."""
    if not folder.is_dir():
        return []
    by_moment = {
        (int(match[1]), bool(match[2])): path for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))
    }
    return [by_moment[moment] for moment in sorted(by_moment)]


def step_of(checkpoint: Path) -> int:
    """The step that a folder of `list_checkpoints` was saved at."""
    return int(checkpoint.name.split("-")[1])


def find_damage(checkpoint: Path, ranks: Ranks = SINGLE) -> str:
    """Describes what is wrong with the files of a checkpoint; empty if nothing is. Compares sizes and hashes with the manifest.

    Several ranks share the files: each looks at its own part of them.
    """
    try:
        manifest = parse_checksummed((checkpoint / "manifest.json").read_bytes())
        version = manifest["format_version"]
        stated = {name: (facts["bytes"], facts["sha256"]) for name, facts in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"manifest.json cannot be read ({error})"
    if version not in (WHOLE, SHARDED):
        return f"its format version is {version}, this version of vitrail reads {WHOLE} and {SHARDED}"
    own = list(stated.items())[ranks.rank :: ranks.world]
    return next(filter(None, (_compare(checkpoint, name, *facts) for name, facts in own)), "")


def _compare(checkpoint: Path, name: str, stated_bytes: int, stated_sha256: str) -> str:
    """Describes what is wrong with one file of a checkpoint; empty if nothing is."""
    path = checkpoint / name
    try:
        size = path.stat().st_size if path.is_file() else 0
        if size != stated_bytes:
            return f"{name} has {size:,} bytes, its manifest says {stated_bytes:,}"
        return "" if hash_file(path) == stated_sha256 else f"{name} does not match its SHA-256"
    except OSError as error:  # a sector that cannot be read
        return f"{name} cannot be read ({error.strerror})"


def load_newest(folder: Path, ranks: Ranks = SINGLE) -> Checkpoint | None:
    """The newest whole checkpoint, or None where there is none at all. Every rank calls it.

    Damaged ones are passed over and named in ``refused``. Raises `CheckpointError` when all of them are damaged.
    """
    refused: list[str] = []
    for path in reversed(ranks.broadcast(list_checkpoints(folder))):
        found, damage = None, next(filter(None, ranks.gather(find_damage(path, ranks))), "")
        if not damage:
            found, failure = _read(path, ranks)
            damage = next(filter(None, ranks.gather(failure)), "")
        if found is not None and not damage:
            return replace(found, refused=tuple(refused))
        refused.append(f"{path}: {damage}")
    if refused:
        what = f"no whole checkpoint is left in {folder}"
        raise ranks.collective_error(CheckpointError(what, "start again with another --out", value="\n".join(refused)))
    return None


def _read(path: Path, ranks: Ranks) -> tuple[Checkpoint | None, str]:
    """Reads a verified checkpoint; returns (None, reason) if reading fails."""
    try:
        tensors = {} if (path / SHARDS).is_dir() and not ranks.is_single else _read_groups(path)
        return Checkpoint(step_of(path), tensors, json.loads((path / "state.json").read_text()), path), ""
    except OSError as error:
        return None, f"it cannot be read ({error.strerror})"


def _read_groups(checkpoint: Path) -> dict[str, dict[str, Tensor]]:
    """The groups of whole tensors of a checkpoint of either format."""
    if not (checkpoint / SHARDS).is_dir():
        return {file.stem: tensors_from_bytes(file.read_bytes()) for file in sorted(checkpoint.glob("*.safetensors"))}
    from vitrail.runs.tensor_shards import read_whole  # torch's distributed checkpoint takes a moment to load

    groups: dict[str, dict[str, Tensor]] = {}
    for path, tensor in read_whole(checkpoint / SHARDS).items():
        group, _, name = path.partition("/")
        groups.setdefault(group, {})[name] = tensor
    return groups


class BackgroundSaver:
    """Writes checkpoints while the training goes on, one at a time: what a step waits for is a copy of the tensors.

    A single process writes format 1, several ranks write format 2, each its part. They agree in a group of their own, so their
    exchanges do not mix with those of the training; an error of one is that of all, and waits until `wait` raises it.

    Args:
        ranks: the processes that train together; every method but `failed` is called by all of them at the same step.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.apart = replace(ranks, control_group=ranks.checkpoint_group)
        self._stager: Any = None
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def save(
        self,
        folder: Path,
        step: int,
        groups: Mapping[str, Mapping[str, Tensor]],
        state: dict[str, Any],
        *,
        keep: int,
        evaluated: bool = False,
    ) -> None:
        """Copies the tensors of ``groups``, and begins to write them as the checkpoint of ``step``; see `save`.

        It waits for the checkpoint before, and raises what `wait` does.
        """
        self.wait()
        if self.ranks.is_single:
            copies = {
                group: {name: tensor.to("cpu", copy=True) for name, tensor in named.items()}
                for group, named in groups.items()
            }
            self._start(lambda: save(folder, step, copies, state, keep=keep, evaluated=evaluated))
            return
        final, aside = self.ranks.broadcast(name_folders(folder, step, evaluated=evaluated))
        if self.ranks.run_on_rank0(lambda: is_whole(final)):
            return
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions  # it takes a moment to load

        if self._stager is None:  # its memory is kept for the next time
            cuda = torch.cuda.is_available()
            how = StagingOptions(cuda, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=cuda)
            self._stager = DefaultStager(how)
        named = {f"{group}/{name}": tensor for group in groups for name, tensor in groups[group].items()}
        shards = self._stager.stage(named)
        self._start(lambda: self._write_parts(aside, final, shards, state, keep))

    def _start(self, write: Callable[[], object]) -> None:
        def act() -> None:
            try:
                write()
            except BaseException as error:
                self._error = error

        self._thread = Thread(target=act, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def failed(self) -> bool:
        """Whether the checkpoint could not be written, as far as this rank knows."""
        return self._error is not None

    def wait(self) -> None:
        """Waits until the checkpoint is complete. Raises `DiskError` on every rank if one of them could not write it."""
        self.close()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Waits for the thread and leaves its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write_parts(self, aside: Path, final: Path, tensors: Any, state: dict[str, Any], keep: int) -> None:
        from vitrail.runs.tensor_shards import write_shards

        ranks = self.apart

        def make_folder() -> None:
            with disk_errors(final):
                begin(aside)

        def complete() -> None:
            with disk_errors(final):
                publish(aside, final, state, files, SHARDED)

        try:
            ranks.run_on_rank0(make_folder)
            write_shards(aside / SHARDS, tensors, ranks)
            with ranks.share_errors(), disk_errors(final):
                fault_injection.hit("checkpoint.after_first_tensors")
                own = sorted((aside / SHARDS).glob(f"shard-{ranks.rank + 1:05d}-*"))
                digests = {f"{SHARDS}/{path.name}": digest_file(path) for path in own}
            files = {name: facts for part in ranks.gather(digests) for name, facts in part.items()}
            ranks.run_on_rank0(complete)
        except DiskError:
            if ranks.first:
                shutil.rmtree(aside, ignore_errors=True)
            raise
        if ranks.first:
            retire(final, keep)
