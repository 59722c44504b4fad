"""Finding the folders of images and masks of a data set, and the mask of each image."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from vitrail.data.sources.scan import Scan, list_folders, list_image_files
from vitrail.data.sources.split_names import SPLITS
from vitrail.images.decode import EXTENSIONS

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


@dataclass
class Pairs:
    """The images of a folder and their masks, relative to the data.

    Args:
        pairs: (image, mask) of each image with a mask.
        missing: images without a mask.
        spare: masks of no image.
        others: number of further files for images that have a mask.
    """

    pairs: list[tuple[str, str]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    spare: set[str] = field(default_factory=set)
    others: int = 0


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
            pair = _find_pair(root / name, inside)
            after = [name + end for end in AFTER if name + end in folders]
            if pair:
                found.append(MaskFolder(split, f"{name}/{pair[0]}", f"{name}/{pair[1]}"))
            elif after and Scan().list_images(str(root / after[0]), ""):
                found.append(MaskFolder(split, name, after[0]))
            elif _has_masks_beside(root / name):
                found.append(MaskFolder(split, name, name))
            else:
                images = _find_images(name, inside)
                others.append(MaskFolder(split, images, images))
    if found:
        return [*found, *(folder for folder in others if Scan().list_images(str(root / folder.images), ""))]
    return [MaskFolder("train", "", "")] if _has_masks_beside(root) else []


def _find_images(split: str, inside: Iterable[str]) -> str:
    """The folder of the images of a split without masks."""
    return next((f"{split}/{name}" for name in inside if name.lower() in map(str.lower, IMAGES)), split)


def split_of_folder(name: str) -> str | None:
    """Returns the split that a folder is named after, such as ``val2017``; None for other names.

    Exports without splits have a folder ``default``, which is for training.
    """
    word = re.sub(r"[_-]?(19|20)\d\d$", "", name.lower())
    return "train" if word == "default" else SPLITS.get(word)


def _find_pair(folder: Path, inside: Iterable[str]) -> tuple[str, str] | None:
    names = {name.lower(): name for name in inside}
    images, masks = ([names[word.lower()] for word in words if word.lower() in names] for words in (IMAGES, MASKS))
    for name in masks if images else ():
        if Scan().list_images(str(folder / name), ""):
            return images[0], name
    return None


def _has_masks_beside(folder: Path) -> bool:
    """Whether at least half of the pictures in a folder have a mask beside them."""
    paths = Scan().list_folder(str(folder))[1]
    masks = find_masks_beside(paths)
    return bool(masks) and 2 * len(masks) >= len(paths) - len(masks)


def _list_folders(folder: Path) -> list[str]:
    return [path.name for path in list_folders(folder)]


def pair_files(root: Path, folder: MaskFolder) -> Pairs:
    """Finds the mask of each image of a folder: the one of the same path, or of the same name where that is unique."""
    images = Scan().list_images(str(root / folder.images), "")
    if folder.images == folder.masks:
        masks = find_masks_beside(images)
        images = sorted(set(images).difference(masks))
        renderings = 0
    else:
        listed = Scan().list_images(str(root / folder.masks), "")
        masks = [path for path in listed if not os.path.splitext(path)[0].endswith(RENDERINGS)]
        renderings = len(listed) - len(masks)
    mask_of = _match(images, masks)
    known = {_plain_name(mask) for mask in mask_of.values()}
    used = set(mask_of.values())
    unused = [mask for mask in masks if mask not in used]
    spare = {mask for mask in unused if _plain_name(mask) not in known}
    return Pairs(
        [(_join(folder.images, image), _join(folder.masks, mask)) for image, mask in mask_of.items()],
        [_join(folder.images, image) for image in images if image not in mask_of],
        {_join(folder.masks, mask) for mask in spare},
        renderings + len(unused) - len(spare),
    )


def list_images(folder: str | os.PathLike[str], scan: Scan) -> list[str]:
    """Lists the images in a folder as `list_image_files` does, without masks of other images, which ``scan`` counts."""
    root, paths = Path(folder), list_image_files(folder, scan)
    pairs = (pair for folder in find_masks(root) for pair in pair_files(root, folder).pairs)
    masks = {str(root / mask) for _, mask in pairs} | set(find_masks_beside(paths))
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


def _join(folder: str, path: str) -> str:
    return f"{folder}/{path}" if folder else path


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
