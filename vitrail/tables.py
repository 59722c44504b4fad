"""Writes tables row by row, in constant memory: CSV, JSON lines, Parquet."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from vitrail.errors import ConfigError, VitrailError
from vitrail.files import disk_errors, move_files, settle, stage_file, stage_folder
from vitrail.text import escape_formula

Write = Callable[[dict[str, Any]], Any]  # writes a row


@contextmanager
def open_table(out: Path | None, kind: str | None = None, columns: Mapping[str, type] | None = None) -> Iterator[Write]:
    """Opens a CSV, JSON lines or Parquet table, by ``kind`` or the file extension; writes to stdout without ``out``.

    The file is renamed to its final name when it is complete. Raises `ConfigError` for an unknown kind, and `DiskError`.

    Args:
        columns: the type of each column, str, float, bool or np.ndarray, for Parquet; by default that of its first values.
    """
    kind = kind or (out.suffix.lstrip(".").lower() if out else "csv")
    if kind not in TABLES:
        raise ConfigError(f"unknown table format {kind!r}", f"use a file name that ends in .{', .'.join(TABLES)}")
    if out is None:
        if kind == "parquet":
            raise ConfigError("a Parquet table cannot be written to stdout", "give --out predictions.parquet")
        with TABLES[kind](sys.stdout, columns) as write:
            yield write
        return

    def write_guarded(row: dict[str, Any]) -> None:
        with disk_errors(out):
            write(row)

    settle(out)
    mode, encoding, newline = ("wb", None, None) if kind == "parquet" else ("w", "utf-8", "")
    broken: OSError | None = None
    with stage_file(out) as beside:
        with (
            disk_errors(out),
            open(beside, mode, encoding=encoding, newline=newline) as file,
            TABLES[kind](file, columns) as write,
        ):
            try:
                yield write_guarded
            except OSError as error:  # raised by the producer of the rows, not by the table
                broken = error
        if broken is not None:
            raise broken


@contextmanager
def _csv(file: TextIO, columns: Mapping[str, type] | None) -> Iterator[Write]:
    writer: csv.DictWriter | None = None

    def write(row: dict[str, Any]) -> None:
        nonlocal writer
        if writer is None:
            writer = csv.DictWriter(file, fieldnames=list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow({name: escape_formula(cell) if isinstance(cell, str) else cell for name, cell in row.items()})

    yield write


@contextmanager
def _json_lines(file: TextIO, columns: Mapping[str, type] | None) -> Iterator[Write]:
    yield lambda row: file.write(json.dumps(row, ensure_ascii=False, default=round_numbers) + "\n")


@contextmanager
def _parquet(file: Any, columns: Mapping[str, type] | None, rows_a_group: int = 1024) -> Iterator[Write]:
    pyarrow = import_pyarrow()
    held: list[dict[str, Any]] = []
    writer: Any = None

    def flush() -> None:
        nonlocal writer
        if writer is None:
            if columns is None:
                found = pyarrow.Table.from_pylist(held).schema
                known = [each.with_type(pyarrow.string()) if each.type == pyarrow.null() else each for each in found]
            else:
                types = {
                    **{str: pyarrow.string(), float: pyarrow.float64(), bool: pyarrow.bool_()},
                    np.ndarray: pyarrow.list_(pyarrow.float32()),
                }
                known = [(name, types[kind]) for name, kind in columns.items()]
            writer = pyarrow.parquet.ParquetWriter(file, pyarrow.schema(known))
        writer.write_table(pyarrow.Table.from_pylist(held, schema=writer.schema))
        held.clear()

    def write(row: dict[str, Any]) -> None:
        held.append(row)
        # columns of unknown types get them from the first group, which must have a value in each
        if len(held) >= rows_a_group and (columns or writer or None not in row.values()):
            flush()

    yield write
    if held or columns:
        flush()
    if writer is not None:
        writer.close()


def import_pyarrow(fault: type[VitrailError] = ConfigError) -> Any:
    """pyarrow with its Parquet. Raises the ``fault`` if it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as missing:
        raise fault("Parquet needs pyarrow", "pip install 'vitrail[data]'") from missing
    return pyarrow


TABLES: dict[str, Any] = {"csv": _csv, "jsonl": _json_lines, "parquet": _parquet}


def round_numbers(values: np.ndarray) -> list[float]:
    """Numbers (D,) as text tables have them."""
    return [round(value, 6) for value in values.tolist()]


def save_array(out: Path, array: np.ndarray) -> None:
    """Replaces a ``.npy`` file atomically. Raises `DiskError`."""
    with stage_file(out) as beside, disk_errors(out), open(beside, "wb") as file:
        np.save(file, array)


def write_features(out: Path, features: Iterator[tuple[str, np.ndarray]]) -> str:
    """Writes (key, features (D,)) pairs in the format of the file extension; returns a line that describes the output.

    ``.npy`` holds an array (N, D), with the keys in ``<out>.txt``. Tables have a column ``path`` and one list or D columns.
    """
    if out.suffix.lower() == ".npy":
        pairs = list(features)
        array = np.stack([row for _, row in pairs]) if pairs else np.zeros((0, 0), np.float32)
        keys = "".join(f"{key}\n" for key, _ in pairs).encode()
        # both take their places or neither: features beside the paths of others would be taken for theirs
        with stage_folder(out, {f"{out.name}.txt": keys}) as aside:
            save_array(aside / out.name, array)
            move_files(out, aside)
        return f"{array.shape[0]} x {array.shape[1]} features in {out}, paths in {out}.txt"
    count = 0
    flat = out.suffix.lower() == ".csv"
    with open_table(out) as write:
        for key, row in features:
            count += 1
            values = round_numbers(row)
            spread = {f"f{place}": value for place, value in enumerate(values)} if flat else {"features": values}
            write({"path": key, **spread})
    return f"features of {count} images in {out}"
