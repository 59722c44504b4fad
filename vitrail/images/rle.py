"""Masks of single objects as COCO stores them: run lengths, compressed text, polygons (Lin et al. 2014, Microsoft COCO).

Everything equals pycocotools, polygons byte for byte. H and W are the size of the picture, n masks, R runs of a mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.untrusted.limits import BOUNDARY, FARTHEST, IDS, RUNS

Integers = NDArray[np.int64]
SUBPIXELS = 5  # places within a pixel that a polygon's boundary is rounded to
# by which of the four pixels around a point are in the mask: upper left 1, upper right 2, lower left 4, lower right 8
TURNS = np.array([0, 1, 1, 0, 1, 0, 2, 1, 1, 2, 0, 1, 0, 1, 1, 0])  # corners that boundaries have there
FALLING, LOWER_RIGHT = 1 + 8, 8


@dataclass(frozen=True, eq=False)
class Rle:
    """A mask as the lengths of its runs, column by column from the upper left corner.

    Args:
        size: (H, W).
        counts: (R,) pixels of each run, the first of them outside of the mask; only the first may be 0.
    """

    size: tuple[int, int]
    counts: Integers = field(repr=False)  # thousands of numbers

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
        (height, width), (left, top) = size, corner
        shown = np.asarray(patch, bool)[max(-top, 0) : max(height - top, 0), max(-left, 0) : max(width - left, 0)]
        columns = np.zeros((shown.shape[1], shown.shape[0] + 2), bool)
        columns[:, 1:-1] = shown.T
        x, y = np.nonzero(columns[:, 1:] != columns[:, :-1])  # where a run begins or ends in its column
        places = (x + max(left, 0)) * height + y + max(top, 0)
        return cls.of_edges(_odd_ones(places, height * width), size)

    @classmethod
    def of_box(cls, box: Sequence[int], size: tuple[int, int]) -> Rle:
        """The pixels of a box (left, top, right, bottom) that lie in the picture."""
        (height, width), (left, top, right, bottom) = size, box
        starts = np.arange(max(left, 0), min(right, width), dtype=np.int64) * height
        top, bottom = max(top, 0), min(bottom, height)
        edges = np.concatenate([starts + top, starts + max(bottom, top)])
        return cls.of_edges(_odd_ones(edges, height * width), size)

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

    def to_patch(self) -> tuple[NDArray[np.bool_], tuple[int, int]]:
        """Returns the mask within its box, (h, w), and the upper left corner of the box, (x, y), as `of_patch` takes them."""
        left, top, right, bottom = map(int, self.box)
        height = self.size[0]
        counts = np.diff(np.clip(np.cumsum(self.counts), left * height, right * height), prepend=left * height)
        columns = np.repeat(np.arange(len(counts)) % 2 == 1, counts).reshape(right - left, height)
        return columns.T[top:bottom], (left, top)

    def paint(self, columns: NDArray[Any], value: int) -> None:
        """Sets the pixels of the mask in ``columns`` (H x W,), a picture column by column."""
        starts, stops = self.ends
        if len(starts):
            runs = self.counts[1 : 2 * len(starts)]
            inside = np.repeat(np.arange(len(runs)) % 2 == 0, runs)
            np.copyto(columns[starts[0] : stops[-1]], value, where=inside)

    def to_coco(self) -> dict[str, Any]:
        """As COCO's json holds it: the size and the compressed run lengths."""
        return {"size": list(self.size), "counts": self.to_text()}

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

    @property
    def area(self) -> int:
        """The pixels of the mask."""
        return int(self.counts[1::2].sum())

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


def split_ids(ids: NDArray[np.integer]) -> dict[int, Rle]:
    """The mask of each value but 0 in a map (H, W), in increasing order.

    Raises `ValueError` for more than `IDS` values or `RUNS` runs: noise, or a picture.
    """
    flat = ids.ravel(order="F")
    begins = np.append(True, flat[1:] != flat[:-1])
    if (count := np.count_nonzero(begins)) > RUNS:
        raise ValueError(f"{count:,} runs of equal values, over the limit of {RUNS:,}: it is no map of objects")
    starts = np.flatnonzero(begins)
    edges = np.stack([starts, np.append(starts[1:], flat.size)], 1)  # (R, 2)
    values = flat[starts]
    order = np.argsort(values, kind="stable")
    found, first = np.unique(values[order], return_index=True)
    if len(found) > IDS:
        raise ValueError(f"{len(found):,} different values, over the limit of {IDS:,}: it is no map of objects")
    own = (places.ravel() for places in np.split(edges[order], first[1:]))
    masks = ((value, places[:-1] if places[-1] == flat.size else places) for value, places in zip(found.tolist(), own))
    return {value: Rle.of_edges(places, ids.shape) for value, places in masks if value}


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


