"""Folders of images and masks, in which every pixel's value or colour is a class.

n images, H and W of the upright picture.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from posixpath import join
from typing import NamedTuple

from vitrail.data.sources.annotations import LabelMaps
from vitrail.data.sources.contents import Files, Strings
from vitrail.data.sources.labels import Labels, RawData, RawSplit, name_some
from vitrail.data.sources.mask_names import Entry, find_class_table, list_unread
from vitrail.data.sources.mask_values import Meaning, find_meaning, measure_masks, number_entries
from vitrail.data.sources.scan import Scan, list_folders, list_images_below
from vitrail.data.sources.splits import SPLIT_ORDER, SPLITS, divide_images, pair_by_lists
from vitrail.errors import DataError
from vitrail.images.decode import EXTENSIONS

IMAGES = ("images", "imgs", "image", "img", "JPEGImages", "leftImg8bit", "img_dir")
MASKS = (
    *("masks", "mask", "labels", "label", "annotations", "SegmentationClass", "SegmentationClassPNG", "gtFine"),
    *("ann_dir", "masks_machine", "groundtruth", "gt"),
)
BESIDE = "_mask"  # at the end of the name of a mask beside its image
AFTER = ("annot", "_labels", "_masks", BESIDE, "_annotations", "_gt")  # the name of a folder of images: its masks
# folders of id maps, see id_maps.py, and what follows the name of a folder of images
ID_MAPS, AFTER_IDS = ("instances", "instance_maps", "ids"), ("_instances", "_instance_maps", "_ids")
LABEL_IDS, TRAIN_IDS, INSTANCE_IDS = "_gtFine_labelIds", "_gtFine_labelTrainIds", "_gtFine_instanceIds"
# at the ends of names, left out to pair them; of several masks of an image the first in this order counts
SUFFIXES = (
    *(LABEL_IDS, TRAIN_IDS, "_leftImg8bit", "_mask", "_label", "_labels"),
    *("_segmentation", "_seg", "_gt", "_P", "_L"),
    *(INSTANCE_IDS, "_instances", "_instance", "_ids"),
)
RENDERINGS = ("_gtFine_color", INSTANCE_IDS)  # what Cityscapes has beside its masks


class MaskFolder(NamedTuple):
    """The folders of the images and the masks of a split, relative to the data; "" is the folder of the data."""

    split: str
    images: str
    masks: str


class Pairs(NamedTuple):
    """The images of a folder and their masks, relative to the data."""

    mask_of: dict[str, str]  # of each image with a mask
    missing: list[str]  # images without a mask
    spare: frozenset[str] = frozenset()  # masks of no image
    others: int = 0  # further files for images that have a mask


def find_masks(root: Path, words: Sequence[str] = MASKS, after: Sequence[str] = AFTER) -> list[MaskFolder]:
    """Finds the folders of images and of masks below ``root``; empty if there are none.

    These are ``images/train`` and ``masks/train``, ``train/images`` and ``train/masks``, ``train`` and ``train_masks``, or
    ``train`` with ``x.jpg`` and ``x_mask.png``. Without splits all images are the training split. ``words`` are the names of
    folders of masks, and ``after`` what follows the name of a folder of images.
    """
    folders = _list_folders(root)
    if pair := _find_pair(root, folders, words):
        images, masks = pair
        inside = []
        for name in _list_folders(root / images):
            if split := split_of_folder(name):
                own = f"{masks}/{name}" if (root / masks / name).is_dir() else masks  # a split may have none of its own
                inside.append(MaskFolder(split, f"{images}/{name}", own))
        return inside or [MaskFolder("train", images, masks)]
    found, others = [], []
    for name in folders:
        if split := split_of_folder(name):
            inside = _list_folders(root / name)
            following = [name + end for end in after if name + end in folders]
            if pair := _find_pair(root / name, inside, words):
                found.append(MaskFolder(split, f"{name}/{pair[0]}", f"{name}/{pair[1]}"))
            elif following and list_images_below(root / following[0]):
                found.append(MaskFolder(split, name, following[0]))
            elif BESIDE in after and _has_masks_beside(root / name):
                found.append(MaskFolder(split, name, name))
            else:  # images without masks
                images = next((f"{name}/{each}" for each in inside if each.lower() in map(str.lower, IMAGES)), name)
                others.append(MaskFolder(split, images, images))
    if found:
        return [*found, *(folder for folder in others if list_images_below(root / folder.images))]
    return [MaskFolder("train", "", "")] if BESIDE in after and _has_masks_beside(root) else []


def split_of_folder(name: str) -> str | None:
    """The split that a folder is named after, such as ``val2017``, or ``default`` for training; None for other names."""
    word = re.sub(r"[_-]?(19|20)\d\d$", "", name.lower())
    return "train" if word == "default" else SPLITS.get(word)


def _find_pair(folder: Path, inside: Iterable[str], words: Sequence[str]) -> tuple[str, str] | None:
    names = {name.lower(): name for name in inside}
    images, masks = ([names[word.lower()] for word in each if word.lower() in names] for each in (IMAGES, words))
    return next(((images[0], name) for name in masks if images and list_images_below(folder / name)), None)


def _has_masks_beside(folder: Path) -> bool:
    """Whether at least half of the pictures in a folder have a mask beside them."""
    paths = Scan().list_folder(str(folder))[1]
    masks = find_masks_beside(paths)
    return bool(masks) and 2 * len(masks) >= len(paths) - len(masks)


def _list_folders(folder: Path) -> list[str]:
    return [path.name for path in list_folders(folder)]


def pair_files(root: Path, folder: MaskFolder, ending: str = "") -> Pairs:
    """Finds the mask of each image of a folder: the one of the same path, or of the same name where that is unique.

    With an ``ending`` only the masks whose names have it are taken; without, those that Cityscapes has beside its masks are not.
    """
    images = list_images_below(root / folder.images)
    if folder.images == folder.masks:
        listed = find_masks_beside(images)
        images = sorted(set(images).difference(listed))
    else:
        listed = list_images_below(root / folder.masks)
    stems = {path: os.path.splitext(path)[0] for path in listed}
    masks = [
        path for path, stem in stems.items() if stem.endswith(ending) and (ending or not stem.endswith(RENDERINGS))
    ]
    mask_of = _match(images, masks)
    known = {_plain_name(mask) for mask in mask_of.values()}
    spare = {mask for mask in set(masks).difference(mask_of.values()) if _plain_name(mask) not in known}
    return Pairs(
        {join(folder.images, image): join(folder.masks, mask) for image, mask in mask_of.items()},
        [join(folder.images, image) for image in images if image not in mask_of],
        frozenset(join(folder.masks, mask) for mask in spare),
        len(set(listed).difference(mask_of.values(), spare)),
    )


def list_images(folder: str | os.PathLike[str], scan: Scan) -> list[str]:
    """Lists the images in a folder at any depth, but for folders that ``scan`` has entered; it counts other files and masks.

    Raises `DataError` without images.
    """
    root = Path(folder)
    if not scan.enter(str(root)):
        return []
    if not (paths := [str(root / name) for name in scan.list_images(str(root), "")]):
        what = f"the folder {folder} contains no images{scan.describe_others()}"
        raise DataError(what, "give files, or a folder with images")
    folders = (*find_masks(root), *find_masks(root, ID_MAPS, AFTER_IDS))
    masks = {str(root / mask) for each in folders for mask in pair_files(root, each).mask_of.values()}
    masks.update(find_masks_beside(paths))
    kept = [path for path in paths if path not in masks]
    scan.masks += len(paths) - len(kept)
    return kept


def find_masks_beside(paths: Sequence[str]) -> list[str]:
    """Returns those of the ``paths`` of images that are the mask of another: ``x_mask.png`` beside ``x.jpg``."""
    ends = [path for path in paths if path.lower().endswith("_mask.png")]
    stems = {os.path.splitext(path)[0] for path in paths} if ends else set()
    return [path for path in ends if path[: -len("_mask.png")] in stems]


def _match(images: Sequence[str], masks: Sequence[str]) -> dict[str, str]:
    """The mask of each image that has one, in the order of the images."""
    by_path = {_plain_name(mask): mask for mask in sorted(masks, key=_rank, reverse=True)}
    plain = {image: _plain_name(image) for image in images}
    by_name: dict[str, str] = {}
    if not by_path.keys() >= set(plain.values()):  # in other folders
        counts = Counter(map(os.path.basename, plain.values())) + Counter(map(os.path.basename, by_path))
        by_name = {name: mask for path, mask in by_path.items() if counts[name := os.path.basename(path)] == 2}
    found = {image: by_path.get(path) or by_name.get(os.path.basename(path)) for image, path in plain.items()}
    return {image: mask for image, mask in found.items() if mask}


def _plain_name(path: str) -> str:
    """A path without extensions of images and without `SUFFIXES`, in Unicode's composed form (NFC)."""
    plain, _ = os.path.splitext(unicodedata.normalize("NFC", path))
    stem, extension = os.path.splitext(plain)
    plain = stem if extension[1:].lower() in EXTENSIONS else plain  # x.jpg.png
    for suffix in SUFFIXES:
        plain = plain.removesuffix(suffix)
    return plain


