"""Answers that lie in a picture and can be drawn over it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from PIL import Image

from vitrail.errors import ConfigError, DataError
from vitrail.images.decode import BadImage
from vitrail.markup import Markup, join, tag
from vitrail.tasks.answer import Answer
from vitrail.tasks.dense.class_colours import Colour, to_hex
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


def list_classes(lines: Iterable[tuple[str, Colour, str]], more: Markup | None = None) -> Markup:
    """Lists classes in a notebook, a line each: its colour, its name and a number."""
    square = "width:.8em;height:.8em;border-radius:2px;box-shadow:0 0 0 1px rgba(128,128,128,.5);background:{}"
    cells = (
        join(tag("span", style=square.format(to_hex(colour))), tag("span", name), tag("span", number))
        for name, colour, number in lines
    )
    style = "display:grid;grid-template-columns:auto auto auto;gap:2px 10px;align-items:center;text-align:left"
    return join(tag("div", *cells, style=style), more)
