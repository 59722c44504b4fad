"""labelme's JSON files: one beside each image, with shapes as corner points in pixels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.data.decode import BadImage
from vitrail.data.sources.contents import has_keys, make_key, read_file
from vitrail.data.sources.folders import Scan
from vitrail.data.sources.labels import SPLITS, RawSplit, sort_names
from vitrail.data.sources.object_lists import Box, Corners, ObjectList, Size, enclose_polygon, read_size
from vitrail.errors import DataError
from vitrail.untrusted.json_documents import parse_json

KEYS = ("shapes", "imagePath")
FEWEST_POINTS = {"polygon": 3, "rectangle": 2, "circle": 2, "mask": 2}  # of the shapes that have an area


def is_labelme(root: Path) -> bool:
    """Whether a folder, or one of a split in it, has JSON files of labelme; one file of each is looked at."""
    folders = [root, *(path for path in root.iterdir() if path.name.lower() in SPLITS and path.is_dir())]
    examples = (next(folder.glob("*.json"), None) for folder in folders)
    return any(path is not None and has_keys(path, KEYS) for path in examples)


def read_labelme(root: Path, *, outlines: bool = False) -> tuple[str, dict[str, RawSplit]]:
    """The objects of labelme's files below ``root``, by split where the folders of the files are named after splits.

    Of a polygon, circle or mask the box is taken, and with ``outlines`` the polygon, too; points and lines have no area and
    are left out.

    Raises:
        DataError: a file that cannot be parsed, or whose image does not exist.
    """
    parts: dict[str, ObjectList] = {}
    for path in sorted(root.rglob("*.json")):
        if has_keys(path, KEYS):
            top = path.relative_to(root).parts[0].lower()
            _read_one(path, root, parts.setdefault(SPLITS.get(top, "train"), ObjectList()), outlines)
    annotated = {key for part in parts.values() for key in part.keys}
    first = next(iter(parts.values()))
    for key in Scan().list_images(str(root), ""):
        if key not in annotated:
            first.note("images without an annotation file, left out", key)
    names = sort_names(set().union(*(part.names() for part in parts.values())))
    return "labelme objects", {split: part.split(str(root), names) for split, part in parts.items()}


def _read_one(path: Path, root: Path, objects: ObjectList, outlines: bool) -> None:
    """Adds the image and the shapes of one file."""
    try:
        plain = parse_json(read_file(path))
        image = path.parent / str(plain["imagePath"]).replace("\\", "/")
        key, size = make_key(image, root), read_size(plain.get("imageHeight"), plain.get("imageWidth"))
        if not image.is_file():
            remedy = "put the image beside its annotation"
            raise DataError(f"{path} names the image {str(image)!r}, which does not exist", remedy)
        outlined = objects.find_outlined(key, size, root) if outlines else None
        found = [box for shape in plain["shapes"] if (box := _read_shape(shape, key, objects, outlined)) is not None]
    except BadImage as error:
        raise DataError(f"{path} cannot be read: {error.reason}", "check the file") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{path} is no file of labelme: {type(error).__name__}: {error}"
        raise DataError(what, "save the annotation again") from error
    objects.add(key, size, found)


def _read_shape(shape: Mapping[str, Any], key: str, objects: ObjectList, outlined: Size | None) -> Box | None:
    """The object of a shape of the image ``key``; None for one without area, which is noted."""
    kind, name = str(shape.get("shape_type") or "polygon"), str(shape["label"])
    points = [(float(x), float(y)) for x, y in shape["points"]]
    if len(points) < FEWEST_POINTS.get(kind, math.inf):
        return objects.note(f"shapes without area ({kind:.40}), left out", key)
    if kind == "circle":
        return Box(name, _enclose_circle(*points[:2]))
    return enclose_polygon(name, points, outlined if kind == "polygon" else None)


def _enclose_circle(centre: tuple[float, float], edge: tuple[float, float]) -> Corners:
    """The box around a circle, given by its centre and a point of its edge."""
    (x, y), radius = centre, math.dist(centre, edge)
    return x - radius, y - radius, x + radius, y + radius
