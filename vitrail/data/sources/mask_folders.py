"""Data sets of images and masks, in which every pixel's value or colour is a class."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vitrail.data.sources.contents import Files, Strings
from vitrail.data.sources.label_maps import LabelMaps
from vitrail.data.sources.labels import Labels, RawSplit, name_some
from vitrail.data.sources.mask_classes import Meaning, find_meaning, number_entries
from vitrail.data.sources.mask_names import Entry, find_class_table, list_unread
from vitrail.data.sources.mask_pairs import LABEL_IDS, TRAIN_IDS, MaskFolder, Pairs, pair_files, split_of_folder
from vitrail.data.sources.mask_values import measure_masks
from vitrail.data.sources.scan import Scan
from vitrail.data.sources.split_lists import divide_images, pair_by_lists
from vitrail.data.sources.split_names import SPLIT_ORDER
from vitrail.errors import DataError

# Cityscapes (Cordts et al. 2016): the 19 classes that are judged, by the number in `labelIds`
CITYSCAPES = {
    **{7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole", 19: "traffic light"},
    **{20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky", 24: "person", 25: "rider", 26: "car"},
    **{27: "truck", 28: "bus", 31: "train", 32: "motorcycle", 33: "bicycle"},
}


def read_masks(root: Path, folders: Sequence[MaskFolder]) -> tuple[str, dict[str, RawSplit]]:
    """Reads the images and masks of the folders that `find_masks` found, divided by folders or by the lists of ``ImageSets``.

    Names of classes are those of the file nearest to the masks, see `find_class_table`; without one, classes are named after
    their values. The value 255, or the colour with this index, is ignored, unless masks have no other values than 0 and 255.

    Raises:
        DataError: no image has a mask, two folders of one split, a list that does not fit, or as `find_meaning` says.
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
    used = {split: parts[split] for split in SPLIT_ORDER if split in parts and parts[split].pairs}
    if not used:
        raise DataError(f"no image below {root} has a mask of the same name", "give masks the names of their images")
    notes += name_some(
        "masks of no image, not used", spare.difference(*(dict(part.pairs).values() for part in used.values()))
    )
    for split, part in parts.items():
        if not part.pairs:
            notes += name_some(f"images of {split}, which has no masks, left out", part.missing)
    meaning = _find_classes(root, [mask for part in used.values() for _, mask in part.pairs])
    splits = {split: _make_split(root, part, meaning) for split, part in used.items()}
    first = next(iter(splits))
    said = (*splits[first].notes, *notes, *meaning.notes)
    return layout, splits | {first: replace(splits[first], notes=said, faulty=meaning.faulty)}


def _make_split(root: Path, part: Pairs, meaning: Meaning) -> RawSplit:
    images, masks = (Files(str(root), Strings(pair[side] for pair in part.pairs)) for side in (0, 1))
    labels = Labels(meaning.names, LabelMaps(masks, meaning.values, meaning.indices), declared=True)
    return RawSplit(images, labels, name_some("images without a mask, left out", part.missing))


def _divide(root: Path, part: Pairs) -> tuple[dict[str, Pairs], str, list[str]]:
    """The images by the lists of the data where there are any, what the layout says of it, and notes."""
    mask_of = dict(part.pairs)
    mask_of |= pair_by_lists(root, [*mask_of, *part.missing], [*mask_of.values(), *part.spare])
    divided = divide_images(root, sorted({*mask_of, *part.missing}))
    if divided is None:
        return {"train": part}, "", []
    splits, where, notes = divided
    parts = {
        split: Pairs(
            pairs=[(image, mask_of[image]) for image in listed if image in mask_of],
            missing=[image for image in listed if image not in mask_of],
        )
        for split, listed in splits.items()
    }
    return parts, f", divided by the lists in {'the folder' if where == '.' else where}", notes


def _note_outside(root: Path, folders: Sequence[MaskFolder]) -> tuple[str, ...]:
    """Images beside the folders of splits."""
    above = {os.path.dirname(each.images) for each in folders}
    if len(above) > 1 or not (folder := above.pop()):
        return ()
    inside = tuple(f"{each.images}/" for each in folders)
    paths = (f"{folder}/{path}" for path in Scan().list_images(str(root / folder), ""))
    return name_some(
        "images in no folder of a split, left out", [path for path in paths if not path.startswith(inside)]
    )


def _find_classes(root: Path, masks: Sequence[str]) -> Meaning:
    """The classes of the values of masks, from a table beside them, from Cityscapes, or from the values alone."""
    table = find_class_table(root, list({os.path.dirname(mask): mask for mask in masks}.values()))
    if table is None and all(os.path.splitext(mask)[0].endswith(LABEL_IDS) for mask in masks):
        others = (Entry(value, "void") for value in range(256) if value not in CITYSCAPES)
        return number_entries((*(Entry(value, name) for value, name in CITYSCAPES.items()), *others))
    if table is None and all(os.path.splitext(mask)[0].endswith(TRAIN_IDS) for mask in masks):
        return number_entries(Entry(value, name) for value, name in enumerate(CITYSCAPES.values()))
    meaning = find_meaning(root, measure_masks(root, masks), table)
    if table is None and (unread := list_unread(root)):
        return replace(
            meaning,
            notes=(
                *meaning.notes,
                f"names of classes are not read from {', '.join(unread[:3])}; give a classes.txt or palette.csv",
            ),
        )
    return meaning
