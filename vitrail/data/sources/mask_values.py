"""The values that masks have, measured in all of them and kept for the next time.

H and W of a mask.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.sources.contents import Files, Strings
from vitrail.errors import DataError, DiskError
from vitrail.files import cache_folder, disk_errors, read_sealed, write_sealed
from vitrail.images.decode import BadImage
from vitrail.images.masks import IGNORED, Colour, encode_colours, is_grey, open_mask

MOST_COLOURS = 256
KEPT_FROM = 100  # masks; the values of fewer are read faster than they are found again
FEW_LEVELS = 5  # a mask with fewer cannot be told from one with edges that were smoothed
VERSION = 1  # of the file in the cache
# what a mask stores: bits, grey levels, indices of a palette, colours that are all grey, and others
BITS, GREY, PALETTE, GREY_COLOURS, COLOURS = "bits", "grey", "palette", "grey colours", "colours"
# of masks with numbers of 8 bits: 255 and nothing but 0 beside it, 255 among others, others without 255
ALONE, AMONG, WITHOUT = "alone", "among", "without"


class Count(NamedTuple):
    """How many masks, and one of them."""

    masks: int
    example: str


class Level(NamedTuple):
    """A number or colour, in masks of one kind.

    Args:
        number: -1 where masks have colours.
        colour: as it is shown.
        pixels: in all masks.
        inner: pixels whose four neighbours are the same; of masks with less than `FEW_LEVELS` all pixels.
    """

    kind: str
    number: int
    colour: Colour
    masks: int
    pixels: int
    inner: int
    example: str


@dataclass(frozen=True)
class MaskValues:
    """The values of many masks.

    Args:
        levels: each number or colour of each kind of masks.
        kinds: the masks of each kind.
        void: of masks of numbers, those with 255 alone, among others, and without it.
        unusable: masks that cannot be read, by reason.
    """

    levels: tuple[Level, ...]
    kinds: Mapping[str, Count]
    void: Mapping[str, Count]
    unusable: Mapping[str, Count]

    @property
    def total(self) -> int:
        """The number of masks that can be read."""
        return sum(count.masks for count in self.kinds.values())

    def to_json(self) -> dict[str, Any]:
        """Returns the values in JSON types."""
        return {"levels": self.levels, "kinds": self.kinds, "void": self.void, "unusable": self.unusable}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> MaskValues:
        """Restores the result of `to_json`."""
        levels = tuple(Level(kind, number, tuple(colour), *rest) for kind, number, colour, *rest in kept["levels"])
        counts = ({name: Count(*each) for name, each in kept[what].items()} for what in ("kinds", "void", "unusable"))
        return cls(levels, *counts)


def measure_masks(root: Path, masks: Sequence[str]) -> MaskValues:
    """Reads the values of all masks, unless they were read before and no file has changed.

    What was read of more than `KEPT_FROM` masks is kept in ``masks`` in ``VITRAIL_CACHE``, else in ``~/.cache/vitrail``.

    Raises:
        DataError: more than `MOST_COLOURS` colours.
    """
    files = Files(str(root), Strings(masks))
    if len(masks) <= KEPT_FROM:
        return _measure(files)
    stamped = files.stamp()
    stamp = sha256(stamped.sizes.tobytes() + stamped.versions.tobytes()).hexdigest()
    place = cache_folder("masks") / f"{sha256(os.fsencode(root) + files.keys.digest().encode()).hexdigest()}.json"
    kept = read_sealed(place) or {}
    if kept.get("version") == VERSION and kept.get("stamp") == stamp:
        return MaskValues.from_json(kept)
    values = _measure(files)
    with suppress(DiskError):  # then they are read again
        with disk_errors(place):
            place.parent.mkdir(parents=True, exist_ok=True)
        write_sealed(place, {"version": VERSION, "stamp": stamp, **values.to_json()})
    return values


class _Mask(NamedTuple):
    """The kind of one mask, and of each level its number, the code of its colour, its pixels and the inner ones."""

    kind: str
    levels: Sequence[tuple[int, int, int, int]]


def _measure(files: Files) -> MaskValues:
    levels: dict[tuple[str, int, int], list[Any]] = {}
    kinds: dict[str, Count] = {}
    void: dict[str, Count] = {}
    unusable: dict[str, Count] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, mask in zip(files.keys, pool.map(lambda row: _examine(files, row), range(len(files.keys)))):
            if isinstance(mask, str):
                _count(unusable, mask, name)
                continue
            _count(kinds, mask.kind, name)
            if case := _judge_void(mask):
                _count(void, case, name)
            for number, code, pixels, inner in mask.levels:
                level = levels.setdefault((mask.kind, number, code), [0, 0, 0, name])
                level[:3] = level[0] + 1, level[1] + pixels, level[2] + inner
            if sum(kind == COLOURS for kind, _, _ in levels) > MOST_COLOURS:
                what = f"masks below {files.root} have more than {MOST_COLOURS} colours, e.g. in {name}"
                raise DataError(what, "save masks without smoothing and without lossy compression")
    found = []
    for (kind, number, code), counts in sorted(levels.items()):
        colour = code % 256, code // 256 % 256, code // 65_536
        found.append(Level(kind, number, colour, *counts))
    return MaskValues(tuple(found), kinds, void, unusable)


def _count(counts: dict[str, Count], what: str, name: str) -> None:
    masks, example = counts.get(what, (0, name))
    counts[what] = Count(masks + 1, example)


def _judge_void(mask: _Mask) -> str:
    numbers = {number for number, *_ in mask.levels}
    if mask.kind in (BITS, COLOURS) or numbers <= {0}:
        return ""
    others = bool(numbers - {0, IGNORED})
    return (AMONG if others else ALONE) if IGNORED in numbers else WITHOUT


def _examine(files: Files, row: int) -> _Mask | str:
    """Returns the levels of a mask, or why it cannot be used."""
    try:
        image = open_mask(files[row])
    except BadImage as error:
        return error.reason
    if image.mode == "RGB":
        return _examine_colours(image)
    found: Any = image.getcolors(256)  # (pixels, number)
    numbers = [number for _, number in found]
    inner = _count_inner(np.asarray(image), numbers) if len(found) >= FEW_LEVELS else [pixels for pixels, _ in found]
    if image.mode == "P":
        palette = image.getpalette("RGB") or []
        codes = [_encode_colour((*palette[3 * number : 3 * number + 3], 0, 0, 0)[:3]) for number in numbers]
        kind = PALETTE
    else:
        codes = [_encode_colour((number,) * 3) for number in numbers]
        kind = BITS if image.mode == "1" else GREY
        numbers = [number // 255 for number in numbers] if kind == BITS else numbers
    return _Mask(kind, list(zip(numbers, codes, (pixels for pixels, _ in found), inner)))


def _examine_colours(image: Image.Image) -> _Mask:
    found: Any = image.getcolors(MOST_COLOURS)
    if found is None:  # the colours themselves are not needed: they are too many
        return _Mask(COLOURS, [(-1, code, 1, 0) for code in range(MOST_COLOURS + 1)])
    codes = [_encode_colour(colour) for _, colour in found]
    pixels = [count for count, _ in found]
    inner = _count_inner(encode_colours(np.asarray(image)), codes) if len(found) >= FEW_LEVELS else pixels
    grey = is_grey(image)
    numbers = [colour[0] if grey else -1 for _, colour in found]
    return _Mask(GREY_COLOURS if grey else COLOURS, list(zip(numbers, codes, pixels, inner)))


def _count_inner(levels: NDArray[np.integer], wanted: Iterable[int]) -> list[int]:
    """How many pixels of each of the ``wanted`` levels (H, W) have four neighbours of the same level."""
    centre = levels[1:-1, 1:-1]
    inner = (centre == levels[:-2, 1:-1]) & (centre == levels[2:, 1:-1])
    inner &= (centre == levels[1:-1, :-2]) & (centre == levels[1:-1, 2:])
    if levels.dtype == np.uint8:
        return np.bincount(centre[inner], minlength=256)[list(wanted)].tolist()
    counts = dict(zip(*(each.tolist() for each in np.unique(centre[inner], return_counts=True))))
    return [counts.get(level, 0) for level in wanted]


def _encode_colour(colour: Sequence[int]) -> int:
    return colour[0] + 256 * colour[1] + 65_536 * colour[2]
