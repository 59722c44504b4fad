"""Detections as COCO's result files hold them: a JSON list with an entry for each box, which pycocotools loads as it is.

n boxes of an image, (x0, y0, x1, y1) in pixels of the upright picture.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import DataError
from vitrail.files import replace_file
from vitrail.untrusted.json_documents import parse_json


@dataclass(frozen=True, eq=False)
class FoundBoxes:
    """The detections of an image: its file, boxes (n, 4), scores (n,), and the name of each class."""

    file_name: str
    boxes: NDArray[np.floating]
    scores: NDArray[np.floating]
    labels: Sequence[str]


def write_results(
    path: Path, images: Iterable[FoundBoxes], categories: Mapping[str, int], image_ids: Mapping[str, int] | None = None
) -> None:
    """Replaces ``path`` by the detections of all images.

    Args:
        path: the file.
        images: in their order.
        categories: the id of each class that is named.
        image_ids: the id of each file, as the annotations have it; by default its place among the images, from 1.
    """
    entries = []
    for number, image in enumerate(images, 1):
        image_id = number if image_ids is None else image_ids[image.file_name]
        # from corners to sides in float64, so that a reader gets the corners back to the bit
        boxes = np.asarray(image.boxes, np.float64).reshape(-1, 4)
        sides = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1)
        for label, box, score in zip(image.labels, sides.tolist(), image.scores, strict=True):
            entry = {"image_id": image_id, "file_name": image.file_name, "category_id": categories[label]}
            entries.append({**entry, "category_name": label, "bbox": box, "score": float(score)})
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    replace_file(path, f"[\n{lines}\n]\n" if entries else "[]\n")


def read_results(path: Path) -> dict[int, FoundBoxes]:
    """The detections by the id of their image, in the order of the file. An image without any is not in it.

    Raises:
        DataError: the file is none that `write_results` wrote; the first entry that cannot be used is named.
    """
    try:
        entries = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}", "give a file of COCO results") from error
    if not isinstance(entries, list):
        raise DataError(f"{path} holds no list of detections", "give a file of COCO results, not of annotations")
    groups: dict[int, list[tuple[str, list[float], float, str]]] = {}
    for place, entry in enumerate(entries):
        try:
            image, parts = _read_entry(entry)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            what = f"entry {place} of {path} is no detection of a box: {type(error).__name__} {error}"
            remedy = "each needs image_id, file_name, category_name, score and bbox as [x, y, width, height]"
            raise DataError(what, remedy, value=str(entry)[:200]) from error
        groups.setdefault(image, []).append(parts)
    found = {}
    for image, rows in groups.items():
        names, boxes, scores, labels = zip(*rows)
        found[image] = FoundBoxes(names[0], np.array(boxes, np.float32), np.array(scores, np.float32), labels)
    return found


def _read_entry(entry: Any) -> tuple[int, tuple[str, list[float], float, str]]:
    """The id of the image, then its file, the corners of the box, the score and the name of the class."""
    x, y, width, height = map(float, entry["bbox"])
    score = float(entry["score"])
    if not np.isfinite([x, y, width, height, score]).all() or min(width, height) < 0:
        raise ValueError("of a box or a score that is not finite, or of negative sides")
    name, label = entry["file_name"], entry["category_name"]
    if not isinstance(name, str) or not isinstance(label, str):
        raise TypeError("of a name that is no text")
    return int(entry["image_id"]), (name, [x, y, x + width, y + height], score, label)
