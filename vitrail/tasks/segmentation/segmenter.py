"""Semantic segmentation: a class for every pixel; its loss and answers.

B images, H x W pixels of a picture, h x w of the model's input, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitrail.data.augment.placement import Frames
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.annotations import LabelMaps
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError, DataError, nearest
from vitrail.images.masks import IGNORED
from vitrail.models import Backbone
from vitrail.models.dense import FusedHead, LinearHead, ScaledMaps, StageNorms, fit, to_strides, upsample
from vitrail.tasks.answer import AnswerFiles
from vitrail.tasks.class_weights import weigh_classes
from vitrail.tasks.dense.answer import Subject
from vitrail.tasks.dense.drawing import BACKGROUND, class_colours
from vitrail.tasks.dense.pixels import PixelTargets, PixelTask, find_shown, sample_pixels
from vitrail.tasks.dense.task import choose_width, read_levels, read_number
from vitrail.tasks.segmentation.answer import MaskFiles, Segmentation
from vitrail.tasks.segmentation.metric import MapMetric, find_classes

HEADS = ("fused", "linear")
LEVELS = {"last": (4,), "four": (4, 8, 16, 32)}  # of the fused head on a network whose maps have one stride


class MapTask(PixelTask):
    """A task that names the class of every pixel. In evaluation mode calling it gives logits or probabilities (B, K, h, w) at the
    size of the images.
    """

    name = "segmentation"
    reply = {"width": int, "height": int, "classes": list[dict[str, str | float]], "map": dict[str, str | list[int]]}  # noqa: RUF012
    formats: ClassVar[Mapping[str, type[AnswerFiles]]] = {"masks": MaskFiles}
    targets = PixelTargets(LabelMaps, "a class for every pixel")
    decode_options = ("side",)
    graph_outputs = ("logits",)
    pixels = {"cpu": 704 * 256, "cuda": 640 * 640}  # noqa: RUF012

    @classmethod
    def read_source(cls, train: Source) -> dict[str, Any]:
        if len(train.classes) < 2:
            what = f"the data have {len(train.classes)} class of pixels"
            raise DataError(what, "name the background as a class, too")
        return super().read_source(train)

    @staticmethod
    def find_values(maps: Tensor) -> Tensor:
        return find_classes(maps)

    def decode(
        self, outputs: Tensor, frames: Frames | None = None, *, top: int = 5, side: int | None = None
    ) -> list[Segmentation]:
        """Returns maps in the size of each picture, or with ``side`` pixels on the longer side if the picture is larger."""
        frames = Frames.whole(len(outputs), self.preprocessing.size) if frames is None else frames
        sizes = [(height, width) for height, width in frames.pictures.astype(int).tolist()]
        drawn = sample_pixels(outputs, frames if side is None else frames.shrink(side), self.find_values)
        return [Segmentation(map.cpu().numpy(), self.classes, top, size) for map, size in zip(drawn, sizes)]

    def find_subject(
        self, outputs: Tensor, frames: Frames, *, target: str | None = None, box: int | None = None
    ) -> Subject:
        if box is not None:
            raise ConfigError(f"box is {box}, and a segmenter has no boxes", "name a class with --target")
        answered = outputs[0].argmax(0)  # (h, w)
        is_shown = find_shown(frames, (outputs.shape[2], outputs.shape[3])).to(outputs.device)
        counts = torch.bincount(answered[is_shown], minlength=len(self.classes)).tolist()
        present = {name: count for name, count in zip(self.classes, counts) if count}
        if target is None:  # the background only if there is nothing else
            target = max(present, key=lambda name: (name not in BACKGROUND, present[name]))
        if target not in present:
            what = f"the model predicts no pixel of class {target!r} in this image"
            raise ConfigError(what, f"choose a predicted class: {', '.join(present)}")
        index = self.classes.index(target)
        share = ((answered == index) & is_shown).to(outputs) / present[target]  # (h, w)

        def probability(outputs: Tensor) -> Tensor:
            return (outputs.softmax(1)[:, index] * share).sum((1, 2))

        return Subject(
            label=target,
            score=float(probability(outputs)[0]),
            colour=class_colours(self.classes)[target],
            logit=lambda outputs: (outputs[:, index] * share).sum((1, 2)),
            probability=probability,
            region=(next(sample_pixels(outputs, frames, self.find_values)) == index).cpu().numpy(),
        )

    def reply_arrays(self, outputs: Tensor, frames: Frames | None = None) -> dict[str, NDArray | list[str]]:
        """``map`` (B, h, w) uint8, the class of every pixel of the model's input."""
        return {"map": outputs.argmax(1).to(torch.uint8).numpy()}

    def metric(self, source: Source | None = None) -> MapMetric:
        return MapMetric(self.classes)

    def agreement(self, expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> float:
        """Returns the share of pixels of the same class."""
        same = expected["logits"].argmax(1) == given["logits"].argmax(1)
        return float(same.double().mean())


class Segmenter(MapTask):
    """A model that names the class of every pixel. Calling it gives logits (B, K, h, w) at the size of the images.

    Targets of a batch are maps (B, h, w) uint8 of classes, 255 for pixels without one.

    Args:
        backbone, classes, preprocessing, provenance: as `Task` has them.
        head: ``fused``, SegFormer's head on maps of several strides; or ``linear``, one layer on the last map or on four.
        levels: strides in pixels of the maps that the fused head gets from a network whose maps have one stride; by default 4,
            and for four maps 4, 8, 16 and 32. Of a pyramid it uses all stages, and the linear head uses the last map.
        head_width: width of the fused head; by default it follows that of the backbone.
        maps: as `DenseTask` has it.
        class_weights: the weight of a pixel of each class in the loss, such as `weigh_classes` gives; by default all are equal.

    Raises:
        ConfigError: as `DenseTask` has it; an argument that cannot be meant.
    """

    free_options = ("class_weights",)
    options = ("head", "levels", "head_width", "class_weights", "maps")

    def __init__(
        self,
        backbone: Backbone,
        classes: Sequence[str],
        preprocessing: Preprocessing,
        *,
        head: str = "fused",
        levels: Sequence[int] | None = None,
        head_width: int | None = None,
        class_weights: Sequence[float] | None = None,
        maps: str = "last",
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(backbone, classes, preprocessing, maps=maps, provenance=provenance)
        if not 2 <= len(self.classes) <= IGNORED:
            what = f"a segmenter with {len(self.classes)} classes"
            raise ConfigError(what, f"give the names of 2 to {IGNORED} classes, one of which may be the background")
        if head not in HEADS:
            raise ConfigError(f"there is no head {head!r} for segmentation", nearest(head, (*HEADS, "queries")))
        if class_weights is not None and len(class_weights) != len(self.classes):
            what = f"{len(class_weights)} class weights for {len(self.classes)} classes"
            raise ConfigError(what, "give one weight for each class")
        self.head = head
        self.head_width = choose_width(backbone.config) if head_width is None else head_width
        is_pyramid = len(backbone.config.dense_layers) > 1
        self.levels = None if head == "linear" or is_pyramid else self.choose_levels(levels, LEVELS)
        self.class_weights = None if class_weights is None else tuple(map(float, class_weights))
        self.targets = replace(self.targets, class_weights=self.class_weights)
        config, strides = backbone.config, to_strides(backbone.config.cells[layer] for layer in self.dense_layers)
        if head == "linear":
            self.own["neck"], self.strides = nn.Identity(), strides[-1:]
            self.own["head"] = LinearHead(config.widths[-1], len(self.classes), 1 if is_pyramid else len(strides))
            return
        if self.levels is None:
            widths, self.strides = config.widths, strides
            self.own["neck"] = StageNorms(widths)
        else:
            # without convolutions of 3 x 3 cells, which at a stride of 4 would cost as much as half of the network
            self.own["neck"] = neck = ScaledMaps(config.widths[-1], config.cells[-1], self.levels)
            widths, self.strides = neck.widths, neck.strides
        self.own["head"] = FusedHead(widths, self.strides, self.head_width, len(self.classes))

    @classmethod
    def read_source(cls, train: Source) -> dict[str, Any]:
        """The classes, and weights by which rare ones are learned; see `weigh_classes`."""
        return {**super().read_source(train), "class_weights": weigh_classes(train.counts())}

    @classmethod
    def read_description(cls, description: Mapping[str, Any]) -> dict[str, Any]:
        levels, weights = description["levels"], description["class_weights"]
        return {
            "head": description["head"],
            "levels": None if levels is None else read_levels(levels),
            "head_width": read_number("head_width", description["head_width"], 1, 4096, whole=True),
            "class_weights": weights and [read_number("a class weight", each, 0, math.inf) for each in list(weights)],
            "maps": description.get("maps", "last"),
        }

    def answer_maps(self, maps: list[Tensor], images: Tensor) -> Tensor:
        logits = self.own["head"](self.own["neck"](maps))  # (B, K, rows, columns)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return fit(upsample(logits, *self.strides[0]), images)

    def loss(self, outputs: Tensor, targets: tuple[Tensor, Tensor], **options: Any) -> Tensor:
        """Returns the cross-entropy, the weighted mean over all pixels of the batch that have a class."""
        maps, weight = targets
        weights = None if self.targets.class_weights is None else self.targets.weights_on(outputs.device)
        # (B, h, w)
        losses = F.cross_entropy(outputs.float(), maps.long(), weights, ignore_index=IGNORED, reduction="none")
        return (weight * losses.flatten(1).sum(1)).mean()

    @torch.no_grad()
    def measure(self, outputs: Tensor, targets: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """Returns the share of pixels with a class whose class is right."""
        is_known = targets[0] != IGNORED
        right = (outputs.argmax(1) == targets[0]) & is_known
        return {"pixel_accuracy": right.sum() / is_known.sum().clamp(min=1)}
