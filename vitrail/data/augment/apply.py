"""Augmentation of whole batches on their device: tables and passes, one affine resampling, erasing.

The composed order, for each picture:

1. What was drawn before its first geometric operation acts on the picture as it came, so that the grey which geometry
   uncovers stays grey, and an equalised picture was equalised before it turned.
2. Crop (arrays only; workers crop files), shift, flip, and all its geometric operations, are multiplied to one matrix and
   read in one bilinear resampling. So with two layers or fewer, on pictures of files, the result is that of Pillow's
   operations one after the other; with more, what stands between two geometric operations acts after both, and
   what one moves out of sight another may bring back.
3. What was drawn after its first geometric operation acts on the resampled picture; all of it where there is none.
4. Erasing.

In 1 and 3 neighbouring tone operations are one table per channel; a picture's histogram is taken from its pixels and sent
through the table so far. Mixing comes after normalisation (mixing.py).

Axes: B pictures, C channels, H and W as they come, h and w as the model takes them; N layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.augment.erasing import noise_boxes
from vitrail.data.augment.geometry import GEOMETRY, Numbers, box, flip, resample, shift, visible
from vitrail.data.augment.operations import LOOKING, PART, PASSES, TABLES, cut_boxes, inside, look_up, parts, put
from vitrail.data.augment.policy import Augment, crop_boxes
from vitrail.data.augment.sample import NOTHING, Layer, draw_erasing, draw_flips, draw_layers, draw_shifts


def augment(
    images: Tensor, ids: NDArray[np.int64], policy: Augment, *, size: tuple[int, int], seed: int, cropped: bool
) -> Tensor:
    """The batch as ``policy`` has it: a function of each picture, its ids and the seed, whatever else is in the batch.

    Args:
        images: (B, C, H, W), uint8, or floats in [0, 1]; left as they are.
        ids: (B, 3) epoch, sample, view.
        size: (h, w).
        cropped: the pictures are already cropped and of ``size``, so that no crop is made here (a shift is). Otherwise the
            crop is part of the resampling, and a picture that shrinks is first averaged over 2, 4, ... pixels, to the
            power of two next to its scale.

    Returns:
        (B, C, h, w) of the same kind. Tone operations round floats to 256 levels; nothing else does.
    """
    return augment_and_place(images, ids, policy, size=size, seed=seed, cropped=cropped)[0]


def augment_and_place(
    images: Tensor, ids: NDArray[np.int64], policy: Augment, *, size: tuple[int, int], seed: int, cropped: bool
) -> tuple[Tensor, Numbers]:
    """What `augment` gives, and matrices (B, 3, 3) that send (x, y, 1) of each image made to the pixel that was read there."""
    assert len(images) == len(ids), (len(images), len(ids))
    assert not cropped or tuple(images.shape[-2:]) == size, (images.shape, size)
    work = partial(_augment, policy=policy, size=size, seed=seed, cropped=cropped)
    threads = min(torch.get_num_threads(), len(images))
    if images.device.type != "cpu" or threads < 2 or images.numel() < PART:
        return work(images, ids)
    return _in_threads(work, images, ids, threads)


def _in_threads(
    work: Callable[[Tensor, NDArray[np.int64]], tuple[Tensor, Numbers]],
    images: Tensor,
    ids: NDArray[np.int64],
    threads: int,
) -> tuple[Tensor, Numbers]:
    """A share of the batch for each thread.

    Left to torch, all threads would share every operation and wait for one another some hundred times a batch, which
    beside data workers on the same cores takes ten times as long.
    """
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            parts = pool.map(work, images.tensor_split(threads), np.array_split(ids, threads))
            made, matrices = zip(*parts)
            return torch.cat(made), np.concatenate(matrices)
    finally:
        torch.set_num_threads(before)  # a thread sets its own number, and that of threads which start later


def _augment(
    images: Tensor, ids: NDArray[np.int64], policy: Augment, size: tuple[int, int], seed: int, cropped: bool
) -> tuple[Tensor, Numbers]:
    whole = images.dtype == torch.uint8
    levels = images.clone(memory_format=torch.contiguous_format) if whole else (images * 255).contiguous()
    early, late, moved = _split(draw_layers(policy, ids, seed), ids, size)
    levels = _apply_tones(levels, early, policy.fill)
    levels, matrices = _resample(levels, ids, policy, size, seed, cropped, moved)
    levels = _apply_tones(levels, late, policy.fill)
    if policy.erase:
        _erase(levels, ids, policy, seed)
    return levels if whole else levels / 255, matrices


def _split(
    layers: Sequence[Layer], ids: NDArray[np.int64], size: tuple[int, int]
) -> tuple[list[Layer], list[Layer], Numbers]:
    """What acts before and after the resampling, and the product (B, 3, 3) of the geometric operations in between."""
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
    """Every operation of a layer, and the rows that have it."""
    return [(name, np.flatnonzero(layer.names == name)) for name in sorted(set(layer.names.tolist()) - {NOTHING})]


def _resample(
    levels: Tensor,
    ids: NDArray[np.int64],
    policy: Augment,
    size: tuple[int, int],
    seed: int,
    cropped: bool,
    moved: Numbers,
) -> tuple[Tensor, Numbers]:
    """Crop, shift, flip and the geometric operations ``moved``, in one resampling of the rows that need one; and their product
    (B, 3, 3).
    """
    height, width = levels.shape[-2:]
    window = np.tile(np.eye(3), (len(ids), 1, 1))
    if not cropped:
        boxes = crop_boxes(policy, seed, *ids.T, height=height, width=width, aspect=size[1] / size[0])
        window = box(boxes, *size)
    if policy.crop == "pad":
        window = window @ shift(draw_shifts(policy, ids, seed, size))
    mirrored = flip(draw_flips(policy, ids, seed), size[1])

    same = (height, width) == size
    placed = levels if same else levels.new_empty(*levels.shape[:2], *size)
    turned = (moved != np.eye(3)).any((1, 2))
    plain = same & (window == np.eye(3)).all((1, 2)) & ~turned
    if (chosen := np.flatnonzero(plain & (mirrored[:, 0, 0] < 0))).size:
        rows = _to_device(chosen, levels)
        put(placed, rows, levels.index_select(0, rows).flip(-1))

    matrices = window @ mirrored @ moved
    corners = np.array([[0.0, size[1]], [0.0, size[0]], [1.0, 1.0]])  # x, y, 1 of the upper left and the lower right
    frames = (window @ corners)[:, :2].transpose(0, 2, 1).reshape(-1, 4)
    halvings = np.rint(np.log2(np.abs(np.linalg.det(matrices))) / 2).clip(0).astype(int)
    border = policy.pad_mode if policy.crop == "pad" else "edge"
    for times in np.unique(halvings[~plain]):
        chosen = np.flatnonzero(~plain & (halvings == times))
        matrix = matrices[chosen]
        regions = [visible(matrix, frames[chosen], size)] if turned[chosen].any() else []
        for rows, chunk, *where in parts(levels, _to_device(chosen, levels), torch.from_numpy(matrix), *regions):
            made = resample(chunk, *where, size=size, fill=policy.fill, border=border, step=2**times)
            put(placed, rows, made)
    return placed, matrices


def _apply_tones(levels: Tensor, layers: Sequence[Layer], fill: int) -> Tensor:
    """The layers' tone operations, gathered into tables, and their passes; changes ``levels`` in place."""
    if not any((layer.names != NOTHING).any() for layer in layers):
        return levels
    identity = torch.arange(256, dtype=torch.uint8, device=levels.device)
    tables = identity.repeat(*levels.shape[:2], 1)  # (B, C, 256): what the rows' pixels must still go through
    waiting = np.zeros(len(levels), dtype=bool)

    def settle(chosen: NDArray[np.bool_]) -> None:
        if (due := np.flatnonzero(chosen & waiting)).size:
            all_rows = _to_device(due, levels)
            for rows, chunk, table in parts(levels, all_rows, tables[all_rows]):
                put(levels, rows, look_up(chunk, table))
            tables[all_rows] = identity
            waiting[due] = False

    for layer in layers:
        settle(~np.isin(layer.names, [NOTHING, *(TABLES.keys() - LOOKING)]))
        for name, chosen in _list_groups(layer):
            values = _to_device(layer.values[chosen].astype(np.float32), levels)
            for rows, chunk, value in parts(levels, _to_device(chosen, levels), values):
                if name in TABLES:
                    table = TABLES[name](chunk, value).expand(len(rows), *tables.shape[1:])
                    tables[rows] = table.gather(-1, tables[rows].long())
                elif name in PASSES:
                    put(levels, rows, PASSES[name](chunk, value))
            if name == "cutout":
                boxes = cut_boxes(layer.values[chosen], layer.places[chosen], *levels.shape[-2:])
                _fill(levels, chosen, boxes, fill)
            waiting[chosen] = name in TABLES
    settle(waiting.copy())
    return levels


def _fill(levels: Tensor, chosen: NDArray[np.intp], boxes: NDArray[np.int64], fill: int) -> None:
    for rows, chunk, corners in parts(levels, _to_device(chosen, levels), _to_device(boxes, levels)):
        put(levels, rows, chunk.masked_fill_(inside(corners, *levels.shape[-2:]), fill))


def _erase(levels: Tensor, ids: NDArray[np.int64], policy: Augment, seed: int) -> None:
    chosen, boxes, states = draw_erasing(policy, ids, seed, (levels.shape[-2], levels.shape[-1]))
    if not chosen.size:
        return
    if policy.erase_fill == "noise":
        noise_boxes(levels, _to_device(chosen, levels), boxes, states)
    else:
        _fill(levels, chosen, boxes, policy.fill)


def _to_device(array: NDArray, like: Tensor) -> Tensor:
    return torch.from_numpy(array).to(like.device)
