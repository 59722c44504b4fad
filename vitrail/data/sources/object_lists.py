"""The frame that all formats of objects share: a format parses its files into `Box`es, and everything else stands here.

That is: splits, class names and their order, sizes of pictures, boxes that are checked and cut, counts of what was left out. A
format is a file with a function that finds it at a path and returns its reader; formats.py lists these.

Boxes are (left, top, right, bottom) in pixels of the upright picture; see annotations.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os.path import basename
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.sources.annotations import DRAWN_BOX, Objects
from vitrail.data.sources.contents import Files, Strings, read_upright_size
from vitrail.data.sources.labels import EXAMPLES, Faulty, Labels, RawSplit, format_label, name_some, sort_names
from vitrail.data.sources.object_checks import Convention, find_turned
from vitrail.data.sources.shapes import Box, Size
from vitrail.untrusted.limits import PIXELS
from vitrail.untrusted.numbers import to_real, to_whole

Read = Callable[
    ..., tuple[str, dict[str, RawSplit]]
]  # called with ``outlines=``: a description of the layout, and the splits
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
class AnnotatedImage:
    """The size of a picture, (0, 0) if it is not known, whether its annotation states it, and the objects."""

    size: Size
    stated: bool
    boxes: list[Box]


@dataclass
class ObjectList:
    """The annotated images of one split."""

    root: str  # that keys are relative to
    outlines: bool = False  # whether outlines are read, too
    images: dict[str, AnnotatedImage] = field(default_factory=dict)  # by key
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
        if key in self.images:
            self.note("images that are listed several times, whose objects are joined", key)
            self.images[key].boxes += boxes
        else:
            self.images[key] = AnnotatedImage(size, stated and all(size), boxes)

    def find_outlined(self, key: str, size: Size) -> Size | None:
        """Returns the size of a picture as `confirm_size` does if outlines are read, otherwise None."""
        return self.confirm_size(key, size) if self.outlines else None

    def confirm_size(self, key: str, size: Size) -> Size | None:
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

    def split(self, names: Sequence[str]) -> RawSplit:
        """Returns the images as files, and their objects of the classes ``names``."""
        index = {name: number for number, name in enumerate(names)}
        keys = sorted(self.images)
        sized = [(key, one.size if one.stated else (0, 0)) for key, one in self.images.items() if one.boxes]
        for key in find_turned(self.root, sized):
            self.note(TURNED, key)
        objects = Objects.join([_join_boxes(self.images[key], index) for key in keys])
        lines = [line for fault, where in self.faults.items() for line in name_some(fault, map(basename, where))]
        if self.faulty:
            more = "; ..." if self.faulty > len(self.examples) else ""
            lines.append(f"objects that cannot be read, left out: {self.faulty:,} ({'; '.join(self.examples)}{more})")
        total = len(objects.boxes) + self.faulty - self.kept
        faulty = Faulty(self.faulty, total, self.examples[0] if self.examples else "")
        labels = Labels(tuple(names), objects, declared=True)
        return RawSplit(Files(self.root, Strings(keys)), labels, (*self.remarks, *lines), faulty)


def _join_boxes(image: AnnotatedImage, index: Mapping[str, int]) -> Objects:
    boxes = np.array([one.box for one in image.boxes], np.float32).reshape(-1, 4)
    sides = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    return Objects.of_image(
        boxes,
        [index[one.name] for one in image.boxes],
        crowd=[one.crowd for one in image.boxes],
        areas=[float(own) if one.area is None else one.area for one, own in zip(image.boxes, sides)],
        size=image.size,
        outlines=[one.outline.to_text().encode() if one.outline else DRAWN_BOX * one.filled for one in image.boxes],
    )


class ObjectSplits(dict[str, ObjectList]):
    """The annotated images of a data set by split; the list of a split begins empty where it is first used."""

    def __init__(self, root: Path, *, outlines: bool) -> None:
        super().__init__()
        self.root, self.outlines = root, outlines

    def __missing__(self, split: str) -> ObjectList:
        self[split] = ObjectList(str(self.root), self.outlines)
        return self[split]

    @property
    def first(self) -> ObjectList:
        """The list of the split that was used first, which has the notes on the whole data set."""
        return next(iter(self.values()))

    def finish(self, names: Iterable[str] = ()) -> dict[str, RawSplit]:
        """Returns the splits. Their classes are the ``names`` that the data declare, and then others that occur, sorted."""
        occur = {box.name for part in self.values() for image in part.images.values() for box in image.boxes}
        classes = tuple(dict.fromkeys([*names, *sort_names(occur)]))
        return {split: part.split(classes) for split, part in self.items()}

    def drop_empty(self) -> None:
        """Leaves out the splits of which nothing was found."""
        for split in [split for split, part in self.items() if not part.images and not part.faulty]:
            del self[split]
