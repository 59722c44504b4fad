"""Objects as readers of annotation files find them, image by image. Boxes that cannot be meant are left out and counted.

Boxes are (left, top, right, bottom) in pixels of the upright picture; see annotations.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from os.path import basename
from typing import Any

import numpy as np

from vitrail.data.rle import Rle
from vitrail.data.sources.annotations import Objects
from vitrail.data.sources.box_convention import Convention, Corners
from vitrail.data.sources.contents import Files, Strings, read_upright_size
from vitrail.data.sources.labels import Labels, RawSplit, sort_names
from vitrail.untrusted.limits import PIXELS
from vitrail.untrusted.numbers import to_whole

EXAMPLES = 3  # images that a note names
LARGEST = 2.0**31  # coordinate that can be meant

Size = tuple[int, int]  # (height, width)


@dataclass
class Box:
    """One object: its class, its box, and what else the annotation says of it.

    ``given`` are the four numbers of the box as they stand in the file; see `Convention`. ``outline`` is known where a reader
    was asked for it and the format has it.
    """

    name: str
    box: Corners
    crowd: bool = False
    area: float | None = None
    given: Corners | None = None
    outline: Rle | None = None


def read_size(height: Any, width: Any) -> Size:
    """What an annotation says on the (height, width) of its picture; 0 for nothing. Raises `ValueError` for no whole numbers."""
    return to_whole(height or 0, "the height of a picture"), to_whole(width or 0, "the width of a picture")


def enclose_polygon(name: str, points: Sequence[tuple[float, float]], outlined: Size | None = None) -> Box:
    """The object of a polygon of points (x, y), with its outline if the size of the picture is given as ``outlined``."""
    xs, ys = zip(*points)
    outline = None if outlined is None else Rle.of_polygons([[value for point in points for value in point]], outlined)
    return Box(name, (min(xs), min(ys), max(xs), max(ys)), outline=outline)


@dataclass
class ObjectList:
    """The annotated images of one split."""

    keys: list[str] = field(default_factory=list)
    images: list[list[Box]] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    faults: dict[str, list[str]] = field(default_factory=dict)  # what was wrong -> the images, one for each time
    convention: Convention = field(default_factory=Convention)

    def add(self, key: str, size: Size, found: Sequence[Box]) -> None:
        """Adds an image of ``size`` (height, width), or (0, 0) if the annotation does not say, with its objects."""
        self.keys.append(key)
        self.sizes.append(size)
        for one in found:
            if one.given is not None:
                self.convention.add(one.given, one.box, size)
        self.images.append([box for one in found if (box := self._clean(key, size, one)) is not None])

    def find_outlined(self, key: str, size: Size, root: str | os.PathLike[str]) -> Size | None:
        """The ``size`` that an annotation says, if it is that of the picture: outlines of another size are not traced, since a
        few bytes can say any size.
        """
        if not all(size):
            return None
        if read_upright_size(os.path.join(root, key)) not in (None, size):
            return self.note("outlines for another size than that of the picture, left out", key)
        return size if size[0] * size[1] <= PIXELS else None

    def note(self, fault: str, key: str) -> None:
        """Records something that is wrong with an image, or with one object of it."""
        self.faults.setdefault(fault, []).append(key)

    def _clean(self, key: str, size: Size, found: Box) -> Box | None:
        left, top, right, bottom = found.box
        if not all(abs(corner) <= LARGEST for corner in found.box):  # false for NaN as well
            return self.note("boxes with coordinates that are no numbers, left out", key)
        if right <= left or bottom <= top:
            return self.note("boxes without area, left out", key)
        if not all(size):
            return found
        height, width = size
        inside = max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height))
        if inside[2] <= inside[0] or inside[3] <= inside[1]:
            return self.note("boxes outside of their image, left out", key)
        if inside == found.box:
            return found
        beyond = max(abs(new - old) for new, old in zip(inside, found.box))
        if beyond > max(1.0, 0.01 * max(size)):  # less is rounding
            self.note("boxes that reach out of their image, cut at its edge", key)
        return replace(found, box=inside)

    def names(self) -> set[str]:
        """The classes that occur."""
        return {box.name for image in self.images for box in image}

    def notes(self) -> tuple[str, ...]:
        """A line for each kind of fault, with its number and some images."""
        lines = []
        for fault, keys in self.faults.items():
            images = sorted(set(map(basename, keys)))
            more = ", ..." if len(images) > EXAMPLES else ""
            lines.append(f"{fault}: {len(keys):,} ({', '.join(images[:EXAMPLES])}{more})")
        return tuple(lines)

    def split(self, root: str, names: Sequence[str] | None = None) -> RawSplit:
        """The images as files below ``root``, and their objects; by default the classes are those that occur."""
        declared = names is not None
        names = tuple(names) if names is not None else sort_names(self.names())
        index = {name: number for number, name in enumerate(names)}
        order = np.argsort(np.array(self.keys, object), kind="stable").tolist()
        objects = Objects.join([self._objects(row, index) for row in order])
        contents = Files(root, Strings(self.keys[row] for row in order))
        return RawSplit(contents, Labels(names, objects, declared=declared), self.notes())

    def _objects(self, row: int, index: dict[str, int]) -> Objects:
        found = self.images[row]
        boxes = np.array([one.box for one in found], np.float32).reshape(-1, 4)
        sides = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        areas = [float(own) if one.area is None else one.area for one, own in zip(found, sides)]
        crowd = [one.crowd for one in found]
        labels = [index[one.name] for one in found]
        outlines = [b"" if one.outline is None else one.outline.to_text().encode() for one in found]
        return Objects.of_image(boxes, labels, crowd=crowd, areas=areas, size=self.sizes[row], outlines=outlines)
