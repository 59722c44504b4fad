"""The class of every pixel of a picture, as a segmenter answers with it, and files of such maps.

H and W of the picture.
"""

from __future__ import annotations

import csv
import io
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.files import replace_file
from vitrail.markup import Markup, encode_image
from vitrail.rows import SHOWN
from vitrail.tasks.answer import Answer, AnswerFiles
from vitrail.tasks.dense.answer import PlacedAnswer, list_classes
from vitrail.tasks.dense.drawing import BLACK, Colour, class_colours, tint_classes


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
        return encode_image(image, "PNG")

    def draw_over(self, image: Image.Image) -> Image.Image:
        return tint_classes(image, self.map, self.classes, self.colours)

    def show(self) -> Markup:
        """A line for each class that occurs: its colour, its name, and its share of the picture."""
        shown = list(self.shares.items())[:SHOWN]
        return list_classes(((label, self.colours[label], f"{share:.1%}") for label, share in shown))


class MaskFiles(AnswerFiles):
    """A PNG for each image, in its size, whose pixels are the indices of classes; ``classes.csv`` names and colours them."""

    suffix, each = "", ".png"

    def write(self, name: str, key: str, answer: Answer | None) -> None:
        if answer is not None:
            assert isinstance(answer, Segmentation)
            replace_file(self.out / f"{name}{self.each}", answer.to_png())

    def close(self) -> None:
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["index", "name", "red", "green", "blue"])
        colours = class_colours(self.classes)
        writer.writerows([index, name, *colours[name]] for index, name in enumerate(self.classes))
        replace_file(self.out / "classes.csv", table.getvalue())
