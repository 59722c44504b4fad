"""Parquet: one image per row in the layout of Hugging Face, or a manifest of paths. Needs pyarrow."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.sources.contents import Contents, Strings, Units, normalise_path, read_file
from vitrail.data.sources.labels import Labels, RawSplit, format_label, from_numbers, from_texts
from vitrail.data.sources.manifests import Columns, choose_columns, group_by_split, read_columns
from vitrail.data.sources.numbers import list_columns, read_numbers
from vitrail.errors import DataError
from vitrail.images.decode import BadImage
from vitrail.stamps import Stamped
from vitrail.tables import import_pyarrow
from vitrail.untrusted.json_documents import parse_json
from vitrail.untrusted.limits import CLASSES, DATA_EXPANSION, DATA_SPARED_BYTES

IMAGES = ("image", "img", "picture", "bytes", "content")
CACHED_BYTES = 2**29  # of row groups that one process caches, in training those of a window and of the next
ROWS_READ = 1024  # at a time, of labels and paths
HASHED_BYTES = 2**30  # larger data sets are not read to find duplicates


@dataclass(frozen=True, eq=False)
class ParquetImages(Contents):
    """Rows with the bytes of a file, or a struct of bytes and a path. Row groups are cached up to `CACHED_BYTES`; see `units`."""

    root: str
    files: tuple[str, ...]
    column: str
    groups: np.ndarray  # (G, 4) int64: file, row group in the file, first row over all files, bytes
    rows: np.ndarray  # (n,) int64, over all files
    keys: Strings
    _kept: dict[int, Any] = field(default_factory=dict, repr=False)
    to_join = "write the rows of both into one Parquet file without splits, e.g. with pandas.concat([train, val])"

    def __getitem__(self, row: int) -> bytes:
        number = int(self.rows[row])
        group = int(np.searchsorted(self.groups[:, 2], number, side="right")) - 1
        value = self._read_group(group)[number - int(self.groups[group, 2])].as_py()
        if isinstance(value, dict):
            content, path = value.get("bytes"), value.get("path")
            if content is None and path is not None:
                try:
                    content = read_file(os.path.join(self.root, normalise_path(path)))
                except ValueError as error:
                    raise BadImage(str(error)) from error
            value = content
        if value is None:
            raise BadImage("the row contains no image")
        return value

    @cached_property
    def units(self) -> Units | None:
        """The row groups; None if the cache holds all of them. Two windows fit in the cache, as a batch may span two."""
        groups, of = np.unique(np.searchsorted(self.groups[:, 2], self.rows, side="right") - 1, return_inverse=True)
        sizes = self.groups[groups, 3]
        if sizes.sum() <= CACHED_BYTES:
            return None
        return Units(of, len(groups), max(CACHED_BYTES // 2 // int(sizes.max()), 1))

    def _read_group(self, group: int) -> Any:
        if group not in self._kept:
            pyarrow = import_pyarrow(DataError)
            file, inside, *_ = self.groups[group].tolist()
            try:
                with pyarrow.parquet.ParquetFile(os.path.join(self.root, self.files[file])) as table:
                    column = table.read_row_group(inside, columns=[self.column]).column(self.column)
            except (OSError, pyarrow.ArrowException) as error:
                raise BadImage(f"row group {inside} of {self.files[file]} cannot be read: {error}") from error
            while self._kept and sum(kept.nbytes for kept in self._kept.values()) + column.nbytes > CACHED_BYTES:
                self._kept.pop(next(iter(self._kept)))
            self._kept[group] = column
        return self._kept[group]

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)} | {"_kept": {}}

    def take(self, rows: np.ndarray) -> ParquetImages:
        return ParquetImages(self.root, self.files, self.column, self.groups, self.rows[rows], self.keys.take(rows))

    def fingerprints(self) -> list[Hashable] | None:
        if sum(os.path.getsize(os.path.join(self.root, file)) for file in self.files) > HASHED_BYTES:
            return None
        return [self.hash_file(row) for row in range(len(self.rows))]

    def stamp(self) -> Stamped:
        """The Parquet files; image files that their rows name are not among them."""
        return Stamped.of_files(self.root, self.files)


def read_parquet(
    files: Sequence[Path],
    root: Path,
    *,
    labelled: bool,
    named: Mapping[str, str] | None = None,
    numeric: bool = False,
) -> dict[str, RawSplit]:
    """Read Parquet files with the same columns as one data set, divided by its split column if there is one.

    Images are in a column of bytes, or of structs of bytes and a path below ``root``; a column of paths makes the files a
    manifest. Labels are numbers (named by Hugging Face's metadata if present), names, or lists of either; with ``numeric`` they
    are as `read_manifest` has them. Raises `DataError`.
    """
    schema, groups = _read_layout(files)
    features = _read_features(schema)
    image, source = _find_image_column(schema, features), str(files[0])
    named, declared = named or {}, [name for name, feature in features.items() if _get_class_names(feature)]
    label = "label" if "label" in declared else declared[0] if len(declared) == 1 else None
    if labelled and len(declared) > 1 and not (label or named.get("label")):
        what = f"{source} has several columns of classes: {', '.join(map(repr, declared))}"
        raise DataError(what, f"say which one is meant: columns label={declared[0]}")
    defaults = {kind: name for kind, name in {"path": image, "label": label}.items() if name}
    given = {**defaults, **named}
    columns = choose_columns(schema.names, source=source, labelled=labelled, named=given, numeric=numeric)
    rows, label = int(groups[-1, 4]), columns["label"]
    numbers = list_columns(label, schema.names) if numeric and label else []
    wanted = {kind: name for kind, name in columns.items() if name and name != image}
    if numbers:
        del wanted["label"]
    read = [*wanted.values(), *numbers]
    table = import_pyarrow(DataError).concat_tables([_read_columns(path, read) for path in files])
    texts = {kind: table[name].to_pylist() for kind, name in wanted.items() if kind == "split" or image is None}
    cells = {kind: list(map(format_label, values)) for kind, values in texts.items()}
    described = Columns(source, cells.get("path", []), cells.get("label"), cells.get("split"), [*range(1, rows + 1)])
    described.numbers = {name: list(map(format_label, table[name].to_pylist())) for name in numbers}
    if image is None:
        return read_columns(described, root)
    names = tuple(path.relative_to(root).as_posix() for path in files)
    ends = [int(groups[groups[:, 0] == number, 4].max()) for number in range(len(files))]  # rows up to each file's end
    keys = Strings(f"{name}#{row}" for name, start, end in zip(names, [0, *ends], ends) for row in range(end - start))
    contents = ParquetImages(str(root), names, image, groups[:, :4], np.arange(rows), keys)
    if numbers:
        labels = read_numbers(described.numbers, described.make_error)
    else:
        labels = _convert_labels(table[label], _get_class_names(features.get(label)), source) if label else None
    return group_by_split(RawSplit(contents, labels), described)


@contextmanager
def _open_file(path: Path) -> Iterator[Any]:
    pyarrow = import_pyarrow(DataError)
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}", "download or write it again") from error


def _read_layout(files: Sequence[Path]) -> tuple[Any, np.ndarray]:
    """The common schema of the files; for each row group: file, index in it, first row, bytes, and row after the last."""
    groups: list[tuple[int, ...]] = []
    first, start = None, 0
    for number, path in enumerate(files):
        with _open_file(path) as file:
            schema, metadata = file.schema_arrow, file.metadata
        parts = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        _check_counts(path, metadata.num_rows, sum(part.total_byte_size for part in parts))
        first = schema if first is None else first
        if not schema.equals(first):
            raise DataError(f"the columns of {path} differ from those of {files[0]}", "separate them by columns")
        for group, part in enumerate(parts):
            groups.append((number, group, start, part.total_byte_size, start + part.num_rows))
            start += part.num_rows
        if not parts:
            raise DataError(f"{path} has no rows", "remove the file")
    return first, np.array(groups, np.int64)


def _check_counts(path: Path, rows: int, expanded: int) -> None:
    """Raises `DataError` for a file that repeats rows without storing them: each has a path or an image of its own."""
    size = path.stat().st_size
    if rows > size:
        what = f"{path} has {rows:,} rows in {size:,} bytes"
        raise DataError(what, "give a file with a path or image in each row")
    if expanded > max(DATA_EXPANSION * size, DATA_SPARED_BYTES):
        what = f"{path} has {size:,} bytes and expands to {expanded:,}"
        raise DataError(what, "write it again with images as JPEG or PNG")


def _read_columns(path: Path, columns: list[str]) -> Any:
    """The columns as one table, read in parts: what a dictionary repeats has no bytes in the file."""
    most, batches, read = max(DATA_EXPANSION * path.stat().st_size, DATA_SPARED_BYTES), [], 0
    with _open_file(path) as file:
        for batch in file.iter_batches(batch_size=ROWS_READ, columns=columns):
            batches.append(batch)
            read += batch.nbytes
            if read > most:
                what = f"the columns {', '.join(columns)} of {path} expand to over {most:,} bytes"
                raise DataError(what, "write shorter names")
        return import_pyarrow(DataError).Table.from_batches(batches) if batches else file.read(columns=columns)


def _read_features(schema: Any) -> dict[str | None, Any]:
    """Hugging Face's metadata of each column; empty if there are none."""
    try:
        features = parse_json((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return features if isinstance(features, dict) else {}


def _find_image_column(schema: Any, features: dict[str | None, Any]) -> str | None:
    """The image column: declared as images, or structs with bytes, or bytes with a usual name, or the only one of bytes."""
    pyarrow = import_pyarrow(DataError)
    binaries = []
    for name in schema.names:
        kind = schema.field(name).type
        declared = isinstance(features.get(name), dict) and features[name].get("_type") == "Image"
        struct = pyarrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
        binary = pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind)
        if struct or (binary and (declared or name.lower() in IMAGES)):
            return name
        if binary:
            binaries.append(name)
    return binaries[0] if len(binaries) == 1 else None


def _get_class_names(feature: Any) -> list[str] | None:
    """The class names of a ClassLabel, or of a list of them."""
    if isinstance(feature, list) and feature:
        feature = feature[0]
    if isinstance(feature, dict) and isinstance(feature.get("feature"), dict):
        feature = feature["feature"]
    names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None


def _convert_labels(column: Any, names: list[str] | None, source: str) -> Labels | None:
    kinds = import_pyarrow(DataError).types
    several = kinds.is_list(column.type) or kinds.is_large_list(column.type)
    whole = kinds.is_integer(column.type.value_type if several else column.type)
    if column.null_count:
        if column.null_count == len(column):
            return None
        raise DataError(f"{column.null_count} rows of {source} have no label", "give every row a label, or remove it")
    if not whole:
        labels = from_texts(list(map(format_label, column.to_pylist())), several=several or None)
        if "" in labels.names:
            raise DataError(f"{source} has rows without a label", "give every row a label, or remove it")
        return labels
    if not several:
        return from_numbers(column.to_numpy(), names, where=source)
    lists = column.to_pylist()
    known = len(names) if names else max((max(numbers, default=-1) for numbers in lists), default=-1) + 1
    if known > CLASSES:
        raise DataError(f"the labels of {source} go up to {known - 1}", "number the classes from 0, or name them")
    values = np.zeros((len(lists), known), np.float32)
    for row, numbers in enumerate(lists):
        if numbers and not 0 <= min(numbers) <= max(numbers) < known:
            what = f"row {row + 1} of {source} has the labels {numbers}"
            raise DataError(what, f"give numbers from 0 to {known - 1}")
        values[row, numbers] = 1
    return from_numbers(values, names, where=source)
