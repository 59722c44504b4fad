"""Test-time augmentation: the outputs for several views of each image, averaged. B images, C channels, H and W their size."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.tasks.task import Task, Views

CROP = 7 / 8  # of each side, as 224 of 256 pixels


def check_views(task: Task, views: Views | None) -> None:
    """Raises `ConfigError` for a task whose outputs for ``views`` are no answers for the picture, and one that tells which images
    are unlike those of its training, by a threshold for whole pictures.
    """
    if views is not None and task.false_alarms is not None:
        what = f"tta is {views}, and the model calls images unlike those of its training by the distance of one view"
        raise ConfigError(what, "leave tta out, or use the model as it was before --fit-unknown")
    if views is not None and views not in task.views:
        what = f"tta is {views}, and the task {task.name} takes {' or '.join(task.views) or 'one view of a picture'}"
        raise ConfigError(what, f"give {task.views[0]}" if task.views else "leave tta out")


def make_views(images: Tensor, views: Views) -> Iterator[Tensor]:
    """Yields views (B, C, H, W) of images (B, C, H, W): for ``flip`` the image and its mirror image, for ``5crop`` the four
    corners and the middle, `CROP` of each side, scaled to the size of the image.
    """
    if views == "flip":
        yield images
        yield images.flip(-1)
        return
    size = images.shape[-2:]
    height, width = (round(CROP * side) for side in size)
    down, across = size[0] - height, size[1] - width
    for top, left in ((0, 0), (0, across), (down, 0), (down, across), (down // 2, across // 2)):
        part = images[..., top : top + height, left : left + width]
        yield F.interpolate(part, size, mode="bilinear", align_corners=False)


def average_views(compute: Callable[[Tensor], Tensor], views: Views) -> Callable[[Tensor], Tensor]:
    """Returns a function from images to the mean of what ``compute`` gives for their views: of logits, or of numbers.

    One view of a batch is computed after the other.
    """

    def compute_mean(images: Tensor) -> Tensor:
        outputs = [compute(view) for view in make_views(images, views)]
        return sum(outputs[1:], outputs[0]) / len(outputs)

    return compute_mean
