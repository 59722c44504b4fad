"""Answers of a model: one a picture, a list of them that is a table too and shows itself in a notebook, and files of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from vitrail.files import make_folder
from vitrail.markup import Markup, join, tag
from vitrail.rows import SHOWN, Rows, show_facts
from vitrail.tasks.user_images import THUMBNAIL, Picture, draw_thumbnail

Given = TypeVar("Given", bound="Answer")
MUTED = "opacity:.7;font-size:90%"


@dataclass(frozen=True)
class Answer(ABC):
    """The answer for one picture; ``key`` names the picture where it was read from somewhere."""

    key: str = field(default="", kw_only=True)

    @abstractmethod
    def row(self) -> dict[str, Any]:
        """As flat values; "path" is added before them in a table."""

    def rows(self) -> list[dict[str, Any]]:
        """As the rows of a table, of which there is one at least; by default that of `row`."""
        return [self.row()]

    def to_json(self) -> dict[str, Any]:
        """As the server sends it."""
        return self.row()

    def show(self) -> Markup:
        """As a notebook shows it, beside the picture."""
        return show_facts(self.row().items())

    def draw_small(self, picture: Picture) -> Markup | None:
        """The picture as a notebook shows it beside the answer; None if it cannot be drawn."""
        return draw_thumbnail(picture)

    def _repr_html_(self) -> str:
        return _show(self, self.key)


class Answers(list[Given], Rows):
    """The answers for several pictures, in their order: a list that is a table too.

    ``pictures`` are what the answers are about; those of the first answers are kept, to be shown beside them in a notebook.
    """

    def __init__(self, answers: Iterable[Given] = (), pictures: Sequence[Picture] = ()) -> None:
        super().__init__(answers)
        self._pictures = list(zip(self[:SHOWN], pictures))

    def to_rows(self) -> list[dict[str, Any]]:
        """The rows of every answer with its ``path``, which is empty for a picture in memory."""
        return [{"path": answer.key, **row} for answer in self for row in answer.rows()]

    def _repr_html_(self) -> str:
        shown = []
        for answer in self[:SHOWN]:
            # the list may have been sorted or cut since
            picture = next((picture for other, picture in self._pictures if other is answer), answer.key)
            shown.append(_show(answer, picture))
        more = tag("p", f"the first {SHOWN} of {len(self):,} answers") if len(self) > SHOWN else None
        return join(*shown, more)


def _show(answer: Answer, picture: Picture) -> Markup:
    """The picture, if it can be drawn, beside the answer."""
    key = tag("div", answer.key, style=MUTED) if answer.key else None
    drawn = answer.draw_small(picture)
    left = tag("div", drawn, style=f"flex:none;min-width:{THUMBNAIL}px") if drawn is not None else None
    style = "display:flex;gap:12px;align-items:center;margin:6px 0"
    return tag("div", left, tag("div", key, answer.show()), style=style)


class AnswerFiles(ABC):
    """The answers for several images in one format, in the file or folder ``out``. They are complete after `close`.

    ``notes`` say then what of the answers the format cannot hold. Raises `DiskError` if ``out`` cannot be written.
    """

    suffix: ClassVar[str]  # of the file ``out``; empty for a folder
    each: ClassVar[str] = ""  # the suffix of the file that each image gets in a folder

    def __init__(self, out: Path, classes: Sequence[str]) -> None:
        self.out, self.classes = out, tuple(classes)
        self.notes: list[str] = []
        if not self.suffix:
            make_folder(out)

    @abstractmethod
    def write(self, name: str, key: str, answer: Answer | None) -> None:
        """Adds the answer for the image ``key``, whose own file is called ``name``; None for one that could not be read."""

    @abstractmethod
    def close(self) -> None:
        """Completes what was written."""
