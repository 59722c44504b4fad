"""Formats of answers that are more than a table, written image by image."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from vitrail.tasks.answer import Answer


class AnswerFiles(ABC):
    """The answers for several images in one format. They are complete after `close`.

    Args:
        out: the file, or the folder of files.
        classes: the names of the model's classes.

    Raises:
        DiskError: ``out`` cannot be written.
    """

    suffix: ClassVar[str]  # of the file ``out``; empty for a folder
    each: ClassVar[str] = ""  # the suffix of the file that each image gets in a folder

    def __init__(self, out: Path, classes: Sequence[str]) -> None:
        self.out, self.classes = out, tuple(classes)

    @abstractmethod
    def write(self, name: str, key: str, answer: Answer | None) -> None:
        """Adds the answer for the image ``key``, whose own file is called ``name``; None for one that could not be read."""

    @abstractmethod
    def close(self) -> None:
        """Completes what was written."""
