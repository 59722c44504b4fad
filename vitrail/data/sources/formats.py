"""Finds the format of annotated data: objects in one of the formats of annotation tools, or masks beside images."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from vitrail.data.sources.coco import find_coco, is_coco, read_coco, split_of
from vitrail.data.sources.cvat import is_cvat, read_cvat
from vitrail.data.sources.label_studio import find_label_studio, is_label_studio, read_label_studio
from vitrail.data.sources.labelme import is_labelme, read_labelme
from vitrail.data.sources.labels import RawSplit
from vitrail.data.sources.mask_folders import read_masks
from vitrail.data.sources.mask_pairs import Place, find_masks
from vitrail.data.sources.scan import is_system_name
from vitrail.data.sources.voc import is_voc, read_voc
from vitrail.data.sources.yolo import read_yolo
from vitrail.data.sources.yolo_layouts import describe_folder, describe_yaml, find_yolo, is_yolo

BESIDE = "; the boxes and outlines beside them are not used"


class Format(NamedTuple):
    """The task that data are annotated for, and the function that reads them.

    ``read`` returns a description of the layout, and the splits. That of objects takes ``outlines``: whether to read them, too.
    """

    task: str
    read: Callable[..., tuple[str, dict[str, RawSplit]]]


def find_format(path: Path, *, masks_first: bool = False) -> Format | None:
    """Finds the format of an annotated folder or of a file of annotations; None for any other path.

    Args:
        path: of the data. Of a folder with nothing but a folder, as archives are unpacked, the inner one is looked at, too.
        masks_first: whether masks are preferred in a folder that has both masks and objects.

    Raises:
        DataError: several files for one split.
    """
    if path.is_dir():
        found = (_find_in_folder(root, masks_first) for root in (path, _find_only_folder(path)) if root)
        return next(filter(None, found), None)
    suffix = path.suffix.lower()
    if suffix == ".json" and path.is_file():
        if is_coco(path):
            root = path.parent.parent if path.parent.name.lower() == "annotations" else path.parent
            return Format("detection", partial(read_coco, root, {split_of(path, path.parent): path}))
        if is_label_studio(path):
            return Format("detection", partial(read_label_studio, path))
    if suffix in (".yaml", ".yml") and path.is_file() and is_yolo(path):
        return Format("detection", partial(_read_described, path))
    return None


def _read_described(path: Path, *, outlines: bool = False) -> tuple[str, dict[str, RawSplit]]:
    return read_yolo(describe_yaml(path), outlines=outlines)


def _find_in_folder(root: Path, masks_first: bool) -> Format | None:
    objects = _find_objects(root)
    if (objects and not masks_first) or not (places := find_masks(root)):
        return objects
    return Format("segmentation", partial(_read_masks, root, places, beside="" if objects is None else BESIDE))


def _read_masks(root: Path, places: Sequence[Place], beside: str) -> tuple[str, dict[str, RawSplit]]:
    layout, splits = read_masks(root, places)
    return layout + beside, splits


def _find_only_folder(root: Path) -> Path | None:
    with os.scandir(root) as entries:
        inside = list(islice((entry.name for entry in entries if not is_system_name(entry.name)), 2))
    return folder if len(inside) == 1 and (folder := root / inside[0]).is_dir() else None


def _find_objects(root: Path) -> Format | None:
    if description := find_yolo(root):
        return Format("detection", partial(_read_described, description))
    files, others = find_coco(root)
    if files:
        return Format("detection", partial(read_coco, root, files, others))
    if export := find_label_studio(root):
        return Format("detection", partial(read_label_studio, export))
    if is_voc(root):
        return Format("detection", partial(read_voc, root))
    for is_of, read in ((is_cvat, read_cvat), (is_labelme, read_labelme)):
        if is_of(root):
            return Format("detection", partial(read, root))
    if layout := describe_folder(root):
        return Format("detection", partial(read_yolo, layout))
    return None