def _rank(path: str) -> int:
    stem, _ = os.path.splitext(path)
    return next((rank for rank, suffix in enumerate(SUFFIXES) if stem.endswith(suffix)), len(SUFFIXES))


# Cityscapes (Cordts et al. 2016): the 19 classes that are evaluated, by the number in `labelIds`
CITYSCAPES = {
    **{7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light"},
    **{20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car"},
    **{27: "truck", 28: "bus", 31: "train", 32: "motorcycle", 33: "bicycle"},
}


def read_masks(root: Path, folders: Sequence[MaskFolder]) -> RawData:
    """Reads the images and masks of the folders that `find_masks` found, divided by folders or by the lists of ``ImageSets``.

    Names of classes are those of the file nearest to the masks, see `find_class_table`; without one, classes are named after
    their values. The value 255, or the colour with this index, is ignored, unless masks have no other values than 0 and 255.
    Raises `DataError` as `pair_splits` and `find_meaning`.
    """
    used, layout, notes = pair_splits(root, folders)
    meaning = _find_classes(root, [mask for part in used.values() for mask in part.mask_of.values()])
    splits: dict[str, RawSplit] = {}
    for split, part in used.items():
        images, masks = (Files(str(root), Strings(paths)) for paths in (part.mask_of, part.mask_of.values()))
        labels = Labels(meaning.names, LabelMaps(masks, meaning.values, meaning.indices), declared=True)
        splits[split] = RawSplit(images, labels, name_some("images without a mask, left out", part.missing))
    first = next(iter(splits))
    said = (*splits[first].notes, *notes, *meaning.notes)
    return f"images and masks{layout}", splits | {first: replace(splits[first], notes=said, faulty=meaning.faulty)}


def pair_splits(root: Path, folders: Sequence[MaskFolder], ending: str = "") -> tuple[dict[str, Pairs], str, list[str]]:
    """The images and masks of each split that has any, as `pair_files` finds them, what the layout says of them, and notes.

    Raises `DataError` if no image has a mask, for two folders of one split, or a list that does not fit.
    """
    for split, count in Counter(each.split for each in folders).items():
        if count > 1:
            names = ", ".join(each.images for each in folders if each.split == split)
            raise DataError(f"{root} has more than one {split} folder: {names}", "keep one of them")
    parts = {each.split: pair_files(root, each, ending) for each in folders}
    spare: set[str] = set().union(*(part.spare for part in parts.values()))
    notes = list(_note_outside(root, folders))
    others = sum(part.others for part in parts.values())
    layout = f"; {others:,} further files of masks not used" if others else ""
    if not any(split_of_folder(name) for each in folders for name in Path(each.images).parts):
        parts, by_lists, misfits = _divide(root, parts["train"])
        layout, notes = layout + by_lists, notes + misfits
    used = {split: parts[split] for split in SPLIT_ORDER if split in parts and parts[split].mask_of}
    if not used:
        raise DataError(f"no image below {root} has a mask of the same name", "give masks the names of their images")
    matched = {mask for part in used.values() for mask in part.mask_of.values()}
    notes += name_some("masks of no image, not used", spare - matched)
    for split, part in parts.items():
        if not part.mask_of:
            notes += name_some(f"images of {split}, which has no masks, left out", part.missing)
    return used, layout, notes


def _divide(root: Path, part: Pairs) -> tuple[dict[str, Pairs], str, list[str]]:
    """The images by the lists of the data where there are any, what the layout says of it, and notes."""
    mask_of = dict(part.mask_of)
    mask_of |= pair_by_lists(root, [*mask_of, *part.missing], [*mask_of.values(), *part.spare])
    divided = divide_images(root, sorted({*mask_of, *part.missing}))
    if divided is None:
        return {"train": part}, "", []
    splits, where, notes = divided
    parts = {}
    for split, listed in splits.items():
        own = {image: mask_of[image] for image in listed if image in mask_of}
        parts[split] = Pairs(own, [image for image in listed if image not in own])
    return parts, f", divided by the lists in {'the folder' if where == '.' else where}", notes


def _note_outside(root: Path, folders: Sequence[MaskFolder]) -> tuple[str, ...]:
    """Images beside the folders of splits."""
    above = {os.path.dirname(each.images) for each in folders}
    if len(above) > 1 or not (folder := above.pop()):
        return ()
    inside = tuple(f"{each.images}/" for each in folders)
    paths = (f"{folder}/{path}" for path in list_images_below(root / folder))
    outside = [path for path in paths if not path.startswith(inside)]
    return name_some("images in no folder of a split, left out", outside)


def _find_classes(root: Path, masks: Sequence[str]) -> Meaning:
    """The classes of the values of masks, from a table beside them, from Cityscapes, or from the values alone."""
    table = find_class_table(root, list({os.path.dirname(mask): mask for mask in masks}.values()))
    stems = [os.path.splitext(mask)[0] for mask in masks]
    if table is None and all(stem.endswith(LABEL_IDS) for stem in stems):
        others = (Entry(value, "void") for value in range(256) if value not in CITYSCAPES)
        return number_entries((*(Entry(value, name) for value, name in CITYSCAPES.items()), *others))
    if table is None and all(stem.endswith(TRAIN_IDS) for stem in stems):
        return number_entries(Entry(value, name) for value, name in enumerate(CITYSCAPES.values()))
    meaning = find_meaning(root, measure_masks(root, masks), table)
    if table is None and (unread := list_unread(root)):
        note = f"names of classes are not read from {', '.join(unread[:3])}; give a classes.txt or palette.csv"
        return replace(meaning, notes=(*meaning.notes, note))
    return meaning
