"""Objects as readers of annotation files find them, image by image. Invalid and unreadable objects are left out and counted.

Boxes are (left, top, right, bottom) in pixels of the upright picture; see annotations.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os.path import basename
from typing import Any

import numpy as np

from vitrail.data.sources.annotations import DRAWN_BOX, Objects
from vitrail.data.sources.box_convention import Convention
from vitrail.data.sources.contents import Files, Strings, read_upright_size
from vitrail.data.sources.labels import EXAMPLES, Faulty, Labels, RawSplit, format_label, name_some, sort_names
from vitrail.data.sources.orientations import find_turned
from vitrail.data.sources.shapes import Box, Size
from vitrail.untrusted.limits import PIXELS
from vitrail.untrusted.numbers import to_real, to_whole

LARGEST = 2.0**31  # coordinate that is taken as valid
TURNED = (
    "photographs turned by EXIF whose size does not tell whether their objects were drawn before or after, taken as drawn "
    "after; draw some with 'vitrail data check --out FOLDER' and look"
)


def read_size(height: Any, width: Any) -> Size:
    """Reads the (height, width) of a picture from its annotation; 0 if not stated. Raises `ValueError` unless whole numbers."""
    return to_whole(height or 0, "the height of a picture"), to_whole(width or 0, "the width of a picture")


def read_numbers(values: Any, count: int, what: str) -> tuple[float, ...]:
    """Reads a list of ``count`` numbers. Raises `ValueError` for anything else."""
    if not isinstance(values, list | tuple) or len(values) != count or any(isinstance(each, bool) for each in values):
        raise ValueError(f"{what} is {values!s:.80}, not {count} numbers")
    return tuple(to_real(value, what) for value in values)


def read_points(values: Any, what: str) -> list[tuple[float, float]]:
    """Reads pairs of numbers [[x, y], ...]. Raises `ValueError` for anything else."""
    if not isinstance(values, list):
        raise ValueError(f"{what} are {values!s:.80}, not pairs of numbers")
    points = (read_numbers(point, 2, f"a point of {what}") for point in values)
    return [(x, y) for x, y in points]


def read_name(value: Any, what: str = "the label") -> str:
    """Reads the name of a class. Raises `ValueError` for anything else than text or a number."""
    name = "" if isinstance(value, dict | list | bool) else format_label(value)
    if not name:
        raise ValueError(f"{what} is {value!s:.80}")
    return name


@dataclass
class ObjectList:
    """The annotated images of one split."""

    root: str  # that keys are relative to
    keys: list[str] = field(default_factory=list)
    images: list[list[Box]] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    stated: list[bool] = field(default_factory=list)  # whether the annotation says how large the picture is
    places: dict[str, int] = field(default_factory=dict)  # key -> place in the lists
    faults: dict[str, list[str]] = field(default_factory=dict)  # what was wrong -> the images, one for each time
    remarks: list[str] = field(default_factory=list)  # notes as they are
    faulty: int = 0  # objects that cannot be read
    kept: int = 0  # of these, objects whose box is used nevertheless
    examples: list[str] = field(default_factory=list)  # of these, with what is wrong
    convention: Convention = field(default_factory=Convention)

    def add(self, key: str, size: Size, found: Sequence[Box], *, stated: bool = True) -> None:
        """Adds an image with its objects, or objects to an image that was added before.

        Args:
            key: of the image.
            size: (height, width), or (0, 0) if the annotation does not say; that of the picture is taken then.
            found: its objects.
            stated: whether the size is in the annotation, not from the picture itself.
        """
        if not all(size):
            size, stated = read_upright_size(os.path.join(self.root, key)) or (0, 0), False
        for one in found:
            if one.given is not None:
                self.convention.add(one.given, one.box, size)
        boxes = [box for one in found if (box := self._clean(key, size, one)) is not None]
        for _ in range(len(boxes) - len({(box.name, box.box) for box in boxes})):
            self.note("objects with the class and the box of another", key)
        if (place := self.places.get(key)) is not None:
            self.note("images that are listed several times, whose objects are joined", key)
            self.images[place] += boxes
            return
        self.places[key] = len(self.keys)
        self.keys.append(key)
        self.sizes.append(size)
        self.stated.append(stated and all(size))
        self.images.append(boxes)

    def find_outlined(self, key: str, size: Size) -> Size | None:
        """Returns the ``size`` that an annotation states if it is that of the picture, otherwise None: outlines are not traced,
        since a few bytes can state any size.
        """
        if not all(size):
            return None
        if read_upright_size(os.path.join(self.root, key)) not in (None, size):
            return self.note("outlines for another size than that of the picture, left out", key)
        return size if size[0] * size[1] <= PIXELS else None

    def note(self, fault: str, key: str) -> None:
        """Records something that is wrong with an image, or with one object of it."""
        self.faults.setdefault(fault, []).append(key)

    def reject(self, where: str, what: object) -> None:
        """Leaves out an object, or the annotation of an image, that cannot be read.

        Args:
            where: the file or image, and the object, e.g. "a.jpg, annotation 17".
            what: is wrong.
        """
        self.faulty += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{where}: {what}")

    @contextmanager
    def rejecting(self, where: str, *, kept: bool = False) -> Iterator[None]:
        """Rejects the object that is read inside if it raises `ValueError`, or `KeyError` for a field that it lacks.

        Args:
            where: as `reject` takes it.
            kept: whether the object is used without what is read inside.
        """
        try:
            yield
        except (KeyError, ValueError) as error:
            self.reject(where, f"it has no {error}" if isinstance(error, KeyError) else error)
            self.kept += kept

    def note_unknown(self, entry: Mapping[str, Any] | Iterable[str], known: frozenset[str], key: str) -> None:
        """Records fields of an entry that are none of those that the format has."""
        for name in set(entry) - known:
            self.note(f"fields {name!r:.40}, not used", key)

    def _clean(self, key: str, size: Size, found: Box) -> Box | None:
        left, top, right, bottom = found.box
        if not all(abs(corner) <= LARGEST for corner in found.box):  # false for NaN as well
            return self.reject(f"{key}, an object {found.name!r:.40}", "coordinates that are no numbers")
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
        lines = [line for fault, keys in self.faults.items() for line in name_some(fault, map(basename, keys))]
        if self.faulty:
            more = "; ..." if self.faulty > len(self.examples) else ""
            lines.append(f"objects that cannot be read, left out: {self.faulty:,} ({'; '.join(self.examples)}{more})")
        return (*self.remarks, *lines)

    def split(self, names: Sequence[str] | None = None) -> RawSplit:
        """Returns the images as files, and their objects; by default the classes are those that occur."""
        declared = names is not None
        names = tuple(names) if names is not None else sort_names(self.names())
        index = {name: number for number, name in enumerate(names)}
        order = np.argsort(np.array(self.keys, object), kind="stable").tolist()
        self._note_turned()
        objects = Objects.join([self._objects(row, index) for row in order])
        contents = Files(self.root, Strings(self.keys[row] for row in order))
        total = len(objects.boxes) + self.faulty - self.kept
        faulty = Faulty(self.faulty, total, self.examples[0] if self.examples else "")
        return RawSplit(contents, Labels(names, objects, declared=declared), self.notes(), faulty)

    def _note_turned(self) -> None:
        stated = [size if known else (0, 0) for size, known in zip(self.sizes, self.stated)]
        for key in find_turned(self.root, [part[:2] for part in zip(self.keys, stated, self.images) if part[2]]):
            self.note(TURNED, key)

    def _objects(self, row: int, index: dict[str, int]) -> Objects:
        found = self.images[row]
        boxes = np.array([one.box for one in found], np.float32).reshape(-1, 4)
        sides = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        areas = [float(own) if one.area is None else one.area for one, own in zip(found, sides)]
        crowd = [one.crowd for one in found]
        labels = [index[one.name] for one in found]
        outlines = [one.outline.to_text().encode() if one.outline else DRAWN_BOX * one.filled for one in found]
        return Objects.of_image(boxes, labels, crowd=crowd, areas=areas, size=self.sizes[row], outlines=outlines)
