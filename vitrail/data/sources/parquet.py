"""Parquet: images by the row in the layout of Hugging Face, or a manifest of paths. Needs pyarrow."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitrail.data.decode import BadImage
from vitrail.data.sources.contents import Strings, below_root, read_file
from vitrail.data.sources.labels import Labels, RawSplit, from_numbers, from_texts, text_of
from vitrail.data.sources.manifests import Columns, by_split, choose_columns, found_in_columns
from vitrail.errors import DataError

IMAGES = ("image", "img", "picture", "bytes", "content")
CACHED_BYTES = 2**28  # row groups that one process keeps
HASHED_BYTES = 2**30  # larger sets are not read through to find duplicates


@dataclass(frozen=True, eq=False)
class ParquetImages:
    """Rows whose image column holds the bytes of a file, or a struct of bytes and a path.

    A row group is read whole, whichever row of it is asked for, and kept while `CACHED_BYTES` allow.
    """

    root: str
    files: tuple[str, ...]
    column: str
    groups: np.ndarray  # (G, 3) int64: number of the file, of the row group in it, and of its first row over all files
    rows: np.ndarray  # (n,) int64, counted over all files
    keys: Strings
    kind: Literal["files"] = "files"
    _kept: dict[int, Any] = field(default_factory=dict, repr=False)

    def __getitem__(self, row: int) -> bytes:
        number = int(self.rows[row])
        group = int(np.searchsorted(self.groups[:, 2], number, side="right")) - 1
        value = self._group(group)[number - int(self.groups[group, 2])].as_py()
        if isinstance(value, dict):
            content, path = value.get("bytes"), value.get("path")
            value = content if content is not None or path is None else self._beside(path)
        if value is None:
            raise BadImage("the row holds no image")
        return value

    def _beside(self, path: str) -> bytes:
        try:
            return read_file(os.path.join(self.root, below_root(path)))
        except ValueError as error:
            raise BadImage(str(error)) from error

    def _group(self, group: int) -> Any:
        if group not in self._kept:
            import pyarrow
            import pyarrow.parquet

            file, inside, _ = self.groups[group].tolist()
            try:
                with pyarrow.parquet.ParquetFile(os.path.join(self.root, self.files[file])) as table:
                    column = table.read_row_group(inside, columns=[self.column]).column(self.column)
            except (OSError, pyarrow.ArrowException) as error:
                raise BadImage(f"row group {inside} of {self.files[file]} cannot be read: {error}") from error
            while self._kept and sum(each.nbytes for each in self._kept.values()) + column.nbytes > CACHED_BYTES:
                self._kept.pop(next(iter(self._kept)))
            self._kept[group] = column
        return self._kept[group]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}}

    def take(self, rows: np.ndarray) -> ParquetImages:
        return ParquetImages(self.root, self.files, self.column, self.groups, self.rows[rows], self.keys.take(rows))

    def fingerprints(self) -> list[Hashable] | None:
        if sum(os.path.getsize(os.path.join(self.root, file)) for file in self.files) > HASHED_BYTES:
            return None
        return [self._fingerprint(row) for row in range(len(self.rows))]

    def _fingerprint(self, row: int) -> Hashable:
        try:
            return blake2b(self[row], digest_size=12).digest()
        except BadImage:
            return row


def found_in_parquet(files: Sequence[Path], root: Path, *, labelled: bool) -> dict[str, RawSplit]:
    """What some Parquet files of one layout hold, as one set, or in the splits that a column of theirs names.

    Images are in a column of bytes, or of structs of bytes and a path; else a column of paths makes this a manifest.
    Labels are numbers, named by Hugging Face's metadata where they are there, or names, or lists of either.

    Args:
        root: the folder that keys, and paths in the rows, are relative to.

    Raises:
        DataError: pyarrow is missing, a file is no Parquet or differs from the first, or a column is missing.
    """
    schema, groups = _layout(files)
    features = _features(schema)
    image, source = _image_column(schema, features), str(files[0])
    columns = choose_columns(
        schema.names, source=source, labelled=labelled, image=image, label=_declared_label(features)
    )
    rows, label = int(groups[-1, 3]), columns["label"]
    table = _read(files, [name for name in (label, columns["split"], None if image else columns["path"]) if name])
    texts = {name: [text_of(each) for each in table[name].to_pylist()] for name in table.column_names if name != label}
    described = Columns(source, [], lines=list(range(1, rows + 1)))
    if columns["split"]:
        described.splits = texts[columns["split"]]
    if image is None:
        described.paths = texts[columns["path"] or ""]
        described.labels = [text_of(each) for each in table[label].to_pylist()] if label else None
        return found_in_columns(described, root)
    names = tuple(path.relative_to(root).as_posix() for path in files)
    lengths = [
        int(groups[groups[:, 0] == number, 3].max()) for number in range(len(files))
    ]  # rows up to each file's end
    keys = Strings(
        f"{name}#{row}" for name, start, stop in zip(names, [0, *lengths], lengths) for row in range(stop - start)
    )
    contents = ParquetImages(str(root), names, image, groups[:, :3], np.arange(rows), keys)
    labels = _labels(table[label], _class_names(features.get(label)), source) if label else None
    return by_split(RawSplit(contents, labels), described)


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as missing:
        raise DataError("reading Parquet needs pyarrow", "pip install 'vitrail[data]'") from missing
    return pyarrow


def _layout(files: Sequence[Path]) -> tuple[Any, np.ndarray]:
    """The schema that the files share; for each row group: file, number in it, first row, and row after the last."""
    pyarrow = _pyarrow()
    groups: list[tuple[int, int, int, int]] = []
    first, start = None, 0
    for number, path in enumerate(files):
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                schema, metadata = file.schema_arrow, file.metadata
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(
                f"{path} is no Parquet file that can be read: {error}", "fetch or write it again"
            ) from error
        first = schema if first is None else first
        if not schema.equals(first):
            raise DataError(f"{path} has other columns than {files[0]}", "keep files of one layout in one folder")
        for group in range(metadata.num_row_groups):
            stop = start + metadata.row_group(group).num_rows
            groups.append((number, group, start, stop))
            start = stop
        if not metadata.num_row_groups:
            raise DataError(f"{path} has no rows", "take the file away")
    return first, np.array(groups, np.int64)


def _read(files: Sequence[Path], columns: list[str]) -> Any:
    pyarrow = _pyarrow()
    tables = []
    for path in files:
        with pyarrow.parquet.ParquetFile(path) as file:
            tables.append(file.read(columns=columns))
    return pyarrow.concat_tables(tables)


def _features(schema: Any) -> dict[str | None, Any]:
    """What Hugging Face's metadata say of each column; nothing where there are none."""
    try:
        return json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}


