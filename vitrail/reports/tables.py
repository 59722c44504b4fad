"""Writes tables row by row, in constant memory: CSV, JSON lines, Parquet."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np

from vitrail.data.sources.bad_images import escape_formula
from vitrail.errors import ConfigError
from vitrail.files import disk_errors


class Table(Protocol):
    """A table that rows are written to."""

    def write(self, row: dict[str, Any]) -> None: ...


@contextmanager
def open_table(out: Path | None, kind: str | None = None) -> Iterator[Table]:
    """Opens a CSV, JSON lines or Parquet table, by ``kind`` or the file extension; writes to stdout without ``out``.

    The file is renamed to its final name when it is complete. Raises `ConfigError` for an unknown kind, and `DiskError`.
    """
    kind = kind or (out.suffix.lstrip(".").lower() if out else "csv")
    if kind not in TABLES:
        raise ConfigError(f"unknown table format {kind!r}", f"use a file name that ends in .{', .'.join(TABLES)}")
    if out is None:
        if kind == "parquet":
            raise ConfigError("a Parquet table cannot be written to stdout", "give --out predictions.parquet")
        with TABLES[kind](sys.stdout) as table:
            yield table
        return
    beside = out.with_name(f".{out.name}.partial")
    encoding, newline = (None, None) if kind == "parquet" else ("utf-8", "")
    broken: OSError | None = None
    try:
        with (
            disk_errors(out),
            open(beside, "wb" if kind == "parquet" else "w", encoding=encoding, newline=newline) as file,
            TABLES[kind](file) as table,
        ):
            try:
                yield _Guarded(table, out)
            except OSError as error:  # raised by the producer of the rows, not by the table
                broken = error
        if broken is not None:
            raise broken
        with disk_errors(out):
            beside.replace(out)
    finally:
        with suppress(OSError):  # missing after success, or in a folder that does not exist
            beside.unlink()


class _Guarded:
    """Converts errors of writing to `DiskError`; errors of the producer of the rows are left unchanged."""

    def __init__(self, table: Table, out: Path) -> None:
        self.table, self.out = table, out

    def write(self, row: dict[str, Any]) -> None:
        with disk_errors(self.out):
            self.table.write(row)


@contextmanager
def _csv(file: TextIO) -> Iterator[Table]:
    yield _CsvTable(file)


class _CsvTable:
    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.writer: csv.DictWriter | None = None

    def write(self, row: dict[str, Any]) -> None:
        if self.writer is None:
            self.writer = csv.DictWriter(self.file, fieldnames=list(row), lineterminator="\n")
            self.writer.writeheader()
        self.writer.writerow(
            {name: escape_formula(value) if isinstance(value, str) else value for name, value in row.items()}
        )


@contextmanager
def _json_lines(file: TextIO) -> Iterator[Table]:
    class Lines:
        def write(self, row: dict[str, Any]) -> None:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    yield Lines()


@contextmanager
def _parquet(file: Any, rows_a_group: int = 1024) -> Iterator[Table]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as missing:
        raise ConfigError("writing Parquet needs pyarrow", "pip install 'vitrail[data]'") from missing
    held: list[dict[str, Any]] = []
    writer: Any = None

    def flush() -> None:
        nonlocal writer
        if not held:
            return
        if writer is None:
            schema = pyarrow.Table.from_pylist(held).schema
            known = [each if each.type != pyarrow.null() else each.with_type(pyarrow.string()) for each in schema]
            writer = pyarrow.parquet.ParquetWriter(file, pyarrow.schema(known))
        writer.write_table(pyarrow.Table.from_pylist(held, schema=writer.schema))
        held.clear()

    class Groups:
        def write(self, row: dict[str, Any]) -> None:
            held.append(row)
            # the columns get their types from the first group, which must have a value in each
            if len(held) >= rows_a_group and (writer or None not in row.values()):
                flush()

    yield Groups()
    flush()
    if writer is not None:
        writer.close()


TABLES: dict[str, Any] = {"csv": _csv, "jsonl": _json_lines, "parquet": _parquet}


def write_features(out: Path, features: Iterator[tuple[str, np.ndarray]]) -> str:
    """Writes (key, features (D,)) pairs in the format of the file extension; returns a line that describes the output.

    ``.npy`` holds an array (N, D), with the keys in ``<out>.txt``. Tables have a column ``path`` and one list or D columns.
    """
    if out.suffix.lower() == ".npy":
        keys, rows = [], []
        for key, row in features:
            keys.append(key)
            rows.append(row)
        array = np.stack(rows) if rows else np.zeros((0, 0), np.float32)
        with disk_errors(out):
            np.save(out, array)
            Path(f"{out}.txt").write_text("".join(f"{key}\n" for key in keys), encoding="utf-8")
        return f"{array.shape[0]} x {array.shape[1]} features in {out}, paths in {out}.txt"
    count = 0
    flat = out.suffix.lower() == ".csv"
    with open_table(out) as table:
        for key, row in features:
            values = [round(float(value), 6) for value in row]
            spread = {f"f{place}": value for place, value in enumerate(values)} if flat else {"features": values}
            table.write({"path": key, **spread})
            count += 1
    return f"features of {count} images in {out}"
