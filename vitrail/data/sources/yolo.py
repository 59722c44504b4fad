"""YOLO's text files of objects: a YAML file of splits and class names, and a text file of boxes or polygons per image."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vitrail.data.decode import BadImage
from vitrail.data.sources.contents import read_file, read_lines, read_upright_size
from vitrail.data.sources.folders import Scan
from vitrail.data.sources.labels import SPLITS, RawSplit
from vitrail.data.sources.object_lists import Box, ObjectList, enclose_polygon
from vitrail.errors import DataError, find_fault
from vitrail.untrusted.numbers import to_real, to_whole
from vitrail.untrusted.yaml_documents import parse_yaml

CHECK = "check the file"
KEYS = re.compile(rb"(?m)(?:^|[{,])[ \t\"']*([A-Za-z]+)[\"']?[ \t]*:")
BEYOND = 1e-3  # how far a coordinate may lie outside of 0 to 1 by rounding


def find_yolo(root: Path) -> Path | None:
    """The YAML file of a folder that describes objects in YOLO's format. Raises `DataError` for several."""
    files = [path for path in sorted([*root.glob("*.yaml"), *root.glob("*.yml")]) if is_yolo(path)]
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise DataError(f"{root} has several descriptions of objects: {names}", "give the file that is meant")
    return files[0] if files else None


def is_yolo(path: Path) -> bool:
    """Whether a YAML file names classes and the images of a split. One with these keys that cannot be parsed counts as well."""
    try:
        keys = {key.decode() for key in KEYS.findall(read_file(path))}
    except BadImage:
        return False
    if "names" not in keys or keys.isdisjoint(SPLITS):
        return False
    try:
        plain = _parse(path)
    except DataError:
        return True
    return "names" in plain and any(isinstance(plain.get(split), (str, list)) for split in SPLITS)


def read_yolo(path: Path, *, outlines: bool = False) -> tuple[str, dict[str, RawSplit]]:
    """The objects that a YAML file describes. Its paths are relative to its folder, or to ``path`` in it.

    An image without a text file has no objects. Of a polygon the box is taken, and with ``outlines`` the polygon, too.

    Raises:
        DataError: no images where the file says, a class without a name, or coordinates that are no fractions.
    """
    plain = _parse(path)
    names = _read_names(plain, path)
    (inside,) = _read_places(plain.get("path") or ".", path)
    base = (path.parent / inside).resolve()
    if not base.is_dir():
        raise DataError(f"{path} says path: {inside}, and {base} is no folder", "give the path relative to the file")
    parts: dict[str, ObjectList] = {}
    for word, split in SPLITS.items():
        if (value := plain.get(word)) is not None:
            places = [base / place for place in _read_places(value, path)]
            parts[split] = _read_split(base, places, names, path, outlines)
    order = tuple(dict.fromkeys(names.values()))
    return f"YOLO objects ({path.name})", {split: part.split(str(base), order) for split, part in parts.items()}


def _parse(path: Path) -> dict[str, Any]:
    try:
        plain = parse_yaml(read_file(path))
    except (BadImage, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}", "give a YAML file with train, val and names") from error
    return plain if isinstance(plain, dict) else {}


def _read_places(value: Any, path: Path) -> list[str]:
    """The paths under a key: one, or a list of them."""
    places = [value] if isinstance(value, str) else value
    if not isinstance(places, list) or not all(isinstance(place, str) and not find_fault(place) for place in places):
        raise DataError(f"{path} has {str(value)!r:.80} where paths should be", "give a path, or a list of paths")
    return places


def _read_names(plain: Mapping[str, Any], path: Path) -> dict[int, str]:
    names = plain.get("names")
    if isinstance(names, list):
        return {number: str(name) for number, name in enumerate(names)}
    if isinstance(names, dict) and all(isinstance(number, int) for number in names):
        return {number: str(name) for number, name in sorted(names.items())}
    raise DataError(
        f"the names of {path} are {names!r:.80}", "give a list of names, or a mapping from numbers to names"
    )


def _read_split(base: Path, places: Sequence[Path], names: Mapping[int, str], path: Path, outlines: bool) -> ObjectList:
    images = [image for place in places for image in _list_images(place, path)]
    objects = ObjectList()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for image, size in zip(images, pool.map(read_upright_size, images)):
            size = size or (0, 0)
            key = os.path.relpath(image, base).replace(os.sep, "/")
            labels = _label_path(image)
            if not labels.is_file():
                objects.note("images without a text file, taken as images without objects", key)
                objects.add(key, size, [])
                continue
            if not all(size):
                objects.note("images that cannot be read, whose objects are left out", key)
                objects.add(key, size, [])
                continue
            objects.add(
                key, size, [_read_line(line, size, names, labels, outlines) for line in read_lines(labels, CHECK)]
            )
    objects.convention.check(f"the text files of {path}")
    return objects


def _list_images(place: Path, path: Path) -> list[Path]:
    """The images of a folder at any depth, or those that a text file lists."""
    if place.is_dir():
        if path.parent.resolve() != (folder := place.resolve()) and path.parent.resolve().is_relative_to(folder):
            raise DataError(f"{path} names the folder {place}, which {path.parent} is in", "name a folder of images")
        if images := Scan().list_images(str(place), ""):
            return [place / image for image in images]
        raise DataError(f"{path} names the folder {place}, which has no images", "put the images there")
    if place.suffix == ".txt" and place.is_file():
        return [place.parent / line.strip() for line in read_lines(place, CHECK) if line.strip()]
    raise DataError(
        f"{path} names {place}, which does not exist", "give folders relative to the file, or to its 'path'"
    )


def _label_path(image: Path) -> Path:
    """The text file of an image: in ``labels`` where the image is in ``images``, else in the same folder."""
    parts = list(image.parts)
    for place in range(len(parts) - 2, -1, -1):
        if parts[place] == "images":
            parts[place] = "labels"
            break
    return Path(*parts).with_suffix(".txt")


def _read_line(line: str, size: tuple[int, int], names: Mapping[int, str], path: Path, outlines: bool) -> Box:
    """A class and a box (centre x, centre y, width, height), or the corners of a polygon, as fractions of the image."""
    try:
        number, *values = line.split()
        category = to_whole(number, "the class", least=-(2**31))
        places = [to_real(value, "a coordinate") for value in values]
    except ValueError as error:
        raise DataError(f"{path} has the line {line!r:.60}", "give a class and four numbers, or a polygon") from error
    if category not in names:
        raise DataError(f"{path} has the class {category}, which has no name", "name it in the YAML file")
    if len(places) != 4 and (len(places) < 6 or len(places) % 2):
        raise DataError(f"{path} has a line of {len(places)} coordinates", "give four, or the pairs of a polygon")
    if any(not -BEYOND <= place <= 1 + BEYOND for place in places):
        largest = max(places, key=abs)
        remedy = "divide by the image's width and height" if largest > 2 else "give numbers from 0 to 1"
        raise DataError(f"{path} has the coordinate {largest:g}, and not fractions of the image", remedy)
    height, width = size
    if len(places) == 4:
        x, y, wide, tall = places
        box = (x - wide / 2) * width, (y - tall / 2) * height, (x + wide / 2) * width, (y + tall / 2) * height
        return Box(names[category], box, given=(x * width, y * height, wide * width, tall * height))
    points = [(width * x, height * y) for x, y in zip(places[::2], places[1::2])]
    return enclose_polygon(names[category], points, size if outlines else None)
