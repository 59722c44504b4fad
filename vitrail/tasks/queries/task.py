"""Tasks that answer with the queries of EoMT: the network, its outputs and its loss.

B images, A answers, Q queries, K classes, r x c = S cells of a mask, M objects at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from vitrail.errors import ConfigError
from vitrail.models import Backbone
from vitrail.models.config import grid_of
from vitrail.models.queries import QueryHead, check_queries, choose_upscales
from vitrail.tasks.dense.task import DenseTask
from vitrail.tasks.instances.loss import measure_shares
from vitrail.tasks.queries.loss import query_loss

HEAD = "queries"  # the value of ``head`` in config.json
FEWEST, SPARE = 50, 2  # queries at least, and for each object of the picture with the most
LIMITS = {"queries": (1, 10_000), "query_blocks": (1, 1000), "upscales": (0, 10)}


class QueryTask(DenseTask):
    """A task with a `QueryHead` on a ViT; see there and `query_loss`.

    Calling it gives logits (B, A Q, e + r, c), the A answers of the head one after another: of each query first those of its
    K + 1 classes, in the e = ceil((K + 1) / c) rows that they fill, then those of its mask. Targets of a batch are those of
    `OutlineTargets`.

    Args:
        backbone, classes, preprocessing, provenance: as `Task` has them.
        head: "queries".
        queries: Q, the most objects of a picture that can be found.
        query_blocks: how many of the last blocks have queries; by default a quarter of them.
        upscales: how many times the map of patches is doubled; by default to a stride of 4 pixels.
        most, threshold: of the answers, as the task has them.

    Raises:
        ConfigError: as `DenseTask` has it; a network that is no ViT, or whose last blocks attend in windows.
    """

    options: ClassVar[tuple[str, ...]] = ("head", "queries", "query_blocks", "upscales")
    keeps_parts = True
    pixels = {"cpu": 384 * 288, "cuda": 640 * 640}  # noqa: RUF012

    def __init__(
        self,
        backbone: Backbone,
        classes: Sequence[str],
        preprocessing: Preprocessing,
        *,
        head: str = HEAD,
        queries: int = 100,
        query_blocks: int | None = None,
        upscales: int | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(backbone, classes, preprocessing, provenance=provenance)
        if not self.classes:
            raise ConfigError("queries without classes", "give one name at least")
        if head != HEAD:
            raise ConfigError(f"the task {self.name} has no head {head!r}", f"leave it out: it is {HEAD!r}")
        given = {"queries": queries, "query_blocks": query_blocks, "upscales": upscales}
        for name, value in given.items():
            least, most = LIMITS[name]
            if (value is not None or name == "queries") and (type(value) is not int or not least <= value <= most):
                raise ConfigError(f"{name} is {value!r}", f"{name} = a whole number from {least} to {most:,}")
        config = backbone.config
        self.head, self.queries = head, queries
        self.query_blocks = max(1, config.blocks // 4) if query_blocks is None else query_blocks
        check_queries(config, self.query_blocks)
        self.upscales = choose_upscales(config.patch_size) if upscales is None else upscales
        own = {"queries": queries, "blocks": self.query_blocks, "upscales": self.upscales}
        self.own["head"] = QueryHead(config, len(self.classes), **own)

    @classmethod
    def read_source(cls, train: Source) -> dict[str, Any]:
        """The classes, and queries: at least 50, twice as many as the image with the most objects has, or one for each class of
        pixels.
        """
        targets = train.targets
        needed = SPARE * int(targets.lengths().max(initial=0)) if isinstance(targets, Objects) else len(train.classes)
        return {**super().read_source(train), "queries": max(FEWEST, needed)}

    @classmethod
    def read_description(cls, description: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().read_description(description), **{name: description[name] for name in LIMITS}}

    @property
    def cell(self) -> tuple[float, float]:
        """Height and width in pixels of a cell of the masks."""
        height, width = self.config.patch_size
        return height / 2**self.upscales, width / 2**self.upscales

    def grid(self, size: Sequence[int]) -> tuple[int, int]:
        """Returns rows and columns of the masks for an input of ``size``, (h, w)."""
        rows, columns = grid_of((size[0], size[1]), self.config.patch_size)
        return rows * 2**self.upscales, columns * 2**self.upscales

    def forward(self, images: Tensor) -> Tensor:
        return pack_logits(*self.own["head"](self.backbone, images))

    def answer_maps(self, maps: list[Tensor], images: Tensor) -> Tensor:
        what = "answers of queries, which enter the network, have no gradient for maps of its last block"
        raise ConfigError(what, "explain with the method attention, rollout or occlusion")

    def unpack(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns logits of classes (B, A, Q, K + 1) and masks (B, A, Q, r, c) of outputs."""
        count = len(self.classes) + 1
        rows = (count + outputs.shape[3] - 1) // outputs.shape[3]
        answers = outputs.unflatten(1, (-1, self.queries))
        return answers[..., :rows, :].flatten(3)[..., :count], answers[..., rows:, :]

    def loss(self, outputs: Tensor, targets: tuple[Tensor, ...], **options: Any) -> Tensor:
        """See `query_loss`."""
        objects, weight, numbers = targets
        classes, masks = self.unpack(outputs.to(torch.promote_types(outputs.dtype, torch.float32)))
        shares, known = measure_shares(numbers, objects.shape[1], self.grid(numbers.shape[1:]), self.cell)
        shares, known, weight = (each.to(masks.dtype) for each in (shares, known, weight))
        labels, strict = objects[..., 0].long(), self.training
        # matching is done by SciPy; `disable` as a decorator would import the compiler with the package
        measure = torch.compiler.disable(query_loss) if torch.compiler.is_compiling() else query_loss
        return measure(classes, masks.flatten(3), labels, shares, known, weight, strict=strict)

    def show_region(self, grid: Sequence[int], frames: Frames) -> NDArray[np.float64]:
        """Returns what masks of so many rows and columns show of each picture, (left, top, right, bottom) in pixels: (B, 4)."""
        corners = np.array([[0, 0], [grid[1] * self.cell[1], grid[0] * self.cell[0]]], np.float64)
        return frames.move(np.tile(corners, (len(frames), 1, 1)), self.preprocessing.size).reshape(-1, 4)


def pack_logits(classes: Tensor, masks: Tensor) -> Tensor:
    """Returns logits of classes (B, A, Q, K + 1) and masks (B, A, Q, r, c) as one tensor; see `QueryTask`."""
    columns = masks.shape[4]
    rows = F.pad(classes, (0, -classes.shape[3] % columns)).unflatten(3, (-1, columns))
    return torch.cat([rows.to(masks.dtype), masks], 3).flatten(1, 2)
