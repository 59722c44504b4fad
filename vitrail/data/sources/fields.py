"""Reads the files of annotation tools, and the sizes, numbers, points and names in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitrail.data.sources.contents import read_file
from vitrail.data.sources.labels import format_label
from vitrail.errors import DataError
from vitrail.images.decode import BadImage
from vitrail.untrusted.numbers import to_real, to_whole


def has_keys(path: Path, keys: Iterable[str], *, without: Iterable[str] = ()) -> bool:
    """Whether all these keys stand in a JSON file, and none of the others; it is not parsed. False if it cannot be read."""
    with suppress(BadImage):
        content = read_file(path)
        found = {key: f'"{key}"'.encode() in content for key in (*keys, *without)}
        return all(found[key] for key in keys) and not any(found[key] for key in without)
    return False


def read_document(path: Path, kind: str, parse: Callable[[bytes], Any], remedy: str = "") -> Any:
    """Reads a file of this ``kind``. Raises `DataError` for one that cannot be read, or if ``parse`` raises `ValueError`."""
    try:
        return parse(read_file(path))
    except BadImage as error:
        raise DataError(f"{path} cannot be read: {error}", "check the file") from error
    except ValueError as error:
        raise DataError(f"{path} is no valid {kind}: {error}", remedy or "export the annotations again") from error


def read_size(height: Any, width: Any) -> tuple[int, int]:
    """Reads the (height, width) of a picture from its annotation; 0 if not stated. Raises `ValueError` unless whole numbers."""
    return to_whole(height or 0, "the height of a picture"), to_whole(width or 0, "the width of a picture")


def read_numbers(values: Any, count: int, what: str) -> tuple[float, ...]:
    """Reads a list of ``count`` numbers. Raises `ValueError` for anything else."""
    if not isinstance(values, list | tuple) or len(values) != count or any(isinstance(each, bool) for each in values):
        raise ValueError(f"{what} is {values!s:.80}, not {count} numbers")
    return tuple(to_real(value, what) for value in values)


def read_points(values: Any) -> list[tuple[float, float]]:
    """Reads pairs of numbers [[x, y], ...]. Raises `ValueError` for anything else."""
    if not isinstance(values, list):
        raise ValueError(f"points are {values!s:.80}, not pairs of numbers")
    return [(x, y) for x, y in (read_numbers(point, 2, "a point of points") for point in values)]


def read_name(value: Any, what: str = "the label") -> str:
    """Reads the name of a class. Raises `ValueError` for anything else than text or a number."""
    name = "" if isinstance(value, dict | list | bool) else format_label(value)
    if not name:
        raise ValueError(f"{what} is {value!s:.80}")
    return name
