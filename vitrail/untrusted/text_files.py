"""Text files of unknown origin: lists of names, labels and paths."""

from __future__ import annotations

import codecs
import os

from vitrail.untrusted.limits import LIST_BYTES
from vitrail.untrusted.regular import open_regular

UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def decode_text(content: bytes) -> str:
    """Decodes UTF-8, with or without a byte order mark, or UTF-16 with one. Raises `ValueError` for anything else."""
    return content.decode(detect_encoding(content))


def detect_encoding(head: bytes) -> str:
    """Returns the encoding of a text by its first two bytes: UTF-16 with a byte order mark, or UTF-8 with or without one."""
    return "utf-16" if head.startswith(UTF_16) else "utf-8-sig"


def read_text(path: str | os.PathLike[str], most: int = LIST_BYTES) -> str:
    """Reads a text file as `decode_text` does. Raises `OSError`, and `ValueError` for a file of more than ``most`` bytes."""
    with open_regular(path, most) as file:
        return decode_text(file.read())
