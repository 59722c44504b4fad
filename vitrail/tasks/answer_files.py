"""Formats of answers that are more than a table: COCO's results, YOLO's text files, masks. Each is written image by image."""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from vitrail.files import make_folder, replace_file
from vitrail.tasks.answer import Answer
from vitrail.tasks.class_colours import class_colours
from vitrail.tasks.coco_results import FoundBoxes, write_results
from vitrail.tasks.dense_answers import Detections, Segmentation


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


class CocoResults(AnswerFiles):
    """A JSON list with an entry for each object, as pycocotools loads it. Ids of images and categories count from 1."""

    suffix = ".json"

    def __init__(self, out: Path, classes: Sequence[str]) -> None:
        super().__init__(out, classes)
        self.found: list[FoundBoxes] = []

    def write(self, name: str, key: str, answer: Answer | None) -> None:
        if answer is None:  # it keeps its place, from which the ids of the others are counted
            self.found.append(FoundBoxes(key, np.zeros((0, 4)), np.zeros(0), ()))
            return
        assert isinstance(answer, Detections)
        self.found.append(FoundBoxes(key, answer.boxes, answer.scores, answer.labels))

    def close(self) -> None:
        write_results(self.out, self.found, {label: number for number, label in enumerate(self.classes, 1)})


class YoloFiles(AnswerFiles):
    """A text file for each image with a line for each object: the number of its class, and the box as fractions of the image.

    The box is centre x, centre y, width and height. ``classes.txt`` has the name of each class in a line of its own.
    """

    suffix, each = "", ".txt"

    def __init__(self, out: Path, classes: Sequence[str]) -> None:
        super().__init__(out, classes)
        self.numbers = {label: number for number, label in enumerate(classes)}
        make_folder(out)

    def write(self, name: str, key: str, answer: Answer | None) -> None:
        if answer is None:
            return
        assert isinstance(answer, Detections)
        height, width = answer.size
        boxes = np.asarray(answer.boxes, np.float64) / [width, height, width, height]
        placed = np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], 1)
        lines = (
            " ".join([str(self.numbers[label]), *(f"{place:.6f}" for place in box)]) + "\n"
            for label, box in zip(answer.labels, placed.tolist(), strict=True)
        )
        replace_file(self.out / f"{name}{self.each}", "".join(lines))

    def close(self) -> None:
        replace_file(self.out / "classes.txt", "".join(f"{label}\n" for label in self.classes))


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
