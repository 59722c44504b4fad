"""Files of maps of classes."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from vitrail.files import make_folder, replace_file
from vitrail.tasks.answer import Answer
from vitrail.tasks.answer_files import AnswerFiles
from vitrail.tasks.dense.class_colours import class_colours
from vitrail.tasks.segmentation.answer import Segmentation


class MaskFiles(AnswerFiles):
    """A PNG for each image, in its size, whose pixels are the indices of classes; ``classes.csv`` names and colours them."""

    suffix, each = "", ".png"

    def __init__(self, out: Path, classes: Sequence[str]) -> None:
        super().__init__(out, classes)
        make_folder(out)

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
