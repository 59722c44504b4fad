"""COCO's JSON files of objects (Lin et al. 2014; the format is described at cocodataset.org).

Category ids are names, not numbers: classes are joined by their name, and ids are never used as indices.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

from vitrail.data.sources.contents import choose_evenly, normalise_path
from vitrail.data.sources.fields import has_keys, read_document, read_numbers, read_size
from vitrail.data.sources.labels import RawData, format_label
from vitrail.data.sources.objects import LARGEST, Box, ObjectList, ObjectSplits, Read, Size
from vitrail.data.sources.scan import NamedFiles, list_files, list_folders
from vitrail.data.sources.splits import SPLITS, find_split
from vitrail.errors import DataError, nearest
from vitrail.images.rle import Rle
from vitrail.untrusted.json_documents import parse_json
from vitrail.untrusted.numbers import to_real, to_whole

KEYS = ("images", "annotations", "categories")
SEGMENTS = "segments_info"  # that annotations of panoptic files have, see panoptic.py
PROBES = 20  # names that are looked for in each folder
BOXES = ("instances", "_annotations")  # begin the names of files of objects where others stand beside them
KNOWN = frozenset(
    {"id", "image_id", "category_id", "bbox", "area", "segmentation", "iscrowd", "ignore", "attributes", "score"}
    | {"keypoints", "num_keypoints", "keypoint_scores", "caption", "track_id", "instance_id", "category_name"}
    | {"isbbox", "color"}
)
KNOWN_OF_FILE = frozenset({*KEYS, "info", "licenses", "type", "contributor", "version"})
ReadOne = Callable[[Path, Path, ObjectList], list[str]]  # adds the objects of a file, and returns its classes


def find_coco(place: Path) -> Read | None:
    """Finds a COCO file, or those of a folder by split. Raises `DataError` for several files of objects for one split."""
    return find_files(place, lambda path: has_keys(path, KEYS, without=(SEGMENTS,)), "COCO objects", _read_one)


def find_files(place: Path, is_wanted: Callable[[Path], bool], kind: str, read_one: ReadOne) -> Read | None:
    """Finds a wanted JSON file, or those of a folder by split, which ``read_one`` reads. Raises `DataError` as `find_coco`."""
    if not place.is_dir():
        root = place.parent.parent if place.parent.name.lower() == "annotations" else place.parent
        is_one = place.suffix.lower() == ".json" and is_wanted(place)
        return partial(_read_files, kind, read_one, root, {split_of(place, place.parent): place}) if is_one else None
    folders = [place, *list_folders(place, "annotations", *SPLITS)]
    every = [path for folder in folders for path in list_files(folder, ".json")]
    by_split: dict[str, list[Path]] = {}
    for path in every:
        if is_wanted(path):
            by_split.setdefault(split_of(path, place), []).append(path)
    found: dict[str, Path] = {}
    for split, group in by_split.items():
        best = [path for path in group if path.name.startswith(BOXES)] or group
        if len(best) > 1:
            two = f"{best[0].name} and {best[1].name}"
            what = f"{place} has two files of objects for the split {split}: {two}"
            raise DataError(what, "give the file that is meant in place of the folder, or a dict of files by split")
        found[split] = best[0]
    others = tuple(path.name for path in every if path not in found.values())
    return partial(_read_files, kind, read_one, place, found, others) if found else None


def split_of(path: Path, root: Path) -> str:
    """The split that the name of a file, or of its folder, contains; "train" if it contains none."""
    inside = path.relative_to(root)
    return next(filter(None, map(find_split, (inside.stem, *inside.parent.parts[::-1]))), "train")


def _read_files(
    kind: str,
    read_one: ReadOne,
    root: Path,
    files: Mapping[str, Path],
    others: Sequence[str] = (),
    *,
    outlines: bool = False,
    **how: Any,
) -> RawData:
    """Reads files by split; keys are relative to ``root``, and ``others`` are named as not used. Raises `DataError`."""
    splits = ObjectSplits(root, outlines=outlines)
    names = [name for split, path in files.items() for name in read_one(path, root, splits[split], **how)]
    unused = f"; not used: {', '.join(others[:8])}{', ...' if len(others) > 8 else ''}" if others else ""
    return f"{kind} ({', '.join(path.name for path in files.values())}{unused})", splits.finish(names)


def _read_one(path: Path, root: Path, objects: ObjectList) -> list[str]:
    """Adds the images and objects of one file, and returns its classes in the order of their ids."""
    plain, categories = read_tree(path, objects)
    pictures = read_pictures(plain["images"], root, path, objects)
    outlined = {number: objects.find_outlined(key, size) for number, (key, size) in pictures.items()}
    found: dict[str, list[Box]] = {number: [] for number in pictures}
    for place, entry in enumerate(plain["annotations"]):
        number = read_id(entry.get("image_id"))
        key, size = pictures.get(number, (f"{path.name}, image {number or '?':.40}", (0, 0)))
        where = f"{key}, annotation {read_id(entry.get('id')) or f'number {place}':.40}"
        objects.note_unknown(entry, KNOWN, key)
        with objects.rejecting(where):
            check_listed(number, pictures, path)
            if (category := read_id(entry.get("category_id"))) not in categories:
                raise ValueError(f"the category {category or 'without an id'!r:.60}, which {path.name} does not name")
            box = read_box(entry, categories[category], size)
            box.outline = _read_outline(entry, outlined[number], where, objects)
            found[number].append(box)
            if box.area is None and entry.get("area") is not None:
                objects.note("areas that are no positive numbers, taken from the boxes", key)
            if entry.get("num_keypoints") or entry.get("keypoints"):
                objects.note("keypoints, not used", key)
    for number, (key, size) in pictures.items():
        objects.add(key, size, found[number])
    objects.convention.check(path)
    return sort_categories(categories)


def read_tree(path: Path, objects: ObjectList) -> tuple[dict[str, Any], dict[str, str]]:
    """Reads a file with the lists `KEYS` of objects, and the name of each category by its id. Raises `DataError` for others."""
    plain = read_document(path, "JSON", parse_json)
    if not isinstance(plain, dict) or not all(isinstance(plain.get(key), list) for key in KEYS):
        raise DataError(f"{path} has no lists {', '.join(KEYS)}", "give a file in the format of COCO's instances")
    if not all(isinstance(entry, dict) for key in KEYS for entry in plain[key]):
        raise DataError(f"the lists of {path} contain entries that are no objects", "export the annotations again")
    objects.note_unknown(plain, KNOWN_OF_FILE, path.name)
    return plain, _read_categories(plain["categories"], path)


def check_listed(number: str, pictures: Mapping[str, Any], path: Path) -> None:
    """Raises `ValueError` for an annotation of an image that its file does not list."""
    if number not in pictures:
        what = f"an annotation of the image {number or 'without an id'!r:.60}"
        raise ValueError(f"{what}, which {path.name} does not list")


def sort_categories(categories: Mapping[str, str]) -> list[str]:
    """The names of categories in the order of their ids."""
    return [name for _, name in sorted(categories.items(), key=lambda pair: pair[0].zfill(12))]


def read_id(value: Any) -> str:
    """An id as text, alike for 3, 3.0 and "3"; empty for anything else."""
    return "" if isinstance(value, bool | dict | list) else format_label(value)


def _read_categories(entries: Sequence[Mapping[str, Any]], path: Path) -> dict[str, str]:
    """The name of each category, by its id. Raises `DataError` for one without either, and for two of one id."""
    categories: dict[str, str] = {}
    for entry in entries:
        number, name = (read_id(entry.get(field)) for field in ("id", "name"))
        if not number or not name:
            what = f"a category of {path} has no {'name' if number else 'id'}: {json.dumps(entry):.120}"
            raise DataError(what, "give it one")
        if categories.setdefault(number, name) != name:
            what = f"{path} gives the categories {categories[number]!r} and {name!r} the same id {number}"
            raise DataError(what, "give each category an id of its own")
    return categories


def read_pictures(
    entries: Sequence[Mapping[str, Any]], root: Path, path: Path, objects: ObjectList
) -> dict[str, tuple[str, Size]]:
    """The key of each image and its (height, width), by its id. Entries that cannot be read are rejected."""
    named = {}
    for place, entry in enumerate(entries):
        with objects.rejecting(f"{path.name}, image {read_id(entry.get('id')) or f'number {place}':.40}"):
            number, name = read_id(entry.get("id")), entry["file_name"]
            if not number or not isinstance(name, str) or not name:
                raise ValueError(f"it has no id or no file_name: {json.dumps(entry):.120}")
            size = read_size(entry.get("height"), entry.get("width"))
            if number in named:
                what = f"{path} gives several images the same id {number}: {named[number][0]} and {name}"
                raise DataError(what, "give each image an id of its own")
            named[number] = name, size
    folder, files = _find_images(path, root, [name for name, _ in named.values()], objects)
    for name, found in files.items():
        if found is None:
            objects.note(f"images of {path.name} that are not found", name)
    paths = {name: os.path.relpath(folder / (found or name), root) for name, found in files.items()}
    try:
        return {number: (normalise_path(paths[name]), size) for number, (name, size) in named.items()}
    except ValueError as error:
        remedy = f"export the annotations again, with the images inside of {root}"
        raise DataError(f"{path}: {error}", remedy) from error


def read_box(entry: Mapping[str, Any], name: str, size: Size) -> Box:
    """The object of an annotation; without a box, that around its outline."""
    flags = ((field, entry.get(field) or 0) for field in ("iscrowd", "ignore"))
    crowd = any([flag if isinstance(flag, bool) else to_whole(flag, field, most=1) for field, flag in flags])
    area = entry.get("area")
    is_number = isinstance(area, int | float) and not isinstance(area, bool)
    area = float(area) if is_number and 0 < area < LARGEST**2 else None
    if entry.get("bbox") in (None, []):
        if not (segmentation := _normalise(entry.get("segmentation"))):
            raise ValueError("it has neither bbox nor segmentation; give bbox: [left, top, width, height] in pixels")
        if isinstance(segmentation, dict):
            return Box(name, Rle.of_coco(segmentation, size).box, crowd, area)
        parts = [read_numbers(part, len(part) if isinstance(part, list) else 0, "a polygon") for part in segmentation]
        if any(len(part) < 6 or len(part) % 2 for part in parts):
            raise ValueError(f"a polygon of {min(map(len, parts))} numbers; at least three points are required")
        xs, ys = ([value for part in parts for value in part[start::2]] for start in (0, 1))
        return Box(name, (min(xs), min(ys), max(xs), max(ys)), crowd, area)
    try:
        left, top, width, height = read_numbers(entry["bbox"], 4, "bbox")
    except ValueError as error:
        raise ValueError(f"{error}; give bbox: [left, top, width, height] in pixels") from error
    corners, attributes = (left, top, left + width, top + height), entry.get("attributes")
    degrees = to_real(attributes.get("rotation") or 0, "the rotation") if isinstance(attributes, dict) else 0.0
    if degrees:  # as CVAT writes boxes
        return Box(name, Box.of_rectangle(name, corners, degrees).box, crowd, area)
    return Box(name, corners, crowd, area, given=(left, top, width, height))


def _normalise(segmentation: Any) -> Any:
    """Polygons as flat lists, also of one that stands alone or has pairs of numbers, or run lengths. Raises `ValueError`."""
    if not segmentation or isinstance(segmentation, dict):
        return segmentation
    if not isinstance(segmentation, list):
        raise ValueError(f"segmentation is {segmentation!s:.60}, not polygons or run lengths")

    def holds_lists(values: Any) -> bool:
        return isinstance(values, list) and any(isinstance(value, list) for value in values)

    if not holds_lists(segmentation):
        return [segmentation]
    if all(isinstance(part, list) and len(part) == 2 and not holds_lists(part) for part in segmentation):
        return [[*chain(*segmentation)]]
    nested = (holds_lists(part) and all(isinstance(point, list) for point in part) for part in segmentation)
    return [[*chain(*part)] if inside else part for part, inside in zip(segmentation, nested)]


def _read_outline(entry: Mapping[str, Any], size: Size | None, where: str, objects: ObjectList) -> Rle | None:
    """The outline of an annotation in a picture of this size; None without one, or with one that is rejected."""
    if size is None or not entry.get("segmentation"):
        return None
    with objects.rejecting(f"{where}, its outline; its box is ignored", kept=True):
        segmentation = _normalise(entry["segmentation"])
        if isinstance(segmentation, list):
            flat = [part for part in segmentation if not isinstance(part, list) or len(part) > 4 or len(part) % 2]
            if len(flat) < len(segmentation):
                objects.note("polygons of one or two points, left out", where)
            if not flat:
                return None
            segmentation = flat
        return Rle.of_coco(segmentation, size)
    return None


def _find_images(
    path: Path, root: Path, file_names: Sequence[str], objects: ObjectList
) -> tuple[Path, dict[str, str | None]]:
    """The folder that has most of some images, by their paths or else by their names alone; and the names as stored."""
    split = split_of(path, root)
    words = filter(None, (path.stem.partition("_")[2], split, *(key for key in SPLITS if SPLITS[key] == split)))
    bases = (path.parent, path.parent.parent, root)
    folders = (base / inside / word for base, inside, word in product(bases, ("", "images"), (*words, "")))
    usual = (folder for folder in dict.fromkeys(folders) if folder.is_dir() and folder.is_relative_to(root))
    finders = [NamedFiles(folder) for folder in usual]
    bare = [name.replace("\\", "/").rpartition("/")[2] for name in file_names]
    for names in (file_names, bare):
        some = [names[row] for row in choose_evenly(len(names), PROBES).tolist()]
        present = [sum(files.find(name) is not None for name in some) for files in finders]
        best = finders[present.index(max(present))]  # the first of equals
        if not some or max(present):
            if names is bare and (example := next((given for given in file_names if given not in bare), "")):
                what = f"images of {path.name} are found by their names, without folders such as in {example!r}"
                objects.remarks.append(what)
            return Path(best.root), {given: best.find_file(name) for given, name in zip(file_names, names)}
    looked = ", ".join(files.root for files in finders[:6])
    remedy = f"put them in one of {looked}; {nearest(bare[0], os.listdir(finders[0].root))}"
    raise DataError(f"the images of {path} are not found, e.g. {file_names[0]!r}", remedy)
