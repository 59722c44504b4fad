"""YOLO's text files of objects: a line for each box, polygon, or box with keypoints."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from vitrail.data.sources.contents import Files, Strings, read_lines, read_upright_size
from vitrail.data.sources.labels import RawSplit
from vitrail.data.sources.named_files import NamedFiles
from vitrail.data.sources.object_lists import ObjectList, ObjectSplits, Read
from vitrail.data.sources.shapes import Box, Size, enclose_polygon
from vitrail.data.sources.yolo_layouts import YoloLayout, describe_folder, describe_yaml, find_labels, find_yaml
from vitrail.errors import DataError
from vitrail.untrusted.numbers import to_real, to_whole

BEYOND = 1e-3  # how far a coordinate may lie outside of 0 to 1 by rounding
UNNAMED = "the classes have no names and are named after their numbers: put the names into classes.txt, one a line"


def find_yolo(place: Path) -> Read | None:
    """Finds a YAML file in YOLO's format in a folder, or at a path. Raises `DataError` for several."""
    description = find_yaml(place)
    return None if description is None else lambda outlines: read_yolo(describe_yaml(description), outlines=outlines)


def find_yolo_texts(root: Path) -> Read | None:
    """Finds images beside text files in YOLO's format without a YAML file."""
    layout = describe_folder(root)
    return None if layout is None else partial(read_yolo, layout)


def read_yolo(layout: YoloLayout, *, outlines: bool = False) -> tuple[str, dict[str, RawSplit]]:
    """Reads the objects of data in YOLO's format.

    An image without a text file has no objects. Of a polygon the box is taken, and with ``outlines`` the polygon, too.
    Keypoints are not used. A test split without any text file has no labels.

    Raises:
        DataError: no image of a training or validation split has a text file, or boxes are in another convention.
    """
    splits, files = ObjectSplits(layout.base, outlines=outlines), NamedFiles(layout.base)
    unlabelled: dict[str, RawSplit] = {}
    for split, images in layout.images.items():
        named = {image: files.find_file(os.fspath(find_labels(image))) for image in images}
        labels = {image: Path(path) if path else None for image, path in named.items()}
        if any(labels.values()):
            _read_split(layout, labels, splits[split])
        elif split == "test" and len(layout.images) > 1:
            keys = sorted(_make_key(image, layout.base) for image in images)
            unlabelled[split] = RawSplit(Files(str(layout.base), Strings(keys)))
        else:
            raise _explain_missing(layout, split, images)
    splits.first.remarks += [*layout.notes, *([UNNAMED] if layout.names is None else [])]
    found = splits.finish(() if layout.names is None else layout.names.values()) | unlabelled
    name = layout.path.name if layout.path != layout.base else "text files"
    return f"YOLO objects ({name})", {split: found[split] for split in layout.images}


def _read_split(layout: YoloLayout, labels: Mapping[Path, Path | None], objects: ObjectList) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for (image, path), size in zip(labels.items(), pool.map(read_upright_size, labels)):
            key = _make_key(image, layout.base)
            found: list[Box] = []
            if path is None:
                objects.note("images without a text file, taken as images without objects", key)
            elif not size:
                objects.note("images that cannot be read, whose objects are left out", key)
            else:
                found = _read_file(path, layout, size, objects)
            objects.add(key, size or (0, 0), found, stated=False)
    objects.convention.check(f"the text files of {layout.path}")


def _make_key(image: Path, base: Path) -> str:
    return os.path.relpath(image, base).replace(os.sep, "/")


def _explain_missing(layout: YoloLayout, split: str, images: Sequence[Path]) -> DataError:
    """The error for a split without any text file; it names those beside the images."""
    wanted = find_labels(images[0])
    beside = [path for image in images if os.path.isfile(path := image.with_suffix(".txt"))]
    what = f"none of the {len(images):,} images of the split {split} in {layout.path} has a text file, e.g. {wanted}"
    if beside:
        what += f"; {len(beside):,} text files lie beside the images, e.g. {beside[0].name}"
        return DataError(what, f"move them to {wanted.parent}")
    return DataError(what, "put a text file there for each image, an empty one for an image without objects")


def _read_file(path: Path, layout: YoloLayout, size: Size, objects: ObjectList) -> list[Box]:
    found: list[Box] = []
    where = _make_key(path, layout.base)
    try:
        lines = read_lines(path, "check the file")
    except DataError as error:
        objects.reject(where, error.what)
        return found
    for line in lines:
        with objects.rejecting(f"{where}, the line {line!r:.60}"):
            found.append(_read_line(line, size, layout, objects.outlines))
            if layout.keypoints and len(line.split()) > 5:
                objects.note("keypoints, not used", where)
    return found


def _read_line(line: str, size: Size, layout: YoloLayout, outlines: bool) -> Box:
    """A class and a box (centre x, centre y, width, height), or the corners of a polygon, as fractions of the image."""
    number, *values = line.split()
    try:
        category = to_whole(number, "the class")
        places = [to_real(value, "a coordinate") for value in values]
    except ValueError as error:
        raise ValueError(f"{error}: give a class and four numbers, or a polygon") from error
    name = str(category) if layout.names is None else layout.names.get(category)
    if name is None:
        raise ValueError(f"the class {category}, which has no name: name it in the YAML file or in classes.txt")
    if layout.keypoints and len(places) not in (4, 4 + layout.keypoints):
        raise ValueError(f"{len(places)} numbers, not 4 and those of {layout.keypoints} of keypoints")
    places = places[:4] if layout.keypoints else places
    if len(places) != 4 and (len(places) < 6 or len(places) % 2):
        raise ValueError(f"a line of {len(places)} coordinates: give four, or the pairs of a polygon")
    if not all(-BEYOND <= place <= 1 + BEYOND for place in places):
        largest = max(places, key=abs)
        remedy = "divide by the image's width and height" if largest > 2 else "give numbers from 0 to 1"
        raise ValueError(f"the coordinate {largest:g}, and not fractions of the image; {remedy}")
    height, width = size
    if len(places) == 4:
        x, y, wide, tall = places
        box = (x - wide / 2) * width, (y - tall / 2) * height, (x + wide / 2) * width, (y + tall / 2) * height
        return Box(name, box, given=(x * width, y * height, wide * width, tall * height))
    points = [(width * x, height * y) for x, y in zip(places[::2], places[1::2])]
    return enclose_polygon(name, points, size if outlines else None)
