"""The values of masks, and the class of each.

The values are measured in all masks and kept for the next time. Masks whose values are ambiguous or were interpolated are
refused.

H and W of a mask, V values.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.data.sources.contents import Files, Strings
from vitrail.data.sources.labels import Faulty
from vitrail.data.sources.mask_names import VOID, ClassTable, Entry
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


BINARY = (Entry(0, "background"), Entry(IGNORED, "foreground"))
WIDE_GAP = 16  # between all values: these are grey levels chosen for display, not numbers of classes
THIN, MOST_THIN = 0.1, 0.5  # share of inner pixels of a level along edges, and of all pixels that have such levels
MANY = 16  # levels along edges, where small objects leave one level that fills an area
RARE_IN = 20  # masks, from which on a value that one of them has is named
NAME_ALL = "name all of them in a palette.csv with the columns index,name"
DECIDE_255 = "if 255 is no class, write a palette.csv with the columns index,name and the row 255,void"


@dataclass(frozen=True)
class Meaning:
    """The classes of the values of masks.

    Args:
        values: (V,) numbers or (V, 3) colours.
        indices: (V,) the class of each value, or `IGNORED`.
        names: of the classes.
        notes: what was assumed.
        faulty: the masks that cannot be read.
    """

    values: NDArray[np.uint8]
    indices: NDArray[np.uint8]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    faulty: Faulty = Faulty()


def find_meaning(root: Path, found: MaskValues, table: ClassTable | None) -> Meaning:
    """Finds the class of each value of masks.

    Args:
        root: folder of the data, for messages.
        found: the values of all masks.
        table: names of values or colours, where there are any.

    Raises:
        DataError: no mask can be used; masks that were resized or smoothed; values that the table does not name; masks of several
            modes that do not go together; or a 255 that may be a class or none.
    """
    if not found.kinds:
        reason, count = next(iter(found.unusable.items()))
        raise DataError(f"the mask {count.example} cannot be used: {reason}", "save masks as PNG files of 8 bits")
    by_colour = _is_by_colour(root, found, table)
    meaning = _match_colours(root, found, table) if by_colour else _match_numbers(root, found, table)
    notes = [f"masks that cannot be used: {_name(count)}: {reason}" for reason, count in found.unusable.items()]
    if table is not None:
        void = [entry.name for entry in table.entries if entry.ignored and entry.value != IGNORED]
        notes += [f"{name!r} in {table.path.name} is taken as no class: its pixels are ignored" for name in void]
    faulty = Faulty()
    if found.unusable:
        count = sum(each.masks for each in found.unusable.values())
        reason, first = next(iter(found.unusable.items()))
        faulty = Faulty(count, count + found.total, f"{first.example}: {reason}", "masks")
    return replace(meaning, notes=(*meaning.notes, *notes), faulty=faulty)


def _is_by_colour(root: Path, found: MaskValues, table: ClassTable | None) -> bool:
    """Whether colours decide the class: where there are any, and where numbers do not fit a table with colours."""
    if COLOURS in found.kinds:
        return True
    named = table.colours if table else {}
    palettes = [level for level in found.levels if level.kind == PALETTE]
    same_colour = len({level.colour for level in palettes}) < len(palettes)
    same_number = len({level.number for level in palettes}) < len(palettes)
    fits_colours = bool(named) and all(level.colour in named for level in found.levels)
    if same_colour and same_number and not fits_colours:
        example = next(level for level in palettes if level.number != palettes[0].number)
        what = f"masks below {root} have palettes with different orders of colours, e.g. {palettes[0].example}, {example.example}"
        raise DataError(what, "save all masks with one palette, or give a palette.csv with index,name,red,green,blue")
    if table is None or not named:
        return False
    fits_numbers = all(level.number in table.values or level.number == IGNORED for level in found.levels)
    if found.kinds.keys() == {GREY_COLOURS}:
        return fits_colours or not fits_numbers
    if not fits_colours or (same_colour and not same_number):
        return False
    if fits_numbers and table.numbered and not same_number:
        _refuse_contradiction(palettes, table)
    return same_number or not table.numbered or not fits_numbers


def _refuse_contradiction(palettes: Iterable[Level], table: ClassTable) -> None:
    for level in palettes:
        if level.number != IGNORED and (entry := table.colours[level.colour]).value != level.number:
            what = f"the palette of masks, e.g. {level.example}, has at {level.number} the colour of {entry.name!r}"
            remedy = f"correct the index or the colour in {table.path}"
            raise DataError(what, remedy, value=f"{table.path.name} has that colour at {entry.value}")


def _match_colours(root: Path, found: MaskValues, table: ClassTable | None) -> Meaning:
    """Masks of colours: those of the table, or without one a class for each colour."""
    named = table.colours if table else {}
    main = COLOURS if COLOURS in found.kinds else GREY_COLOURS
    known = {*named, *(level.colour for level in found.levels if level.kind == main)}
    if strange := [level for level in found.levels if level.colour not in known]:
        kinds = {kind: found.kinds[kind] for kind in (main, strange[0].kind)}
        what = f"some masks below {root} have colours, others numbers: {_list(kinds)}"
        raise DataError(what, "save all masks in one mode")
    unnamed = [level for level in found.levels if level.colour not in named]
    _refuse_smoothed(root, found.levels, unnamed)
    if table is None or not named:
        colours = sorted({level.colour for level in found.levels})
        names = tuple("#{:02x}{:02x}{:02x}".format(*colour) for colour in colours)
        what = "masks have colours without names: classes are named after them; give a palette.csv with index,name,red,green,blue"
        note = what if table is None else f"{what}: {table.path.name} has names without colours"
        return Meaning(np.array(colours, np.uint8), np.arange(len(colours), dtype=np.uint8), names, (note,))
    if unnamed:
        shown = ", ".join(f"{level.colour} ({_name(Count(level.masks, level.example))})" for level in unnamed[:5])
        what = f"masks below {root} have the colours {shown}, which {table.path.name} does not name"
        raise DataError(what, "add them to the table")
    classes = [entry.name for entry in table.classes]
    indices = [IGNORED if entry.ignored else classes.index(entry.name) for entry in named.values()]
    return Meaning(np.array(list(named), np.uint8), np.array(indices, np.uint8), tuple(classes))


def _match_numbers(root: Path, found: MaskValues, table: ClassTable | None) -> Meaning:
    numbers = {level.number for level in found.levels if level.kind != BITS}
    if numbers <= {0, IGNORED} and (binary := _find_binary(root, numbers, found, table)):
        values, indices = [0, 1, IGNORED], [0, 1, 1]
        note = "masks have only the values 0 and 255: 255 is taken as the second class, not as ignored"
        notes = (note,) if numbers and table is None else ()
        names = tuple(entry.name for entry in sorted(binary, key=lambda entry: entry.value))
        return Meaning(np.array(values, np.uint8), np.array(indices, np.uint8), names, (*notes, *_note_bits(found)))
    every = numbers | {level.number for level in found.levels}
    named = table.values if table else {}
    unnamed = [level for level in found.levels if level.number not in named and level.number != IGNORED]
    _refuse_smoothed(root, found.levels, unnamed)
    _refuse_unclear_255(root, found, table)
    if BITS in found.kinds and 1 not in numbers:
        raise DataError(f"masks below {root} have several modes: {_list(found.kinds)}", "save all masks with 8 bits")
    if table is None:
        entries = tuple(Entry(value, str(value)) for value in sorted(every - {IGNORED}))
        return number_entries(entries, (*_note_bits(found), *_note_rare(found)))
    if unnamed:
        shown = ", ".join(f"{level.number} ({_name(Count(level.masks, level.example))})" for level in unnamed[:8])
        what = f"masks below {root} have the values {shown}, and {table.path.name} names {len(table.classes)}"
        remedy = f"add their names to {table.path.name}, or give them the value 255; the first line is the value 0"
        raise DataError(what, remedy)
    return number_entries(table.entries, (*_note_bits(found), *_note_unused(table, every)))


def number_entries(entries: Iterable[Entry], notes: Sequence[str] = ()) -> Meaning:
    """Returns the classes of numbers that are named; 255 is ignored."""
    by_value = {entry.value: entry for entry in entries}
    classes = [entry for entry in by_value.values() if not entry.ignored]
    place = {entry.value: index for index, entry in enumerate(classes)}
    values = [*by_value, *({IGNORED} - by_value.keys())]
    indices = [place.get(value, IGNORED) for value in values]
    names = tuple(entry.name for entry in classes)
    return Meaning(np.array(values, np.uint8), np.array(indices, np.uint8), names, tuple(notes))


def _find_binary(root: Path, numbers: set[int], found: MaskValues, table: ClassTable | None) -> Sequence[Entry]:
    """The two classes of masks with the values 0 and 255, or of 1 bit; empty where 255 is said to be no class."""
    if table is None:
        return BINARY
    last = table.values.get(IGNORED)
    if last and last.name.lower() not in VOID and len(table.entries) == 2:
        return table.entries
    if last or (IGNORED not in numbers and BITS not in found.kinds):
        return ()
    if len(table.classes) != 2:
        names = "1 class" if len(table.classes) == 1 else f"{len(table.classes)} classes"
        what = f"masks below {root} have only the values 0 and {'255' if numbers else '1'}, and {table.path.name} names {names}"
        raise DataError(what, f"name the background and the foreground; {DECIDE_255}")
    return table.classes


def _refuse_smoothed(root: Path, levels: Sequence[Level], unnamed: Sequence[Level]) -> None:
    """Refuse masks that were resized with interpolation: most levels lie along edges, between few that fill areas."""
    areas = [level.number for level in levels if level.inner >= THIN * level.pixels]
    thin = [level for level in levels if level.inner < THIN * level.pixels]
    if len(areas) > 1 and min(areas) >= 0:
        thin = [level for level in thin if min(areas) < level.number < max(areas)]
    many = len(thin) >= max(3, len(areas) + 1) if len(areas) > 1 else len(thin) >= MANY
    few_pixels = sum(level.pixels for level in thin) < MOST_THIN * sum(level.pixels for level in levels)
    if len(unnamed) < 3 or not many or not few_pixels:
        return
    shown = ", ".join(str(level.colour if level.number < 0 else level.number) for level in thin[:4])
    edges = f"{len(thin)} values occur only along edges, e.g. {shown} in {thin[0].example}"
    remedy = "resize masks without interpolation (nearest neighbour), or set a threshold"
    raise DataError(
        f"masks below {root} look resized or smoothed: {edges}", f"{remedy}; if these are classes, {NAME_ALL}"
    )


def _refuse_unclear_255(root: Path, found: MaskValues, table: ClassTable | None) -> None:
    """Refuse masks in which 255 is as likely a class as none, unless the table has it."""
    if table and IGNORED in table.values:
        return
    alone, without = found.void.get(ALONE), found.void.get(WITHOUT)
    if alone and without and AMONG not in found.void:
        some = f"some masks have only 0 and 255 ({_name(alone)}), and others have no 255 ({_name(without)})"
        raise DataError(f"below {root} {some}", f"use the same values in all masks; {DECIDE_255}")
    numbers = sorted({level.number for level in found.levels})
    if table is None and IGNORED in numbers and len(numbers) > 2 and np.diff(numbers).min() >= WIDE_GAP:
        what = f"masks below {root} have the grey levels {', '.join(map(str, numbers))}: 255 may be a class or none"
        raise DataError(what, f"number the classes from 0; {DECIDE_255}")


def _note_bits(found: MaskValues) -> tuple[str, ...]:
    if BITS not in found.kinds or len(found.kinds) == 1:
        return ()
    return (
        f"masks of 1 bit among others: {_name(found.kinds[BITS])}; their foreground is taken as the class of the value 1",
    )


def _note_unused(table: ClassTable, numbers: set[int]) -> tuple[str, ...]:
    """Names without a value in a file whose lines are counted: a line too many gives the ones after it other values."""
    unused = [entry.name for entry in table.classes if entry.value not in numbers]
    if table.numbered or table.colours or not unused:
        return ()
    return (
        f"names in {table.path.name} whose value no mask has: {len(unused)} of {len(table.classes)} ({', '.join(unused[:3])})",
    )


def _note_rare(found: MaskValues) -> tuple[str, ...]:
    """Values without a name that a single mask has."""
    rare = [level for level in found.levels if level.masks == 1 and level.number != IGNORED]
    if not rare or found.total < RARE_IN:
        return ()
    shown = ", ".join(f"{level.number} ({level.example}, {level.pixels:,} pixels)" for level in rare[:3])
    return (f"values that a single mask has, taken as classes: {shown}",)


def _name(count: Count) -> str:
    return f"{count.masks:,} mask{'s' if count.masks > 1 else ''}, e.g. {count.example}"


def _list(kinds: Mapping[str, Count]) -> str:
    return "; ".join(f"{kind} in {_name(count)}" for kind, count in kinds.items())
