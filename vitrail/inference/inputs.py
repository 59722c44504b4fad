"""Which images a verb is given: files, folders and tables by name, and the split of data to evaluate on."""

from __future__ import annotations

import glob
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import Any

from vitrail.config.units import parse_fold
from vitrail.data.sources.bad_images import MAX_BAD
from vitrail.data.sources.mask_folders import list_images
from vitrail.data.sources.open import FoundData, open_data
from vitrail.data.sources.scan import Scan
from vitrail.data.sources.source import (
    Source,
    Splits,
    choose_split,
    divide_folds,
    hold_out,
    join_sources,
    list_splits,
    map_classes,
    read_class_map,
    sample_images,
)
from vitrail.errors import ConfigError, DataError
from vitrail.hub import REMOTE
from vitrail.runtime.progress import LogFunction
from vitrail.tasks.task import Task, has_ambiguous_order

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".npy", ".npz")


@dataclass(frozen=True, kw_only=True)
class ImageInputs:
    """The images that a verb was given.

    Args:
        source: the images, in the order of the inputs.
        named: the paths that were given one by one, not by a folder, a glob or a table.
        skipped: numbers of the files in folders that are not images, by file extension.
        masks: number of images in folders that are masks of others and not among the images.
        split: of a table that has several splits the one that was taken.
        other_splits: numbers of images of its other splits.
    """

    source: Source
    named: frozenset[str] = frozenset()
    skipped: Mapping[str, int] = field(default_factory=dict)
    masks: int = 0
    split: str = ""
    other_splits: Mapping[str, int] = field(default_factory=dict)

    @property
    def left_out(self) -> bool:
        """Whether folders have files, or a table has images, that are not among the images."""
        return bool(self.skipped or self.masks or self.other_splits)


def find_inputs(inputs: Sequence[str], *, every_split: bool = False) -> ImageInputs:
    """Returns all images that ``inputs`` name: files, folders, globs, ``-`` for paths on stdin, or one table or name of the hub.

    Of a table, arrays or a data set of the hub with splits these are the images of ``every_split``, or of test, else val.
    In folders, image files are recognised by their extension, or by their first bytes if they have none.

    Raises `DataError` for a path that does not exist, a pattern that matches nothing, or a folder without images.
    """
    if len(inputs) == 1 and (Path(inputs[0]).suffix.lower() in TABLE_SUFFIXES or inputs[0].startswith(REMOTE)):
        parts = list_splits(splits := open_data(inputs[0], labelled=False, validation=0))
        if every_split:
            return ImageInputs(source=reduce(join_sources, (part.drop_targets() for part in parts.values())))
        split, source = choose_split(splits)
        return ImageInputs(source=source, split=split, other_splits={n: len(p) for n, p in parts.items() if n != split})
    scan, paths, named = Scan(), [], []  # a folder inside another one is entered once
    for name in inputs:
        if name == "-":
            lines = [str(Path(line.strip())) for line in sys.stdin if line.strip()]
            named += lines
            paths += lines
        elif Path(name).is_dir():
            paths += list_images(name, scan)
        elif glob.has_magic(name) and not Path(name).exists():
            files = sorted(str(path) for path in map(Path, glob.glob(name, recursive=True)) if path.is_file())
            if not files:
                raise DataError(f"nothing matches {name!r}", "quote the pattern, and check the folder before it")
            paths += files
        else:
            _check_exists(name)
            paths.append(str(Path(name)))
            named.append(paths[-1])
    if not paths:
        raise DataError("standard input names no images", "give one path per line")
    source = open_data(paths, labelled=False, validation=0).train
    assert source is not None
    return ImageInputs(source=source, named=frozenset(named), skipped=scan.others, masks=scan.masks)


def _check_exists(name: str) -> None:
    path = Path(name)
    if path.exists():
        return
    if "://" in name:
        raise DataError(f"{name} is a URL, which is not fetched", "download the file and give its path")
    folder = path.absolute().parent
    beside = [entry.name for entry in folder.iterdir() if not entry.name.startswith(".")] if folder.is_dir() else []
    close = get_close_matches(path.name, beside, n=3)
    remedy = f"did you mean {' or '.join(map(repr, close))}?" if close else "check the path"
    raise DataError(f"there is no image {path.absolute()}", remedy)


def _check_class_order(model: Task, layout: str) -> None:
    """Raises `ConfigError` if the outputs of ``model`` are only numbered, and folders of numbers could be in either order."""
    if "class folders" in layout and has_ambiguous_order(model.classes, model.provenance):
        text = ", ".join(sorted(model.classes)[:4])
        what = (
            f"the weights carry no class names, and the class folders are numbers: the outputs may be in the order of numbers "
            f"(0, 1, 2, ...), or of text ({text}, ...), as with torchvision's ImageFolder"
        )
        raise ConfigError(what, "give the names in the order of the outputs, one per line: --classes FILE")


