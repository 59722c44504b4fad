"""Reads and writes .npz files. Files are untrusted: nothing is unpickled, and sizes are checked before memory is allocated."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from vitrail.errors import CheckpointError
from vitrail.untrusted.archives import ObjectArrayError, check_expansion, read_array_member
from vitrail.untrusted.limits import EXPANSION as MAX_EXPANSION
from vitrail.weights.tensors import AGAIN, MOST_TENSORS, printable, unreadable


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Reads the arrays of an .npz file by name. bf16, which NumPy does not support, is converted to fp32.

    Raises:
        CheckpointError: the file is missing or damaged, holds objects, or declares more data than it has.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            if len(members) < len(archive.infolist()):
                raise CheckpointError(f"{path} contains two arrays of the same name", AGAIN)
            if len(members) > MOST_TENSORS:
                raise CheckpointError(f"{path} holds {len(members):,} arrays", f"up to {MOST_TENSORS:,} are read")
            check_expansion(archive, path.stat().st_size, MAX_EXPANSION)
            return {name: _read(archive, member, path) for name, member in members.items()}
    except CheckpointError:
        raise
    except OSError as error:
        raise unreadable(path, error) from error
    except Exception as error:  # zipfile and NumPy's header parser raise many types
        raise CheckpointError(f"{path} is not a valid .npz file: {printable(error, 200)}", AGAIN) from error


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> np.ndarray:
    try:
        array = read_array_member(archive, member)
    except ObjectArrayError as error:
        what = f"{path}: {printable(member.filename)} holds objects, not numbers"
        raise CheckpointError(what, "objects are never unpickled; give an .npz of weights") from error
    if array.dtype != np.dtype("V2"):
        return array
    # JAX saves bf16 as two raw bytes
    return (np.ascontiguousarray(array).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def to_npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Returns the bytes of an .npz file. They depend on the arrays only, not on the time."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                npy.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
    return whole.getvalue()
