"""Folders of images and masks, in which every pixel's value or colour is a class, and maps painted from the outlines of objects.

n images, H and W of the upright picture.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import basename
from pathlib import Path
from posixpath import join
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.data.sources.annotations import DRAWN_BOX, LabelMaps, Objects
from vitrail.data.sources.contents import Contents, Files, Strings
from vitrail.data.sources.labels import Labels, RawData, RawSplit, name_some
from vitrail.data.sources.mask_names import Entry, find_class_table, list_unread
from vitrail.data.sources.mask_values import Meaning, find_meaning, measure_masks, number_entries
from vitrail.data.sources.scan import Scan, list_folders, list_images_below
from vitrail.data.sources.splits import SPLIT_ORDER, SPLITS, divide_images, pair_by_lists
from vitrail.errors import DataError
from vitrail.images.decode import EXTENSIONS, BadImage
from vitrail.images.masks import IGNORED
from vitrail.images.rle import Rle
from vitrail.stamps import Stamped
from vitrail.untrusted.limits import PIXELS

IMAGES = ("images", "imgs", "image", "img", "JPEGImages", "leftImg8bit", "img_dir")
MASKS = (
    *("masks", "mask", "labels", "label", "annotations", "SegmentationClass", "SegmentationClassPNG", "gtFine"),
    *("ann_dir", "masks_machine", "groundtruth", "gt"),
)
AFTER = ("annot", "_labels", "_masks", "_mask", "_annotations", "_gt")  # the name of a folder of images: its masks
LABEL_IDS, TRAIN_IDS = "_gtFine_labelIds", "_gtFine_labelTrainIds"
# at the ends of names, left out to pair them; of several masks of an image the first in this order counts
SUFFIXES = (
    *(LABEL_IDS, TRAIN_IDS, "_leftImg8bit", "_mask", "_label", "_labels"),
    *("_segmentation", "_seg", "_gt", "_P", "_L"),
)
RENDERINGS = ("_gtFine_color", "_gtFine_instanceIds")  # what Cityscapes has beside its masks


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


def find_masks(root: Path) -> list[MaskFolder]:
    """Finds the folders of images and of masks below ``root``; empty if there are none.

    These are ``images/train`` and ``masks/train``, ``train/images`` and ``train/masks``, ``train`` and ``train_masks``, or
    ``train`` with ``x.jpg`` and ``x_mask.png``. Without splits all images are the training split.
    """
    folders = _list_folders(root)
    if pair := _find_pair(root, folders):
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
            after = [name + end for end in AFTER if name + end in folders]
            if pair := _find_pair(root / name, inside):
                found.append(MaskFolder(split, f"{name}/{pair[0]}", f"{name}/{pair[1]}"))
            elif after and list_images_below(root / after[0]):
                found.append(MaskFolder(split, name, after[0]))
            elif _has_masks_beside(root / name):
                found.append(MaskFolder(split, name, name))
            else:  # images without masks
                images = next((f"{name}/{each}" for each in inside if each.lower() in map(str.lower, IMAGES)), name)
                others.append(MaskFolder(split, images, images))
    if found:
        return [*found, *(folder for folder in others if list_images_below(root / folder.images))]
    return [MaskFolder("train", "", "")] if _has_masks_beside(root) else []


def split_of_folder(name: str) -> str | None:
    """The split that a folder is named after, such as ``val2017``, or ``default`` for training; None for other names."""
    word = re.sub(r"[_-]?(19|20)\d\d$", "", name.lower())
    return "train" if word == "default" else SPLITS.get(word)


def _find_pair(folder: Path, inside: Iterable[str]) -> tuple[str, str] | None:
    names = {name.lower(): name for name in inside}
    images, masks = ([names[word.lower()] for word in words if word.lower() in names] for words in (IMAGES, MASKS))
    return next(((images[0], name) for name in masks if images and list_images_below(folder / name)), None)


def _has_masks_beside(folder: Path) -> bool:
    """Whether at least half of the pictures in a folder have a mask beside them."""
    paths = Scan().list_folder(str(folder))[1]
    masks = find_masks_beside(paths)
    return bool(masks) and 2 * len(masks) >= len(paths) - len(masks)


def _list_folders(folder: Path) -> list[str]:
    return [path.name for path in list_folders(folder)]


def pair_files(root: Path, folder: MaskFolder) -> Pairs:
    """Finds the mask of each image of a folder: the one of the same path, or of the same name where that is unique."""
    images = list_images_below(root / folder.images)
    if folder.images == folder.masks:
        listed = find_masks_beside(images)
        images = sorted(set(images).difference(listed))
    else:
        listed = list_images_below(root / folder.masks)
    masks = [path for path in listed if not os.path.splitext(path)[0].endswith(RENDERINGS)]
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
    """Lists the images in a folder at any depth; ``scan`` counts other files and masks. Raises `DataError` without images."""
    root = Path(folder)
    scan.enter(str(root))
    if not (paths := [str(root / name) for name in scan.list_images(str(root), "")]):
        what = f"the folder {folder} contains no images{scan.describe_others()}"
        raise DataError(what, "give files, or a folder with images")
    masks = {str(root / mask) for folder in find_masks(root) for mask in pair_files(root, folder).mask_of.values()}
    masks.update(find_masks_beside(paths))
    scan.masks += len(masks)
    return [path for path in paths if path not in masks]


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
    Raises `DataError` if no image has a mask, for two folders of one split or a list that does not fit, or as `find_meaning`.
    """
    for split, count in Counter(each.split for each in folders).items():
        if count > 1:
            names = ", ".join(each.images for each in folders if each.split == split)
            raise DataError(f"{root} has more than one {split} folder: {names}", "keep one of them")
    parts = {each.split: pair_files(root, each) for each in folders}
    spare: set[str] = set().union(*(part.spare for part in parts.values()))
    notes = list(_note_outside(root, folders))
    layout = "images and masks"
    if others := sum(part.others for part in parts.values()):
        layout += f"; {others:,} further files of masks not used"
    if not any(split_of_folder(name) for each in folders for name in Path(each.images).parts):
        parts, by_lists, misfits = _divide(root, parts["train"])
        layout, notes = layout + by_lists, notes + misfits
    used = {split: parts[split] for split in SPLIT_ORDER if split in parts and parts[split].mask_of}
    if not used:
        raise DataError(f"no image below {root} has a mask of the same name", "give masks the names of their images")
    all_masks = [mask for part in used.values() for mask in part.mask_of.values()]
    notes += name_some("masks of no image, not used", spare.difference(all_masks))
    for split, part in parts.items():
        if not part.mask_of:
            notes += name_some(f"images of {split}, which has no masks, left out", part.missing)
    meaning = _find_classes(root, all_masks)
    splits: dict[str, RawSplit] = {}
    for split, part in used.items():
        images, masks = (Files(str(root), Strings(paths)) for paths in (part.mask_of, part.mask_of.values()))
        labels = Labels(meaning.names, LabelMaps(masks, meaning.values, meaning.indices), declared=True)
        splits[split] = RawSplit(images, labels, name_some("images without a mask, left out", part.missing))
    first = next(iter(splits))
    said = (*splits[first].notes, *notes, *meaning.notes)
    return layout, splits | {first: replace(splits[first], notes=said, faulty=meaning.faulty)}


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