def name_files(keys: Sequence[str]) -> dict[str, str]:
    """Returns a name for the files of each image: that of its own file, with a number where several have the same."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for key in keys:
        if key in names:  # the same file, given twice
            continue
        file, number = re.fullmatch(r"(.*?)(?:#(\d+))?", key, re.DOTALL).groups()  # type: ignore[union-attr]
        stem = name = "-".join(filter(None, (Path(file).stem, number))) or "image"
        count = 1
        while name.lower() in taken:  # some file systems ignore case
            count += 1
            name = f"{stem}-{count}"
        taken.add(name.lower())
        names[key] = name
    return names


def divide_as_trained(model: Task, splits: Splits, data: Any) -> Splits:
    """Returns the splits with the part held out that was when the model was trained, if these are the data of the training."""
    trained = _find_trained_split(model)
    if not trained.get("held_out"):
        return splits
    divided, fold = replace(splits, seed=trained.get("seed", 0)), parse_fold(trained.get("fold", "all"))
    if fold is not None:
        try:
            divided = divide_folds(divided, fold)
        except DataError:  # they are other data
            return splits
    elif splits.val is None:
        divided = hold_out(divided, fraction=trained.get("validation", 0.0))
    same = was_held_out(model, divided) and not _sample_trained(model)
    return divided if same or is_trained_on(model, data, divided) else splits


def was_held_out(model: Task, splits: Splits) -> bool:
    """Returns whether the validation part was held out when the model was trained."""
    trained = _find_trained_split(model)
    return (
        splits.val is not None and bool(trained.get("held_out")) and trained.get("sha256") == splits.val.keys.digest()
    )


def _find_trained_split(model: Task) -> Mapping[str, Any]:
    found = model.provenance.get("split")  # of a model file, so of any form
    return found if isinstance(found, Mapping) else {}


def is_trained_on(model: Task, data: Any, splits: Splits) -> bool:
    """Returns whether the model was trained on these data: on images of theirs, or, where it has no record of its images, on data
    of the same path or name.
    """
    if _sample_trained(model):
        return any(is_seen(model, part) for part in list_splits(splits).values())
    path, before = data.data if isinstance(data, FoundData) else data, model.provenance.get("data")
    return bool(before) and isinstance(path, str | Path) and Path(path).resolve() == Path(before).resolve()


def is_seen(model: Task, source: Source) -> bool:
    """Returns whether some of these images have the names and contents of images that the model was trained on."""
    return True in _find_known(model, source)


def _find_known(model: Task, source: Source) -> list[bool]:
    """Returns of the images that have names of training images whether each has the contents, too."""
    trained = _sample_trained(model)
    found = sample_images(source, trained) if trained else {}
    return [trained[name] == checksum for name, checksum in found.items()]


def _sample_trained(model: Task) -> dict[str, str]:
    """Returns what `sample_images` found of the training images; nothing for a model of an earlier version."""
    trained = _find_trained_split(model).get("trained_on")
    return trained if isinstance(trained, dict) and all(type(value) is str for value in trained.values()) else {}


def open_split(
    model: Task,
    data: Any,
    split: str | None,
    log: LogFunction,
    *,
    labelled: bool = True,
    class_map: Path | None = None,
    max_bad: float = MAX_BAD,
) -> tuple[str, Source]:
    """Opens the split to evaluate on: of the data of the training the part that was held out, where they have none of their own.

    Returns the name of the split and its images.

    ``class_map`` is a file as `read_class_map` reads it, for data of other classes than the model's; ``max_bad`` as `open_data`
    takes it.
    """
    splits = open_data(
        data,
        validation=0,
        classes=None if class_map else model.classes or None,
        channels=model.config.in_channels,
        labelled=labelled,
        task=model.name,
        max_bad=max_bad,
    )
    splits = divide_as_trained(model, splits, data)
    name, source = choose_split(splits, split)
    known = _find_known(model, source)
    if True in known:
        log(f"warning  the model was trained on images of {name}, and the figures flatter it")
    elif known:
        log("split    images have the names of images of the training and other contents: they are evaluated as others")
    if labelled and class_map is None:
        _check_class_order(model, splits.layout)
    if labelled:
        model.targets.check(source, model.name)
    held_out = splits.held_out and name == "val"
    log(f"split    {'held out of train when the model was trained' if held_out else name}: {len(source):,} images")
    if held_out and not was_held_out(model, splits):
        log("warning  the data changed since the training, so the model may have seen images that are held out now")
    if class_map is not None:
        mapped = map_classes(source, read_class_map(class_map), model.classes)
        log(
            f"classes  {len(mapped):,} of {len(source):,} images have a class of {class_map.name}; the others are left out"
        )
        return name, mapped
    return name, source
