"""Answers that lie in a picture and can be drawn over it, and what of an answer is explained.

B images, h and w of the model's input, H and W of the picture.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitrail.errors import ConfigError, DataError
from vitrail.images.decode import BadImage
from vitrail.markup import Markup, join, tag
from vitrail.tasks.answer import Answer
from vitrail.tasks.dense.drawing import Colour, draw_boxes, outline, to_hex
from vitrail.tasks.user_images import REMEDY, Picture, draw_thumbnail, open_image

BESIDE = 420  # pixels of the longer side of a picture that is drawn in a notebook


@dataclass(frozen=True)
class PlacedAnswer(Answer):
    """An answer that lies in the picture."""

    def draw(self, picture: Picture | None = None) -> Image.Image:
        """The picture with the answer on it, upright, in RGB and in its own size.

        It may be of any kind that `Task.preprocess` takes; by default it is the file ``key``. Raises `ConfigError` if there
        is none, and `DataError` if it cannot be read or drawn.
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


def list_classes(lines: Iterable[tuple[str, Colour, str]], more: Markup | None = None) -> Markup:
    """Lists classes in a notebook, a line each: its colour, its name and a number."""
    square = "width:.8em;height:.8em;border-radius:2px;box-shadow:0 0 0 1px rgba(128,128,128,.5);background:{}"
    cells = (
        join(tag("span", style=square.format(to_hex(colour))), tag("span", name), tag("span", number))
        for name, colour, number in lines
    )
    style = "display:grid;grid-template-columns:auto auto auto;gap:2px 10px;align-items:center;text-align:left"
    return join(tag("div", *cells, style=style), more)


@dataclass(frozen=True, eq=False)
class Subject:
    """A score of one image, which stays that of the same cells when the image is changed.

    Args:
        label: its class.
        score: its probability.
        colour: of the class.
        logit: from outputs of the task to the score, (B,), with a gradient.
        probability: from outputs of the task to the score as a probability, (B,).
        region: where it lies: a box (left, top, right, bottom) in pixels of the picture, or a mask (H, W).
    """

    label: str
    score: float
    colour: Colour
    logit: Callable[[Tensor], Tensor]
    probability: Callable[[Tensor], Tensor]
    region: NDArray[np.float64] | NDArray[np.bool_]

    def row(self) -> dict[str, Any]:
        """Label and score; then the box as x0, y0, x1, y1, or the share of the picture."""
        row = {"label": self.label, "score": round(self.score, 6)}
        if self.region.ndim == 2:
            return {**row, "share": round(float(self.region.mean()), 6)}
        return {**row, **{name: round(float(at), 2) for name, at in zip(("x0", "y0", "x1", "y1"), self.region)}}

    def draw_over(self, image: Image.Image) -> Image.Image:
        """A copy of the picture, in RGB and in its own size, with the box or the outline of the region."""
        if self.region.ndim == 2:
            return outline(image, self.region.astype(bool), self.colour)
        return draw_boxes(image, self.region[None], [f"{self.label} {self.score:.2f}"], [self.colour])
