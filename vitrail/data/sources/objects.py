"""The frame that all formats of objects share: a format parses its files into `Box`es, and everything else stands here.

In this order: the shapes that annotation tools draw with their exact boxes, signs that boxes are not what their format says,
and `ObjectSplits`: splits, class names and their order, sizes of pictures, boxes that are checked and cut, counts of what was
left out. A format is a file with a function that finds it at a path and returns a function that reads it (`Read`); open.py
lists these. Boxes are (left, top, right, bottom) in pixels of the upright picture; see annotations.py. ``outlined`` is the
(height, width) of a picture whose outlines are traced, None where boxes alone are read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os.path import basename
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.data.sources.annotations import DRAWN_BOX, Objects, PanopticObjects
from vitrail.data.sources.contents import Files, Strings, choose_evenly, open_file, read_head, read_upright_size
from vitrail.data.sources.labels import EXAMPLES, Faulty, Labels, RawData, RawSplit, name_some, sort_names
from vitrail.errors import DataError
from vitrail.images.decode import BadImage, read_orientation
from vitrail.images.rle import Rle
from vitrail.untrusted.limits import FARTHEST, PIXELS

Point = tuple[float, float]
Corners = tuple[float, float, float, float]  # left, top, right, bottom
Size = tuple[int, int]  # (height, width)


@dataclass
class Box:
    """One object: its class, its box, and what else the annotation says of it."""

    name: str
    box: Corners
    crowd: bool = False
    area: float | None = None
    given: Corners | None = None  # the four numbers of the box as they stand in the file; see `Convention`
    outline: Rle | None = None  # where a reader was asked for it and the format has it
    filled: bool = False  # drawn as an upright rectangle, which stands for its outline

    @classmethod
    def of_polygon(cls, name: str, points: Sequence[Point], outlined: Size | None = None) -> Box:
        """The object of a polygon. Raises `ValueError` for fewer than three points, or as `Rle.of_polygons`."""
        if len(points) < 3:
            raise ValueError(f"a polygon of {len(points)} points; at least three are required")
        xs, ys = zip(*points)
        outline = None if outlined is None else Rle.of_polygons([[x for point in points for x in point]], outlined)
        return cls(name, (min(xs), min(ys), max(xs), max(ys)), outline=outline)

    @classmethod
    def of_rectangle(
        cls, name: str, box: Corners, degrees: float = 0.0, outlined: Size | None = None, about: Point | None = None
    ) -> Box:
        """The object of a rectangle, turned clockwise about its centre or a point. Raises `ValueError` for an infinite angle."""
        if not degrees:
            return cls(name, box, filled=True)
        if not math.isfinite(degrees):
            raise ValueError(f"a shape that is turned by {degrees} degrees")
        left, top, right, bottom = box
        x, y = about or ((left + right) / 2, (top + bottom) / 2)
        cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        sides = [(left - x, top - y), (right - x, top - y), (right - x, bottom - y), (left - x, bottom - y)]
        points = [(x + dx * cosine - dy * sine, y + dx * sine + dy * cosine) for dx, dy in sides]
        return cls.of_polygon(name, points, outlined)

    @classmethod
    def of_ellipse(
        cls, name: str, centre: Point, radii: Point, degrees: float = 0.0, outlined: Size | None = None
    ) -> Box:
        """The pixels whose middle lies in an ellipse, turned clockwise. Raises `ValueError` for one beyond `FARTHEST`."""
        (x, y), (across, down) = centre, map(abs, radii)
        cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        wide, tall = math.hypot(across * cosine, down * sine), math.hypot(across * sine, down * cosine)
        box = x - wide, y - tall, x + wide, y + tall
        if not all(abs(edge) <= FARTHEST for edge in box):  # false for NaN as well
            raise ValueError(f"an ellipse in the box {box}")
        if outlined is None or not across or not down:
            return cls(name, box)
        height, width = outlined
        left, top = (max(math.floor(low), 0) for low in box[:2])
        right, bottom = min(math.ceil(box[2]), width), min(math.ceil(box[3]), height)
        columns, rows = np.arange(left, right) + 0.5 - x, np.arange(top, bottom)[:, None] + 0.5 - y
        along, beside = (columns * cosine + rows * sine) / across, (rows * cosine - columns * sine) / down
        return cls(name, box, outline=Rle.of_patch(along**2 + beside**2 <= 1, (left, top), outlined))

    @classmethod
    def of_patch(cls, name: str, patch: NDArray[Any], corner: tuple[int, int], outlined: Size | None = None) -> Box:
        """The set pixels of a mask (h, w) whose upper left one is ``corner``, (x, y). Raises `ValueError` if there are none."""
        rows, columns = np.flatnonzero(patch.any(1)).tolist(), np.flatnonzero(patch.any(0)).tolist()
        if not rows:
            raise ValueError("a mask without pixels")
        left, top = corner
        box = left + columns[0], top + rows[0], left + columns[-1] + 1, top + rows[-1] + 1
        return cls(name, box, outline=None if outlined is None else Rle.of_patch(patch, corner, outlined))


FEWEST, LARGEST_SHARE = 3, 0.3  # boxes that reach out of their image, above which they are taken to be corners
ROUNDING = 1.0  # pixels
HEAD = 2**12  # bytes in which a file says that it has EXIF
LOOKED = 50_000  # pictures whose headers are read, evenly spaced
MIRRORED_OR_180, QUARTER = (2, 3, 4), (5, 6, 7, 8)  # values of EXIF's orientation
TIFF = (b"II", b"MM")


@dataclass
class Convention:
    """Compares the boxes of a split with their images, one after the other."""

    boxes: int = 0
    reach_out: int = 0
    could_be_corners: bool = True
    could_be_fractions: bool = True

    def add(self, given: Corners, box: Corners, size: Size) -> None:
        """Adds a box, ``given`` as it stands in the file, of an image of ``size``; it is not counted if that is (0, 0)."""
        height, width = size
        if not height or not width:
            return
        self.boxes += 1
        self.could_be_fractions &= min(given) >= 0 and max(given) <= 1 and min(size) > 2
        left, top, right, bottom = given
        inside = right <= width + ROUNDING and bottom <= height + ROUNDING
        self.could_be_corners &= inside and right > left and bottom > top
        begins, ends = min(box[:2]) >= -ROUNDING, box[2] <= width + ROUNDING and box[3] <= height + ROUNDING
        self.reach_out += not (begins and ends)

    def check(self, where: object) -> None:
        """Raises `DataError` if all numbers lie in 0 to 1, or if many boxes reach out of their image and could be corners."""
        if self.boxes and self.could_be_fractions:
            what = f"all boxes of {where} lie between 0 and 1: they are fractions of their image"
            raise DataError(what, "multiply them by the image's width and height")
        if self.could_be_corners and self.reach_out >= max(FEWEST, LARGEST_SHARE * self.boxes):
            what = f"{self.reach_out:,} of {self.boxes:,} boxes of {where} reach out of their image"
            remedy = "give left, top, width, height in COCO's format, and centre x, centre y, width, height in YOLO's"
            raise DataError(f"{what}: their numbers are left, top, right, bottom", remedy)


def find_turned(root: str, pictures: Sequence[tuple[str, Size]]) -> list[str]:
    """Returns the keys of pictures that EXIF turns without a change of the (height, width) that their annotation states."""

    def is_turned(picture: tuple[str, Size]) -> bool:
        key, (height, width) = picture
        path = os.path.join(root, key)
        head = read_head(path, HEAD)
        # WebP has EXIF at its end, and says so with a bit of its header
        if not (b"Exif" in head or b"eXIf" in head or head.startswith(TIFF) or head[12:16] == b"VP8X"):
            return False
        try:
            with open_file(path) as file:
                orientation = read_orientation(file)
        except BadImage:
            return False
        return orientation in MIRRORED_OR_180 or (orientation in QUARTER and height == width)

    looked = [pictures[row] for row in choose_evenly(len(pictures), LOOKED).tolist()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [key for (key, _), turned in zip(looked, pool.map(is_turned, looked)) if turned]


Read = Callable[..., RawData]  # called with ``outlines=``
LARGEST = 2.0**31  # coordinate that is taken as valid
TURNED = (
    "photographs turned by EXIF whose size does not tell whether their objects were drawn before or after, taken as drawn "
    "after; draw some with 'vitrail data check --out FOLDER' and look"
)


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
    things: dict[str, bool] = field(default_factory=dict)  # of each class whether it is one, where stuff is read, too
    images: dict[str, AnnotatedImage] = field(default_factory=dict)  # by key
    faults: dict[str, list[str]] = field(default_factory=dict)  # what was wrong -> the images, one for each time
    remarks: list[str] = field(default_factory=list)  # notes as they are
    faulty: int = 0  # objects that cannot be read
    kept: int = 0  # of these, objects whose box is used nevertheless
    examples: list[str] = field(default_factory=list)  # of these, with what is wrong
    convention: Convention = field(default_factory=Convention)

    def add(self, key: str, size: Size, found: Sequence[Box], *, stated: bool = True) -> None:
        """Adds an image, or objects to it. A ``size`` of (0, 0), or one that is not ``stated``, is that of the picture."""
        if not all(size):
            size, stated = read_upright_size(os.path.join(self.root, key)) or (0, 0), False
        boxes = [box for one in found if (box := self._clean(key, size, one)) is not None]
        for _ in range(len(boxes) - len({(box.name, box.box) for box in boxes})):
            self.note("objects with the class and the box of another", key)
        if key in self.images:
            self.note("images that are listed several times, whose objects are joined", key)
            self.images[key].boxes += boxes
        else:
            self.images[key] = AnnotatedImage(size, stated and all(size), boxes)

    def find_outlined(self, key: str, size: Size, *, masked: bool = False) -> Size | None:
        """Returns a stated size if outlines are read, or masks, and it is the picture's: a few bytes can state any."""
        if not all(size) or not (self.outlines or masked):
            return None
        if read_upright_size(os.path.join(self.root, key)) not in (None, size):
            return self.note("outlines for another size than that of the picture, left out", key)
        return size if size[0] * size[1] <= PIXELS else None

    def note(self, fault: str, key: str) -> None:
        """Records something that is wrong with an image, or with one object of it."""
        self.faults.setdefault(fault, []).append(key)

    def reject(self, where: str, what: object) -> None:
        """Leaves out an object, or the annotation of an image, that cannot be read, e.g. "a.jpg, annotation 17"."""
        self.faulty += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{where}: {what}")

    @contextmanager
    def rejecting(self, where: str, *, kept: bool = False) -> Iterator[None]:
        """Rejects what is read inside if that raises `ValueError` or `KeyError`; if ``kept``, its object is used without it."""
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
        if found.given is not None:
            self.convention.add(found.given, found.box, size)
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
        boxes = [one for key in keys for one in self.images[key].boxes]
        corners = np.array([one.box for one in boxes], np.float32).reshape(-1, 4)
        areas = np.array([math.nan if one.area is None else one.area for one in boxes], np.float32)
        things: dict[str, Any] = {"things": tuple(map(self.things.__getitem__, names))} if self.things else {}
        objects = (PanopticObjects if things else Objects)(
            **things,
            boxes=corners,
            labels=np.array([index[one.name] for one in boxes], np.int32),
            crowd=np.array([one.crowd for one in boxes], bool),
            areas=np.where(np.isnan(areas), (corners[:, 2:] - corners[:, :2]).prod(1), areas),
            ends=np.array([len(self.images[key].boxes) for key in keys], np.int64).cumsum(),
            sizes=np.array([self.images[key].size for key in keys], np.int32).reshape(-1, 2),
            outlines=tuple(box.outline.to_text().encode() if box.outline else DRAWN_BOX * box.filled for box in boxes),
        )
        lines = [line for fault, where in self.faults.items() for line in name_some(fault, map(basename, where))]
        if self.faulty:
            more = "; ..." if self.faulty > len(self.examples) else ""
            lines.append(f"objects that cannot be read, left out: {self.faulty:,} ({'; '.join(self.examples)}{more})")
        total = len(objects.boxes) + self.faulty - self.kept
        faulty = Faulty(self.faulty, total, self.examples[0] if self.examples else "")
        labels = Labels(tuple(names), objects, declared=True)
        return RawSplit(Files(self.root, Strings(keys)), labels, (*self.remarks, *lines), faulty)


class ObjectSplits(dict[str, ObjectList]):
    """The annotated images of a data set by split; the list of a split begins empty where it is first used."""

    def __init__(self, root: Path, *, outlines: bool) -> None:
        super().__init__()
        self.root, self.outlines = root, outlines
        self.things: dict[str, bool] = {}  # of all lists

    def __missing__(self, split: str) -> ObjectList:
        self[split] = ObjectList(str(self.root), self.outlines, self.things)
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
