"""Regression: one or several numbers of an image; its losses and answers.

B images, C channels, H and W their size, K numbers. The metric is in `metric`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.numbers import Numbers
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError, DataError, nearest
from vitrail.models import Backbone
from vitrail.tasks.answer import Answer
from vitrail.tasks.regression.metric import NumberMetric
from vitrail.tasks.targets import TargetKind
from vitrail.tasks.task import Task

LOSSES = {"mse": F.mse_loss, "smooth-l1": F.smooth_l1_loss}
RESERVED = ("path", "error")  # columns of a table of answers
REMEDY = "give a table, and name its columns of numbers: --columns label=weight, of several label=x+y"


@dataclass(frozen=True)
class Values(Answer):
    """The numbers of one picture by their names, in the units of the training data."""

    values: Mapping[str, float]

    def row(self) -> dict[str, Any]:
        """A column for each number, of 6 digits."""
        return {name: float(f"{value:.6g}") for name, value in self.values.items()}

    def to_json(self) -> dict[str, Any]:
        return {"values": dict(self.values)}


class NumberTargets(TargetKind):
    """Numbers (B, K) float32, which augmentation leaves as they are. They are not mixed: the number of a mixture of images is in
    general no mixture of their numbers.
    """

    def check(self, source: Source, task: str) -> None:
        if not isinstance(source.targets, Numbers):
            other = getattr(source.targets, "task", None)
            has = f"annotations for {other}" if other else "classes of images"
            raise DataError(f"the task {task} learns from numbers, and the data have {has}", REMEDY)
        if lacking := [name for name, column in zip(source.classes, source.targets.values.T) if np.isnan(column).any()]:
            raise DataError(f"the data have no numbers of {', '.join(lacking)}", REMEDY)

    def collate(self, rows: Numbers | NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(np.array(rows.values if isinstance(rows, Numbers) else rows))


class Regressor(Task):
    """A model that answers with numbers. Calling it gives them, (B, K) in fp32, in the units of the training data.

    The head learns standardised numbers: those of the training images have a mean of 0 and a standard deviation of 1.

    Args:
        backbone, preprocessing, provenance: as `Task` has them.
        classes: the names of the numbers.
        mean, std: of each number in the training images; by default 0 and 1.

    Raises:
        ConfigError: as `Task` has it; a mean that is not finite, a std that is no positive number, or another count of
            them than of numbers; a name in `RESERVED`.
    """

    name = "regression"
    reply = {"values": dict[str, float]}  # noqa: RUF012
    targets = NumberTargets()
    losses = ("mse", "smooth-l1")
    free_options = ("mean", "std")
    resize = "squash"  # shows all of a picture, whose numbers are not those of a part
    views = ("flip",)
    graph_outputs = ("values",)

    def __init__(
        self,
        backbone: Backbone,
        classes: Sequence[str],
        preprocessing: Preprocessing,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(backbone, classes, preprocessing, provenance=provenance)
        self.mean = (0.0,) * len(self.classes) if mean is None else tuple(mean)
        self.std = (1.0,) * len(self.classes) if std is None else tuple(std)
        is_scale = all(map(math.isfinite, self.mean)) and all(0 < each < math.inf for each in self.std)
        if not is_scale or not len(self.mean) == len(self.std) == len(self.classes):
            what = f"the {len(self.classes)} numbers have the mean {self.mean} and the std {self.std}"
            raise ConfigError(what, "give one of each for every number; a std is above 0")
        if taken := [name for name in self.classes if name in RESERVED]:
            raise ConfigError(f"a number is called {taken[0]!r}, as a column of every table", "rename the column")

    @classmethod
    def read_source(cls, train: Source) -> dict[str, Any]:
        """The names of the columns, and their mean and std. Raises `DataError` for a column that is constant."""
        assert isinstance(train.targets, Numbers), "the targets are checked"
        values = train.targets.values.astype(np.float64)
        mean, std = values.mean(0), values.std(0)
        for name, column in zip(train.classes, values.T):
            if (column == column[0]).all():
                what = f"{name} is {column[0]:g} for every training image"
                raise DataError(what, "leave this column out, or give images that differ in it")
        return {"classes": train.classes, "mean": mean.tolist(), "std": std.tolist()}

    def describe(self) -> dict[str, Any]:
        return {"mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def read_description(cls, description: Mapping[str, Any]) -> dict[str, Any]:
        return {name: tuple(map(float, description[name])) for name in ("mean", "std")}

    def forward(self, images: Tensor) -> Tensor:
        columns = zip(self.backbone(images).float().unbind(1), self.mean, self.std)
        return torch.stack([column * std + mean for column, mean, std in columns], 1)  # (B, K)

    def loss_options(self, loss: str | None, *, binarise: bool) -> dict[str, Any]:
        if loss is not None and loss not in LOSSES:
            raise ConfigError(f"unknown loss {loss!r} of the task {self.name}", nearest(loss, LOSSES))
        if binarise:
            raise ConfigError(f"binarise is set for the task {self.name}", "it belongs to the loss 'sigmoid'")
        return {"loss": loss or "mse"}

    def loss(self, outputs: Tensor, targets: Tensor, *, loss: str = "mse", **options: Any) -> Tensor:
        """Returns the mean over images and numbers, of standardised numbers: the mean squared error, or ``smooth-l1``, which is
        half of it up to one standard deviation and grows linearly from there (Girshick 2015, Fast R-CNN, equation 3).
        """
        return LOSSES[loss](self._divide(outputs), self._divide(targets))

    def metric(self, source: Source | None = None) -> NumberMetric:
        return NumberMetric(self.classes)

    def decode(self, outputs: Tensor, frames: Frames | None = None, *, top: int = 5) -> list[Values]:
        return [Values(dict(zip(self.classes, numbers))) for numbers in outputs.tolist()]

    def reply_arrays(self, outputs: Tensor, frames: Frames | None = None) -> dict[str, NDArray | list[str]]:
        return {"values": outputs.numpy()}

    def agreement(self, expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> float:
        """The share of images whose numbers all differ by at most a hundredth of their std."""
        return float(self._compare(expected, given).le(0.01).all(1).double().mean())

    def difference(self, expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> float:
        """The largest difference of a number, in its std."""
        return float(self._compare(expected, given).max())

    def _compare(self, expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> Tensor:
        return self._divide((expected["values"] - given["values"]).abs())

    def _divide(self, numbers: Tensor) -> Tensor:
        """Returns numbers (B, K) as multiples of their std. A tensor of these would be copied to a GPU in every step."""
        return torch.stack([column / std for column, std in zip(numbers.unbind(1), self.std)], 1)
