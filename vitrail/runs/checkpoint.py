"""Atomic checkpoints: a folder per step, written under another name, synced, hashed, renamed and verified.

A checkpoint is ``step-00000120/`` with one safetensors file per group of tensors, ``state.json``, and ``manifest.json`` that
states the size and SHA-256 of the others. The newest whole one counts; a damaged one is named and passed over. Nothing is
ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as bytes_from_tensors
from torch import Tensor

from vitrail.checksums import seal, sha256_of
from vitrail.errors import CheckpointError, DiskError
from vitrail.files import disk_errors, dump_json, free_bytes, parse_sealed, sync_folder, write_bytes
from vitrail.runtime import fault_injection

FORMAT_VERSION = 1
_NAME = re.compile(r"step-(\d{8,})(-evaluated)?")


@dataclass(frozen=True)
class Checkpoint:
    """What was read back: the step, groups of named tensors on the CPU, and the plain state."""

    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]
    path: Path
    refused: tuple[str, ...] = field(default=())


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
    final = folder / f"step-{step:08d}{'-evaluated' if evaluated else ''}"
    aside = folder / f".writing-{step:08d}-{os.getpid()}"
    if final.exists() and not find_damage(final):
        return final  # the state is a function of the step and its evaluation, so this is the same checkpoint
    files = {f"{group}.safetensors": _serialise(named) for group, named in tensors.items()}
    needed = sum(map(len, files.values()))
    if needed > free_bytes(folder):
        with disk_errors(final, needed=needed):
            raise OSError(28, "No space left on device")
    try:
        with disk_errors(final, needed=needed):
            _write_aside(aside, files, state)
            fault_injection.hit("checkpoint.before_rename")
            if final.exists():
                shutil.rmtree(final)
            os.rename(aside, final)
            sync_folder(folder)
            fault_injection.hit("checkpoint.after_rename")
    except DiskError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    if damage := find_damage(final):
        raise DiskError(f"the checkpoint {final} reads back damaged: {damage}", "check the disk before going on")
    fault_injection.hit("checkpoint.after_verify")
    moments = list_checkpoints(folder)
    for old in moments[: moments.index(final) + 1][:-keep]:
        shutil.rmtree(old, ignore_errors=True)
        fault_injection.hit("checkpoint.while_retiring")
    for leftover in folder.glob(".writing-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    fault_injection.hit("checkpoint.end")
    return final


def _serialise(named: dict[str, Tensor]) -> bytes:
    return bytes_from_tensors({name: tensor.detach().cpu().contiguous() for name, tensor in named.items()})


def _write_aside(aside: Path, files: dict[str, bytes], state: dict[str, Any]) -> None:
    fault_injection.hit("checkpoint.begin")
    aside.mkdir(parents=True)
    fault_injection.hit("checkpoint.after_folder")
    for count, (name, content) in enumerate(files.items()):
        write_bytes(aside / name, content)
        if count == 0:
            fault_injection.hit("checkpoint.after_first_tensors")
    fault_injection.hit("checkpoint.after_tensors")
    files = {**files, "state.json": dump_json(state).encode()}
    write_bytes(aside / "state.json", files["state.json"])
    fault_injection.hit("checkpoint.after_state")
    stated = {name: {"bytes": len(content), "sha256": sha256_of(content)} for name, content in files.items()}
    manifest = seal({"format_version": FORMAT_VERSION, "files": stated})
    write_bytes(aside / "manifest.json", dump_json(manifest).encode())
    sync_folder(aside)
    fault_injection.hit("checkpoint.after_manifest")


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


def find_damage(checkpoint: Path) -> str:
    """What is wrong with the files of a checkpoint, in words, or nothing: sizes and hashes against the manifest."""
    try:
        manifest = parse_sealed((checkpoint / "manifest.json").read_bytes())
        version = manifest["format_version"]
        stated = {name: (facts["bytes"], facts["sha256"]) for name, facts in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"manifest.json cannot be read ({error})"
    if version != FORMAT_VERSION:
        return f"its format version is {version}, this version of vitrail reads {FORMAT_VERSION}"
    for name, (stated_bytes, stated_sha256) in stated.items():
        path = checkpoint / name
        size = path.stat().st_size if path.is_file() else 0
        if size != stated_bytes:
            return f"{name} has {size:,} bytes, its manifest says {stated_bytes:,}"
        with open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != stated_sha256:
                return f"{name} does not match its SHA-256"
    return ""


def load_newest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint, or None where there is none at all.

    Damaged ones are passed over and named in ``refused``. Raises `CheckpointError` when all of them are damaged.
    """
    refused: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        if damage := find_damage(path):
            refused.append(f"{path}: {damage}")
            continue
        tensors = {file.stem: tensors_from_bytes(file.read_bytes()) for file in sorted(path.glob("*.safetensors"))}
        return Checkpoint(step_of(path), tensors, json.loads((path / "state.json").read_text()), path, tuple(refused))
    if refused:
        raise CheckpointError(
            f"no whole checkpoint is left in {folder}", "start again with another --out", value="\n".join(refused)
        )
    return None
