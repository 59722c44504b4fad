"""A value for every pixel of a picture: targets, and answers from maps at the size of the input.

B images, V windows of a picture, K maps or classes, h and w of the input, H and W of a picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.geometry import resample_maps
from vitrail.data.augment.placement import Frames, Placement
from vitrail.data.sources.annotations import PixelMaps
from vitrail.data.to_device import to_device
from vitrail.errors import DataError
from vitrail.images.pixel_format import PixelFormat
from vitrail.tasks.dense.task import DenseTask, PlacedTargets, check_placed
from vitrail.tasks.metric import as_array

CELLS = 16_000_000  # numbers of the maps of a picture in memory at a time
Pair = tuple[int, int]  # begin and end, or height and width
Box = NDArray[np.float64]  # (4,)
FindValues = Callable[[Tensor], Tensor]  # from maps (K, h, w) to the value of each pixel (h, w)


@dataclass(frozen=True)
class PixelTargets(PlacedTargets):
    """A value for every pixel, stored and resampled as the format of its annotations says."""

    annotations: type[PixelMaps]
    class_weights: tuple[float, ...] | None = None  # of a pixel of each class in the loss; None if all are equal

    @property
    def format(self) -> PixelFormat:
        return self.annotations.pixel_format

    def collate(self, rows: Sequence[NDArray[Any]]) -> Tensor:
        """Collates maps (H, W) to (B, H, W); smaller ones are filled on the right and at the bottom with what is ignored."""
        height, width = np.max([each.shape for each in rows], axis=0).tolist()
        made = np.full((len(rows), height, width), self.format.ignored, self.format.dtype)
        for filled, each in zip(made, rows):
            filled[: each.shape[0], : each.shape[1]] = each
        return torch.from_numpy(made)

    def move(self, targets: Tensor, placement: Placement) -> tuple[Tensor, ...]:
        """Returns maps (B, h, w) of the images, and the weight (B,) of each image: images per weight of all pixels of the batch.

        ``targets`` (B, H, W) were read with the same crops as the images. Pixels of which an image shows nothing are ignored.
        """
        check_placed(placement)
        maps = resample_maps(targets, placement.sampling, size=placement.size, pixel_format=self.format)
        return maps, (len(maps) / self._sum_weights(maps)).expand(len(maps))

    def _sum_weights(self, maps: Tensor) -> Tensor:
        """Returns the weight of all pixels that are not ignored, a scalar."""
        if self.class_weights is None:
            return self.format.is_known(maps).sum().float().clamp(min=1)
        # (256,), 0 for ignored pixels
        weights = F.pad(self.weights_on(maps.device), (0, 256 - len(self.class_weights)))
        classes = maps.flatten().long()
        # not `bincount`, for whose size the host waits for a GPU
        counts = torch.zeros_like(weights, dtype=torch.int64).scatter_add_(0, classes, torch.ones_like(classes))
        return (counts * weights).sum().clamp(min=min(weight for weight in self.class_weights if weight > 0))

    def weights_on(self, device: torch.device) -> Tensor:
        """Returns ``class_weights`` on a device, (K,) in fp32."""
        return to_device(torch.tensor(self.class_weights), device)


class PixelTask(DenseTask):
    """A task that answers with a value for every pixel. Calling it gives maps (B, K, h, w) at the size of the images."""

    targets: PixelTargets  # type: ignore[bad-override-mutable-attribute]

    @staticmethod
    def find_values(maps: Tensor) -> Tensor:
        """Returns the value of each pixel (h, w) from maps (K, h, w): by default the only one's."""
        return maps[0]

    def join_windows(self, outputs: Iterable[Tensor], views: Frames) -> Tensor:
        """Returns the value of every pixel of the picture, (1, H, W), from the mean of the maps of all inputs."""
        return join_pixels(outputs, views, self.find_values)[None]


def sample_pixels(outputs: Tensor, frames: Frames, find_values: FindValues) -> Iterator[Tensor]:
    """Yields the value of every pixel of every picture, (H, W) each, on the device of the maps.

    Maps are interpolated at the centres of the picture's pixels, bilinearly, as `torch.nn.functional.interpolate` does with
    ``align_corners=False``. Pixels that the input does not show get the values of the border.

    Args:
        outputs: (B, K, h, w) of any precision; or values that `join_pixels` gave, (1, H, W), which are returned as they are.
        frames: the regions of the pictures that the input shows, larger than the picture where it was padded.
    """
    if outputs.ndim == 3:
        yield from outputs
        return
    for maps, crop, size in zip(outputs, frames.crops, frames.pictures.astype(int).tolist()):
        yield _find_part([(maps, crop)], (0, size[0]), (0, size[1]), size, find_values)