def mask_ious(found: Sequence[Rle], true: Sequence[Rle], crowd: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Returns the intersection over union of D found and M true masks of one size, (D, M), as ``mask.iou`` of pycocotools.

    With a crowd it is the intersection over the area of the found mask. Two empty masks have 0.

    Args:
        crowd: (M,) which of the true masks are crowds.
    """
    assert len({mask.size for mask in (*found, *true)}) <= 1, "masks of several sizes"
    (boxes, areas), (true_boxes, true_areas) = (
        (np.array([mask.box for mask in masks]).reshape(-1, 4), np.array([mask.area for mask in masks], np.int64))
        for masks in (found, true)
    )
    sides = np.minimum(boxes[:, None, 2:], true_boxes[:, 2:]) - np.maximum(boxes[:, None, :2], true_boxes[:, :2])
    near = np.all(sides > 0, axis=-1)  # (D, M)
    edges = [np.stack(mask.ends, 1).ravel() for mask in found]
    shared = np.zeros(near.shape)  # pixels
    for column, mask in enumerate(true):
        if len(rows := np.flatnonzero(near[:, column])):
            ends = np.cumsum(mask.counts[1::2])
            before = np.stack([ends - mask.counts[1::2], ends], 1).ravel()  # its pixels before each of its edges
            covered = np.interp(np.concatenate([edges[row] for row in rows]), np.stack(mask.ends, 1).ravel(), before)
            first = np.cumsum([0, *(len(edges[row]) // 2 for row in rows[:-1])])  # run of each found mask
            shared[rows, column] = np.add.reduceat(covered[1::2] - covered[::2], first)
    union = np.where(crowd, areas[:, None], areas[:, None] + true_areas - shared)
    return shared / np.maximum(union, 1)


def trace_outlines(mask: Rle) -> list[list[float]]:
    """Returns the outer boundary of each part of a mask, the largest first, as a polygon x, y, x, y, ... along edges of pixels.

    Pixels that touch at a corner belong to one part. The points are the corners alone, clockwise from the uppermost one.
    `Rle.of_polygons` makes of them the same mask with its holes filled.
    """
    patch, corner = mask.to_patch()
    inside = np.pad(patch, 1).astype(np.uint8)
    around = inside[:-1, :-1] + 2 * inside[:-1, 1:] + 4 * inside[1:, :-1] + 8 * inside[1:, 1:]
    turns = TURNS[around]
    points = np.repeat(np.argwhere(turns), turns[turns > 0], axis=0)  # (corners, 2), row by row
    y, x = points.T
    around = around[y, x]
    # along a row, and so along a column, each corner is joined with the next, in pairs; of two corners at one place the first
    # ends the side to the left, and is joined downwards where the pixels that touch there fall from left to right
    second = np.append(False, (points[1:] == points[:-1]).all(1))[: len(points)]
    order = np.lexsort([second ^ (around == FALLING), y, x]).reshape(-1, 2)
    vertical = np.empty(len(points), np.int64)
    vertical[order] = order[:, ::-1]
    following = vertical[np.arange(len(points)) ^ 1].tolist()  # after a side to the other end and one up or down
    outlines, is_open = [], np.ones(len(points), bool)
    for start in range(0, len(points), 2):
        if not is_open[start]:
            continue
        loop = [start]
        while (place := following[loop[-1]]) != start:
            loop.append(place)
        sides = np.stack([loop, np.array(loop) ^ 1], 1).ravel()
        is_open[sides] = False
        if around[start] == LOWER_RIGHT:  # the boundary of a hole begins where the pixel to the lower right is outside
            outlines.append((points[sides, ::-1] + corner).astype(float).ravel().tolist())
    return sorted(outlines, key=polygon_area, reverse=True)


def polygon_area(polygon: Sequence[float]) -> float:
    """Returns the area that a polygon x, y, x, y, ... encloses."""
    x, y = np.reshape(polygon, (-1, 2)).T
    return float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2)


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
