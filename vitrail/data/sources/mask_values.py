"""The values of masks (H, W), and the class of each. Masks whose values are ambiguous or were interpolated are refused."""

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

from vitrail.data.sources.contents import Files, Strings
from vitrail.data.sources.labels import Faulty
from vitrail.data.sources.mask_names import VOID, ClassTable, Entry
from vitrail.errors import DataError, DiskError
from vitrail.files import cache_folder, disk_errors, read_checksummed, write_checksummed
from vitrail.images.decode import BadImage
from vitrail.images.masks import IGNORED, Colour, encode_colours, is_grey, open_mask
from vitrail.text import plural

MAX_COLOURS = 256
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
    """A number or colour, in masks of one kind."""

    kind: str
    number: int  # -1 where masks have colours
    colour: Colour  # as it is shown
    masks: int
    pixels: int  # in all masks
    inner: int  # pixels whose four neighbours are the same; of masks with less than `FEW_LEVELS` all pixels
    example: str


@dataclass(frozen=True)
class MaskValues:
    """The values of many masks."""

    levels: tuple[Level, ...]  # each number or colour of each kind of masks
    kinds: Mapping[str, Count]
    void: Mapping[str, Count]  # of masks of numbers, those with 255 alone, among others, and without it
    unusable: Mapping[str, Count]  # masks that cannot be read, by reason

    @property
    def total(self) -> int:
        """The number of masks that can be read."""
        return sum(count.masks for count in self.kinds.values())

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> MaskValues:
        """Restores what `measure_masks` kept."""
        levels = tuple(Level(kind, number, tuple(colour), *rest) for kind, number, colour, *rest in kept["levels"])
        counts = ({name: Count(*each) for name, each in kept[what].items()} for what in ("kinds", "void", "unusable"))
        return cls(levels, *counts)


def measure_masks(root: Path, masks: Sequence[str]) -> MaskValues:
    """Reads the values of all masks, unless they were read before and no file has changed.

    What was read of more than `KEPT_FROM` masks is kept in ``masks`` in ``VITRAIL_CACHE``, else in ``~/.cache/vitrail``.
    Raises `DataError` for more than `MAX_COLOURS` colours.
    """
    files = Files(str(root), Strings(masks))
    if len(masks) <= KEPT_FROM:
        return _measure(files)
    stamped = files.stamp()
    stamp = sha256(stamped.sizes.tobytes() + stamped.versions.tobytes()).hexdigest()
    place = cache_folder("masks") / f"{sha256(os.fsencode(root) + files.keys.digest().encode()).hexdigest()}.json"
    kept = read_checksummed(place) or {}
    if kept.get("version") == VERSION and kept.get("stamp") == stamp:
        return MaskValues.from_json(kept)
    values = _measure(files)
    with suppress(DiskError):  # then they are read again
        with disk_errors(place):
            place.parent.mkdir(parents=True, exist_ok=True)
        write_checksummed(place, {"version": VERSION, "stamp": stamp, **vars(values)})
    return values


def _measure(files: Files) -> MaskValues:
    levels: dict[tuple[str, int, int], list[Any]] = {}
    counts: list[dict[str, Count]] = [{}, {}, {}]
    kinds, void, unusable = counts
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, mask in zip(files.keys, pool.map(lambda row: _examine(files, row), range(len(files.keys)))):
            if isinstance(mask, str):
                _count(unusable, mask, name)
                continue
            kind, own = mask
            _count(kinds, kind, name)
            numbers = {number for number, *_ in own}
            if kind not in (BITS, COLOURS) and not numbers <= {0}:
                case = WITHOUT if IGNORED not in numbers else AMONG if numbers - {0, IGNORED} else ALONE
                _count(void, case, name)
            for number, code, pixels, inner in own:
                level = levels.setdefault((kind, number, code), [0, 0, 0, name])
                level[:3] = level[0] + 1, level[1] + pixels, level[2] + inner
            if sum(kind == COLOURS for kind, _, _ in levels) > MAX_COLOURS:
                what = f"masks below {files.root} have more than {MAX_COLOURS} colours, e.g. in {name}"
                raise DataError(what, "save masks without smoothing and without lossy compression")
    found = []
    for (kind, number, code), sums in sorted(levels.items()):
        colour = code % 256, code // 256 % 256, code // 65_536
        found.append(Level(kind, number, colour, *sums))
    return MaskValues(tuple(found), kinds, void, unusable)


def _count(counts: dict[str, Count], what: str, name: str) -> None:
    masks, example = counts.get(what, (0, name))
    counts[what] = Count(masks + 1, example)


