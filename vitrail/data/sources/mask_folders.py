"""Folders of images beside folders of masks, in which every pixel's value or colour is a class."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from vitrail.data.decode import BadImage
from vitrail.data.sources.contents import Files, Strings, read_file, read_lines
from vitrail.data.sources.folders import Scan
from vitrail.data.sources.label_maps import IGNORED, LabelMaps, decode_mask
from vitrail.data.sources.labels import SPLITS, Labels, RawSplit
from vitrail.errors import DataError
from vitrail.untrusted.limits import LIST_BYTES
from vitrail.untrusted.numbers import to_whole
from vitrail.untrusted.regular import open_regular

IMAGES = ("images", "imgs", "image", "JPEGImages", "leftImg8bit")
MASKS = ("masks", "mask", "labels", "label", "annotations", "SegmentationClass", "gtFine")
SUFFIXES = (
    "_leftImg8bit",
    "_gtFine_labelIds",
    "_gtFine_labelTrainIds",
    "_mask",
    "_label",
)  # of names, left out to pair them
LOOKED = 100  # masks that are read to find their values, evenly spaced
MOST_COLOURS = 256
# Cityscapes (Cordts et al. 2016): the 19 classes that are judged, by the number in `labelIds`
CITYSCAPES = {
    **{7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light"},
    **{20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car"},
    **{27: "truck", 28: "bus", 31: "train", 32: "motorcycle", 33: "bicycle"},
}


def find_masks(root: Path) -> list[tuple[str, str, str]]:
    """(split, folder of images, folder of masks) for each pair of folders below ``root``; empty if there is none.

    Both ``images/train`` and ``train/images`` are found; without splits all images are the training split.
    """
    if pair := _find_pair(root):
        images, masks = pair
        splits = [
            name for name in _list_folders(root / images) if name.lower() in SPLITS and (root / masks / name).is_dir()
        ]
        if splits:
            return [(SPLITS[name.lower()], f"{images}/{name}", f"{masks}/{name}") for name in splits]
        return [("train", images, masks)]
    found = []
    for name in _list_folders(root):
        if name.lower() in SPLITS and (pair := _find_pair(root / name)):
            found.append((SPLITS[name.lower()], f"{name}/{pair[0]}", f"{name}/{pair[1]}"))
    return found


def _find_pair(folder: Path) -> tuple[str, str] | None:
    names = {name.lower(): name for name in _list_folders(folder)}
    images, masks = ([names[word.lower()] for word in words if word.lower() in names] for words in (IMAGES, MASKS))
    for name in masks if images else ():
        if Scan().list_images(str(folder / name), ""):
            return images[0], name
    return None


def _list_folders(folder: Path) -> list[str]:
    return Scan().list_folder(str(folder))[0]


def read_masks(root: Path, found: Sequence[tuple[str, str, str]]) -> tuple[str, dict[str, RawSplit]]:
    """The images and masks of the pairs of folders that `find_masks` gives.

    Names of classes are those of ``classes.txt`` (one a line, in the order of the values) or of a ``palette.csv`` or
    ``classes.csv`` with the columns ``index,name`` and, for colours, ``red,green,blue``, in ``root`` or beside the masks;
    without one of these files, classes are named after their values. The value 255, or the colour with this index, is ignored,
    unless masks have no other values than 0 and 255.

    Raises:
        DataError: no image has a mask, a mask that is not lossless, or values without a name.
    """
    pairs: dict[str, list[tuple[str, str]]] = {}
    notes: dict[str, list[str]] = {}
    for split, images, masks in found:
        pairs[split], notes[split] = _pair_files(root, images, masks)
    everything = [pair for split in pairs.values() for pair in split]
    if not everything:
        raise DataError(f"no image below {root} has a mask of the same name", "give masks the names of their images")
    values, indices, names, note = _find_classes(root, [mask for _, mask in everything])
    splits = {}
    for split, files in pairs.items():
        contents, masks = (Files(str(root), Strings(pair[side] for pair in files)) for side in (0, 1))
        targets = LabelMaps(masks, values, indices)
        splits[split] = RawSplit(contents, Labels(names, targets, declared=True), tuple(notes[split]))
    first = next(iter(splits))
    splits[first] = RawSplit(splits[first].contents, splits[first].labels, (*splits[first].notes, *note))
    return "images and masks", splits


def _pair_files(root: Path, images: str, masks: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Images and masks of the same name, and notes on those without."""
    by_name = {_plain_name(path): f"{masks}/{path}" for path in Scan().list_images(str(root / masks), "")}
    paths = Scan().list_images(str(root / images), "")
    pairs = [(f"{images}/{path}", by_name[name]) for path in paths if (name := _plain_name(path)) in by_name]
    notes = []
    if missing := [path for path in paths if _plain_name(path) not in by_name]:
        notes.append(f"images in {images} without a mask, left out: {len(missing):,} ({', '.join(missing[:3])})")
    if spare := by_name.keys() - {_plain_name(path) for path in paths}:
        notes.append(f"masks in {masks} without an image: {len(spare):,} ({', '.join(sorted(spare)[:3])})")
    return pairs, notes


def _plain_name(path: str) -> str:
    """A path without extension and without the suffixes that tell images from masks."""
    plain = os.path.splitext(path)[0]
    for suffix in SUFFIXES:
        plain = plain.removesuffix(suffix)
    return plain


