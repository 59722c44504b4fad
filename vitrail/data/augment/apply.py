"""Augmentation of whole batches on their device: tone tables and passes, one affine resampling, erasing.

The operations of each image are drawn first, with numpy only, as a function of (seed, epoch, sample, view), never of the batch.
Their order for each picture:

1. Operations before the first geometric operation are applied to the input, so that the fill colour of the geometric
   operation is not changed, and equalisation uses the histogram of the input.
2. Crop (arrays only; files are cropped by workers), shift, flip and all geometric operations are multiplied to one matrix and
   applied in one bilinear resampling. With at most two layers, on pictures of files, the result equals that of Pillow's
   sequential operations. With more layers, operations between two geometric operations are applied after both, and pixels
   that one operation moves out of the picture may be moved back by another.
3. Operations after the first geometric operation, or all if there is none, are applied to the resampled picture.
4. Erasing.

In 1 and 3, consecutive tone operations are merged into one table per channel. Mixing follows after normalisation (mixing.py).

Axes: B pictures, C channels, H and W of the input, h and w of the output; N layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.crops import TRIES, crop_boxes
from vitrail.data.augment.geometry import Numbers, box, flip, move_image, resample, scale_part, shift, visible
from vitrail.data.augment.operations import (
    CHUNK,
    GEOMETRY,
    HALF,
    IMAGE_OPERATIONS,
    LOOKING,
    PASSES,
    TABLES,
    cut_boxes,
    inside,
    look_up,
    make_tables,
    noise_boxes,
    put,
    split_rows,
)
from vitrail.data.augment.policy import Augment
from vitrail.data.rng import keys, normals, uniforms
from vitrail.data.to_device import to_device

JITTER = np.array(["brightness", "contrast", "colour", "hue"])
THREE = np.array(["grey", "solarise", "blur"])
NOTHING = ""


@dataclass(frozen=True)
class Layer:
    """One operation per image."""

    names: NDArray[np.str_]  # (B,), "" for none
    values: Numbers  # (B,) strengths, in the unit of the operation
    places: Numbers | None = None  # (B, 2) x and y in [0, 1), for operations at a position

    def only(self, chosen: NDArray[np.bool_]) -> Layer:
        """Returns the layer with no operation on images outside the mask ``chosen`` (B,)."""
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
    policy: Augment, ids: NDArray[np.int64], seed: int, size: tuple[int, int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64]]:
    """The images to erase (M,), their boxes (left, top, width, height) (M, 4), and the keys of the noise (M,).

    An image whose box never fits is not erased.
    """
    height, width = size
    draws = uniforms(seed, "erase", *ids.T, count=3 + 2 * TRIES)  # (B, 3 + 2 tries)
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
    return Layer(names, np.where(names == "blur", low + (high - low) * strength, HALF))


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
    layers = [Layer(names[kind], values[rows, kind]) for kind in order.argsort(axis=1).T]
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
    return [Layer(names, low + (high - low) * strength)]


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


LARGE = 2**14  # numbers of an image, from which on a CPU mirrors and scales faster image by image


def augment(
    images: Tensor, ids: NDArray[np.int64], policy: Augment, *, size: tuple[int, int], seed: int, cropped: bool
) -> tuple[Tensor, Numbers]:
    """Augments a batch by ``policy``. The result is a function of each picture, its ids and the seed, not of the batch.

    Args:
        images: (B, C, H, W), uint8, or floats in [0, 1]; not modified.
        ids: (B, 3) epoch, sample, view.
        size: (h, w).
        cropped: whether the pictures are already cropped to ``size``, so that only shifts are applied. Otherwise the crop is
            part of the resampling, and for downscaling the picture is first averaged over 2, 4, ... pixels, the power of two
            closest to the scale.

    Returns:
        (B, C, h, w) of the same type, and matrices (B, 3, 3) from (x, y, 1) of the output to the input pixel. Only tone
        operations round floats to 256 levels.
    """
    assert len(images) == len(ids), (len(images), len(ids))
    assert not cropped or tuple(images.shape[-2:]) == size, (images.shape, size)
    if cropped and policy.crop != "pad" and not policy.erase and not draw_layers(policy, np.zeros((0, 3), np.int64), 0):
        flips = draw_flips(policy, ids, seed)
        return _mirror(images, flips), flip(flips, size[1])
    made = images.new_empty(*images.shape[:2], *size)
    work = partial(_augment, policy=policy, seed=seed, cropped=cropped)
    threads = min(torch.get_num_threads(), len(images))
    if images.device.type != "cpu" or threads < 2 or images.numel() < CHUNK:
        return made, work(images, ids, made)
    # split between threads: with torch's own parallelism, all threads would synchronise at every operation, hundreds of times per
    # batch, which is ten times slower if data workers use the same cores
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            parts = images.tensor_split(threads), np.array_split(ids, threads), made.tensor_split(threads)
            return made, np.concatenate(list(pool.map(work, *parts)))
    finally:
        torch.set_num_threads(before)  # the setting applies to this thread and to threads that it starts later


def _mirror(images: Tensor, flips: NDArray[np.bool_]) -> Tensor:
    """Returns a copy in which the images of ``flips`` (B,) are mirrored, in as few passes over the memory as possible."""
    if _prefers_single_images(images):
        mirrored = [image.flip(-1) if flipped else image for image, flipped in zip(images.unbind(), flips.tolist())]
        return torch.stack(mirrored).contiguous()
    made = images.clone(memory_format=torch.contiguous_format)
    _flip(made, flips)
    return made


def _prefers_single_images(images: Tensor) -> bool:
    return images.device.type == "cpu" and images[0].numel() >= LARGE


def _flip(levels: Tensor, flips: NDArray[np.bool_]) -> None:
    """Mirrors the images of ``flips`` (B,) in place."""
    if (chosen := np.flatnonzero(flips)).size:
        for rows, chunk in split_rows(levels, to_device(chosen, levels.device)):
            put(levels, rows, chunk.flip(-1))


def _augment(
    images: Tensor, ids: NDArray[np.int64], made: Tensor, policy: Augment, seed: int, cropped: bool
) -> Numbers:
    """Writes the augmented images to ``made`` (B, C, h, w), and returns their matrices (B, 3, 3)."""
    size = (made.shape[-2], made.shape[-1])
    whole, in_place = images.dtype == torch.uint8, cropped or (policy.crop == "none" and images.shape == made.shape)
    early, late, moved = _split(draw_layers(policy, ids, seed), ids, size)
    levels = made if in_place else torch.empty_like(images, memory_format=torch.contiguous_format)
    if not whole:
        torch.mul(images, 255, out=levels)
    elif in_place or any((layer.names != NOTHING).any() for layer in early):
        levels.copy_(images)
    else:
        levels = images
    _apply_tones(levels, early, policy.fill)
    matrices = _resample(levels, ids, policy, made, seed, cropped, moved)
    _apply_tones(made, late, policy.fill)
    if policy.erase:
        chosen, boxes, states = draw_erasing(policy, ids, seed, size)
        if chosen.size and policy.erase_fill == "noise":
            noise_boxes(made, to_device(chosen, made.device), boxes, states)
        elif chosen.size:
            _fill(made, chosen, boxes, policy.fill)
    if not whole:
        made /= 255
    return matrices


def _split(
    layers: Sequence[Layer], ids: NDArray[np.int64], size: tuple[int, int]
) -> tuple[list[Layer], list[Layer], Numbers]:
    """Returns the operations before and after the resampling, and the product (B, 3, 3) of the geometric operations."""
    geometric = np.array([np.isin(layer.names, list(GEOMETRY)) for layer in layers]).reshape(-1, len(ids))  # (N, B)
    first = np.where(geometric.any(0), geometric.argmax(0), 0) if layers else np.zeros(len(ids))  # (B,)
    early = [layer.only((depth < first) & ~geometric[depth]) for depth, layer in enumerate(layers)]
    late = [layer.only((depth >= first) & ~geometric[depth]) for depth, layer in enumerate(layers)]
    moved = np.tile(np.eye(3), (len(ids), 1, 1))
    for layer in layers:
        for name, rows in _list_groups(layer):
            if name in GEOMETRY:
                moved[rows] = moved[rows] @ GEOMETRY[name](layer.values[rows], *size)
    return early, late, moved


def _list_groups(layer: Layer) -> list[tuple[str, NDArray[np.intp]]]:
    """Every operation of a layer and the rows to which it applies."""
    return [(name, np.flatnonzero(layer.names == name)) for name in sorted(set(layer.names.tolist()) - {NOTHING})]


def _resample(
    levels: Tensor,
    ids: NDArray[np.int64],
    policy: Augment,
    made: Tensor,
    seed: int,
    cropped: bool,
    moved: Numbers,
) -> Numbers:
    """Applies crop, shift, flip and the geometric operations ``moved``; one resampling of the rows that need one.

    ``made`` is ``levels``, or empty. Returns the product of the matrices (B, 3, 3).
    """
    (height, width), size = levels.shape[-2:], (made.shape[-2], made.shape[-1])
    window, boxes = np.tile(np.eye(3), (len(ids), 1, 1)), np.tile([0, 0, width, height], (len(ids), 1))
    if not cropped:
        boxes = crop_boxes(policy, seed, *ids.T, height=height, width=width, aspect=size[1] / size[0])
        window = box(boxes, *size)
    if policy.crop == "pad":
        window = window @ shift(draw_shifts(policy, ids, seed, size))
    flips = draw_flips(policy, ids, seed)
    matrices = window @ flip(flips, size[1]) @ moved

    turned = (moved != np.eye(3)).any((1, 2))
    plain = (window == np.eye(3)).all((1, 2)) & ~turned & (made is levels)
    _flip(made, plain & flips)

    corners = np.array([[0.0, size[1]], [0.0, size[0]], [1.0, 1.0]])  # x, y, 1 of the upper left and the lower right
    frames = (window @ corners)[:, :2].transpose(0, 2, 1).reshape(-1, 4)
    if policy.crop == "jitter":  # the box may be larger than the picture
        frames = np.clip(frames, 0, [width, height, width, height])
    halvings = np.rint(np.log2(np.abs(np.linalg.det(matrices))) / 2).clip(0).astype(int)
    border = policy.pad_mode if policy.crop == "pad" else "edge"
    scaled, shifted = np.zeros((2, len(ids)), bool)
    if border == "edge" and policy.crop != "jitter" and _prefers_single_images(levels):
        scaled = ~plain & ~turned & (halvings == 0) & (levels.dtype == torch.uint8)
        shifted = (
            ~plain
            & ~scaled
            & (np.abs(matrices[:, :2, :2]) == np.eye(2)).all((1, 2))
            & (window == np.eye(3)).all((1, 2))
        )
    for row in np.flatnonzero(scaled):
        part = scale_part(levels[row], boxes[row].tolist(), size)
        made[row] = part.flip(-1) if flips[row] else part
    for row in np.flatnonzero(shifted):
        made[row] = move_image(levels[row], matrices[row], policy.fill)
    rest = ~plain & ~scaled & ~shifted
    for times in np.unique(halvings[rest]):
        chosen = np.flatnonzero(rest & (halvings == times))
        known = {"matrices": torch.from_numpy(matrices[chosen])}
        if not cropped and border == "edge":
            known["within"] = torch.from_numpy(frames[chosen])
        if policy.crop == "jitter" or turned[chosen].any():
            known["seen"] = visible(matrices[chosen], frames[chosen], size)
        for rows, chunk, *where in split_rows(levels, to_device(chosen, levels.device), *known.values()):
            arguments = dict(zip(known, where))
            put(made, rows, resample(chunk, **arguments, size=size, fill=policy.fill, border=border, step=2**times))
    return matrices


def _apply_tones(levels: Tensor, layers: Sequence[Layer], fill: int) -> None:
    """Applies the tone operations of the layers, merged into tables, and their passes; modifies ``levels`` in place."""
    if not any((layer.names != NOTHING).any() for layer in layers):
        return
    identity = torch.arange(256, dtype=torch.uint8, device=levels.device)
    tables = identity.repeat(*levels.shape[:2], 1)  # (B, C, 256): the pending tables of the rows
    waiting = np.zeros(len(levels), dtype=bool)

    def settle(chosen: NDArray[np.bool_]) -> None:
        if (due := np.flatnonzero(chosen & waiting)).size:
            all_rows = to_device(due, levels.device)
            for rows, chunk, table in split_rows(levels, all_rows, tables[all_rows]):
                put(levels, rows, look_up(chunk, table))
            tables[all_rows] = identity
            waiting[due] = False

    for layer in layers:
        settle(~np.isin(layer.names, [NOTHING, *(TABLES.keys() - set(LOOKING))]))
        for name, chosen in _list_groups(layer):
            values = torch.from_numpy(layer.values[chosen].astype(np.float32))
            all_rows = to_device(chosen, levels.device)
            if name in TABLES:
                tables[all_rows] = make_tables(name, levels, all_rows, values).gather(-1, tables[all_rows].long())
            elif name in PASSES:
                for rows, chunk, value in split_rows(levels, all_rows, values):
                    put(levels, rows, PASSES[name](chunk, value))
            if layer.places is not None and name == "cutout":
                boxes = cut_boxes(layer.values[chosen], layer.places[chosen], *levels.shape[-2:])
                _fill(levels, chosen, boxes, fill)
            waiting[chosen] = name in TABLES
    settle(waiting.copy())


def _fill(levels: Tensor, chosen: NDArray[np.intp], boxes: NDArray[np.int64], fill: int) -> None:
    for rows, chunk, corners in split_rows(levels, to_device(chosen, levels.device), to_device(boxes, levels.device)):
        put(levels, rows, chunk.masked_fill(inside(corners, *levels.shape[-2:]), fill))
