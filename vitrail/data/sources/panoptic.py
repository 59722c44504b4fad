"""COCO's panoptic files (Kirillov et al. 2019): a JSON of segments, and a PNG for each image whose pixels name their segment.

The id of a segment is red + 256 green + 65,536 blue of its pixels; 0 is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.data.sources.coco import (
    KEYS,
    SEGMENTS,
    check_listed,
    find_files,
    read_box,
    read_id,
    read_pictures,
    read_tree,
    sort_categories,
)
from vitrail.data.sources.fields import has_keys
from vitrail.data.sources.id_maps import MapFile, Segments, read_cityscapes, trace_maps
from vitrail.data.sources.labels import EXAMPLES, RawData
from vitrail.data.sources.objects import Box, ObjectList, Read, Size
from vitrail.data.sources.scan import NamedFiles
from vitrail.errors import DataError
from vitrail.images.masks import encode_colours, open_mask
from vitrail.images.rle import Rle
from vitrail.untrusted.numbers import to_whole

KNOWN = frozenset({"id", "category_id", "iscrowd", "bbox", "area", "score"})
KNOWN_OF_ANNOTATION = frozenset({"image_id", "file_name", SEGMENTS})
ROUNDING = 1.0  # pixels between the box of a segment and that of its pixels


class Annotation(NamedTuple):
    """The segments of an image, and its map where pixels are read."""

    key: str
    size: Size
    segments: list[Any]
    file: MapFile | None


def find_panoptic(place: Path) -> Read | None:
    """Finds a panoptic file, or those of a folder by split. Raises `DataError` for several files of one split.

    The segments of things, by ``isthing`` of their category, are objects, stuff is left out, unless the function that is returned
    is called with ``stuff=True``: they are `PanopticObjects` then, and an image whose PNG cannot be used is left out. The PNG
    files are only read for outlines and for segments without a box; ids are then compared with those of the JSON. They lie in a
    folder with the name of the file, in ``panoptic``, or beside the file.
    """
    return find_files(place, lambda path: has_keys(path, (*KEYS, SEGMENTS)), "COCO panoptic objects", _read_one)


def read_segments(place: Path, objects: Read | None) -> RawData:
    """Reads the segments of things and stuff of data at a path, whose ``objects`` were found. Raises `DataError` without any."""
    is_cityscapes = getattr(objects, "func", None) is read_cityscapes
    if (read := objects if is_cityscapes else find_panoptic(place)) is None:
        what = f"{place} has no segments of stuff, which panoptic needs beside things: no .json with {SEGMENTS}"
        instances = "on outlines with --task instances --head queries"
        raise DataError(what, f"give COCO's panoptic format, or train {instances}, on masks with --task segment")
    return read(outlines=True, stuff=True)


def _read_one(path: Path, root: Path, objects: ObjectList, *, stuff: bool = False) -> list[str]:
    """Adds the images of one file with things, and ``stuff``, and returns the classes of these in the order of their ids."""
    plain, categories = read_tree(path, objects)
    flags = {read_id(entry["id"]): entry.get("isthing", 1) for entry in plain["categories"]}
    if wrong := next((number for number, flag in flags.items() if flag not in (0, 1)), None):
        what = f"{path}: isthing of the category {wrong} is {flags[wrong]!s:.60}"
        raise DataError(what, "give 1 for things, 0 for stuff")
    wanted = {number: name for number, name in categories.items() if flags[number] or stuff}
    for number, name in wanted.items() if stuff else ():
        if objects.things.setdefault(name, bool(flags[number])) != flags[number]:
            what = f"{path}: the class {name!r:.60} is one of things and of stuff"
            raise DataError(what, "give isthing the same value for every category of a name, in all files")
    pictures = read_pictures(plain["images"], root, path, objects)
    annotations = _read_annotations(plain["annotations"], path, root, pictures, objects)
    files = [each.file for each in annotations if each.file]
    traced = trace_maps(root, files, _decode_colours)
    for each in annotations:
        found = next(traced) if each.file else None
        boxes = _read_segments(each, found, categories, wanted, objects)
        if isinstance(found, Segments) or not stuff:
            objects.add(each.key, each.size, boxes)
    annotated = {each.key for each in annotations}
    for key, _ in pictures.values():
        if key not in annotated:
            objects.note(f"images without an annotation in {path.name}, left out", key)
    objects.convention.check(path)
    return sort_categories(wanted)


def _decode_colours(content: bytes) -> NDArray[np.uint32]:
    return encode_colours(np.asarray(open_mask(content).convert("RGB")))


def _read_annotations(
    entries: Sequence[Mapping[str, Any]],
    path: Path,
    root: Path,
    pictures: Mapping[str, tuple[str, Size]],
    objects: ObjectList,
) -> list[Annotation]:
    names, found, seen = NamedFiles(root), [], set()
    folders = [path.parent / path.stem, path.parent / "panoptic", path.parent]
    folders += [root / path.stem, root / "panoptic"] if root != path.parent else []
    inside = [folder.relative_to(root).as_posix() for folder in folders if folder.is_dir()]
    for place, entry in enumerate(entries):
        number = read_id(entry.get("image_id"))
        key, size = pictures.get(number, (f"{path.name}, image {number or '?':.40}", (0, 0)))
        where = f"{key}, annotation number {place}"
        objects.note_unknown(entry, KNOWN_OF_ANNOTATION, key)
        with objects.rejecting(where):
            check_listed(number, pictures, path)
            if key in seen:  # whose map would be decoded once more
                raise ValueError("another annotation has the same image")
            segments = entry[SEGMENTS]
            if not isinstance(segments, list) or not all(isinstance(each, dict) for each in segments):
                raise ValueError(f"{SEGMENTS} is {segments!s:.60}, not a list of segments")
            file = None
            if objects.outlines or not all(each.get("bbox") for each in segments):
                with _rejecting_pixels(f"{where}, its pixels", objects):
                    file = MapFile(key, _find_map(entry["file_name"], inside, names), size)
            seen.add(key)
            found.append(Annotation(key, size, segments, file))
    return found


def _rejecting_pixels(where: str, objects: ObjectList) -> AbstractContextManager[None]:
    """Rejects what is read inside as `ObjectList.rejecting` does; boxes serve without pixels unless stuff is read."""
    instead = "the image is left out" if objects.things else "boxes are used as stated"
    return objects.rejecting(f"{where}; {instead}", kept=not objects.things)


def _find_map(name: Any, folders: Sequence[str], names: NamedFiles) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"file_name is {name!s:.60}")
    if (found := names.find_key(*(f"{folder}/{name}" for folder in folders))) is None:
        raise ValueError(f"the file {name!r:.80} is not found; put it in one of {', '.join(folders)} in {names.root}")
    return found


def _read_segments(
    annotation: Annotation,
    found: Segments | str | None,
    categories: Mapping[str, str],
    wanted: Mapping[str, str],
    objects: ObjectList,
) -> list[Box]:
    """The objects of an image, of ``wanted`` categories; ``found`` has the masks of its map, or its fault.

    Ids of only one of JSON and PNG are named.
    """
    key, boxes, seen = annotation.key, [], set()
    file = Path(annotation.file.path).name if annotation.file else ""
    with _rejecting_pixels(f"{key}, its pixels in {file}", objects):
        if isinstance(found, str):
            raise ValueError(found)
    masks = found.masks if isinstance(found, Segments) else None
    for segment in annotation.segments:
        objects.note_unknown(segment, KNOWN, key)
        identity = read_id(segment.get("id"))
        with objects.rejecting(f"{key}, segment {identity or '?':.40}"):
            number = to_whole(segment["id"], "the id", least=1, most=2**24 - 1)
            if number in seen:
                raise ValueError("another segment has the same id")
            seen.add(number)
            if (category := read_id(segment.get("category_id"))) not in categories:
                raise ValueError(f"the category {category or 'without an id'!r:.60}, which is not named")
            mask = masks.get(number) if masks is not None else None
            if category not in wanted:
                objects.note("segments of stuff, left out", key)
                if masks is not None and mask is None:
                    objects.note("segments of stuff whose ids are not in the PNG", f"{file}: {number}")
                continue
            if masks is not None and mask is None:
                raise ValueError(f"no pixel of {file} has this id")
            boxes.append(_read_segment(segment, wanted[category], mask, annotation, objects))
    if unknown := [number for number in masks or () if number not in seen]:
        some = f"{', '.join(map(str, unknown[:EXAMPLES]))}{', ...' if len(unknown) > EXAMPLES else ''}"
        objects.reject(f"{key}, {file}", f"pixels with the ids {some}, which are not in {SEGMENTS}")
    return boxes


def _read_segment(
    segment: Mapping[str, Any], name: str, mask: Rle | None, annotation: Annotation, objects: ObjectList
) -> Box:
    """The object of a segment, by the box and area that it states, else by those of its pixels."""
    if mask is None:
        return read_box(segment, name, annotation.size)
    left, top, right, bottom = mask.box
    around = [left, top, right - left, bottom - top]
    stated = {field: value for field, value in segment.items() if value}
    box = read_box({"bbox": around, "area": mask.area, **stated}, name, annotation.size)
    if max(abs(one - other) for one, other in zip(box.box, mask.box)) > ROUNDING:
        objects.note("boxes that are not those of the pixels of their segments", annotation.key)
    box.outline = mask if objects.outlines else None
    return box