def _image_column(schema: Any, features: dict[str | None, Any]) -> str | None:
    """The column that holds images: declared as such, or structs with bytes in them, or bytes under a usual name."""
    pyarrow = _pyarrow()
    for name in schema.names:
        kind = schema.field(name).type
        declared = isinstance(features.get(name), dict) and features[name].get("_type") == "Image"
        struct = pyarrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
        binary = pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind)
        if struct or (binary and (declared or name.lower() in IMAGES)):
            return name
    return None


def _declared_label(features: dict[str | None, Any]) -> str | None:
    """The column of class labels by the metadata: "label" where there are several."""
    declared = [name for name, feature in features.items() if _class_names(feature)]
    return "label" if "label" in declared else next(iter(declared), None)


def _class_names(feature: Any) -> list[str] | None:
    """The names of a ClassLabel, or of a list of them."""
    if isinstance(feature, list) and feature:
        feature = feature[0]
    if isinstance(feature, dict) and isinstance(feature.get("feature"), dict):
        feature = feature["feature"]
    return feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None


def _labels(column: Any, names: list[str] | None, source: str) -> Labels | None:
    kinds = _pyarrow().types
    several = kinds.is_list(column.type) or kinds.is_large_list(column.type)
    whole = kinds.is_integer(column.type.value_type if several else column.type)
    if column.null_count:
        if column.null_count == len(column):
            return None
        raise DataError(
            f"{column.null_count} rows of {source} have no label", "give every row a label, or leave it out"
        )
    if not whole:
        labels = from_texts([text_of(each) for each in column.to_pylist()], several=several or None)
        if "" in labels.names:
            raise DataError(f"{source} has rows without a label", "give every row a label, or leave it out")
        return labels
    if not several:
        return from_numbers(column.to_numpy(), names, where=source)
    lists = column.to_pylist()
    known = len(names) if names else max((max(each, default=-1) for each in lists), default=-1) + 1
    values = np.zeros((len(lists), known), np.float32)
    for row, each in enumerate(lists):
        if each and not 0 <= min(each) <= max(each) < known:
            raise DataError(f"row {row + 1} of {source} has the labels {each}", f"give numbers from 0 to {known - 1}")
        values[row, each] = 1
    return from_numbers(values, names, where=source)
