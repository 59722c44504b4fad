"""`open_data`: detects the layout of a data set and opens it as sources. Its first tables list the formats of annotations."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from glob import has_magic
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.sources.annotations import Annotations
from vitrail.data.sources.arrays import BUILT_IN, read_arrays, read_dataset, read_digits, read_npy, read_npz
from vitrail.data.sources.bad_images import MAX_BAD
from vitrail.data.sources.coco import find_coco
from vitrail.data.sources.contents import Files, Strings, read_head
from vitrail.data.sources.cvat import find_cvat
from vitrail.data.sources.folders import find_data_files, read_class_folders, read_folder, read_tables_beside
from vitrail.data.sources.id_maps import find_id_maps, read_cityscapes
from vitrail.data.sources.label_studio import find_label_studio
from vitrail.data.sources.labelme import find_labelme
from vitrail.data.sources.labels import (
    Labels,
    RawData,
    RawSplit,
    check_faulty_objects,
    is_numbered,
    join_labels,
    name_numbers,
)
from vitrail.data.sources.manifests import read_frame, read_manifest, read_pairs
from vitrail.data.sources.mask_folders import MaskFolder, find_masks, read_masks
from vitrail.data.sources.numbers import BETWEEN, Numbers
from vitrail.data.sources.objects import Read
from vitrail.data.sources.painted import outline_splits, paint_splits
from vitrail.data.sources.panoptic import find_panoptic, read_segments
from vitrail.data.sources.parquet import read_parquet
from vitrail.data.sources.scan import is_system_name, list_files, list_files_below, list_folders
from vitrail.data.sources.shards import find_shards, missing_index, read_shards, read_shards_at
from vitrail.data.sources.source import Source, Splits, hold_out, list_splits
from vitrail.data.sources.splits import SPLIT_ORDER, SPLITS
from vitrail.data.sources.voc import find_voc
from vitrail.data.sources.yolo import find_yolo, find_yolo_texts
from vitrail.errors import ConfigError, DataError, find_close_paths, nearest, suggest
from vitrail.hub import REMOTE
from vitrail.images.decode import EXTENSIONS
from vitrail.shards.cache import is_remote

# each looks for its files at a path, and returns the function that reads them; the first that finds any is taken
FORMATS_OF_FILES = (find_coco, find_panoptic, find_label_studio, find_yolo)
FORMATS_OF_FOLDERS = (
    *(find_yolo, find_coco, find_panoptic, find_label_studio, find_voc, find_cvat, find_labelme, find_yolo_texts),
    find_id_maps,
)
MANIFESTS, PARQUET = (".csv", ".tsv", ".jsonl", ".ndjson"), (".parquet", ".pq")
TABLES = (*MANIFESTS, *PARQUET)
# what tasks make of objects with outlines; readers give segments of things and stuff as they are
OUTLINED = {"segmentation": paint_splits, "instances": outline_splits, "panoptic": dict}
BESIDE = "; the boxes and outlines beside them are not used"


# how files of annotations would be read
FORMS = {
    ".xml": "VOC's begin with <annotation> and lie in the folder itself, in Annotations/ or beside the images, also in train/, "
    "val/ and test/; CVAT's is annotations.xml",
    ".json": "COCO's have images, annotations and categories, labelme's have shapes and imagePath and lie beside the images",
    **dict.fromkeys((".yaml", ".yml"), "YOLO's have names, and train or val"),
    ".txt": "YOLO's have a class and four numbers a line, and lie in labels/ beside images/ or beside the images",
}

READ = (
    "a folder with one folder of images per class (optionally inside train, val and test folders), a manifest "
    "(.csv .tsv .jsonl .parquet), Parquet with images, tar shards, .npy or .npz arrays, boxes in the format of COCO, VOC, "
    "YOLO, CVAT, labelme or Label Studio, COCO panoptic, a folder of images beside one of masks or id maps, "
    "hf:datasets/owner/name, or 'digits'"
)


@dataclass(frozen=True)
class FoundData:
    """Data, and what annotations were found in them; `open_data` takes it in place of the data, and does not search again."""

    data: Any
    root: Path | None = None  # the folder, or file, that has objects, masks or both
    objects: Read | None = None  # reads the objects; None where there are none
    opened: Splits | None = None  # for a second caller of `open_data`
    columns: Mapping[str, str] = field(default_factory=dict)  # of a table: the names of its path, label and split
    numeric: bool = False  # labels of a table are numbers, not names of classes
    place: Path | None = None  # of data of the hub, their folder in its cache
    note: str = ""  # before the layout: the commit of data of the hub

    @cached_property
    def masks(self) -> list[MaskFolder]:
        """The folders of images and masks; of a file of annotations none."""
        return find_masks(self.root) if self.root is not None and self.root.is_dir() else []

    @property
    def task(self) -> str | None:
        """``detection`` (also of masks beside objects, but for Cityscapes) or ``segmentation``; None without annotations."""
        data = self.data
        if isinstance(data, Splits):
            data = next(iter(list_splits(data).values()), None)
        if isinstance(data, Source):
            return data.targets.task if isinstance(data.targets, Annotations) else None
        if getattr(self.objects, "func", None) is read_cityscapes and self.masks:
            return "segmentation"
        return "detection" if self.objects else "segmentation" if self.root else None

    def read(self, task: str | None = None) -> RawData:
        """The layout and the splits: of objects, or of masks where there are no objects or ``task`` is "segmentation".

        The outlines of objects are read for the tasks in `OUTLINED`; "panoptic" is as `read_segments`.
        """
        assert self.root is not None, "data without annotations"
        if task == "panoptic":
            return read_segments(self.root, self.objects)
        if self.objects is not None and not ((task or self.task) == "segmentation" and self.masks):
            return self.objects(outlines=task in OUTLINED)
        layout, splits = read_masks(self.root, self.masks)
        return layout + (BESIDE if self.objects else ""), splits


def find_data(data: Any, columns: Mapping[str, str] | None = None, task: str | None = None) -> FoundData:
    """Searches data, or the only folder in a folder, for annotations, of COCO panoptic first for that ``task``; reads no image.

    ``columns`` names those of a table that are not called as `read_manifest` expects: {"path": "file", "label": "breed"}.

    Raises `DataError` for two annotations of a split, and for ``columns`` of data that are no table.
    """
    if isinstance(data, FoundData):
        return data
    if isinstance(data, str | os.PathLike) and os.fspath(data).startswith(REMOTE):
        from vitrail.data.sources.hub import fetch_data

        place, note = fetch_data(os.fspath(data))
        return replace(find_data(place, task=task), data=data, columns=columns or {}, place=place, note=note)
    if columns:
        is_file = isinstance(data, str | os.PathLike) and Path(data).suffix.lower() in TABLES
        if not (is_file or hasattr(data, "columns") or hasattr(data, "column_names")):
            what = f"columns are named, and {data if isinstance(data, str | os.PathLike) else type(data).__name__} is no table"
            raise DataError(what, f"give a data frame or a {', '.join(TABLES)} file, or leave columns out")
        return FoundData(data, columns=columns)
    if isinstance(data, str | os.PathLike) and data not in BUILT_IN:
        path = _to_path(data)
        formats = FORMATS_OF_FOLDERS if path.is_dir() else FORMATS_OF_FILES
        formats = (find_panoptic, *formats) if task == "panoptic" else formats
        for root in filter(None, (path, _find_only_folder(path))):
            found = FoundData(data, root, next(filter(None, (find(root) for find in formats)), None))
            if found.objects or found.masks:
                return found
    return FoundData(data)


def _find_only_folder(path: Path) -> Path | None:
    if not path.is_dir():
        return None
    with os.scandir(path) as entries:
        inside = list(islice((entry.name for entry in entries if not is_system_name(entry.name)), 2))
    return folder if len(inside) == 1 and (folder := path / inside[0]).is_dir() else None


def _to_path(data: str | os.PathLike[str]) -> Path:
    return Path(os.path.abspath(Path(data).expanduser()))


def resolve_name(data: str | Path) -> str:
    """Returns the name of data that is valid in any folder: a path made absolute; names of the hub and URLs are."""
    name = str(data)
    return name if name in BUILT_IN or name.startswith(REMOTE) or is_remote(name) else str(_to_path(name).resolve())


def open_data(
    data: Any,
    *,
    seed: int = 0,
    validation: float = 0.15,
    classes: Sequence[str] | None = None,
    channels: int | None = None,
    labelled: bool = True,
    task: str | None = None,
    max_bad: float = MAX_BAD,
) -> Splits:
    """Detect the layout of a data set and open it. Images are read later.

    Args:
        data: a path to a folder (of class folders, optionally inside train / val / test; of Parquet, .npz or manifest files
            by split; of objects in the format of COCO, COCO panoptic, VOC, YOLO, CVAT, labelme or Label Studio; of images beside
            masks or id maps; of images alone; of tar shards with an index, also at a URL), a pattern of class folders
            (``photos/*/*``) or of shards (``photos/*.tar``), a .json of COCO or Label Studio, a YOLO .yaml, a manifest, Parquet,
            .npy, .npz or one image; ``hf:datasets/owner/name``, also with ``/configuration`` or ``@revision`` behind it, of the
            Hugging Face hub; or "digits"; what `find_data` found; a `Source` or `Splits`; arrays (images, labels); a data frame
            with columns such as path, label and split; a list of (path, label) or of image files; a Dataset of torch or of
            Hugging Face; or a dict of these by split.
        seed: of the held-out validation split.
        validation: fraction of each class to hold out where there is no validation split; 0 holds out nothing.
        classes: class names in the order of their indices, e.g. a model's; None takes those of the training images.
        channels: channels of Pillow images in a user's Dataset, 3 by default; files are decoded elsewhere.
        labelled: labels are required: unlabelled data and class folders without images are refused.
        task: "segmentation" takes masks also where there are boxes or outlines beside them, and paints maps of classes from the
            outlines of objects where there are no masks; "instances" takes objects with outlines, "panoptic" stuff as well;
            "regression" takes the labels of a table as numbers, by default in the columns that are called as the ``classes``.
        max_bad: largest share of objects that cannot be read, where labels are required.

    Raises:
        DataError: the path does not exist, its layout is not supported, its labels do not fit, or too many objects
            cannot be read; or data of the hub that are neither in its cache nor can be downloaded.
        ConfigError: ``validation`` is not in [0, 1), a dict names a split that does not exist, or the hub has no such data.
    """
    if not 0 <= validation < 1:
        raise ConfigError(f"the validation fraction is {validation}", "give a fraction in [0, 1), e.g. 0.15")
    found = find_data(data, task=task)
    if isinstance(found.data, Splits):
        return found.data
    if found.opened is not None:
        return found.opened
    convert = None
    if task == Numbers.task:
        # the model's columns, unless others are named
        named = {"label": BETWEEN.join(classes)} if classes else {}
        found = replace(found, numeric=True, columns={**named, **found.columns})
    if found.root is not None and task in OUTLINED:
        layout, raw_splits = found.read(task)
        convert = OUTLINED[task] if found.objects and (task != "segmentation" or not found.masks) else None
    else:
        layout, raw_splits = _find(found, channels or 3, labelled)
    layout = found.note + layout
    if labelled:
        check_faulty_objects(raw_splits, max_bad)
    if convert is not None:
        raw_splits = convert(raw_splits)
    layout, raw_splits = _drop_unlabelled(layout, raw_splits, labelled)
    labels = {split: part.labels for split, part in raw_splits.items() if part.labels is not None}
    if (
        classes is not None
        and all(map(is_numbered, labels.values()))
        and not {*classes} & {*map(str, range(len(classes)))}
    ):
        labels = {split: name_numbers(part, classes) for split, part in labels.items()}
        layout += f"; labels are the numbers of the {len(classes)} classes: 0 is {classes[0]!r}"
    names, targets = join_labels(labels, classes, layout=layout if labelled else None) if labels else ((), {})
    multi_label = any(isinstance(values, np.ndarray) and values.ndim == 2 for values in targets.values())
    none = np.zeros(0, np.int64)
    sources = {
        split: Source(contents=part.contents, targets=targets.get(split, none), classes=names, multi_label=multi_label)
        for split, part in raw_splits.items()
    }
    train, val, test = (sources.get(split) for split in SPLIT_ORDER)
    notes = tuple(f"{split}: {note}" for split, part in raw_splits.items() for note in part.notes)
    splits = Splits(train=train, val=val, test=test, classes=names, layout=layout, seed=seed, notes=notes)
    if val is not None or train is None or not validation:
        return splits
    return hold_out(splits, fraction=validation)


def _drop_unlabelled(layout: str, raw_splits: dict[str, RawSplit], labelled: bool) -> RawData:
    """Where labels are required, drop the splits that have none and say so. The training split cannot be dropped."""
    without = [split for split, part in raw_splits.items() if part.labels is None]
    if not labelled or not without:
        return layout, raw_splits
    if len(without) == len(raw_splits) or "train" in without:
        remedy = "put the images of each class in a separate folder, or give a manifest with the columns path,label"
        raise DataError(f"the data have no labels ({layout})", remedy)
    note = f"; {', '.join(without)} has no labels and is not used"
    return layout + note, {split: part for split, part in raw_splits.items() if part.labels is not None}


def _find(found: FoundData, channels: int, labelled: bool, where: str = "") -> RawData:
    """The splits before their labels are joined. ``where`` is the name in the keys of data that have no path."""
    data = found.place or found.data
    if isinstance(data, Source):
        labels = Labels(data.classes, data.targets, declared=True) if data.labelled else None
        return "a source", {"train": RawSplit(data.contents, labels)}
    if isinstance(data, Mapping):
        return _find_by_split(found, channels, labelled)
    if isinstance(data, str) and data in BUILT_IN:
        return read_digits()
    if isinstance(data, str) and is_remote(data):
        return read_shards_at(data)
    if isinstance(data, str) and has_magic(data) and not os.path.exists(data):
        pattern = os.path.abspath(os.path.expanduser(data))
        return read_shards_at(pattern) if pattern.endswith(".tar") else read_class_folders(pattern)
    if isinstance(data, str | os.PathLike):
        return _find_at(_to_path(data), labelled, found)
    if hasattr(data, "shape") and not hasattr(data, "columns") and not hasattr(data, "column_names"):
        return "an array", {"train": read_arrays(data, where=where or "array")}
    if isinstance(data, tuple) and len(data) == 2 and hasattr(data[0], "shape"):
        return "arrays", {"train": read_arrays(*data, where=where or "array")}
    if hasattr(data, "columns"):
        return read_frame(data, labelled=labelled, columns=found.columns, numeric=found.numeric)
    if isinstance(data, list | tuple) and data and all(map(_is_pair, data)):
        return read_pairs(data, labelled=labelled, numeric=found.numeric)
    if isinstance(data, list | tuple) and data and all(isinstance(path, str | os.PathLike) for path in data):
        return f"{len(data):,} files", {"train": RawSplit(Files("", Strings(map(os.fspath, data))))}
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):  # a map-style Dataset
        layout = f"a dataset ({type(data).__name__})"
        return layout, {"train": read_dataset(data, channels=channels, where=where or "dataset", named=found.columns)}
    raise DataError(f"data of type {type(data).__name__} are not supported", f"give {READ}, arrays or a Dataset")


def _is_pair(row: Any) -> bool:
    return isinstance(row, list | tuple) and len(row) == 2 and isinstance(row[0], str | os.PathLike)


def _find_by_split(found: FoundData, channels: int, labelled: bool) -> RawData:
    layouts, splits = [], {}
    for name, part in found.data.items():
        if name not in SPLITS:
            raise ConfigError(f"unknown split {name!r}", nearest(name, SPLIT_ORDER))
        each = replace(find_data(part), columns=found.columns, numeric=found.numeric)
        layout, parts = _find(each, channels, labelled, where=name)
        splits[SPLITS[name]] = _get_only_split(parts, name)
        layouts.append(f"{name}: {each.note}{layout}")
    if not splits:
        raise DataError("the dict has no splits", "give {'train': ..., 'val': ...}")
    return ", ".join(layouts), splits


def _get_only_split(parts: Mapping[str, RawSplit], where: object) -> RawSplit:
    if len(parts) > 1:
        what = f"{where} itself contains several splits: {', '.join(parts)}"
        raise DataError(what, "give one split, or the whole data set")
    return next(iter(parts.values()))


def _find_at(path: Path, labelled: bool, found: FoundData) -> RawData:
    if not os.path.exists(path):
        raise _missing_data(path, str(found.data))
    if path.is_dir():
        return _find_in_folder(path, labelled, found)
    if not path.is_file():
        raise DataError(f"{path} is neither a regular file nor a folder", f"give {READ}")
    if found.root is not None:
        return found.read()
    suffix = path.suffix.lower()
    if suffix in MANIFESTS:
        return read_manifest(path, labelled=labelled, columns=found.columns, numeric=found.numeric)
    if suffix in PARQUET:
        how: Any = {"labelled": labelled, "named": found.columns, "numeric": found.numeric}
        return f"Parquet, {path.name}", read_parquet([path], path.parent, **how)
    if suffix == ".tar":
        return read_shards_at(str(path))
    if suffix == ".npy":
        return read_npy(path)
    if suffix == ".npz":
        return read_npz(path)
    if suffix.removeprefix(".") in EXTENSIONS:
        return "one image", {"train": RawSplit(Files(str(path.parent), Strings([path.name])))}
    raise DataError(f"the file type of {path} is not supported", f"give {READ}")


def _find_in_folder(root: Path, labelled: bool, found: FoundData) -> RawData:
    if shards := find_shards(str(root)):
        return read_shards(shards)
    if found.root is not None:
        return found.read()
    if not found.columns and (described := read_folder(root, labelled=labelled)):
        return _look_for_labels(root, *described)
    if files := find_data_files(root):
        suffix, by_split = files
        splits: dict[str, RawSplit] = {}
        for split, paths in by_split.items():
            if suffix == ".parquet":
                how: Any = {"labelled": labelled, "named": found.columns, "numeric": found.numeric}
                parts = read_parquet(paths, root, **how)
            elif len(paths) > 1:
                names = ", ".join(path.name for path in paths)
                raise DataError(f"{root} has several files for the split {split}: {names}", "keep one of them")
            else:
                _, parts = _find_at(paths[0], labelled, replace(found, data=paths[0]))
            if len(by_split) == 1 and split == "train":
                return f"{suffix} files in a folder", parts
            splits[split] = _get_only_split(parts, paths[0])
        return f"{suffix} files for {', '.join(splits)}", splits
    if any(list_files(folder, ".tar") for folder in (root, *list_folders(root, *SPLITS))):
        raise missing_index(root)
    names = sorted(path.name for path in root.iterdir())
    holds = f"it contains {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}" if names else "it is empty"
    raise DataError(f"there are no images in {root}", f"give {READ}", value=holds)


def _look_for_labels(root: Path, layout: str, splits: dict[str, RawSplit]) -> RawData:
    """Takes the labels from tables where the folders give none, or a single class; names files of annotations."""
    labels = [part.labels for part in splits.values() if part.labels is not None]
    doubtful = any(np.count_nonzero(each.counts()) < len(each.names) for each in labels) or not labels
    if doubtful or ".xml" in layout:
        found: dict[str, list[Path]] = {}
        with suppress(DataError):  # a folder that cannot be read
            for path in list_files_below(root, *FORMS):
                found.setdefault(path.suffix.lower(), []).append(path)
        parts = [
            f"{len(paths):,} {kind} ({paths[0].relative_to(root)} begins with {_show_head(paths[0])}: {FORMS[kind]})"
            for kind, paths in sorted(found.items())
        ]
        layout += f"; annotation files seen and not used: {'; '.join(parts)}" if found else ""
    if any(len(each.names) > 1 for each in labels):
        return layout, splits
    return read_tables_beside(root, layout, splits)


def _show_head(path: Path) -> str:
    return repr(read_head(path, 40).decode("utf-8", "replace").strip())


def _missing_data(path: Path, given: str) -> DataError:
    """The error for a path that does not exist, with the closest existing names."""
    folder, close = find_close_paths(path)
    close += get_close_matches(given, BUILT_IN)
    remedy = suggest(close) if close else f"give {READ}"
    return DataError(f"{path} does not exist", remedy, value=f"the nearest existing folder: {folder}")
