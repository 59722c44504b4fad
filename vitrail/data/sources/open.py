"""`open_data`: finds out what data are, whatever their layout, and opens them as sources."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.sources.arrays import (
    BUILT_IN,
    found_digits,
    found_in_arrays,
    found_in_dataset,
    found_in_npy,
    found_in_npz,
    is_dataset,
)
from vitrail.data.sources.contents import Files, Strings
from vitrail.data.sources.folders import EXTENSIONS, data_files, found_in_folder
from vitrail.data.sources.holdout import held_out
from vitrail.data.sources.labels import SPLIT_ORDER, SPLITS, Labels, RawSplit, check_no_class_is_empty, joined
from vitrail.data.sources.manifests import found_in_manifest
from vitrail.data.sources.parquet import found_in_parquet
from vitrail.data.sources.source import (
    Source,
    Splits,
)
from vitrail.errors import ConfigError, DataError, nearest

READ = (
    "a folder with a folder of images for each class (with or without train, val, test above), a manifest "
    "(.csv .tsv .jsonl .parquet), Parquet of images, .npy or .npz arrays, or 'digits'"
)


def open_data(
    data: Any,
    *,
    seed: int = 0,
    validation: float = 0.15,
    classes: Sequence[str] | None = None,
    channels: int | None = None,
    labelled: bool = True,
) -> Splits:
    """Finds out what data are, and opens them; images are read later.

    Args:
        data: by its path a folder (of class folders, with or without train / val / test above; of Parquet, .npz or
            manifests by split; or of images alone), a manifest, Parquet, .npy, .npz, or one image; or "digits"; a
            `Source` or `Splits`; arrays (images, labels); a torch-style Dataset; a list of image files; or a dict of
            these by split.
        seed: of the held-out part.
        validation: the part of each class that is held out where there is no validation split; 0 holds out none.
        classes: names to number targets by, in their order, e.g. a model's; None takes those of the training images.
        channels: what Pillow images of a user's Dataset become, 3 by default; files are decoded elsewhere.
        labelled: labels are needed: unlabelled data are refused, and so is a class folder without images.

    Raises:
        DataError: there is nothing at that path, it is nothing that is read here, or its labels do not fit.
        ConfigError: ``validation`` is no part of 1, or a dict names a split that does not exist.
    """
    if not 0 <= validation < 1:
        raise ConfigError(f"the validation part is {validation}", "give a part of 1, e.g. 0.15")
    if isinstance(data, Splits):
        return data
    layout, found = _find(data, channels or 3, labelled)
    layout, found = _with_labels(layout, found, labelled)
    sources = _sources(found, classes, labelled)
    names = next(iter(sources.values())).classes
    train, val, test = (sources.get(split) for split in SPLIT_ORDER)
    splits = Splits(train=train, val=val, test=test, classes=names, layout=layout, seed=seed)
    if val is not None or train is None or not validation:
        return splits
    held = held_out(train.contents, train.targets, part=validation, seed=seed)
    if not held.any():
        return splits
    rest, val = (train.subset(np.flatnonzero(which)) for which in (~held, held))
    return replace(splits, train=rest, val=val, held_out=True)


def _with_labels(layout: str, found: dict[str, RawSplit], labelled: bool) -> tuple[str, dict[str, RawSplit]]:
    """Where labels are needed, leaves out the splits that have none and says so; train cannot be left out."""
    without = [split for split, part in found.items() if part.labels is None]
    if not labelled or not without:
        return layout, found
    if len(without) == len(found) or "train" in without:
        remedy = "put the images of each class in a folder of its own, or give a manifest with the columns path,label"
        raise DataError(f"the data have no labels ({layout})", remedy)
    note = f"; {', '.join(without)} has no labels and is left out"
    return layout + note, {split: part for split, part in found.items() if part.labels is not None}


def _sources(found: Mapping[str, RawSplit], classes: Sequence[str] | None, labelled: bool) -> dict[str, Source]:
    """Each split with its targets in the numbers of one list of classes."""
    labels = {split: part.labels for split, part in found.items() if part.labels is not None}
    if labelled and classes is None and "train" in labels:
        check_no_class_is_empty(labels)
    names, targets = joined(labels, classes) if labels else ((), {})
    several = any(each.ndim == 2 for each in targets.values())
    none = np.zeros(0, np.int64)
    return {
        split: Source(contents=part.contents, targets=targets.get(split, none), classes=names, multi_label=several)
        for split, part in found.items()
    }


def _find(data: Any, channels: int, labelled: bool, where: str = "") -> tuple[str, dict[str, RawSplit]]:
    """What data are, in words, and their splits as found.

    Args:
        where: what keys call data that have no path.
    """
    if isinstance(data, Source):
        labels = Labels(data.classes, data.targets, declared=True) if data.labelled else None
        return "a source", {"train": RawSplit(data.contents, labels)}
    if isinstance(data, Mapping):
        return _find_by_split(data, channels, labelled)
    if isinstance(data, str) and data in BUILT_IN:
        return found_digits()
    if isinstance(data, str | os.PathLike):
        return _find_at(Path(os.path.abspath(Path(data).expanduser())), labelled, given=str(data))
    if hasattr(data, "shape"):
        return "an array", {"train": found_in_arrays(data, where=where or "array")}
    if isinstance(data, tuple) and len(data) == 2 and hasattr(data[0], "shape"):
        return "arrays", {"train": found_in_arrays(*data, where=where or "array")}
    if isinstance(data, list | tuple) and data and all(isinstance(each, str | os.PathLike) for each in data):
        return f"{len(data):,} files", {"train": RawSplit(Files("", Strings(map(os.fspath, data))))}
    if is_dataset(data):
        words = f"a dataset ({type(data).__name__})"
        return words, {"train": found_in_dataset(data, channels=channels, where=where or "dataset")}
    raise DataError(f"data of type {type(data).__name__} cannot be read", f"give {READ}, arrays or a Dataset")


def _find_by_split(data: Mapping[str, Any], channels: int, labelled: bool) -> tuple[str, dict[str, RawSplit]]:
    words, splits = [], {}
    for name, each in data.items():
        if name not in SPLITS:
            raise ConfigError(f"there is no split {name!r}", nearest(name, SPLIT_ORDER))
        found, parts = _find(each, channels, labelled, where=name)
        splits[SPLITS[name]] = _whole(parts, name)
        words.append(f"{name}: {found}")
    if not splits:
        raise DataError("a dict without splits", "give {'train': ..., 'val': ...}")
    return ", ".join(words), splits


def _whole(parts: Mapping[str, RawSplit], where: object) -> RawSplit:
    if len(parts) > 1:
        raise DataError(f"{where} holds splits of its own: {', '.join(parts)}", "give one split, or data that hold all")
    return next(iter(parts.values()))


def _find_at(path: Path, labelled: bool, *, given: str) -> tuple[str, dict[str, RawSplit]]:
    suffix = path.suffix.lower()
    if not os.path.exists(path):
        raise _nothing_at(path, given)
    if path.is_dir():
        return _find_in_folder(path, labelled)
    if not path.is_file():
        raise DataError(f"{path} is no regular file and no folder", f"give {READ}")
    if suffix in (".csv", ".tsv", ".jsonl", ".ndjson"):
        return found_in_manifest(path, labelled=labelled)
    if suffix in (".parquet", ".pq"):
        return f"Parquet, {path.name}", found_in_parquet([path], path.parent, labelled=labelled)
    if suffix == ".npy":
        return found_in_npy(path)
    if suffix == ".npz":
        return found_in_npz(path)
    if suffix.removeprefix(".") in EXTENSIONS:
        return "one image", {"train": RawSplit(Files(str(path.parent), Strings([path.name])))}
    raise DataError(f"{path} is of no kind that is read", f"give {READ}")


def _find_in_folder(root: Path, labelled: bool) -> tuple[str, dict[str, RawSplit]]:
    if found := found_in_folder(root, labelled=labelled):
        return found
    if files := data_files(root):
        suffix, by_split = files
        splits: dict[str, RawSplit] = {}
        for split, paths in by_split.items():
            if suffix == ".parquet":
                parts = found_in_parquet(paths, root, labelled=labelled)
            elif len(paths) > 1:
                names = ", ".join(path.name for path in paths)
                raise DataError(f"{root} has several files for {split}: {names}", "keep one of them")
            else:
                _, parts = _find_at(paths[0], labelled, given=str(paths[0]))
            if len(by_split) == 1 and split == "train":
                return f"{suffix} files in a folder", parts
            splits[split] = _whole(parts, paths[0])
        return f"{suffix} files for {', '.join(splits)}", splits
    names = sorted(path.name for path in root.iterdir())
    holds = f"it holds {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}" if names else "it is empty"
    raise DataError(f"there are no images in {root}", f"give {READ}", value=holds)


def _nothing_at(path: Path, given: str) -> DataError:
    """The error for a path that leads nowhere, with what lies nearest to it."""
    parent = next(folder for folder in path.parents if os.path.isdir(folder))
    wanted = path.relative_to(parent).parts[0]
    try:
        names = {name.lower(): name for name in os.listdir(parent) if not name.startswith(".")}
    except OSError:
        names = {}
    close = [str(parent / names[each]) for each in get_close_matches(wanted.lower(), names, n=3, cutoff=0.5)]
    close += get_close_matches(given, BUILT_IN)
    remedy = "did you mean " + " or ".join(map(repr, close)) + "?" if close else f"give {READ}"
    return DataError(f"there is no data at {path}", remedy, value=f"the nearest folder that is there: {parent}")