def _find_classes(root: Path, masks: Sequence[str]) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """The values of masks (V,) or (V, 3), the class of each (V,), the names of the classes, and notes."""
    found = _find_values(root, masks)
    named = _read_names(root, masks[0])
    ignored = (named or {}).pop(IGNORED, ("", None))[1]
    if isinstance(next(iter(found)), tuple):
        return _match_colours(root, found, named, ignored)
    if named is None and any(mask.endswith("_gtFine_labelIds.png") for mask in masks):
        named = {number: (name, None) for number, name in CITYSCAPES.items()}
        found &= named.keys()  # the others are not judged
        order = list(named)
        values = np.arange(256, dtype=np.uint8)
        indices = np.array([order.index(value) if value in named else IGNORED for value in range(256)], np.uint8)
        return values, indices, tuple(name for name, _ in named.values()), ()
    notes: tuple[str, ...] = ()
    if found <= {0, 255} and (named is None or len(named) == 2):
        notes = ("masks have the values 0 and 255 alone: 255 is taken as the second class, not as ignored",)
        names = [name for name, _ in named.values()] if named else ["background", "foreground"]
        return np.array([0, 255], np.uint8), np.array([0, 1], np.uint8), tuple(names), notes
    if named is None:
        named = {value: (str(value), None) for value in sorted(found - {IGNORED})}
    if unknown := sorted(found - named.keys() - {IGNORED}):
        shown = ", ".join(map(str, unknown[:8]))
        remedy = "add their names to classes.txt, one a line in the order of the values, or give them the value 255"
        raise DataError(f"masks below {root} have the values {shown}, and there are {len(named)} class names", remedy)
    values = np.array([*named, IGNORED], np.uint8)
    indices = np.array([*range(len(named)), IGNORED], np.uint8)
    return values, indices, tuple(name for name, _ in named.values()), notes


Colour = tuple[int, int, int]


def _find_values(root: Path, masks: Sequence[str]) -> set:
    """The values, or colours, of some masks. Raises `DataError` for a mask that cannot be used, or too many colours."""
    found: set = set()
    for row in np.unique(np.linspace(0, len(masks) - 1, min(LOOKED, len(masks))).astype(int)).tolist():
        try:
            levels = decode_mask(read_file(root / masks[row]))
        except BadImage as error:
            raise DataError(
                f"the mask {masks[row]} cannot be used: {error.reason}", "save masks as PNG files"
            ) from error
        if levels.ndim == 2:
            found |= set(np.unique(levels).tolist())
        else:
            found |= set(map(tuple, np.unique(levels.reshape(-1, 3), axis=0).tolist()))
        if len(found) > MOST_COLOURS:
            what = f"masks below {root} have more than {MOST_COLOURS} colours, e.g. in {masks[row]}"
            raise DataError(what, "save masks without smoothing and without lossy compression")
    kinds = {isinstance(value, tuple) for value in found}
    if len(kinds) > 1:
        raise DataError(f"some masks below {root} have colours, others numbers", "save all masks in one mode")
    return found


def _read_names(root: Path, mask: str) -> dict[int, tuple[str, Colour | None]] | None:
    """The name, and the colour where it is given, of each value, from the file nearest to a mask, in ``root`` at last."""
    for folder in (root / mask).parents:
        for file in ("palette.csv", "classes.csv"):
            if (folder / file).is_file():
                return dict(_read_table(folder / file))
        if (folder / "classes.txt").is_file():
            return _read_lines(folder / "classes.txt")
        if folder == root:
            break
    return None


def _read_lines(path: Path) -> dict[int, tuple[str, Colour | None]]:
    lines = read_lines(path, "give one name a line in UTF-8")
    return {number: (name.strip(), None) for number, name in enumerate(line for line in lines if line.strip())}


def _read_table(path: Path) -> Iterable[tuple[int, tuple[str, Colour | None]]]:
    try:
        with open_regular(path, LIST_BYTES) as file:
            table = csv.DictReader(file.read().decode("utf-8-sig").splitlines())
        rows = [{str(key).strip().lower(): value for key, value in row.items()} for row in table]
        for number, row in enumerate(rows):
            colour = (
                tuple(to_whole(row[name], name, most=255) for name in ("red", "green", "blue"))
                if row.get("red")
                else None
            )
            index = to_whole(row.get("index") or number, "the index", most=IGNORED)
            yield index, (row["name"].strip(), colour)  # type: ignore[misc]
    except (OSError, ValueError, KeyError, AttributeError, TypeError, csv.Error) as error:
        what = f"{path} is no table of classes: {error}"
        raise DataError(what, "give the columns index,name or index,name,red,green,blue") from error


def _match_colours(
    root: Path, found: set, named: Mapping[int, tuple[str, Colour | None]] | None, ignored: Colour | None
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], tuple[str, ...]]:
    """Masks of colours: those of the table, or without one a class for each colour; ``ignored`` is the colour of no class."""
    if named is None or not any(colour for _, colour in named.values()):
        order = sorted(found)
        names = tuple("#{:02x}{:02x}{:02x}".format(*colour) for colour in order)
        note = "masks have colours without names: classes are named after them; give a palette.csv with index,name,red,green,blue"
        return np.array(order, np.uint8), np.arange(len(order), dtype=np.uint8), names, (note,)
    known = {colour: place for place, (_, colour) in enumerate(named.values()) if colour}
    known |= {} if ignored is None else {ignored: IGNORED}
    if unknown := sorted(found - known.keys()):
        shown = ", ".join(map(str, unknown[:5]))
        raise DataError(
            f"masks below {root} have the colours {shown}, which the table does not name", "add them to the table"
        )
    names = tuple(name for name, _ in named.values())
    return np.array(list(known), np.uint8), np.array(list(known.values()), np.uint8), names, ()
