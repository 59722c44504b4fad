"""The names of splits, and which images belong to each: by lists such as ``ImageSets/Segmentation/train.txt``, or by folders."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from vitrail.data.sources.contents import read_lines
from vitrail.data.sources.labels import name_some
from vitrail.errors import DataError
from vitrail.images.decode import EXTENSIONS

# a name -> the split
SPLITS = {
    **{"train": "train", "training": "train"},
    **{"val": "val", "valid": "val", "validation": "val", "dev": "val"},
    **{"test": "test", "testing": "test"},
}
SPLIT_ORDER = ("train", "val", "test")
BOTH = "trainval"  # training and validation images in one list
WHOLE = (BOTH, "default")  # lists whose images are for training where no other list says so
LIST_FOLDERS = ("ImageSets/Main", "ImageSets", "", "splits", "split", "lists", "annotations")


def find_split(name: str) -> str | None:
    """Returns the split that a name such as ``instances_train2017``, ``val`` or ``trainval`` means; None for no split."""
    words = re.findall("[a-z]+", name.lower())
    return next((SPLITS.get(word, "train") for word in words if word in SPLITS or word == BOTH), None)


def find_folder_split(path: str) -> str | None:
    """Returns the split of the first folder of a path, with forward slashes, that is named after one; None without."""
    return next((SPLITS[part.lower()] for part in path.split("/")[:-1] if part.lower() in SPLITS), None)


def read_split_lists(root: Path, first: str = "ImageSets/Segmentation") -> tuple[str, dict[str, list[str]]]:
    """Returns the folder ``first``, or the first of `LIST_FOLDERS`, that has lists of splits, and their names, each once.

    Where ``train.txt`` or ``val.txt`` is missing, the names of ``trainval.txt`` that the other does not have take its place.
    Raises `DataError` if a list cannot be read.
    """
    found: dict[str, dict[str, None]] = {}
    where = ""
    for where in (first, *LIST_FOLDERS):
        for path in sorted((root / where).glob("*.txt")):
            stem = path.stem.lower()
            if stem in SPLITS or stem in WHOLE:
                lines = read_lines(path, "give a list of names, one a line")
                found.setdefault(SPLITS.get(stem, stem), {}).update(dict.fromkeys(lines))
        if found:
            break
    lists = {split: list(names) for split, names in found.items() if split not in WHOLE}
    whole = next((found[word] for word in WHOLE if word in found), None)
    missing = next((split for split in ("train", "val") if split not in lists), None)
    if whole is not None and missing:
        listed = {name for split in ("train", "val") for name in lists.get(split, ())}
        lists[missing] = [name for name in whole if name not in listed]
    return where or ".", lists


def divide_images(
    root: Path, images: Sequence[str], first: str = "ImageSets/Segmentation"
) -> tuple[dict[str, list[str]], str, list[str]] | None:
    """Divides images by the lists of the data; None where there are none, or where they are of something else.

    Lines may leave out the extension and the first folders of the paths below ``root``, and have more columns. Returns the images
    of each split in the order of its list, the folder of the lists, and notes on what does not fit. Raises `DataError` for a list
    that cannot be read, or one in ``ImageSets`` of which no line names an image.
    """
    where, lists = read_split_lists(root, first)
    index = _index_names(images) if lists else {}
    found = {split: {line: _find(line, index) for line in lines} for split, lines in lists.items() if lines}
    for split, lines in found.items():
        if where.startswith("ImageSets") and not any(lines.values()):
            what = f"none of the {len(lines):,} images in the list of {split} is in {root}, e.g. {next(iter(lines))!r}"
            raise DataError(what, f"add the images, or remove the list from {root / where}")
    named = {split: list(dict.fromkeys(filter(None, found.get(split, {}).values()))) for split in SPLIT_ORDER}
    splits = {split: names for split, names in named.items() if names}
    if not splits:
        return None
    counts = Counter(name for names in splits.values() for name in names)
    misfits = {
        "images in no list, left out": set(images) - counts.keys(),
        "images in the lists of several splits": [name for name, count in counts.items() if count > 1],
        "lines of lists that name no image": {line for lines in found.values() for line in lines if not lines[line]},
    }
    return splits, where, [note for what, names in misfits.items() for note in name_some(what, names)]


def divide_by_folder(images: Iterable[str]) -> dict[str, list[str]]:
    """Divides images by the split that a folder of each names; those of no split are for training."""
    divided: dict[str, list[str]] = {}
    for image in images:
        divided.setdefault(find_folder_split(image) or "train", []).append(image)
    return divided


def pair_by_lists(root: Path, images: Iterable[str], masks: Iterable[str]) -> dict[str, str]:
    """Returns the mask of each image for which a line of a list names both, in two columns."""
    lines = (line for lines in read_split_lists(root)[1].values() for line in lines)
    rows = [columns for line in lines if len(columns := re.findall(r"[^\s,;]+", line)) == 2]
    if not rows:
        return {}
    of_image, of_mask = _index_names(images), _index_names(masks)
    found = ((_find(image, of_image), _find(mask, of_mask)) for image, mask in rows)
    return {image: mask for image, mask in found if image and mask}


def _index_names(images: Iterable[str]) -> dict[str, str]:
    """Each image by its path without extension, and without first folders as far as no other image has the same."""
    whole = {_simplify(image): image for image in images}
    parts: dict[str, str] = {}
    twice = set()
    for name, image in whole.items():
        while "/" in name:
            name = name.partition("/")[2]
            if parts.setdefault(name, image) is not image:
                twice.add(name)
    return {name: image for name, image in parts.items() if name not in twice} | whole


def _find(line: str, index: Mapping[str, str]) -> str | None:
    """The image that a line names, as a whole or with its first column, with ever fewer of the first folders."""
    for text in (line, re.split(r"[\s,;]+", line)[0]):
        name, folder = _simplify(text), ""
        while name and not re.search(r"\s", folder):  # after a space another column may begin
            if name in index:
                return index[name]
            folder, _, name = name.partition("/")
    return None


def _simplify(path: str) -> str:
    """A path in Unicode's composed form, with forward slashes, without the extension of an image."""
    plain = unicodedata.normalize("NFC", path).replace("\\", "/").removeprefix("./").strip("/")
    stem, _, extension = plain.rpartition(".")
    return stem if stem and extension.lower() in EXTENSIONS else plain
