"""The objects on a picture, as a detector answers with them, and their files: COCO's results and YOLO's text files.

n objects. Boxes are (left, top, right, bottom) in pixels from the upper left corner.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.errors import DataError
from vitrail.files import replace_file
from vitrail.images.rle import Rle
from vitrail.markup import Markup, tag
from vitrail.rows import SHOWN
from vitrail.tasks.answer import Answer, AnswerFiles
from vitrail.tasks.dense.answer import PlacedAnswer, list_classes
from vitrail.tasks.dense.drawing import Colour, class_colours, draw_boxes
from vitrail.untrusted.json_documents import parse_json
from vitrail.untrusted.limits import PIXELS
from vitrail.untrusted.numbers import to_whole


@dataclass(frozen=True, eq=False)
class Detections(PlacedAnswer):
    """The objects on one picture, the most certain first.

    Args:
        boxes: (n, 4) float32, left, top, right, bottom in pixels of the picture.
        scores: (n,) float32 in [0, 1].
        labels: the class of each.
        size: (height, width) of the picture.
        classes: the names of all classes, which give the colours.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    labels: tuple[str, ...]
    size: tuple[int, int]
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def colours(self) -> dict[str, Colour]:
        """The colour of each class as red, green and blue from 0 to 255."""
        return class_colours(self.classes or self.labels)

    def row(self) -> dict[str, Any]:
        """The number of objects, and how many of each class there are, as in "cat 2, dog 1"."""
        counts = ", ".join(f"{label} {count}" for label, count in Counter(self.labels).most_common())
        return {"objects": len(self), "labels": counts}

    def rows(self) -> list[dict[str, Any]]:
        """A row for each object: label, score, and the box as x0, y0, x1, y1. Without objects one row without values."""
        if not self.labels:
            return [dict.fromkeys(("label", "score", "x0", "y0", "x1", "y1"))]
        boxes = [dict(zip(("x0", "y0", "x1", "y1"), (round(at, 2) for at in box))) for box in self.boxes.tolist()]
        scored = zip(self.labels, self.scores.tolist(), boxes)
        return [{"label": label, "score": round(score, 6), **box} for label, score, box in scored]

    def to_json(self) -> dict[str, Any]:
        listed = zip(self.labels, self.scores.tolist(), self.boxes.tolist())
        objects = [{"label": label, "score": score, "box": box} for label, score, box in listed]
        return {"width": self.size[1], "height": self.size[0], "objects": objects}

    def to_found(self, file_name: str) -> FoundBoxes:
        """As `write_results` takes them."""
        return FoundBoxes(file_name, self.boxes, self.scores, self.labels)

    def draw_over(self, image: Image.Image, captions: Sequence[str] | None = None) -> Image.Image:
        """A copy of the picture with the objects; their captions are by default class and score."""
        return draw_boxes(image, *self._place(image, captions))

    def _place(
        self, image: Image.Image, captions: Sequence[str] | None
    ) -> tuple[NDArray[np.floating], Sequence[str], list[Colour]]:
        """The boxes in pixels of an image of any size, the captions and the colours."""
        boxes = self.boxes * np.tile([image.width / self.size[1], image.height / self.size[0]], 2)
        named = [f"{label} {score:.2f}" for label, score in zip(self.labels, self.scores.tolist())]
        return boxes, named if captions is None else captions, [self.colours[label] for label in self.labels]

    def show(self) -> Markup:
        """A line for each object: the colour of its class, its name, and its score."""
        if not self.labels:
            return tag("div", "no objects")
        shown = zip(self.labels[:SHOWN], self.scores.tolist())
        more = tag("div", f"and {len(self) - SHOWN:,} more") if len(self) > SHOWN else None
        return list_classes(((label, self.colours[label], f"{score:.1%}") for label, score in shown), more)


@dataclass(frozen=True, eq=False)
class FoundBoxes:
    """The detections of an image: its file, boxes (n, 4), scores (n,), the name of each class, and perhaps n masks."""

    file_name: str
    boxes: NDArray[np.floating]
    scores: NDArray[np.floating]
    labels: Sequence[str]
    masks: Sequence[Rle] | None = None


def write_results(
    path: Path, images: Iterable[FoundBoxes], categories: Mapping[str, int], image_ids: Mapping[str, int] | None = None
) -> None:
    """Replaces ``path`` by the detections of all images, with the ids of classes and of images, which by default count from 1."""
    entries = []
    for number, image in enumerate(images, 1):
        image_id = number if image_ids is None else image_ids[image.file_name]
        # from corners to sides in float64, so that a reader gets the corners back to the bit
        boxes = np.asarray(image.boxes, np.float64).reshape(-1, 4)
        sides = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1)
        masks = [{}] * len(boxes) if image.masks is None else [{"segmentation": mask.to_coco()} for mask in image.masks]
        for label, box, score, mask in zip(image.labels, sides.tolist(), image.scores, masks, strict=True):
            entry = {"image_id": image_id, "file_name": image.file_name, "category_id": categories[label]}
            entries.append({**entry, "category_name": label, "bbox": box, "score": float(score), **mask})
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries)
    replace_file(path, f"[\n{lines}\n]\n" if entries else "[]\n")


