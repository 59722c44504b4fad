"""COCO's JSON files of objects (Lin et al. 2014; the format is described at cocodataset.org).

Category ids are names, not numbers: classes are joined by their name, and ids are never used as indices.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.data.decode import BadImage
from vitrail.data.rle import Rle
from vitrail.data.sources.contents import has_keys, make_key, read_file
from vitrail.data.sources.labels import SPLITS, RawSplit
from vitrail.data.sources.object_lists import LARGEST, Box, ObjectList, Size, read_size
from vitrail.errors import DataError, nearest
from vitrail.untrusted.json_documents import parse_json

KEYS = ("images", "annotations", "categories")
ANNOTATION_FOLDERS = ("", "annotations")
IMAGE_FOLDERS = ("", "images")


def find_coco(root: Path) -> dict[str, Path]:
    """The COCO files of a folder by split: beside its images, in ``annotations/`` or in folders named after splits."""
    folders = [root / name for name in ANNOTATION_FOLDERS]
    folders += sorted(path for path in root.iterdir() if path.is_dir() and path.name.lower() in SPLITS)
    files = [path for folder in folders if folder.is_dir() for path in sorted(folder.glob("*.json")) if is_coco(path)]
    found: dict[str, Path] = {}
    for path in files:
        split = split_of(path, root)
        if split in found:
            what = f"{root} has two files of objects for the split {split}: {found[split].name} and {path.name}"
            raise DataError(what, "give the file that is meant in place of the folder, or a dict of files by split")
        found[split] = path
    return found


def is_coco(path: Path) -> bool:
    """Whether a JSON file has the lists of COCO's format; it is not parsed."""
    return has_keys(path, KEYS)


def split_of(path: Path, root: Path) -> str:
    """The split that the name of a file, or of its folder, contains; "train" if it contains none."""
    inside = path.relative_to(root)
    for part in (inside.stem, *inside.parent.parts[::-1]):
        for word in re.findall("[a-z]+", part.lower()):
            if word in SPLITS:
                return SPLITS[word]
    return "train"


def read_coco(root: Path, files: Mapping[str, Path], *, outlines: bool = False) -> tuple[str, dict[str, RawSplit]]:
    """The objects and images of COCO files by split. Image paths are relative to ``root`` where they lie in it.

    With ``outlines``, the objects keep their polygons and run lengths.

    Raises:
        DataError: a file is not COCO's, names an unknown category or image, or its images are not found.
    """
    names: dict[str, None] = {}
    parts = {split: _read_one(path, root, names, outlines) for split, path in files.items()}
    layout = f"COCO objects ({', '.join(path.name for path in files.values())})"
    return layout, {split: part.split(str(root), tuple(names)) for split, part in parts.items()}


def _read_one(path: Path, root: Path, names: dict[str, None], outlines: bool) -> ObjectList:
    """The objects of one file; adds its classes to ``names`` in the order of their ids."""
    plain = _parse(path)
    categories = {_take(entry, "id", path): str(_take(entry, "name", path)) for entry in plain["categories"]}
    names |= dict.fromkeys(name for _, name in sorted(categories.items(), key=lambda pair: str(pair[0]).zfill(12)))
    entries = {_take(entry, "id", path): entry for entry in plain["images"]}
    if len(entries) < len(plain["images"]):
        raise DataError(f"{path} gives several images the same id", "give each image an id of its own")
    folder = _find_images(path, root, [str(_take(entry, "file_name", path)) for entry in plain["images"]])
    objects = ObjectList()
    pictures = {number: _read_picture(entry, folder, root, path) for number, entry in entries.items()}
    outlined = {
        number: objects.find_outlined(key, size, root) if outlines else None for number, (key, size) in pictures.items()
    }
    found: dict[Any, list[Box]] = {number: [] for number in entries}
    unknown: set[str] = set()
    for annotation in plain["annotations"]:
        number, category = _take(annotation, "image_id", path), _take(annotation, "category_id", path)
        if number not in found:
            raise DataError(
                f"{path} has an annotation of the image {number!r}, which it does not list", "add the image"
            )
        if category not in categories:
            unknown.add(str(category))
            continue
        box = _read_box(annotation, categories[category], path)
        if (size := outlined[number]) and (segmentation := annotation.get("segmentation")):
            box.outline = _read_outline(segmentation, size, path)
        found[number].append(box)
    if unknown:
        shown = ", ".join(sorted(unknown)[:8])
        raise DataError(
            f"{path} has annotations of the categories {shown}, which it does not name", "name all categories"
        )
    for number, (key, size) in pictures.items():
        objects.add(key, size, found[number])
    objects.convention.check(path)
    return objects


