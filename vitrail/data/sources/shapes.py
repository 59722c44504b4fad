"""Shapes that annotation tools draw, as objects: polygons, rectangles, ellipses and brush masks, each with its exact box.

Coordinates (x, y) are pixels of the upright picture. ``outlined`` is the (height, width) of a picture whose outlines are traced,
None where boxes alone are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.images.rle import Rle
from vitrail.untrusted.limits import FARTHEST

Point = tuple[float, float]
Corners = tuple[float, float, float, float]  # left, top, right, bottom
Size = tuple[int, int]  # (height, width)


@dataclass
class Box:
    """One object: its class, its box, and what else the annotation says of it.

    ``given`` are the four numbers of the box as they stand in the file; see `Convention`. ``outline`` is known where a reader
    was asked for it and the format has it; of an object that was drawn as an upright rectangle ``filled`` is set instead.
    """

    name: str
    box: Corners
    crowd: bool = False
    area: float | None = None
    given: Corners | None = None
    outline: Rle | None = None
    filled: bool = False


def enclose_polygon(name: str, points: Sequence[Point], outlined: Size | None = None) -> Box:
    """Returns the object of a polygon. Raises `ValueError` for fewer than three points, or as `Rle.of_polygons`."""
    if len(points) < 3:
        raise ValueError(f"a polygon of {len(points)} points; at least three are required")
    xs, ys = zip(*points)
    outline = None if outlined is None else Rle.of_polygons([[value for point in points for value in point]], outlined)
    return Box(name, (min(xs), min(ys), max(xs), max(ys)), outline=outline)


def enclose_rectangle(name: str, box: Corners, degrees: float = 0.0, outlined: Size | None = None) -> Box:
    """Returns the object of a rectangle, turned clockwise about its centre."""
    if not degrees:
        return Box(name, box, filled=True)
    left, top, right, bottom = box
    centre = (left + right) / 2, (top + bottom) / 2
    corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
    return enclose_polygon(name, [turn(corner, centre, degrees) for corner in corners], outlined)


def enclose_ellipse(name: str, centre: Point, radii: Point, degrees: float = 0.0, outlined: Size | None = None) -> Box:
    """Returns the object of an ellipse, turned clockwise: the pixels whose middle lies in it.

    Raises `ValueError` for one that reaches farther than `FARTHEST` from the origin.
    """
    (x, y), (across, down) = centre, map(abs, radii)
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    wide, tall = math.hypot(across * cosine, down * sine), math.hypot(across * sine, down * cosine)
    box = x - wide, y - tall, x + wide, y + tall
    if not all(abs(edge) <= FARTHEST for edge in box):  # false for NaN as well
        raise ValueError(f"an ellipse in the box {box}")
    if outlined is None or not across or not down:
        return Box(name, box)
    height, width = outlined
    left, top = (max(math.floor(low), 0) for low in box[:2])
    right, bottom = min(math.ceil(box[2]), width), min(math.ceil(box[3]), height)
    columns, rows = np.arange(left, right) + 0.5 - x, np.arange(top, bottom)[:, None] + 0.5 - y
    along, beside = (columns * cosine + rows * sine) / across, (rows * cosine - columns * sine) / down
    return Box(name, box, outline=Rle.of_patch(along**2 + beside**2 <= 1, (left, top), outlined))


def enclose_patch(name: str, patch: NDArray[Any], corner: tuple[int, int], outlined: Size | None = None) -> Box:
    """Returns the object of a mask (h, w) whose upper left pixel is ``corner``, (x, y); its box encloses the pixels that are set.

    Raises `ValueError` for a mask without pixels.
    """
    rows, columns = np.flatnonzero(patch.any(1)).tolist(), np.flatnonzero(patch.any(0)).tolist()
    if not rows:
        raise ValueError("a mask without pixels")
    left, top = corner
    box = left + columns[0], top + rows[0], left + columns[-1] + 1, top + rows[-1] + 1
    return Box(name, box, outline=None if outlined is None else Rle.of_patch(patch, corner, outlined))


def turn(point: Point, about: Point, degrees: float) -> Point:
    """Returns a point after a clockwise turn, as y points down. Raises `ValueError` for an angle that is not finite."""
    if not math.isfinite(degrees):
        raise ValueError(f"a shape that is turned by {degrees} degrees")
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = point[0] - about[0], point[1] - about[1]
    return about[0] + x * cosine - y * sine, about[1] + x * sine + y * cosine
