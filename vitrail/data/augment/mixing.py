"""Mixing the images of a batch and their targets: mixup, CutMix, label smoothing.

Each image is mixed with the previous image in the batch. The weight of the other image is constant for mixup, and 0 or 1 per
pixel for CutMix. The weight in the target is the mean over pixels.

Axes: B images, K classes, C channels, H, W; M is 1 if the batch shares one draw, otherwise B.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.operations import inside
from vitrail.data.augment.policy import Augment
from vitrail.data.rng import betas, uniforms
from vitrail.data.to_device import to_device


def smooth(targets: Tensor, amount: float) -> Tensor:
    """Label smoothing (Szegedy et al. 2016, section 7): distributes ``amount`` of each target (B, K) over all classes."""
    return targets * (1 - amount) + amount / targets.shape[1]


def mix(
    images: Tensor, targets: Tensor, ids: NDArray[np.int64], policy: Augment, *, seed: int
) -> tuple[Tensor, Tensor]:
    """Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019), drawn by the policy; unchanged if the batch is not mixed.

    Args:
        images: (B, C, H, W) floats, normalised or not.
        targets: (B, K), floats.
        ids: (B, 3) epoch, sample, view; if the batch shares one draw, those of the first image are used.
    """
    boxes, weights, cut = draw_mixing(policy, ids, seed, (images.shape[-2], images.shape[-1]))
    if not weights.any():
        return images, targets
    weight = to_device(torch.from_numpy(weights).to(images.dtype), images.device)  # (M,)
    shares = torch.where(
        to_device(cut, images.device)[:, None, None, None],
        inside(to_device(boxes, images.device), *images.shape[-2:]).to(images.dtype),
        weight[:, None, None, None],
    )  # (M, 1, H, W)
    mixed = torch.lerp(images, images.roll(1, 0), shares)
    return mixed, torch.lerp(targets, targets.roll(1, 0), weight[:, None].to(targets.dtype))


def draw_mixing(
    policy: Augment, ids: NDArray[np.int64], seed: int, size: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
    """Returns the box (M, 4) of the other image, its weight in the target (M,), and whether it is a box or everywhere (M,).

    A box is clipped to the image; the weight is the remaining area.
    """
    height, width = size
    keys = (ids[:1] if policy.mix_each == "batch" else ids).T
    whether, switch, x, y = uniforms(seed, "mix", *keys, count=4).T
    cut = (switch < policy.switch) if policy.mixup and policy.cutmix else np.full(len(switch), policy.cutmix > 0)
    shares = np.zeros(len(cut))
    for chosen, alpha in ((cut, policy.cutmix), (~cut, policy.mixup)):
        if alpha:
            drawn = betas(seed, "mix weight", *keys, count=1, alpha=alpha, beta=alpha)[:, 0]
            shares = np.where(chosen, np.minimum(drawn, 1 - drawn) if policy.mix_major else 1 - drawn, shares)
    shares = np.where(whether < policy.mix_probability, shares, 0.0)
    half = (np.sqrt(shares)[:, None] * [width, height]).astype(np.int64) // 2  # (M, 2)
    centre = (np.stack([x, y], -1) * [width, height]).astype(np.int64)
    low, high = (centre - half).clip(0), np.minimum(centre + half, [width, height])
    boxes = np.concatenate([low, high - low], -1)
    return boxes, np.where(cut, boxes[:, 2] * boxes[:, 3] / (height * width), shares), cut
