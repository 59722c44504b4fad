"""Masks of single objects as COCO stores them: run lengths, compressed text, polygons (Lin et al. 2014, Microsoft COCO).

Everything equals pycocotools, polygons byte for byte. H and W are the size of the picture, n masks, R runs of a mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.untrusted.limits import BOUNDARY, FARTHEST

Integers = NDArray[np.int64]
SUBPIXELS = 5  # places within a pixel that a polygon's boundary is rounded to


@dataclass(frozen=True, eq=False)
class Rle:
    """A mask as the lengths of its runs, column by column from the upper left corner.

    Args:
        size: (H, W).
        counts: (R,) pixels of each run, the first of them outside of the mask; only the first may be 0.
    """

    size: tuple[int, int]
    counts: Integers

    @classmethod
    def of_edges(cls, edges: Integers, size: tuple[int, int]) -> Rle:
        """The mask that begins or ends at each of ``edges``, increasing places in [0, H x W)."""
        return cls(size, np.diff(edges, prepend=0, append=size[0] * size[1]))

    @classmethod
    def of_patch(cls, patch: NDArray[Any], corner: tuple[int, int], size: tuple[int, int]) -> Rle:
        """Places a mask (h, w) in the picture with its upper left pixel at ``corner``, (x, y); pixels outside are cut off.

        Raises `ValueError` for a corner farther than `FARTHEST` from the origin.
        """
        if max(map(abs, corner)) > FARTHEST:
            raise ValueError(f"a mask at {corner}, more than {FARTHEST:,} pixels from the picture")
        height, width = size
        across, down = np.nonzero(np.asarray(patch, bool).T)
        x, y = across + corner[0], down + corner[1]
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        places = x[inside].astype(np.int64) * height + y[inside]  # in increasing order
        return cls.of_edges(_odd_ones(np.concatenate([places, places + 1]), height * width), size)

    @classmethod
    def of_counts(cls, counts: Sequence[int] | Integers, size: tuple[int, int]) -> Rle:
        """Uncompressed run lengths; runs of no pixels are joined with their neighbours.

        Raises `ValueError` for lengths that are no whole numbers, negative, or do not add up to H x W.
        """
        given = np.asarray(counts)
        if given.ndim != 1 or not (given.size == 0 or np.issubdtype(given.dtype, np.integer)):
            raise ValueError(f"run lengths must be a flat list of whole numbers, not {str(counts)[:60]}")
        if (given < 0).any() or (given > size[0] * size[1]).any():  # more could overflow the sum
            raise ValueError(f"a run of {given.min() if (given < 0).any() else given.max()} pixels")
        if (total := int(given.sum())) != size[0] * size[1]:
            raise ValueError(f"runs of {total:,} pixels in all, and the picture has {size[0]} x {size[1]}")
        return cls.of_edges(_odd_ones(np.cumsum(given, dtype=np.int64)[:-1], total), size)

    @classmethod
    def of_text(cls, text: str | bytes, size: tuple[int, int]) -> Rle:
        """Compressed run lengths, as COCO's json holds them.

        Raises `ValueError` for characters that are none of the format's, an unfinished number, or as `of_counts` does.
        """
        codes = np.frombuffer(text.encode() if isinstance(text, str) else text, np.uint8).astype(np.int64) - 48
        if not len(codes):
            return cls.of_counts([], size)
        if len(wrong := codes[(codes < 0) | (codes > 63)]):
            raise ValueError(f"a character {chr(wrong[0] + 48)!r} in compressed run lengths")
        last = (codes & 32) == 0  # of a number: the others say that more follows
        first = np.flatnonzero(np.append(True, last[:-1]))
        places = np.arange(len(codes)) - np.repeat(first, np.diff(first, append=len(codes)))
        if not last[-1] or places.max() > 10:
            raise ValueError("compressed run lengths that end within a number, or hold one above 2^50")
        values = np.add.reduceat((codes & 31) << 5 * places, first)  # (R,)
        values -= np.where(codes[last] & 16, 1 << 5 * (places[last] + 1), 0)  # two's complement
        for start in (1, 2):  # from the fourth number on, each is the difference to the one but last
            values[start::2] = np.cumsum(values[start::2])
        return cls.of_counts(values, size)

    @classmethod
    def of_polygons(cls, polygons: Sequence[Sequence[float]], size: tuple[int, int]) -> Rle:
        """The union of polygons, each a flat list x, y, x, y, ... in pixels; parts outside of the picture are cut off.

        Raises `ValueError` for no polygon, fewer than three points, an odd number of coordinates, one not finite or farther
        than `FARTHEST` from the origin, and a boundary longer than `BOUNDARY`.
        """
        if not len(polygons):
            raise ValueError("an object without a polygon")
        return unite([cls.of_edges(_trace(_check_polygon(polygon), size), size) for polygon in polygons])

    @classmethod
    def of_coco(cls, segmentation: Any, size: tuple[int, int]) -> Rle:
        """Reads the field "segmentation" of COCO's json: polygons, or run lengths of either form.

        Raises `ValueError` for a form that COCO does not have, run lengths of another size, or as the other constructors do.
        """
        if isinstance(segmentation, list | tuple):
            return cls.of_polygons(segmentation, size)
        if not isinstance(segmentation, Mapping) or not {"size", "counts"} <= segmentation.keys():
            raise ValueError(f"a segmentation is a list of polygons or run lengths, not {str(segmentation)[:60]}")
        if segmentation["size"] not in (list(size), tuple(size)):
            raise ValueError(f"run lengths of size {segmentation['size']} in a picture of {list(size)}")
        counts = segmentation["counts"]
        return cls.of_text(counts, size) if isinstance(counts, str | bytes) else cls.of_counts(counts, size)

    def to_mask(self) -> NDArray[np.bool_]:
        """(H, W)"""
        inside = np.arange(len(self.counts)) % 2 == 1
        return np.repeat(inside, self.counts).reshape(self.size, order="F")

    def to_text(self) -> str:
        """Compressed: of each length, from the fourth on less the one but last, five bits a character, the lowest first."""
        left = self.counts.copy()
        left[3:] -= self.counts[1:-2]
        columns, written = [], np.ones(len(left), bool)
        while written.any():
            low, left = left & 31, left >> 5
            more = left != np.where(low & 16, -1, 0)  # whether the sign cannot be told from this character yet
            columns.append(np.where(written, low + 32 * more + 48, 0))
            written = written & more
        codes = np.stack(columns, 1).astype(np.uint8)  # (R, characters)
        return codes[codes > 0].tobytes().decode()

    @cached_property
    def ends(self) -> tuple[Integers, Integers]:
        """Where the runs of the mask begin, and the places after them."""
        edges = np.cumsum(self.counts)
        return edges[: 2 * (len(edges) // 2) : 2], edges[1::2]

    @cached_property
    def box(self) -> tuple[float, float, float, float]:
        """(x0, y0, x1, y1), the corners of the smallest box around the mask; zeros for an empty one."""
        starts, stops = self.ends
        if not len(starts):
            return 0.0, 0.0, 0.0, 0.0
        left, top = np.divmod(starts, self.size[0])
        right, bottom = np.divmod(stops - 1, self.size[0])
        if (right > left).any():  # a run into the next column passes the lower edge and the upper
            return float(left[0]), 0.0, float(right[-1] + 1), float(self.size[0])
        return float(left[0]), float(top.min()), float(right[-1] + 1), float(bottom.max() + 1)


def unite(masks: Sequence[Rle]) -> Rle:
    """The union of at least one mask of one size."""
    assert masks and len({mask.size for mask in masks}) == 1, "masks of several sizes"
    if len(masks) == 1:
        return masks[0]
    starts, stops = (np.concatenate(ends) for ends in zip(*(mask.ends for mask in masks)))
    edges = np.concatenate([starts, stops])
    order = np.argsort(edges, kind="stable")  # where one mask ends and another begins, the beginning is first
    depth = np.cumsum(np.repeat([1, -1], [len(starts), len(stops)])[order])  # masks that cover the pixels from here on
    changes = np.diff(depth > 0, prepend=False)
    height, width = masks[0].size
    return Rle.of_edges(_odd_ones(edges[order][changes], height * width), masks[0].size)


def _odd_ones(edges: Integers, end: int) -> Integers:
    """The places that occur an odd number of times, without ``end``: to begin and end at one place is to do nothing."""
    places, times = np.unique(edges, return_counts=True)
    return places[(times % 2 == 1) & (places < end)]


def _check_polygon(polygon: Sequence[float]) -> NDArray[np.float64]:
    """(n, 2)"""
    try:
        values = np.asarray(polygon, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"a polygon is a flat list of numbers, not {str(polygon)[:60]}") from None
    if values.ndim != 1 or len(values) % 2:
        raise ValueError(f"a polygon is a flat list x, y, x, y, ..., not an array of shape {values.shape}")
    if len(values) < 6:
        raise ValueError(f"a polygon of {len(values) // 2} points; at least three are required")
    if not (np.abs(values) <= FARTHEST).all():
        raise ValueError(f"a polygon with the coordinate {values[~(np.abs(values) <= FARTHEST)][0]}")
    points = values.reshape(-1, 2)
    if (length := np.abs(points - np.roll(points, -1, axis=0)).max(1).sum()) > BOUNDARY:
        raise ValueError(f"a polygon whose boundary has {length:,.0f} pixels, at most {BOUNDARY:,} are walked along")
    return points


def _trace(points: NDArray[np.float64], size: tuple[int, int]) -> Integers:
    """The edges of a polygon (n, 2) as COCO's maskApi has them.

    The boundary is walked in steps of a fifth of a pixel. Each time it passes the middle of a column, the mask begins or
    ends in that column at the height of the walk.
    """
    height, width = size
    corners = np.trunc(SUBPIXELS * points + 0.5).astype(np.int64)  # towards zero, as C converts to int
    begin, end = corners, np.roll(corners, -1, axis=0)
    moves = (begin != end).any(1)
    begin, end = begin[moves], end[moves]  # (sides, 2)
    steep = np.abs(end - begin).argmax(1)[:, None] == 1  # walked along y; along x where both are equal
    begin, end = (np.where(steep, corners[:, ::-1], corners) for corners in (begin, end))  # (along, across)
    backward = begin[:, :1] > end[:, :1]
    low, high = np.where(backward, end, begin), np.where(backward, begin, end)
    steps, rise = (high - low).T
    side = np.repeat(np.arange(len(steps)), steps + 1)
    step = np.arange(len(side)) - np.repeat(np.cumsum(steps + 1) - steps - 1, steps + 1)
    step = np.where(backward[side, 0], steps[side] - step, step)
    along, across = low[side, 0] + step, np.trunc(low[side, 1] + (rise / steps)[side] * step + 0.5).astype(np.int64)
    x, y = np.where(steep[side, 0], (across, along), (along, across))
    passed = np.flatnonzero(np.diff(x)) + 1
    column = (np.where(x[passed] < x[passed - 1], x[passed], x[passed] - 1) + 0.5) / SUBPIXELS - 0.5
    row = (np.minimum(y[passed], y[passed - 1]) + 0.5) / SUBPIXELS - 0.5
    valid = (np.floor(column) == column) & (column >= 0)  # columns beyond the right edge lie beyond the last place, too
    rows = np.ceil(np.clip(row[valid], 0, height)).astype(np.int64)
    return _odd_ones(column[valid].astype(np.int64) * height + rows, height * width)
