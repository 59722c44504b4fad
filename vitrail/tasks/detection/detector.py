"""Detection: a box and a class for every object; its head's outputs, loss and answers.

B images, M objects at most, N cells of all levels, K classes, n detections of an image. Boxes are (left, top, right, bottom) in
pixels from the upper left corner.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.annotations import Objects
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError, DataError
from vitrail.models import Backbone
from vitrail.models.dense import TOWER_GROUPS, BoxHead, create_pyramid
from vitrail.models.layers import gather_rows
from vitrail.tasks.answer import AnswerFiles
from vitrail.tasks.dense.answer import Subject
from vitrail.tasks.dense.drawing import class_colours
from vitrail.tasks.dense.task import DenseTask, choose_width, read_levels, read_number
from vitrail.tasks.detection.answer import CocoResults, Detections, YoloFiles
from vitrail.tasks.detection.boxes import (
    compare_detections,
    covers,
    join_detections,
    join_outputs,
    split_outputs,
    suppress_duplicates,
)
from vitrail.tasks.detection.loss import BoxTargets, sum_losses
from vitrail.tasks.detection.matching import Matches
from vitrail.tasks.detection.metric import BoxMetric, match_answer, place_boxes
from vitrail.text import plural

LEVELS = {"last": (8, 16, 32), "four": (8, 16, 32, 64)}
CANDIDATES = 4  # best pairs of cell and class among which duplicates are removed, for each detection that is kept
SAME_OBJECT = 0.6  # overlap above which two boxes of a class are one object
BOX_WEIGHT = 4.0  # of the loss of boxes, in that of classes
CELLS_PER_OBJECT = 5.0  # about which a sum of scores is divided, and for which it stands


class ObjectTask(DenseTask):
    """A task that answers with objects: their boxes, scores and classes.

    It has the arguments ``most``, detections of a picture at most, and ``threshold``, the least score of an answer; a training
    sets it to the one with the largest F1 on the validation split. Figures are computed from all detections.
    """

    reply: ClassVar[Mapping[str, Any]] = {
        "width": int,
        "height": int,
        "objects": list[dict[str, str | float | list[float]]],
    }
    formats: ClassVar[Mapping[str, type[AnswerFiles]]] = {"coco": CocoResults, "yolo": YoloFiles}
    targets = BoxTargets()
    decode_options = ("threshold",)
    graph_outputs = ("boxes", "scores", "labels")
    free_options = ("most", "threshold")
    tuned = "threshold"
    pixels = {"cpu": 384 * 288, "cuda": 640 * 640}  # noqa: RUF012
    most: int
    threshold: float

    @classmethod
    def read_source(cls, train: Source) -> dict[str, Any]:
        if not train.classes:
            raise DataError("the data have no class of objects", "see `vitrail data check`")
        return super().read_source(train)

    @classmethod
    def read_description(cls, description: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **super().read_description(description),
            "most": read_number("most", description["most"], 1, 10_000, whole=True),
            "threshold": read_number("threshold", description["threshold"], 0, 1),
        }

    @abstractmethod
    def detect(self, outputs: Tensor) -> Tensor:
        """The best detections of each image, (B, most, 6): box, score and label, the most certain first.

        Where there are fewer, rows of zeros fill up. Boxes are in pixels of the model's input and may reach beyond it.
        Detections, which are all that an exported graph gives, are returned as they are.
        """

    def place_in_pictures(self, found: Tensor, frames: Frames | None) -> NDArray[np.float64]:
        """What `detect` gave, (B, most, 6), with boxes in pixels of the pictures and clipped to them."""
        size, placed = self.preprocessing.size, found.double().cpu().numpy()
        boxes = place_boxes(placed[..., :4], Frames.whole(len(placed), size) if frames is None else frames, size)
        return np.concatenate([boxes, placed[..., 4:]], -1)

    def decode(
        self, outputs: Tensor, frames: Frames | None = None, *, top: int = 5, threshold: float | None = None
    ) -> list[Detections]:
        """The objects on each picture whose score reaches ``threshold``, by default that of the model.

        The limit of their number is ``most``, and not ``top``.
        """
        least = self.threshold if threshold is None else threshold
        placed = self.place_in_pictures(self.detect(outputs), frames)  # (B, most, 6)
        sizes = [self.preprocessing.size] * len(placed) if frames is None else frames.pictures.astype(int).tolist()
        return [
            self.answer(found[is_shown(found, least)], (rows, across)) for found, (rows, across) in zip(placed, sizes)
        ]

    def answer(self, found: NDArray[np.float64], size: tuple[int, int]) -> Detections:
        """The answer of detections (n, 6) in pixels of a picture of ``size``, (height, width)."""
        boxes, scores = found[:, :4].astype(np.float32), found[:, 4].astype(np.float32)
        labels = tuple(self.classes[label] for label in found[:, 5].astype(int).tolist())
        return Detections(boxes, scores, labels, size, self.classes)

    def match(self, answer: Detections, objects: Objects) -> Matches:
        """The matches of the answer for a picture with the objects of its annotation."""
        return match_answer(answer, objects, self.classes)

    def choose_object(self, placed: NDArray[np.float64], target: str | None, box: int | None) -> int:
        """Returns the row of detections (D, 6) in pixels of a picture that `find_subject` explains. Raises `ConfigError`."""
        if box is not None:
            rows = np.flatnonzero(is_shown(placed, self.threshold))
            if not 0 <= box < len(rows):
                number = plural(len(rows), "object")
                what = f"there is no box {box}: the model finds {number} with a score of at least {self.threshold:g}"
                remedy = f"give 0 to {len(rows) - 1}" if len(rows) else "leave the box out to explain the best one"
                raise ConfigError(what, remedy)
        else:
            rows = np.flatnonzero([target in (None, self.classes[int(label)]) for label in placed[:, 5]])
            if not len(rows) or not placed[rows[0], 4]:
                raise ConfigError(f"the model finds no {target!r} on this image", "explain another class or image")
        return int(rows[box or 0])

    def describe_subject(
        self, found: NDArray[np.float64], logit: Callable[[Tensor], Tensor], probability: Callable[[Tensor], Tensor]
    ) -> Subject:
        """Returns what is explained: a detection (6,) or longer in pixels of a picture, and its score as functions of outputs."""
        name = self.classes[int(found[5])]
        return Subject(
            label=name,
            score=float(found[4]),
            colour=class_colours(self.classes)[name],
            logit=logit,
            probability=probability,
            region=found[:4],
        )

    def reply_arrays(self, outputs: Tensor, frames: Frames | None = None) -> dict[str, NDArray | list[str]]:
        """``boxes`` (B, most, 4), ``scores`` and ``labels`` (B, most); boxes are in pixels of the pictures of ``frames``."""
        placed = torch.from_numpy(self.place_in_pictures(self.detect(outputs), frames)).float()
        return {name: values.numpy() for name, values in split_outputs(placed).items()}

    def join_windows(self, outputs: Iterable[Tensor], views: Frames) -> Tensor:
        """The best detections of the picture, (1, most, 6) as `detect` has them."""
        found, size = torch.cat([self.detect(each) for each in outputs]), self.preprocessing.size
        return join_detections(found, views, size, candidates=CANDIDATES * self.most, threshold=SAME_OBJECT)

    def metric(self, source: Source | None = None) -> BoxMetric:
        return BoxMetric(self.classes, self.preprocessing.size, self.detect)

    def name_outputs(self, outputs: Tensor) -> dict[str, Tensor]:
        """``boxes`` (B, most, 4), ``scores`` and ``labels`` (B, most) as `detect` has them."""
        return split_outputs(self.detect(outputs))

    def read_graph(self, outputs: Mapping[str, Tensor]) -> Tensor:
        return join_outputs(outputs)

    def difference(self, expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> float:
        return compare_detections(join_outputs(expected), join_outputs(given))

    def agreement(self, expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> float:
        """The share of images on which the same objects reach the threshold: of one class, and boxes that all but coincide."""
        return float(np.mean(self.find_equal(expected, given)))

    def find_equal(self, expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[bool]:
        """Whether the two graphs give the same answer, for each image; see `agreement`."""
        pairs = zip(join_outputs(expected), join_outputs(given))
        return [covers(one, other, self.threshold) and covers(other, one, self.threshold) for one, other in pairs]


class Detector(ObjectTask):
    """A model that finds objects. Calling it gives, for every cell, a box, its centre and stride, and logits: (B, N, 7 + K).

    An anchor-free detector: the cells of a pyramid of maps each answer with one box, and the cells that find an object best
    learn it (`vitrail.tasks.detection.loss`). Targets of a batch are (B, M, 6): label, whether it is a crowd, and the
    box; a label of -1 fills up the rows.

    Args:
        backbone, classes, preprocessing, provenance: as `Task` has them.
        levels: strides of the maps in pixels, from fine to coarse; by default 8, 16 and 32, and for four maps also 64.
        head_width: width of neck and head, a multiple of 32; by default it follows that of the backbone.
        most, threshold: as `ObjectTask` has them.
        maps: as `DenseTask` has it.

    Raises:
        ConfigError: as `DenseTask` has it; an argument that cannot be meant.
    """

    name = "detection"
    options = ("levels", "head_width", "most", "threshold", "maps")
    coefficients = 0  # of a mask, for each cell

    def __init__(
        self,
        backbone: Backbone,
        classes: Sequence[str],
        preprocessing: Preprocessing,
        *,
        levels: Sequence[int] | None = None,
        head_width: int | None = None,
        most: int = 100,
        threshold: float = 0.3,
        maps: str = "last",
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(backbone, classes, preprocessing, maps=maps, provenance=provenance)
        if not self.classes:
            raise ConfigError("a detector without classes", "give one name at least")
        self.head_width = choose_width(backbone.config, most=256) if head_width is None else head_width
        # two channels a group: one alone would be normalised to nothing on a map of one cell
        if self.head_width % (2 * TOWER_GROUPS):
            raise ConfigError(f"head_width is {head_width}", f"head_width = a multiple of {2 * TOWER_GROUPS}")
        self.levels, self.most, self.threshold = self.choose_levels(levels, LEVELS), most, threshold
        self.own["neck"] = neck = create_pyramid(backbone.config, self.levels, self.head_width)
        self.own["head"] = head = BoxHead(neck.strides, self.head_width, len(self.classes), self.coefficients)
        self.strides = head.strides

    @classmethod
    def read_description(cls, description: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **super().read_description(description),
            "levels": read_levels(description["levels"]),
            "head_width": read_number("head_width", description["head_width"], 1, 4096, whole=True),
            "maps": description.get("maps", "last"),
        }

    def answer_maps(self, maps: list[Tensor], images: Tensor) -> Tensor:
        return self.own["head"](self.own["neck"](maps))

    def loss(self, outputs: Tensor, targets: tuple[Tensor, ...], **options: Any) -> Tensor:
        """Binary cross-entropy of the classes and 4 (1 - GIoU) of the boxes, per 5 cells for each object of the batch."""
        classes, boxes, _ = sum_losses(outputs, targets[0])
        return (targets[1] * (classes + BOX_WEIGHT * boxes)).mean() / CELLS_PER_OBJECT

    def detect(self, outputs: Tensor) -> Tensor:
        """As of `ObjectTask`, without duplicates."""
        return outputs if outputs.shape[2] == 6 else self.select(outputs)[0]

    def select(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """What `detect` gives of cells (B, N, 7 + K or more), and the cell of each detection (B, most)."""
        candidates, classes = CANDIDATES * self.most, len(self.classes)
        logits = outputs[..., 7 : 7 + classes]
        # more than there are, for maps that have fewer cells than candidates
        scores = F.pad(logits.sigmoid().flatten(1), (0, candidates))  # (B, N K + P)
        scores, places = scores.topk(candidates, dim=1)
        cells = (places // classes).clamp(max=logits.shape[1] - 1)
        rows = gather_rows(outputs, cells)  # (B, P, 7 + K), as OpenVINO 2026.4 gathers wrongly from a slice
        boxes = rows[..., :4]
        labels = places % classes
        scores = scores * suppress_duplicates(boxes, labels, SAME_OBJECT)
        scores, order = scores.topk(self.most, dim=1)
        boxes = gather_rows(rows, order)[..., :4]  # (B, most, 4)
        found = torch.cat([boxes, scores[..., None], labels.gather(1, order)[..., None].to(boxes.dtype)], -1)
        return found * (scores > 0)[..., None], cells.gather(1, order)

    def find_subject(
        self, outputs: Tensor, frames: Frames, *, target: str | None = None, box: int | None = None
    ) -> Subject:
        if outputs.shape[2] == 6:
            what = "an exported detector gives its best boxes only, and no scores of cells to explain"
            raise ConfigError(what, "explain the model that was exported")
        found, cells = self.select(outputs)
        placed = self.place_in_pictures(found, frames)[0]
        row = self.choose_object(placed, target, box)
        place = slice(None), int(cells[0, row]), 7 + int(placed[row, 5])
        return self.describe_subject(
            placed[row], lambda outputs: outputs[place], lambda outputs: outputs[place].sigmoid()
        )


def is_shown(placed: NDArray[np.float64], threshold: float) -> NDArray[np.bool_]:
    """Whether detections (D, 6) in pixels of a picture are answers: with this score at least, and some area inside."""
    return (placed[:, 4] > 0) & (placed[:, 4] >= threshold) & (placed[:, 2:4] > placed[:, :2]).all(1)
