"""The SHA-256 of the files of an export in a file beside it, NAME.sha256: exports are read by software that verifies none.

The format is that of ``sha256sum``, which compares them too: ``sha256sum --check NAME.sha256``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from vitrail.checksums import hash_file
from vitrail.errors import CheckpointError
from vitrail.files import replace_file

_LINE = re.compile(r"([0-9a-f]{64})  ([^/\\\n]+)\n")
AGAIN = "copy the export again with the files beside it, or export the model again"


def write_sums(path: Path, files: Iterable[Path]) -> None:
    """Writes the SHA-256 of the ``files`` of the export ``path``, which is one of them, beside it. Raises `DiskError`."""
    # the export last: a list that was cut off does not have it
    names = sorted((file.name for file in files), key=lambda name: (name == path.name, name))
    lines = [f"{_hash(path.with_name(name))}  {name}\n" for name in names]
    replace_file(sums_of(path), "".join(lines))


def verify_sums(export: Path) -> dict[str, str]:
    """Compares the files of an export with the SHA-256 beside it, and returns these by file name.

    Raises:
        CheckpointError: a file is missing or was changed, or there is no valid .sha256 beside the export.
    """
    path = export.expanduser()
    try:
        lines = sums_of(path).read_bytes().decode("utf-8", "replace").splitlines(keepends=True)
    except OSError as error:
        what = f"{sums_of(path)} cannot be read: {error.strerror}"
        raise CheckpointError(what, "`vitrail export` writes it; copy it with the export") from error
    sums = {found[2]: found[1] for line in lines if (found := _LINE.fullmatch(line))}
    if len(sums) < len(lines) or path.name not in sums:
        raise CheckpointError(f"{sums_of(path)} is damaged, or is that of another file", AGAIN)
    for name, sha256 in sums.items():
        if _hash(path.with_name(name)) != sha256:
            what = f"{path.with_name(name)} was changed after vitrail wrote it: it does not match its SHA-256"
            raise CheckpointError(what, AGAIN)
    return sums


def sums_of(path: Path) -> Path:
    """The file beside an export that has its SHA-256."""
    return path.with_name(f"{path.name}.sha256")


def _hash(path: Path) -> str:
    try:
        return hash_file(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}", AGAIN) from error
