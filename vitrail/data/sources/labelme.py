"""labelme's JSON files: one beside each image, with shapes as corner points in pixels."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from vitrail.data.sources.contents import read_file
from vitrail.data.sources.fields import has_keys, read_name, read_points, read_size
from vitrail.data.sources.labels import RawData
from vitrail.data.sources.objects import Box, ObjectList, ObjectSplits, Point, Read, Size
from vitrail.data.sources.scan import NamedFiles, list_files, list_files_below, list_folders, list_images_below
from vitrail.data.sources.splits import SPLITS, find_folder_split
from vitrail.images.decode import BadImage
from vitrail.images.masks import decode_mask
from vitrail.images.rle import unite
from vitrail.untrusted.json_documents import parse_json

KEYS = ("shapes", "imagePath")
FOLDERS = ("annotations", "json", "jsons", "labelme", "labels")  # that may have the files, in any letter case
# of the shapes that have an area: "rotation" is X-AnyLabeling's turned box
FEWEST_POINTS = {"polygon": 3, "rectangle": 2, "rotation": 3, "circle": 2, "mask": 2}
KNOWN = frozenset(
    {"label", "points", "group_id", "shape_type", "flags", "mask", "description", "attributes", "kie_linking", "score"}
    | {"difficult", "direction", "line_color", "fill_color", "other_data", "cells"}
)


def find_labelme(root: Path) -> Read | None:
    """Finds files of labelme in a folder, or in one of a split or of annotations in it; of each one file is read."""
    folders = [root, *list_folders(root, *SPLITS, *FOLDERS)]
    examples = (next(iter(list_files(folder, ".json")), None) for folder in folders)
    return partial(read_labelme, root) if any(path and has_keys(path, KEYS) for path in examples) else None


def read_labelme(root: Path, *, outlines: bool = False) -> RawData:
    """Reads the objects of labelme's files below ``root``, by the split that a folder of the file, or else of its image, names.

    With ``outlines`` they keep their shapes; those without area are left out. Shapes of one label and one group are one object.
    """
    splits, files = ObjectSplits(root, outlines=outlines), NamedFiles(root)
    for path in list_files_below(root, ".json"):
        _read_one(path, files, splits)
    splits.drop_empty()
    annotated = {key for part in splits.values() for key in part.images}
    for key in list_images_below(root):
        if key not in annotated:
            splits.first.note("images without an annotation file, left out", key)
    return "labelme objects", splits.finish()


def _read_one(path: Path, files: NamedFiles, splits: ObjectSplits) -> None:
    """Adds the image and the shapes of one file to its split. A JSON file with neither of labelme's keys is left out."""
    where = path.relative_to(splits.root).as_posix()
    split = find_folder_split(where)
    objects = splits[split or "train"]
    try:
        content = read_file(path)
        if not any(f'"{key}"'.encode() in content for key in KEYS):
            return
        plain = parse_json(content)
    except BadImage as error:
        return objects.reject(where, error)
    except ValueError as error:
        return objects.reject(where, f"it is no valid JSON: {error}")
    if not isinstance(plain, dict) or not isinstance(plain.get("shapes"), list):
        return objects.reject(where, "it has no list of shapes")
    with objects.rejecting(where):
        name, beside = PurePosixPath(str(plain["imagePath"]).replace("\\", "/")), PurePosixPath(where).parent
        if (key := files.find_key(str(beside / name), str(beside / name.name))) is None:
            raise ValueError(f"the image {str(name)!r:.80} does not exist: put the image beside its annotation")
        objects = splits[split or find_folder_split(key) or "train"]
        with objects.rejecting(where):
            _read_shapes(plain, key, where, objects)


def _read_shapes(plain: Mapping[str, Any], key: str, where: str, objects: ObjectList) -> None:
    size = read_size(plain.get("imageHeight"), plain.get("imageWidth"))
    outlined = objects.find_outlined(key, size)
    groups: dict[Any, list[Box]] = {}
    for number, shape in enumerate(plain["shapes"], 1):
        with objects.rejecting(f"{where}, shape {number}"):
            if (box := _read_shape(shape, key, objects, outlined)) is not None:
                group = shape.get("group_id")
                groups.setdefault((number,) if group is None else (box.name, str(group)), []).append(box)
    objects.add(key, size, [_join(boxes) for boxes in groups.values()])


def _read_shape(shape: Any, key: str, objects: ObjectList, outlined: Size | None) -> Box | None:
    """The object of a shape of the image ``key``; None for one without area, which is noted."""
    if not isinstance(shape, dict):
        raise ValueError(f"it is {shape!s:.80}")
    objects.note_unknown(shape, KNOWN, key)
    kind, name = str(shape.get("shape_type") or "polygon"), read_name(shape["label"])
    points = read_points(shape["points"])
    if len(points) < FEWEST_POINTS.get(kind, math.inf):
        return objects.note(f"shapes without area ({kind:.40}), left out", key)
    if kind == "circle":
        radius = math.dist(*points[:2])
        return Box.of_ellipse(name, points[0], (radius, radius), 0.0, outlined)
    if kind == "mask":
        return _read_mask(name, shape, points, outlined)
    if kind == "rectangle":
        xs, ys = zip(*points)
        return Box.of_rectangle(name, (min(xs), min(ys), max(xs), max(ys)))
    return Box.of_polygon(name, points, outlined)


def _read_mask(name: str, shape: Mapping[str, Any], points: list[Point], outlined: Size | None) -> Box:
    """The object of a mask: a PNG file in base64 that lies between two pixels, the second of them included."""
    (left, top), (right, bottom) = points[:2]
    box = Box(name, (left, top, right + 1, bottom + 1))
    if outlined:
        try:
            patch = decode_mask(base64.b64decode(str(shape["mask"]), validate=True))
        except BadImage as error:
            raise ValueError(error.reason) from error
        if patch.shape != (bottom - top + 1, right - left + 1):
            what = f"a mask of {patch.shape[1]} x {patch.shape[0]} pixels"
            raise ValueError(f"{what} from ({left}, {top}) to ({right}, {bottom})")
        box.outline = Box.of_patch(name, patch, (round(left), round(top)), outlined).outline
    return box


def _join(boxes: list[Box]) -> Box:
    """One object of several shapes."""
    if len(boxes) == 1:
        return boxes[0]
    lows, highs = zip(*((one.box[:2], one.box[2:]) for one in boxes))
    corners = (*map(min, zip(*lows)), *map(max, zip(*highs)))
    outlines = [one.outline for one in boxes if one.outline is not None]
    return Box(boxes[0].name, corners, outline=unite(outlines) if len(outlines) == len(boxes) else None)
