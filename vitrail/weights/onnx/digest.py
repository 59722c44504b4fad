"""The hash of an .onnx file and of the files beside it that hold its weights."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from vitrail.checksums import ONNX_BYTES, onnx_checksum, read_onnx_checksum, sha256_of
from vitrail.errors import CheckpointError
from vitrail.weights.description import hash_file
from vitrail.weights.onnx.contents import read_contents
from vitrail.weights.tensors import AGAIN, unreadable


def read_digest(path: Path, *external: Path) -> str:
    """Returns the SHA-256 of an .onnx file and of the files with its weights.

    Raises:
        CheckpointError: a file was changed after vitrail wrote it, or cannot be read.
    """
    hashed, end = _hash_to_end(path)
    checksum = read_onnx_checksum(end)
    if checksum not in (None, _join(hashed.hexdigest(), *external)):
        what = f"{path} was changed after vitrail wrote it: its content does not match its SHA-256"
        raise CheckpointError(what, AGAIN)
    hashed.update(end)
    return _join(hashed.hexdigest(), *external)


def seal_onnx(path: Path) -> None:
    """Appends the checksum of a file, and of the files with its weights, as the last entry of its metadata."""
    _, *external = read_contents(path).list_files(path)
    digest = _join(hash_file(path), *external)
    with open(path, "ab") as file:
        file.write(onnx_checksum(digest))


def _join(digest: str, *external: Path) -> str:
    return sha256_of("".join([digest, *map(hash_file, external)]).encode()) if external else digest


def _hash_to_end(path: Path) -> tuple[Any, bytes]:
    """Returns the hash object of all but the last `ONNX_BYTES`, and those bytes, so that a file is read once."""
    hashed = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            rest = os.fstat(file.fileno()).st_size - ONNX_BYTES
            while rest > 0 and (piece := file.read(min(rest, 2**20))):
                hashed.update(piece)
                rest -= len(piece)
            return hashed, file.read()
    except OSError as error:
        raise unreadable(path, error) from error
