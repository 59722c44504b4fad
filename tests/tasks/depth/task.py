"""Monocular depth, a task that vitrail does not have: a distance for every pixel, in floats, NaN where it is not known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image
from torch import Tensor, nn

from vitrail.data.sources.annotations import PixelMaps
from vitrail.data.sources.contents import Contents
from vitrail.images.pixel_format import PixelFormat
from vitrail.models.dense import LinearHead, fit, to_strides, upsample
from vitrail.tasks import Metric
from vitrail.tasks.dense.answer import PlacedAnswer
from vitrail.tasks.dense.pixels import PixelTargets, PixelTask, compare_pixels, sample_pixels


@dataclass(frozen=True, eq=False)
class DepthMaps(PixelMaps):
    contents: Contents
    task = "depth"
    pixel_format = PixelFormat(np.float32, np.nan, "bilinear")


@dataclass(frozen=True, eq=False)
class Depth(PlacedAnswer):
    """The distance of every pixel of a picture, (H, W) float32."""

    map: np.ndarray

    def row(self):
        return {"nearest": float(self.map.min()), "farthest": float(self.map.max())}

    def draw_over(self, image):
        return Image.fromarray((255 * self.map / self.map.max()).astype(np.uint8)).resize(image.size).convert("RGB")


class DepthMetric(Metric):
    """RMSE over all pixels whose depth is known, and the mean of the relative errors."""

    higher_is_better = False

    def __init__(self, find_values):
        self.find_values, self.keys, self.sums = find_values, [], np.zeros(3)  # squares, relative errors, pixels

    def update(self, outputs, targets, keys, frames=None):
        answers = sample_pixels(outputs, frames, self.find_values)
        for found, true in compare_pixels(answers, targets, keys, DepthMaps.pixel_format):
            error = found - true
            self.sums += [np.nansum(error**2), np.nansum(np.abs(error) / true), (~np.isnan(true)).sum()]
        self.keys += keys

    def merge(self, other):
        self.sums += other.sums
        self.keys += other.keys

    def compute(self):
        return {"rmse": float(np.sqrt(self.sums[0] / self.sums[2])), "abs_rel": float(self.sums[1] / self.sums[2])}


class DepthEstimator(PixelTask):
    name = "depth"
    targets = PixelTargets(DepthMaps, "a depth for every pixel")

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        (self.stride,) = to_strides([self.config.cells[-1]])
        self.own["head"] = nn.Sequential(LinearHead(self.width, 1), nn.Softplus())

    def answer_maps(self, maps: list[Tensor], images: Tensor) -> Tensor:
        return fit(upsample(self.own["head"](maps[-1:]).float(), *self.stride), images)  # (B, 1, h, w)

    def loss(self, outputs, targets, **options):
        maps, weight = targets
        errors = (outputs[:, 0].float() - maps).abs().nan_to_num()  # (B, h, w)
        return (weight * errors.flatten(1).sum(1)).mean()

    def metric(self, source=None):
        return DepthMetric(self.find_values)

    def decode(self, outputs, frames=None, *, top=5):
        return [Depth(map.cpu().numpy()) for map in sample_pixels(outputs, frames, self.find_values)]
