"""The objects on a picture, as a detector answers with them.

n objects. Boxes are (left, top, right, bottom) in pixels from the upper left corner.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.markup import Markup, tag
from vitrail.rows import SHOWN
from vitrail.tasks.dense.answer import PlacedAnswer, list_classes
from vitrail.tasks.dense.class_colours import Colour, class_colours
from vitrail.tasks.dense.drawing import draw_boxes


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

    def draw_over(self, image: Image.Image) -> Image.Image:
        boxes = self.boxes * np.tile([image.width / self.size[1], image.height / self.size[0]], 2)
        captions = [f"{label} {score:.2f}" for label, score in zip(self.labels, self.scores.tolist())]
        return draw_boxes(image, boxes, captions, [self.colours[label] for label in self.labels])

    def show(self) -> Markup:
        """A line for each object: the colour of its class, its name, and its score."""
        if not self.labels:
            return tag("div", "no objects")
        shown = zip(self.labels[:SHOWN], self.scores.tolist())
        more = tag("div", f"and {len(self) - SHOWN:,} more") if len(self) > SHOWN else None
        return list_classes(((label, self.colours[label], f"{score:.1%}") for label, score in shown), more)
