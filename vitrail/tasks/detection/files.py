"""Files of detections: COCO's results, and YOLO's text files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitrail.files import make_folder, replace_file
from vitrail.tasks.answer import Answer
from vitrail.tasks.answer_files import AnswerFiles
from vitrail.tasks.detection.answer import Detections
from vitrail.tasks.detection.coco_results import FoundBoxes, write_results


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