def read_results(path: Path) -> dict[int, FoundBoxes]:
    """The detections by the id of their image, in the order of the file. An image without any is not in it.

    Raises `DataError` for a file that `write_results` did not write, with the first entry that cannot be used.
    """
    try:
        entries = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}", "give a file of COCO results") from error
    if not isinstance(entries, list):
        raise DataError(f"{path} holds no list of detections", "give a file of COCO results, not of annotations")
    groups: dict[int, list[tuple[str, list[float], float, str, Rle | None]]] = {}
    sizes: dict[int, tuple[int, int] | None] = {}  # of the masks of an image, None without masks
    for place, entry in enumerate(entries):
        try:
            image, parts = _read_entry(entry)
            size = parts[-1].size if parts[-1] else None
            if sizes.setdefault(image, size) != size:
                raise ValueError(f"of a mask of the size {size}, and of {sizes[image]} before in the same image")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            what = f"entry {place} of {path} is no detection of a box: {type(error).__name__} {error}"
            remedy = "each needs image_id, file_name, category_name, score and bbox as [x, y, width, height]"
            remedy += "; segmentation holds run lengths, for all objects of an image or none"
            raise DataError(what, remedy, value=str(entry)[:200]) from error
        groups.setdefault(image, []).append(parts)
    found = {}
    for image, rows in groups.items():
        names, boxes, scores, labels, masks = zip(*rows)
        arrays = np.array(boxes, np.float32), np.array(scores, np.float32)
        found[image] = FoundBoxes(names[0], *arrays, labels, masks if sizes[image] else None)
    return found


def _read_entry(entry: Any) -> tuple[int, tuple[str, list[float], float, str, Rle | None]]:
    """The id of the image, then its file, the corners of the box, the score, the name of the class and the mask."""
    x, y, width, height = map(float, entry["bbox"])
    score = float(entry["score"])
    if not np.isfinite([x, y, width, height, score]).all() or min(width, height) < 0:
        raise ValueError("of a box or a score that is not finite, or of negative sides")
    name, label = entry["file_name"], entry["category_name"]
    if not isinstance(name, str) or not isinstance(label, str):
        raise TypeError("of a name that is no text")
    mask = _read_mask(entry["segmentation"]) if "segmentation" in entry else None
    return int(entry["image_id"]), (name, [x, y, x + width, y + height], score, label, mask)


def _read_mask(segmentation: Any) -> Rle:
    if not isinstance(segmentation, Mapping):
        raise TypeError("of a segmentation that is no run lengths")
    height, width = (to_whole(side, "a side of a mask", least=1, most=PIXELS) for side in segmentation["size"])
    if height * width > PIXELS:
        raise ValueError(f"of a mask of {height} x {width} pixels, more than {PIXELS:,}")
    return Rle.of_coco(segmentation, (height, width))


class CocoResults(AnswerFiles):
    """A JSON list with an entry for each object, as pycocotools loads it. Ids of images and categories count from 1."""

    suffix = ".json"

    def __init__(self, out: Path, classes: Sequence[str]) -> None:
        super().__init__(out, classes)
        self.found: list[FoundBoxes] = []

    def write(self, name: str, key: str, answer: Answer | None) -> None:
        # an image that could not be read keeps its place, from which the ids of the others are counted
        none = FoundBoxes(key, np.zeros((0, 4)), np.zeros(0), ())
        self.found.append(answer.to_found(key) if isinstance(answer, Detections) else none)

    def close(self) -> None:
        write_results(self.out, self.found, {label: number for number, label in enumerate(self.classes, 1)})


class YoloFiles(AnswerFiles):
    """A text file for each image with a line for each object: the number of its class, and the box as fractions of the image.

    The box is centre x, centre y, width and height. ``classes.txt`` has the name of each class in a line of its own.
    """

    suffix, each = "", ".txt"

    def write(self, name: str, key: str, answer: Answer | None) -> None:
        if answer is None:
            return
        assert isinstance(answer, Detections)
        numbers = {label: str(number) for number, label in enumerate(self.classes)}
        lines = (
            " ".join([numbers[label], *(f"{place:.6f}" for place in places)]) + "\n"
            for label, places in zip(answer.labels, self.list_places(answer), strict=True)
            if places
        )
        replace_file(self.out / f"{name}{self.each}", "".join(lines))

    def list_places(self, answer: Detections) -> list[list[float]]:
        """Returns the fractions of the image that stand in the line of each object; an object without any is left out."""
        height, width = answer.size
        boxes = np.asarray(answer.boxes, np.float64) / [width, height, width, height]
        return np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], 1).tolist()

    def close(self) -> None:
        replace_file(self.out / "classes.txt", "".join(f"{label}\n" for label in self.classes))
