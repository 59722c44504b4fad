"""Sampling of augmentations: layers of named operations with strengths for each image. Draws use numpy only.

Axes: B images. Everything is a function of (seed, epoch, sample, view), never of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vitrail.data.augment.geometry import Numbers
from vitrail.data.augment.operations import HALF, IMAGE_OPERATIONS
from vitrail.data.augment.policy import Augment
from vitrail.data.rng import keys, normals, uniforms

JITTER = np.array(["brightness", "contrast", "colour", "hue"])
THREE = np.array(["grey", "solarise", "blur"])
NOTHING = ""


@dataclass(frozen=True)
class Layer:
    """One operation per image.

    Attributes:
        names: (B,) names of operations; "" is none.
        values: (B,) strengths, in the unit of the operation.
        places: (B, 2) x and y in [0, 1), for operations at a position.
    """

    names: NDArray[np.str_]
    values: Numbers
    places: Numbers

    def only(self, chosen: NDArray[np.bool_]) -> Layer:
        """The layer on the ``chosen`` (B,) images, no operation on the others."""
        return replace(self, names=np.where(chosen, self.names, NOTHING))


def draw_layers(policy: Augment, ids: NDArray[np.int64], seed: int) -> list[Layer]:
    """The operations on images with these ids (B, 3), in order: three-augment, jitter, grey, blur, solarise, RandAugment."""
    layers: list[Layer] = []
    if policy.three_augment:
        layers.append(_draw_three_augment(policy, ids, seed))
    if any(policy.jitter) or policy.hue:
        layers += _draw_jitter(policy, ids, seed)
    for name, operation in IMAGE_OPERATIONS.items():
        if operation.sometimes:
            layers += _draw_sometimes(*operation.sometimes(policy), name, ids, seed)
    return layers + [_draw_randaugment(policy, ids, seed, depth) for depth in range(policy.layers)]


def draw_flips(policy: Augment, ids: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """Which images are flipped.  # -> (B,)"""
    return uniforms(seed, "flip", *ids.T, count=1)[:, 0] < policy.flip


def draw_shifts(policy: Augment, ids: NDArray[np.int64], seed: int, size: tuple[int, int]) -> NDArray[np.int64]:
    """The shifts of padded images of ``size``, in pixels right and down.  # -> (B, 2)"""
    widest = np.rint(policy.pad * np.array(size[::-1])).astype(np.int64)
    return (uniforms(seed, "pad", *ids.T, count=2) * (2 * widest + 1)).astype(np.int64) - widest


def draw_erasing(
    policy: Augment, ids: NDArray[np.int64], seed: int, size: tuple[int, int], tries: int = 10
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
    """The images to erase, their boxes, and the keys of the noise. An image whose box never fits is not erased.

    Returns:
        (M,) rows, (M, 4) boxes (left, top, width, height), (M,) keys.
    """
    height, width = size
    draws = uniforms(seed, "erase", *ids.T, count=3 + 2 * tries)  # (B, 3 + 2 tries)
    (small, large), (narrow, broad) = policy.erase_area, policy.erase_aspect
    area = height * width * (small + (large - small) * draws[:, 3::2])  # (B, tries)
    aspect = narrow * (broad / narrow) ** draws[:, 4::2]
    sides = np.rint(np.stack([np.sqrt(area / aspect), np.sqrt(area * aspect)], -1)).astype(np.int64)
    fits = np.asarray(np.all((sides > 0) & (sides < [width, height]), axis=-1))
    rows = np.flatnonzero((draws[:, 0] < policy.erase) & fits.any(-1))
    sides = sides[rows, fits[rows].argmax(-1)]  # (M, 2)
    corners = (draws[rows, 1:3] * (np.array([width, height]) - sides + 1)).astype(np.int64)
    return rows, np.concatenate([corners, sides], -1), keys(seed, "noise", *ids[rows].T)


def _draw_three_augment(policy: Augment, ids: NDArray[np.int64], seed: int) -> Layer:
    choice, strength = uniforms(seed, "three", *ids.T, count=2).T
    names = THREE[(3 * choice).astype(np.int64)]
    low, high = policy.blur
    # only blur has a random strength
    return Layer(names, np.where(names == "blur", low + (high - low) * strength, HALF), np.zeros((len(ids), 2)))


def _draw_jitter(policy: Augment, ids: NDArray[np.int64], seed: int) -> list[Layer]:
    draws = uniforms(seed, "jitter", *ids.T, count=6)
    order, even = draws[:, :3], 2 * draws[:, 3:] - 1  # (B, 3) each
    middle, reach = [1.0] * 3, list(policy.jitter)
    if policy.hue:  # a separate stream, so that the other three draws do not change
        place, turn = uniforms(seed, "hue", *ids.T, count=2)[..., None].transpose(1, 0, 2)  # (B, 1) each
        order, even = np.concatenate([order, place], 1), np.concatenate([even, 2 * turn - 1], 1)
        middle, reach = [*middle, 0.0], [*reach, policy.hue]
    values = np.array(middle) + np.array(reach) * even  # (B, 3 or 4)
    names = np.where(np.array(reach) > 0, JITTER[: len(reach)], NOTHING)
    rows = np.arange(len(ids))
    layers = [Layer(names[kind], values[rows, kind], np.zeros((len(ids), 2))) for kind in order.argsort(axis=1).T]
    if policy.jitter_probability == 1:
        return layers
    chosen = uniforms(seed, "whether jitter", *ids.T, count=1)[:, 0] < policy.jitter_probability
    return [layer.only(chosen) for layer in layers]


def _draw_sometimes(
    probability: float | tuple[float, float], values: tuple[float, float], name: str, ids: NDArray[np.int64], seed: int
) -> list[Layer]:
    """A layer of one operation with a ``probability`` for all views, or for even and odd ones; empty if it is 0."""
    of_views = np.broadcast_to(np.array(probability), 2)
    if not of_views.any():
        return []
    chance, strength = uniforms(seed, name, *ids.T, count=2).T
    names = np.where(chance < of_views[ids[:, 2] % 2], name, NOTHING)
    low, high = values
    return [Layer(names, low + (high - low) * strength, np.zeros((len(ids), 2)))]


def _draw_randaugment(policy: Augment, ids: NDArray[np.int64], seed: int, depth: int) -> Layer:
    choice, chance, sign, *places = uniforms(seed, f"randaugment {depth}", *ids.T, count=5).T
    magnitude = np.full(len(ids), policy.magnitude)
    if policy.magnitude_std:
        magnitude += policy.magnitude_std * normals(seed, f"magnitude {depth}", *ids.T, count=1)[:, 0]
        magnitude = magnitude.clip(0, max(10.0, policy.magnitude))
    names = np.array(policy.operations)[(choice * len(policy.operations)).astype(np.int64)]
    values, signs = np.zeros(len(ids)), np.where(sign < 0.5, -1.0, 1.0)
    for name in set(names.tolist()):
        operation = IMAGE_OPERATIONS[name]
        strength = (policy.increasing and operation.increasing) or operation.strength
        if strength:
            values = np.where(names == name, strength(magnitude / 10, signs), values)
    return Layer(np.where(chance < policy.probability, names, NOTHING), values, np.stack(places, -1))
