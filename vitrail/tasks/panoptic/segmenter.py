"""Panoptic segmentation by queries in a plain ViT (EoMT): every pixel belongs to a thing, or to stuff, or to nothing.

B images, Q queries, K classes, n queries that answer, r x c cells of a mask, H and W of a picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.data.sources.annotations import PanopticObjects
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError, DataError
from vitrail.tasks.answer import AnswerFiles
from vitrail.tasks.dense.pixels import sample_pixels
from vitrail.tasks.dense.task import read_number
from vitrail.tasks.instances.loss import OutlineTargets
from vitrail.tasks.instances.task import LIKELY
from vitrail.tasks.panoptic.answer import FORMATS, Panoptic, Segment
from vitrail.tasks.panoptic.metric import PanopticMetric
from vitrail.tasks.queries.task import QueryTask, pack_logits

OWN_SHARE = 0.8  # pixels that a query wins, likely or not, as a share of those of its mask


class PanopticSegmenter(QueryTask):
    """A `QueryTask` that gives every pixel of a picture to one segment, a thing or stuff of one class, or to none.

    Args:
        things: whether each class is one of things, whose segments are single objects; by default all are.
        threshold: the least probability of the class of a query that answers.
        arguments: as `QueryTask` has them.

    Raises:
        ConfigError: as `QueryTask` has it; ``things`` of another number than classes.
    """

    name = "panoptic"
    reply: ClassVar[Mapping[str, Any]] = {
        "width": int,
        "height": int,
        "segments": list[dict[str, str | bool | int | float | list[float]]],
        "map": dict[str, str | list[int]],
    }
    formats: ClassVar[Mapping[str, type[AnswerFiles]]] = FORMATS
    targets = OutlineTargets(PanopticObjects, "segments of things and stuff")
    decode_options = ("threshold",)
    graph_outputs = ("classes", "masks")
    free_options = ("things", "threshold")
    options: ClassVar[tuple[str, ...]] = (*QueryTask.options, "things", "threshold")

    def __init__(
        self, *arguments: Any, things: Sequence[bool] | None = None, threshold: float = 0.8, **named: Any
    ) -> None:
        super().__init__(*arguments, **named)
        self.things = (True,) * len(self.classes) if things is None else tuple(map(bool, things))
        self.threshold = threshold
        if len(self.things) != len(self.classes):
            what = f"{len(self.things)} things for {len(self.classes)} classes"
            raise ConfigError(what, "things = true or false for each class")

    @classmethod
    def read_source(cls, train: Source) -> dict[str, Any]:
        assert isinstance(train.targets, PanopticObjects), "checked by the targets"
        return {**super().read_source(train), "things": train.targets.things}

    @classmethod
    def read_description(cls, description: Mapping[str, Any]) -> dict[str, Any]:
        things = description["things"]
        if not isinstance(things, list) or not all(isinstance(each, bool) for each in things):
            raise ValueError(f"things is {things!r:.40}, and not true or false for each class")
        threshold = read_number("threshold", description["threshold"], 0, 1)
        return {**super().read_description(description), "things": things, "threshold": threshold}

    def decode(
        self, outputs: Tensor, frames: Frames | None = None, *, top: int = 5, threshold: float | None = None
    ) -> list[Panoptic]:
        """The segments of each picture. Every pixel goes to the query with the largest product of the probabilities of its class
        and of its mask, among those whose class has at least the probability ``threshold``, by default that of the model
        (Cheng et al. 2021, MaskFormer). A query that wins at most four fifths as many pixels as its mask has does not answer.
        Segments of a class of stuff are one.
        """
        frames = Frames.whole(len(outputs), self.preprocessing.size) if frames is None else frames
        classes, masks = (each[:, -1] for each in self.unpack(outputs))
        scores, labels = classes.float().softmax(2).max(2)  # (B, Q)
        frames = replace(frames, crops=self.show_region(masks.shape[2:], frames))
        is_kept = (labels < len(self.classes)) & (scores >= (self.threshold if threshold is None else threshold))
        return [
            self._join_queries(scores[row, kept], labels[row, kept], masks[row, kept], frames.take(np.array([row])))
            for row, kept in enumerate(is_kept)
        ]

    def _join_queries(self, scores: Tensor, labels: Tensor, masks: Tensor, frames: Frames) -> Panoptic:
        """Returns the answer for one picture from scores (n,), labels (n,) and masks (n, r, c) of the queries that may answer.

        ``frames`` is what the masks show of the picture.
        """
        from scipy.ndimage import find_objects  # a dependency of scikit-learn

        height, width = frames.pictures[0].astype(int).tolist()
        owners = np.zeros((height, width), np.int64)
        areas, won = torch.zeros(2, len(masks), dtype=torch.int64)

        def find_owners(logits: Tensor) -> Tensor:
            """Returns the query of each pixel from 1, 0 for none: (n, h, w) to (h, w)."""
            shares = logits.sigmoid()
            is_inside = shares >= LIKELY
            best = (scores[:, None, None] * shares).argmax(0, keepdim=True)  # (1, h, w)
            areas.add_(is_inside.sum((1, 2)).cpu())
            won.add_(best.flatten().bincount(minlength=len(scores)).cpu())
            return torch.where(is_inside.gather(0, best), best + 1, 0)[0]

        if len(masks):
            owners = next(sample_pixels(masks[None], frames, find_owners)).cpu().numpy()
        kept = np.bincount(owners.ravel(), minlength=len(masks) + 1)[1:]
        answering = np.flatnonzero((kept > 0) & (won.numpy() > OWN_SHARE * areas.numpy()))
        names, certain = labels.cpu().numpy(), scores.float().cpu().numpy()
        numbers, table = dict[int, int](), np.zeros(len(masks) + 1, np.int32)
        chosen: list[int] = []  # the most certain query of each segment
        for query in answering[np.argsort(-certain[answering], kind="stable")].tolist():
            label = int(names[query])
            # -1, -2, ... are the single objects, which have no number of another
            key = -1 - query if self.things[label] else label
            if key not in numbers:
                numbers[key] = len(numbers) + 1
                chosen.append(query)
            table[query + 1] = numbers[key]
        ids = table[owners]  # (H, W)
        segments = []
        for query, (down, across) in zip(chosen, find_objects(ids)):
            label = int(names[query])
            area = int(np.count_nonzero(ids[down, across] == len(segments) + 1))
            box = (across.start, down.start, across.stop, down.stop)
            segments.append(Segment(self.classes[label], self.things[label], float(certain[query]), area, box))
        return Panoptic(ids, tuple(segments), self.classes, self.things)

    def join_windows(self, outputs: Iterable[Tensor], views: Frames) -> Tensor:
        """Raises `ConfigError`: segments of windows are not joined."""
        what = "the segments of a panoptic answer cannot be joined across windows"
        raise ConfigError(what, "leave zoom out, or use a model of the task instances")

    def graph(self, images: Tensor) -> dict[str, Tensor]:
        classes, masks = self.own["head"](self.backbone, images)
        return {"classes": classes[:, 0], "masks": masks[:, 0]}

    def name_outputs(self, outputs: Tensor) -> dict[str, Tensor]:
        """``classes`` (B, Q, K + 1) and ``masks`` (B, Q, r, c), logits; the last class is none."""
        classes, masks = self.unpack(outputs)
        return {"classes": classes[:, -1], "masks": masks[:, -1]}

    def read_graph(self, outputs: Mapping[str, Tensor]) -> Tensor:
        return pack_logits(outputs["classes"][:, None], outputs["masks"][:, None])

    def reply_arrays(self, outputs: Tensor, frames: Frames | None = None) -> dict[str, NDArray | list[str]]:
        """``classes`` (B, Q, K + 1) and ``masks`` (B, Q, r, c), logits over the model's input."""
        return {name: each.numpy() for name, each in self.name_outputs(outputs).items()}

    def metric(self, source: Source | None = None) -> PanopticMetric:
        """As of `Task`. Raises `DataError` for a class that is one of things in the data only, or for the model only."""
        if source is not None and isinstance(source.targets, PanopticObjects):
            for label in np.unique(source.targets.labels).tolist():
                if source.targets.things[label] != self.things[label]:
                    kinds = ("things", "stuff") if self.things[label] else ("stuff", "things")
                    what = "{!r} is a class of {} for the model, and of {} in the data".format(
                        self.classes[label], *kinds
                    )
                    raise DataError(what, "give data whose isthing is that of the training")
        return PanopticMetric(self.classes, self.things, self.decode, source)

    def agreement(self, expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> float:
        """The share of pixels of the input that belong to the same class."""
        one, other = (
            np.stack([each.to_segmentation().map for each in self.decode(self.read_graph(outputs))])
            for outputs in (expected, given)
        )
        return float((one == other).mean())
