"""Finds the format of annotated data: objects in one of the formats of annotation tools, or masks beside images."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from vitrail.data.sources.coco import find_coco
from vitrail.data.sources.cvat import find_cvat
from vitrail.data.sources.label_studio import find_label_studio
from vitrail.data.sources.labelme import find_labelme
from vitrail.data.sources.labels import RawSplit
from vitrail.data.sources.mask_folders import read_masks
from vitrail.data.sources.mask_pairs import MaskFolder, find_masks
from vitrail.data.sources.object_lists import Read
from vitrail.data.sources.scan import is_system_name
from vitrail.data.sources.voc import find_voc
from vitrail.data.sources.yolo import find_yolo, find_yolo_texts

# each looks for its files at a path, and returns the function that reads them; the first that finds any is taken
FORMATS_OF_FILES = (find_coco, find_label_studio, find_yolo)
FORMATS_OF_FOLDERS = (find_yolo, find_coco, find_label_studio, find_voc, find_cvat, find_labelme, find_yolo_texts)
BESIDE = "; the boxes and outlines beside them are not used"


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
    def masks(self) -> list[MaskFolder]:
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
        for root in filter(None, (path, _find_only_folder(path))):
            found = AnnotatedData(root, next(filter(None, (find(root) for find in FORMATS_OF_FOLDERS)), None))
            if found.objects or found.masks:
                return found
        return None
    objects = next(filter(None, (find(path) for find in FORMATS_OF_FILES)), None)
    return AnnotatedData(path, objects) if objects else None


def _find_only_folder(root: Path) -> Path | None:
    with os.scandir(root) as entries:
        inside = list(islice((entry.name for entry in entries if not is_system_name(entry.name)), 2))
    return folder if len(inside) == 1 and (folder := root / inside[0]).is_dir() else None