def join_pixels(outputs: Iterable[Tensor], views: Frames, find_values: FindValues) -> Tensor:
    """Returns the value of every pixel of one picture, (H, W), from the mean of the maps of all inputs that show it.

    ``outputs`` are (b, K, h, w) of some of the V inputs after others, ``views`` what these show; the first one shows the whole.
    Maps are kept until those of the last input that shares pixels with them are there.
    """
    height, width = views.pictures[0].astype(int).tolist()
    left, top, right, bottom = views.crops.T
    rows, columns = find_pixels(top, bottom, height), find_pixels(left, right, width)
    # parts of the picture, and which inputs show each
    parts = [
        (row, column, np.flatnonzero(_cover(rows, row) & _cover(columns, column)).tolist())
        for row, column in product(pairwise(np.unique(rows)), pairwise(np.unique(columns)))
    ]
    last = {view: max((shown[-1] for *_, shown in parts if view in shown), default=-1) for view in range(len(views))}
    drawn, kept = torch.empty(0), dict[int, Tensor]()
    for view, maps in enumerate(chain.from_iterable(outputs)):
        kept[view] = maps.clone()  # without the rest of its batch
        for row, column, shown in parts:
            if shown[-1] == view:
                sampled = [(kept[each], views.crops[each]) for each in shown]
                part = _find_part(sampled, row, column, (height, width), find_values)
                drawn = drawn if len(drawn) else torch.empty(height, width, dtype=part.dtype)
                drawn[slice(*row), slice(*column)] = part
        kept = {each: maps for each, maps in kept.items() if last[each] > view}
    return drawn


def compare_pixels(
    answers: Iterable[Tensor], targets: Sequence[NDArray] | Tensor, keys: Sequence[str], pixel_format: PixelFormat
) -> Iterator[tuple[NDArray, NDArray]]:
    """Yields the values (H, W) of each picture that were answered, and the true ones, without what filled these up.

    Raises `DataError` for true values of another size than the picture.
    """
    for answer, target, key in zip(answers, targets, keys, strict=True):
        found, true = as_array(answer), as_array(target)
        height, width = found.shape
        is_known = pixel_format.is_known(true)
        if not is_known[height:].any() and not is_known[:, width:].any():
            true = true[:height, :width]
        if true.shape != found.shape:
            sizes = ("x".join(map(str, each.shape)) for each in (true, found))
            what = "the mask of {} has {} pixels, the picture {}".format(key, *sizes)
            raise DataError(what, "check the data: `vitrail data check DATA`")
        yield found, true


def find_pixels(begins: NDArray[np.float64], ends: NDArray[np.float64], size: int) -> NDArray[np.int64]:
    """Returns the first pixel along an axis whose centre lies in a region, and the one after its last: (V, 2).

    The outermost regions have all pixels up to the border of the picture.
    """
    begins = np.where(begins <= max(begins.min(), 0), 0, begins)
    ends = np.where(ends >= min(ends.max(), size), size, ends)
    return np.ceil(np.stack([begins, ends], 1) - 0.5).astype(np.int64)


def _cover(ranges: NDArray[np.int64], part: tuple[int, int]) -> NDArray[np.bool_]:
    return (ranges[:, 0] <= part[0]) & (part[1] <= ranges[:, 1])


def _find_part(shown: list[tuple[Tensor, Box]], row: Pair, column: Pair, size: Pair, find_values: FindValues) -> Tensor:
    """Returns the values of a part of a picture of ``size`` from all windows that show it, their maps and regions."""
    strip = max(CELLS // (len(shown[0][0]) * (column[1] - column[0])), 1)
    parts = []
    for top in range(*row, strip):
        bottom = min(top + strip, row[1])
        total = sample_maps(*shown[0], (top, bottom), column, size)
        for window in shown[1:]:
            total += sample_maps(*window, (top, bottom), column, size)
        parts.append(find_values(total))
    return torch.cat(parts)


def sample_maps(maps: Tensor, crop: Box, row: Pair, column: Pair, size: Pair) -> Tensor:
    """Samples maps (K, h, w) of the region ``crop`` at the centres of pixels: (K, rows, columns)."""
    (height, width), (left, top, right, bottom) = size, map(float, crop)
    x = place_centres(width, left, right, maps.device)[slice(*column)]
    y = place_centres(height, top, bottom, maps.device)[slice(*row)]
    grid = torch.stack(torch.broadcast_tensors(x, y[:, None]), -1)  # (rows, columns, 2)
    return F.grid_sample(maps[None].float(), grid[None], padding_mode="border", align_corners=False)[0]


def place_centres(pixels: int, begin: float, end: float, device: torch.device) -> Tensor:
    """Returns the centres of pixels along an axis, from -1 to 1 across the region from ``begin`` to ``end``: (pixels,)."""
    centres = torch.arange(pixels, dtype=torch.float64) + 0.5
    return (2 * (centres - begin) / (end - begin) - 1).float().to(device)


def find_shown(frames: Frames, size: tuple[int, int]) -> Tensor:
    """Returns which pixels of one input of ``size`` (h, w) show its picture, and not a border around it: bool (h, w)."""
    (left, top, right, bottom), (height, width) = frames.crops[0].tolist(), frames.pictures[0].tolist()
    y, x = (
        begin + (torch.arange(pixels) + 0.5) * ((end - begin) / pixels)
        for pixels, begin, end in zip(size, (top, left), (bottom, right))
    )
    return ((y > 0) & (y < height))[:, None] & ((x > 0) & (x < width))