BACKGROUND = "background"
UNTRACED = {
    b"": "objects without an outline, whose boxes are ignored (255)",
    DRAWN_BOX: "rectangles among other shapes, painted as they were drawn",
}


@dataclass(frozen=True, eq=False)
class PaintedMaps(Contents):
    """For each of n images (H, W, 1) uint8, 0 for the background, k + 1 for the k-th class; small objects lie over large ones.

    The box of an object without an outline is `IGNORED`: which of its pixels belong to the object is not known.
    """

    objects: Objects
    keys: Strings
    kind = "arrays"

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        objects = self.objects.of(row)
        height, width = size = (int(objects.sizes[0, 0]), int(objects.sizes[0, 1]))
        if not height or not width:
            raise BadImage("the annotation does not say how large the picture is, so its outlines cannot be painted")
        if height * width > PIXELS:
            raise BadImage(f"the annotation is for {width} x {height} pixels, over the limit of {PIXELS:,}")
        levels = np.zeros(size, np.uint8)
        for place in np.argsort(-objects.areas, kind="stable").tolist():
            label, outline = objects.labels[place] + 1, (objects.outlines or ())[place]
            if outline and outline != DRAWN_BOX:
                levels[Rle.of_text(outline, size).to_mask()] = label
            else:
                left, top, right, bottom = objects.boxes[place].round().astype(int)
                levels[top:bottom, left:right] = label if outline else IGNORED
        return levels[..., None]

    def take(self, rows: NDArray[np.int64]) -> PaintedMaps:
        return PaintedMaps(self.objects[rows], self.keys.take(rows))

    def stamp(self) -> Stamped:
        return Stamped.of_hashes(self.keys, self.objects.hashes())


def paint_splits(splits: Mapping[str, RawSplit]) -> dict[str, RawSplit]:
    """The splits with maps of classes, of which the first is the background. Raises `DataError` if no object has an outline."""
    if {outline for split in splits.values() for outline in _objects(split).outlines or ()} <= {b"", DRAWN_BOX}:
        what = "the data have boxes without outlines, and segmentation needs a class for every pixel"
        notes = "\n".join(note for split in splits.values() for note in split.notes)
        raise DataError(what, "give polygons or masks, or train with --task detect", value=notes)
    return {name: _paint_split(split) for name, split in splits.items()}


def _paint_split(split: RawSplit) -> RawSplit:
    assert split.labels is not None
    objects, keys = _objects(split), split.contents.keys
    names = (BACKGROUND, *split.labels.names)
    if len(names) > IGNORED:
        raise DataError(f"the data have {len(names)} classes with the background", f"give at most {IGNORED}")
    values = np.array([*range(len(names)), IGNORED], np.uint8)
    maps = LabelMaps(PaintedMaps(objects, keys), values, values)
    images = np.repeat(np.arange(len(objects)), objects.lengths()).tolist()  # of each object
    notes = list(split.notes)
    for outline, what in UNTRACED.items():
        chosen = (keys[image] for image, own in zip(images, objects.outlines or ()) if own == outline)
        notes += name_some(what, map(basename, chosen))
    return replace(split, labels=Labels(names, maps, declared=True), notes=tuple(notes))


def _objects(split: RawSplit) -> Objects:
    assert split.labels is not None and isinstance(split.labels.values, Objects), "a split with objects"
    return split.labels.values