def _examine(files: Files, row: int) -> tuple[str, list[tuple[int, int, int, int]]] | str:
    """The kind of a mask, and (number, code of the colour, pixels, inner ones) of its levels; or why it cannot be used."""
    try:
        image = open_mask(files[row])
    except BadImage as error:
        return error.reason
    found: Any = image.getcolors(MAX_COLOURS)
    if found is None:  # too many colours, which are themselves not needed
        return COLOURS, [(-1, code, 1, 0) for code in range(MAX_COLOURS + 1)]
    pixels, stored = zip(*found)
    if image.mode == "RGB":
        kind = GREY_COLOURS if is_grey(image) else COLOURS
        numbers = [colour[0] if kind == GREY_COLOURS else -1 for colour in stored]
        stored = codes = encode_colours(np.array(stored, np.uint8)).tolist()
    elif image.mode == "P":
        kind, numbers = PALETTE, stored
        palette = np.zeros(3 * 256, np.uint8)
        shown = image.getpalette("RGB") or []
        palette[: len(shown)] = shown
        codes = encode_colours(palette.reshape(-1, 3)[[*stored]]).tolist()
    else:
        kind = BITS if image.mode == "1" else GREY
        numbers = [number // 255 for number in stored] if kind == BITS else stored
        codes = [number * 0x010101 for number in stored]
    inner = _count_inner(np.asarray(image), stored) if len(found) >= FEW_LEVELS else pixels
    return kind, list(zip(numbers, codes, pixels, inner))


def _count_inner(levels: NDArray[Any], wanted: Iterable[int]) -> list[int]:
    """How many pixels of each of the ``wanted`` levels, or codes of colours, have four neighbours of the same level."""
    levels = encode_colours(levels) if levels.ndim == 3 else levels
    centre = levels[1:-1, 1:-1]
    inner = (centre == levels[:-2, 1:-1]) & (centre == levels[2:, 1:-1])
    inner &= (centre == levels[1:-1, :-2]) & (centre == levels[1:-1, 2:])
    if levels.dtype == np.uint8:
        return np.bincount(centre[inner], minlength=256)[list(wanted)].tolist()
    counts = dict(zip(*(each.tolist() for each in np.unique(centre[inner], return_counts=True))))
    return [counts.get(level, 0) for level in wanted]


BINARY = (Entry(0, "background"), Entry(IGNORED, "foreground"))
WIDE_GAP = 16  # between all values: these are grey levels chosen for display, not numbers of classes
THIN, MAX_THIN = 0.1, 0.5  # share of inner pixels of a level along edges, and of all pixels that have such levels
MANY = 16  # levels along edges, where small objects leave one level that fills an area
RARE_IN = 20  # masks, from which on a value that one of them has is named
DECIDE_255 = "if 255 is no class, write a palette.csv with the columns index,name and the row 255,void"


@dataclass(frozen=True)
class Meaning:
    """The classes of the values of masks."""

    values: NDArray[np.uint8]  # (V,) numbers or (V, 3) colours
    indices: NDArray[np.uint8]  # (V,) the class of each value, or `IGNORED`
    names: tuple[str, ...]  # of the classes
    notes: tuple[str, ...] = ()  # what was assumed
    faulty: Faulty = Faulty()  # the masks that cannot be read


def find_meaning(root: Path, found: MaskValues, table: ClassTable | None) -> Meaning:
    """Finds the class of each value of masks below ``root``, by the ``table`` of names where there is one.

    Raises `DataError` if no mask can be used, or for resized or smoothed masks, values without a name, modes that do not go
    together, or a 255 that may be a class or none.
    """
    if not found.kinds:
        reason, count = next(iter(found.unusable.items()))
        raise DataError(f"the mask {count.example} cannot be used: {reason}", "save masks as PNG files of 8 bits")
    by_colour = _is_by_colour(root, found, table)
    meaning = _match_colours(root, found, table) if by_colour else _match_numbers(root, found, table)
    notes = [*meaning.notes]
    if not by_colour and BITS in found.kinds and len(found.kinds) > 1:
        bits = _name(found.kinds[BITS])
        notes.append(f"masks of 1 bit among others: {bits}; their foreground is taken as the class of the value 1")
    notes += [f"masks that cannot be used: {_name(count)}: {reason}" for reason, count in found.unusable.items()]
    if table is not None:
        void = [entry.name for entry in table.entries if entry.ignored and entry.value != IGNORED]
        notes += [f"{name!r} in {table.path.name} is taken as no class: its pixels are ignored" for name in void]
    faulty = sum(count.masks for count in found.unusable.values())
    first = next((f"{count.example}: {reason}" for reason, count in found.unusable.items()), "")
    return replace(meaning, notes=tuple(notes), faulty=Faulty(faulty, faulty + found.total, first, "masks"))


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
        for level in palettes:
            if level.number != IGNORED and (entry := table.colours[level.colour]).value != level.number:
                what = f"the palette of masks, e.g. {level.example}, has at {level.number} the colour of {entry.name!r}"
                remedy = f"correct the index or the colour in {table.path}"
                raise DataError(what, remedy, value=f"{table.path.name} has that colour at {entry.value}")
    return same_number or not table.numbered or not fits_numbers


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
        shown = ", ".join(f"{level.colour} ({_name(level)})" for level in unnamed[:5])
        what = f"masks below {root} have the colours {shown}, which {table.path.name} does not name"
        raise DataError(what, "add them to the table")
    classes = [entry.name for entry in table.classes]
    indices = [IGNORED if entry.ignored else classes.index(entry.name) for entry in named.values()]
    return Meaning(np.array(list(named), np.uint8), np.array(indices, np.uint8), tuple(classes))


def _match_numbers(root: Path, found: MaskValues, table: ClassTable | None) -> Meaning:
    numbers = {level.number for level in found.levels if level.kind != BITS}
    if numbers <= {0, IGNORED} and (binary := _find_binary(root, numbers, found, table)):
        note = "masks have only the values 0 and 255: 255 is taken as the second class, not as ignored"
        names = tuple(entry.name for entry in sorted(binary, key=lambda entry: entry.value))
        values, indices = np.array([0, 1, IGNORED], np.uint8), np.array([0, 1, 1], np.uint8)
        return Meaning(values, indices, names, (note,) if numbers and table is None else ())
    every = numbers | {level.number for level in found.levels}
    named = table.values if table else {}
    unnamed = [level for level in found.levels if level.number not in named and level.number != IGNORED]
    _refuse_smoothed(root, found.levels, unnamed)
    _refuse_unclear_255(root, found, table)
    if BITS in found.kinds and 1 not in numbers:
        raise DataError(f"masks below {root} have several modes: {_list(found.kinds)}", "save all masks with 8 bits")
    if table is None:
        entries = tuple(Entry(value, str(value)) for value in sorted(every - {IGNORED}))
        rare = [level for level in found.levels if level.masks == 1 and level.number != IGNORED]
        shown = ", ".join(f"{level.number} ({level.example}, {level.pixels:,} pixels)" for level in rare[:3])
        is_odd = rare and found.total >= RARE_IN
        return number_entries(entries, (f"values that a single mask has, taken as classes: {shown}",) if is_odd else ())
    if unnamed:
        shown = ", ".join(f"{level.number} ({_name(level)})" for level in unnamed[:8])
        what = f"masks below {root} have the values {shown}, and {table.path.name} names {len(table.classes)}"
        remedy = f"add their names to {table.path.name}, or give them the value 255; the first line is the value 0"
        raise DataError(what, remedy)
    unused = [entry.name for entry in table.classes if entry.value not in every]
    if table.numbered or table.colours or not unused:
        return number_entries(table.entries)
    # the values are places of lines, and a line too many gives the ones after it other values
    count = f"{len(unused)} of {len(table.classes)} ({', '.join(unused[:3])})"
    return number_entries(table.entries, (f"names in {table.path.name} whose value no mask has: {count}",))


def number_entries(entries: Iterable[Entry], notes: tuple[str, ...] = ()) -> Meaning:
    """Returns the classes of numbers that are named; 255 is ignored."""
    by_value = {entry.value: entry for entry in entries}
    classes = [entry for entry in by_value.values() if not entry.ignored]
    place = {entry.value: index for index, entry in enumerate(classes)}
    values = [*by_value, *({IGNORED} - by_value.keys())]
    indices = [place.get(value, IGNORED) for value in values]
    names = tuple(entry.name for entry in classes)
    return Meaning(np.array(values, np.uint8), np.array(indices, np.uint8), names, notes)


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
        what = (
            f"masks below {root} have only the values 0 and {'255' if numbers else '1'}, and {table.path.name} names "
        )
        what += plural(len(table.classes), "class", "classes")
        raise DataError(what, f"name the background and the foreground; {DECIDE_255}")
    return table.classes


def _refuse_smoothed(root: Path, levels: Sequence[Level], unnamed: Sequence[Level]) -> None:
    """Refuse masks that were resized with interpolation: most levels lie along edges, between few that fill areas."""
    areas = [level.number for level in levels if level.inner >= THIN * level.pixels]
    thin = [level for level in levels if level.inner < THIN * level.pixels]
    if len(areas) > 1 and min(areas) >= 0:
        thin = [level for level in thin if min(areas) < level.number < max(areas)]
    many = len(thin) >= max(3, len(areas) + 1) if len(areas) > 1 else len(thin) >= MANY
    few_pixels = sum(level.pixels for level in thin) < MAX_THIN * sum(level.pixels for level in levels)
    if len(unnamed) < 3 or not many or not few_pixels:
        return
    shown = ", ".join(str(level.colour if level.number < 0 else level.number) for level in thin[:4])
    edges = f"{len(thin)} values occur only along edges, e.g. {shown} in {thin[0].example}"
    remedy = "resize masks without interpolation (nearest neighbour), or set a threshold; if these are classes, "
    remedy += "name all of them in a palette.csv with the columns index,name"
    raise DataError(f"masks below {root} look resized or smoothed: {edges}", remedy)


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


def _name(count: Count | Level) -> str:
    return f"{plural(count.masks, 'mask')}, e.g. {count.example}"


def _list(kinds: Mapping[str, Count]) -> str:
    return "; ".join(f"{kind} in {_name(count)}" for kind, count in kinds.items())
