"""Mixing the images of a batch, and their targets with them: mixup, CutMix, label smoothing.

An image's partner is the one before it in the batch. Both kinds are one formula: the partner has a share in each pixel,
a constant for mixup, 0 or 1 for CutMix, and the mean share in the target.

Axes: B images, K classes, C channels, H, W; M is 1 where the batch shares one draw, else B.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.operations import inside
from vitrail.data.augment.policy import Augment
from vitrail.data.rng import betas, uniforms


def smooth(targets: Tensor, amount: float) -> Tensor:
    """Label smoothing (Szegedy et al. 2016, section 7): ``amount`` of each target (B, K) is spread over all classes."""
    return targets * (1 - amount) + amount / targets.shape[1]


def mix(
    images: Tensor, targets: Tensor, ids: NDArray[np.int64], policy: Augment, *, seed: int
) -> tuple[Tensor, Tensor]:
    """Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019), as the policy draws them.

    Args:
        images: (B, C, H, W) floats, normalised or not.
        targets: (B, K), floats.
        ids: (B, 3) epoch, sample, view; where the batch shares one draw, the first image's decide.

    Returns:
        Images and targets of the same shapes; a batch that is not mixed comes back as it is.
    """
    boxes, weights, cut = draw_mixing(policy, ids, seed, (images.shape[-2], images.shape[-1]))
    if not weights.any():
        return images, targets
    weight = torch.from_numpy(weights).to(images.dtype).to(images.device)  # (M,)
    shares = torch.where(
        torch.from_numpy(cut).to(images.device)[:, None, None, None],
        inside(torch.from_numpy(boxes).to(images.device), *images.shape[-2:]).to(images.dtype),
        weight[:, None, None, None],
    )  # (M, 1, H, W)
    mixed = torch.lerp(images, images.roll(1, 0), shares)
    return mixed, torch.lerp(targets, targets.roll(1, 0), weight[:, None].to(targets.dtype))


def draw_mixing(
    policy: Augment, ids: NDArray[np.int64], seed: int, size: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
    """The box (M, 4) of the partner, its share in the target (M,), and whether it is a box (M,) or everywhere.

    A box has the drawn area until the picture's edge cuts it; the share is what is left of it.
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
