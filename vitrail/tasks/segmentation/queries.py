"""Semantic segmentation by queries in a plain ViT (EoMT): each class of a picture is an object of its own.

B images, Q queries, K classes, h x w pixels of the model's input, r x c cells of a mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from vitrail.data.augment.placement import Placement
from vitrail.data.sources.annotations import LABEL_BITS, UNCOUNTED, LabelMaps
from vitrail.models.dense import fit, to_strides, upsample
from vitrail.models.layers import by_hand
from vitrail.tasks.dense.pixels import PixelTargets
from vitrail.tasks.instances.loss import list_objects
from vitrail.tasks.queries.task import QueryTask
from vitrail.tasks.segmentation.segmenter import MapTask

TINY = 1e-6  # the least sum


@dataclass(frozen=True)
class ClassMaskTargets(PixelTargets):
    """The classes of each image as objects, from maps of classes."""

    def move(self, targets: Tensor, placement: Placement) -> tuple[Tensor, ...]:
        """Returns what `OutlineTargets.move` does, with one object for each class of an image."""
        maps = super().move(targets, placement)[0]
        values = (maps.int() + 1) << LABEL_BITS | maps.int()
        return list_objects(values.where(self.format.is_known(maps), UNCOUNTED))


class QuerySegmenter(MapTask, QueryTask):
    """A `QueryTask` that names the class of every pixel: the sum over queries of the probability of the class times that of the
    mask (Cheng et al. 2021, MaskFormer).

    In training, calling it gives the logits of a `QueryTask`, otherwise the logarithms of these sums (B, K, h, w). Targets of a
    batch are those of `OutlineTargets`, with one object for each class of an image.

    Args:
        arguments: as `QueryTask` has them.
    """

    targets = ClassMaskTargets(LabelMaps, "a class for every pixel")  # type: ignore[bad-override-mutable-attribute]
    options: ClassVar[tuple[str, ...]] = QueryTask.options

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            return super().forward(images)
        classes, masks = (each[:, 0] for each in self.own["head"](self.backbone, images))
        with by_hand(masks):
            sums = classes.softmax(2)[..., :-1].mT @ masks.sigmoid().flatten(2)  # (B, K, r c)
        (cell,) = to_strides([self.config.patch_size])
        maps = upsample(sums.unflatten(2, masks.shape[2:]), *(side / 2**self.upscales for side in cell))
        return fit(maps, images).clamp(min=TINY).log()

    def measure(self, outputs: Tensor, targets: Any) -> dict[str, Tensor]:
        return {}
