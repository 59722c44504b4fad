"""The images of data in YOLO's format, and the text file of each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

IMAGES, LABELS = ("images", "imgs", "image", "img", "jpegimages"), ("labels", "label")  # folders, in any letter case


@dataclass(frozen=True, kw_only=True)
class YoloLayout:
    """The images of data in YOLO's format.

    Args:
        path: the YAML file, or the folder, that messages name.
        base: the folder that keys of images are relative to.
        images: paths of the images of each split.
        names: of the classes by number; None if no file has any.
        keypoints: numbers that may stand in a line after a box.
        notes: on what is not used.
    """

    path: Path
    base: Path
    images: Mapping[str, list[Path]]
    names: Mapping[int, str] | None
    keypoints: int = 0
    notes: tuple[str, ...] = ()


def find_labels(image: Path) -> Path:
    """Returns the path of the text file of an image: in the folder ``labels`` beside ``images``, in any letter case, or beside
    the image.
    """
    parts = list(image.parts)
    for place in range(len(parts) - 2, -1, -1):
        if parts[place].lower() in IMAGES:
            above = Path(*parts[:place])
            if (above / "labels").is_dir():
                parts[place] = "labels"
            elif other := next((name for name in _list_names(above) if name.lower() in LABELS), None):
                parts[place] = other
            elif parts[place] == "images":
                parts[place] = "labels"
            break
    return Path(*parts).with_suffix(".txt")


def _list_names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