def _parse(path: Path) -> dict[str, Any]:
    try:
        plain = parse_json(read_file(path))
    except BadImage as error:
        raise DataError(f"{path} cannot be read: {error.reason}", "check the file") from error
    except ValueError as error:
        raise DataError(f"{path} is no valid JSON: {error}", "export the annotations again") from error
    if not isinstance(plain, dict) or not all(isinstance(plain.get(key), list) for key in KEYS):
        raise DataError(f"{path} has no lists {', '.join(KEYS)}", "give a file in the format of COCO's instances")
    if not all(isinstance(entry, dict) for key in KEYS for entry in plain[key]):
        raise DataError(f"the lists of {path} contain entries that are no objects", "export the annotations again")
    return plain


def _take(entry: Mapping[str, Any], name: str, path: Path) -> Any:
    value = entry.get(name)
    if value is None or isinstance(value, (dict, list)):
        raise DataError(f"an entry of {path} has no {name!r}: {json.dumps(entry):.120}", "export the annotations again")
    return value


def _read_box(annotation: Mapping[str, Any], name: str, path: Path) -> Box:
    values = annotation.get("bbox")
    if not isinstance(values, list) or len(values) != 4 or not all(isinstance(value, (int, float)) for value in values):
        what = f"an annotation of {path} has the box {json.dumps(values):.80}, and not four numbers"
        raise DataError(what, "give bbox: [left, top, width, height] in pixels")
    left, top, width, height = map(float, values)
    area = annotation.get("area")
    area = float(area) if isinstance(area, (int, float)) and 0 < area < LARGEST**2 else None
    box = (left, top, left + width, top + height)
    return Box(name, box, bool(annotation.get("iscrowd")), area, given=(left, top, width, height))


def _read_picture(entry: Mapping[str, Any], folder: Path, root: Path, path: Path) -> tuple[str, Size]:
    """The key of an image, and its (height, width)."""
    try:
        return make_key(folder / str(entry["file_name"]), root), read_size(entry.get("height"), entry.get("width"))
    except ValueError as error:
        what = f"{path} has the image {str(entry['file_name'])!r:.80}: {error}"
        raise DataError(what, f"export the annotations again, with the images inside of {root}") from error


def _read_outline(segmentation: Any, size: Size, path: Path) -> Rle:
    try:
        return Rle.of_coco(segmentation, size)
    except ValueError as error:
        raise DataError(f"{path} has {error}", "export the annotations again") from error


def _find_images(path: Path, root: Path, file_names: Sequence[str]) -> Path:
    """The folder to which the file names are relative: the first in which most of some images are."""
    folders = list(_list_candidates(path, root))
    some = file_names[:: max(len(file_names) // 20, 1)]
    present = [sum((folder / name).is_file() for name in some) for folder in folders]
    best = max(range(len(folders)), key=lambda place: present[place])  # the first of equals
    if some and not present[best]:
        looked = ", ".join(str(folder) for folder in folders[:6])
        close = nearest(Path(some[0]).name, [entry.name for entry in folders[0].iterdir()]) if folders else ""
        raise DataError(
            f"the images of {path} are not found, e.g. {some[0]!r}", f"put them in one of {looked}; {close}"
        )
    return folders[best]


def _list_candidates(path: Path, root: Path) -> Iterable[Path]:
    """The folders in which images of a COCO file usually lie."""
    seen = set()
    split = split_of(path, root)
    words = [
        word for word in (path.stem.partition("_")[2], split, *(key for key in SPLITS if SPLITS[key] == split)) if word
    ]
    for base in dict.fromkeys((path.parent, path.parent.parent, root)):
        for inside in IMAGE_FOLDERS:
            for word in (*words, ""):
                folder = base / inside / word
                if folder.is_dir() and folder not in seen and folder.is_relative_to(root):
                    seen.add(folder)
                    yield folder
