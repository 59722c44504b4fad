"""Answers that lie in a picture: the objects on it, or the class of every pixel. They can be drawn over it.

H and W of a picture, n objects. Boxes are (left, top, right, bottom) in pixels from the upper left corner.
"""

from __future__ import annotations

import io
from abc import abstractmethod
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.errors import ConfigError, DataError
from vitrail.images.decode import BadImage
from vitrail.markup import Markup, join, tag
from vitrail.rows import SHOWN
from vitrail.tasks.answer import Answer
from vitrail.tasks.class_colours import BLACK, Colour, class_colours, to_hex
from vitrail.tasks.drawing import draw_boxes, tint_classes
from vitrail.tasks.pictures import REMEDY, Picture, draw_thumbnail, open_image

BESIDE = 420  # pixels of the longer side of a picture that is drawn in a notebook


@dataclass(frozen=True)
class PlacedAnswer(Answer):
    """An answer that lies in the picture."""

    def draw(self, picture: Picture | None = None) -> Image.Image:
        """The picture with the answer on it, upright, in RGB and in its own size.

        Args:
            picture: what the answer is about, of any kind that `Task.preprocess` takes; by default the file ``key``.

        Raises:
            ConfigError: no picture is given, and none was read from a file.
            DataError: the picture cannot be read or drawn.
        """
        if picture is None and not self.key:
            raise ConfigError("an answer for a picture in memory", "give the picture: answer.draw(picture)")
        try:
            return self.draw_over(open_image(self.key if picture is None else picture))
        except BadImage as error:
            raise DataError(f"the picture cannot be drawn on: {error.reason}", REMEDY) from error

    @abstractmethod
    def draw_over(self, image: Image.Image) -> Image.Image:
        """A copy of the picture, in RGB and of any size, with the answer on it."""

    def draw_small(self, picture: Picture) -> Markup | None:
        return draw_thumbnail(picture, BESIDE, self.draw_over)


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
        return _list_classes(((label, self.colours[label], f"{score:.1%}") for label, score in shown), more)


@dataclass(frozen=True, eq=False)
class Segmentation(PlacedAnswer):
    """The class of every pixel of one picture.

    Args:
        map: (H, W) uint8 indices of ``classes``; what the model was not shown has the class of the nearest pixel
            that it was.
        classes: the names of all classes.
        top: classes that `row` lists.
        size: (height, width) of the picture, where a smaller map was asked for.
    """

    map: NDArray[np.uint8]
    classes: tuple[str, ...]
    top: int = 5
    size: tuple[int, int] | None = None

    @property
    def colours(self) -> dict[str, Colour]:
        """The colour of each class as red, green and blue from 0 to 255."""
        return class_colours(self.classes)

    @property
    def shares(self) -> dict[str, float]:
        """The share of pixels of each class that occurs, the largest first."""
        counts = np.bincount(self.map.reshape(-1), minlength=256)[: len(self.classes)]
        ranked = np.argsort(-counts, kind="stable")
        return {self.classes[place]: float(counts[place] / self.map.size) for place in ranked if counts[place]}

    def row(self) -> dict[str, Any]:
        """The largest classes and their shares of the picture: label, share, then label_2, share_2 and so on."""
        row: dict[str, Any] = {}
        for place, (label, share) in enumerate(list(self.shares.items())[: self.top], start=1):
            mark = f"_{place}" if place > 1 else ""
            row |= {f"label{mark}": label, f"share{mark}": round(share, 6)}
        return row

    def rows(self) -> list[dict[str, Any]]:
        """A row for each class that occurs, the largest first: label, and share of the picture."""
        return [{"label": label, "share": round(share, 6)} for label, share in self.shares.items()]

    def to_json(self) -> dict[str, Any]:
        shares = [{"label": label, "share": share} for label, share in self.shares.items()]
        height, width = self.size or self.map.shape
        drawn = {"size": list(self.map.shape), "png": b64encode(self.to_png()).decode()}
        return {"width": width, "height": height, "classes": shares, "map": drawn}

    def to_png(self) -> bytes:
        """The map as a PNG whose pixels are the indices of classes, with their colours as its palette."""
        image = Image.fromarray(self.map)
        colours = [self.colours[name] for name in self.classes]
        image.putpalette(np.array([*colours, *[BLACK] * (256 - len(colours))], np.uint8).tobytes())
        file = io.BytesIO()
        image.save(file, "PNG")
        return file.getvalue()

    def draw_over(self, image: Image.Image) -> Image.Image:
        return tint_classes(image, self.map, self.classes, self.colours)

    def show(self) -> Markup:
        """A line for each class that occurs: its colour, its name, and its share of the picture."""
        shown = list(self.shares.items())[:SHOWN]
        return _list_classes(((label, self.colours[label], f"{share:.1%}") for label, share in shown), None)


def _list_classes(lines: Iterable[tuple[str, Colour, str]], more: Markup | None) -> Markup:
    """Lines of a colour, a name and a number."""
    square = "width:.8em;height:.8em;border-radius:2px;box-shadow:0 0 0 1px rgba(128,128,128,.5);background:{}"
    cells = (
        join(tag("span", style=square.format(to_hex(colour))), tag("span", name), tag("span", number))
        for name, colour, number in lines
    )
    style = "display:grid;grid-template-columns:auto auto auto;gap:2px 10px;align-items:center;text-align:left"
    return join(tag("div", *cells, style=style), more)
