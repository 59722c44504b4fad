"""The crop boxes of a policy: (left, top, width, height) in pixels. Uses numpy, not torch.

Axes: ``...`` is the shape of the ids, H and W the height and width of the image.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitrail.data.augment.policy import Augment
from vitrail.data.rng import uniforms

TRIES = 10  # draws of a crop before the largest part is used instead, as in torchvision


def crop_box(
    policy: Augment, seed: int, *where: int, aspect: float = 1.0, attempt: int = 0
) -> tuple[int, int, int, int]:
    """`crop_boxes` of one view of an image, as integers; worker processes call it before they decode."""
    left, top, wide, tall = crop_boxes(policy, seed, *where, aspect=aspect, attempt=attempt).tolist()
    return left, top, wide, tall


def crop_boxes(
    policy: Augment,
    seed: int,
    epoch: ArrayLike,
    sample: ArrayLike,
    view: ArrayLike,
    height: int,
    width: int,
    *,
    aspect: float = 1.0,
    attempt: int = 0,
) -> NDArray[np.int64]:
    """The crop boxes of views of images of one size: (left, top, width, height), whole pixels.  # -> (..., 4)

    They lie inside the image, but for ``crop="jitter"``, whose boxes are larger where the image is scaled down. They do not
    include the shift of ``crop="pad"``, which `augment` applies.

    Args:
        aspect: width / height of the size to which the crop is scaled.
        attempt: of ``crop="jitter"``, whose boxes are drawn again where a crop cannot be used.
    """
    if policy.crop == "jitter":
        draws = uniforms(seed, "crop", epoch, sample, view, count=3 * (attempt + 1))[..., -3:]  # (..., 3)
        return _jittered_boxes(policy, draws, height, width, aspect)
    draws = uniforms(seed, "crop", epoch, sample, view, count=2 + 2 * TRIES)  # (..., 2 + 2 tries)
    wide = min(width, round(height * aspect))
    tall = min(height, round(width / aspect))
    if policy.crop == "squash":
        small, large = policy.crop_area
        scale = np.sqrt(small + (large - small) * draws[..., 2])[..., None]
        sides = np.maximum(np.rint(scale * [width, height]), 1).astype(np.int64)
    elif policy.crop == "inception":
        sides = CROP_RULES[policy.crop_rule](policy, draws[..., 2:].reshape(*draws.shape[:-1], TRIES, 2), height, width)
    else:
        sides = np.broadcast_to(np.array([wide, tall]), (*draws.shape[:-1], 2))
    room = np.array([width, height]) - sides  # (..., 2)
    centred = policy.crop == "none"
    corner = room // 2 if centred else np.minimum((draws[..., :2] * (room + 1)).astype(np.int64), room)
    return np.concatenate([corner, sides], axis=-1)


def _jittered_boxes(
    policy: Augment, draws: NDArray[np.float64], height: int, width: int, aspect: float
) -> NDArray[np.int64]:
    """Boxes at a random place of the image, which is as large as the crop times a factor; it lies anywhere in a larger box.

    At a factor of 1 the box just contains the image (large-scale jitter: Ghiasi et al. 2021, section 3).  # -> (..., 4)
    """
    small, large = policy.crop_scale
    scale = small * (large / small) ** draws[..., :1]  # (..., 1)
    sides = np.maximum(np.rint(np.array([max(width, height * aspect), max(height, width / aspect)]) / scale), 1)
    room = np.array([width, height]) - sides  # (..., 2), negative where the box is larger
    corner = np.trunc(draws[..., 1:] * (room + np.where(room < 0, -1, 1)))
    corner = np.where(room < 0, np.maximum(corner, room), np.minimum(corner, room))
    return np.concatenate([corner, sides], axis=-1).astype(np.int64)


def _sides_by_area(policy: Augment, draws: NDArray[np.float64], height: int, width: int) -> NDArray[np.int64]:
    """(width, height) of the first draw that fits, as in torchvision's RandomResizedCrop.  # -> (..., 2)"""
    (small, large), (narrow, broad) = policy.crop_area, policy.crop_aspect
    area = height * width * (small + (large - small) * draws[..., 0])
    aspect = narrow * (broad / narrow) ** draws[..., 1]
    sides = np.rint(np.stack([np.sqrt(area * aspect), np.sqrt(area / aspect)], -1)).astype(np.int64)  # (..., tries, 2)
    fits = np.all((sides > 0) & (sides <= [width, height]), axis=-1)
    largest = min(width, round(height * broad)), min(height, round(width / narrow))
    return _take_first(sides, fits, np.array(largest))


def _sides_by_height(policy: Augment, draws: NDArray[np.float64], height: int, width: int) -> NDArray[np.int64]:
    """(width, height) of the first draw that fits, as in TensorFlow's sample_distorted_bounding_box.  # -> (..., 2)"""
    (small, large), (narrow, broad) = policy.crop_area, policy.crop_aspect
    aspect = narrow + (broad - narrow) * draws[..., 1]
    least = np.rint(np.sqrt(small * height * width / aspect))
    most = np.minimum(np.rint(np.sqrt(large * height * width / aspect)), np.minimum(height, (width + 0.5) // aspect))
    tall = np.floor(least + draws[..., 0] * np.maximum(most - least + 1, 0))
    sides = np.stack([np.rint(tall * aspect), tall], -1).astype(np.int64)  # (..., tries, 2)
    area = sides.prod(-1) / (height * width)
    fits = np.all((sides > 0) & (sides <= [width, height]), axis=-1) & (area <= large) & (area >= small)
    return _take_first(sides, fits, np.array([width, height]))


def _take_first(sides: NDArray[np.int64], fits: ArrayLike, otherwise: NDArray[np.int64]) -> NDArray[np.int64]:
    chosen = np.take_along_axis(sides, np.argmax(fits, axis=-1, keepdims=True)[..., None], -2)[..., 0, :]  # (..., 2)
    return np.where(np.any(fits, axis=-1, keepdims=True), chosen, otherwise)


CROP_RULES = {"area": _sides_by_area, "height": _sides_by_height}
