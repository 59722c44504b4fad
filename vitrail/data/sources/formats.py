"""Finds the format of annotated data: objects in one of the formats of annotation tools, or masks beside images."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path

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


Read = Callable[..., tuple[str, dict[str, RawSplit]]]  # takes ``outlines``: whether to read those of objects, too


@dataclass(frozen=True)
class AnnotatedData:
    """A folder, or a file of annotations, that has objects, masks or both.

    Args:
        root: the folder.
        objects: reads the objects, and returns a description of the layout, and the splits; None where there are none.
    """

    root: Path
    objects: Read | None

    @cached_property
    def masks(self) -> list[Place]:
        """The folders of images and masks; of a file of annotations none."""
        return find_masks(self.root) if self.root.is_dir() else []

    @property
    def task(self) -> str:
        """The task that data are annotated for; of both objects and masks, that of objects."""
        return "detection" if self.objects else "segmentation"

    def read(self, *, masks_first: bool = False) -> tuple[str, dict[str, RawSplit]]:
        """Returns a description of the layout, and the splits.

        Args:
            masks_first: whether masks are read where there are both; of objects alone, the outlines are read then.
        """
        if self.objects is not None and not (masks_first and self.masks):
            return self.objects(outlines=masks_first)
        layout, splits = read_masks(self.root, self.masks)
        return layout + (BESIDE if self.objects else ""), splits


def find_format(path: Path) -> AnnotatedData | None:
    """Finds the annotations of a folder, or those in a file; None for any other path.

    Of a folder with nothing but a folder, as archives are unpacked, the inner one is searched, too.

    Raises:
        DataError: several files for one split.
    """
    if path.is_dir():
        found = (AnnotatedData(root, _find_objects(root)) for root in (path, _find_only_folder(path)) if root)
        return next((each for each in found if each.objects or each.masks), None)
    suffix = path.suffix.lower()
    if suffix == ".json" and path.is_file():
        if is_coco(path):
            root = path.parent.parent if path.parent.name.lower() == "annotations" else path.parent
            return AnnotatedData(path, partial(read_coco, root, {split_of(path, path.parent): path}))
        if is_label_studio(path):
            return AnnotatedData(path, partial(read_label_studio, path))
    if suffix in (".yaml", ".yml") and path.is_file() and is_yolo(path):
        return AnnotatedData(path, partial(_read_described, path))
    return None


def _read_described(path: Path, *, outlines: bool = False) -> tuple[str, dict[str, RawSplit]]:
    return read_yolo(describe_yaml(path), outlines=outlines)


def _find_only_folder(root: Path) -> Path | None:
    with os.scandir(root) as entries:
        inside = list(islice((entry.name for entry in entries if not is_system_name(entry.name)), 2))
    return folder if len(inside) == 1 and (folder := root / inside[0]).is_dir() else None


def _find_objects(root: Path) -> Read | None:
    if description := find_yolo(root):
        return partial(_read_described, description)
    files, others = find_coco(root)
    if files:
        return partial(read_coco, root, files, others)
    if export := find_label_studio(root):
        return partial(read_label_studio, export)
    if is_voc(root):
        return partial(read_voc, root)
    for is_of, read in ((is_cvat, read_cvat), (is_labelme, read_labelme)):
        if is_of(root):
            return partial(read, root)
    if layout := describe_folder(root):
        return partial(read_yolo, layout)
    return None
