"""The operations on pictures, each for a whole batch with one value per picture, and each alone equal to Pillow's.

Three kinds: geometric ones are matrices (geometry.py); tone operations are tables of 256 levels per picture and channel,
which compose exactly; the rest are passes over the pixels. Where an operation speaks of grey, that is ITU-R 601 luma for
three channels, and the mean of the channels for any other number.

Axes: B pictures, C channels, H, W; V = 256 levels. Pictures are uint8, or floats as levels 0 to 255 (a table then takes
the nearest level). A value's unit is Pillow's: ImageEnhance's factor, ImageOps's bits or threshold, degrees, a standard
deviation in pixels; translations and cut-outs are parts of the side.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.data.geometry import GEOMETRY, resample, stored

LUMA = (0.299, 0.587, 0.114)
SMOOTHED = 13  # the sum of Pillow's SMOOTH kernel: ones, and a 5 in the middle
PART = 2**18  # numbers that a processor takes at once: what a cache of a core holds, in doubles


def _levels(like: Tensor) -> Tensor:
    return torch.arange(256, device=like.device)


def _as_table(levels: Tensor) -> Tensor:
    return levels.clamp(0, 255).to(torch.uint8)


def _brightness(factor: Tensor, counts: Tensor) -> Tensor:
    return _as_table(factor[:, None, None] * _levels(factor))


def _contrast(factor: Tensor, counts: Tensor) -> Tensor:
    """About the picture's mean grey, rounded."""
    sums = (counts * _levels(counts)).sum(-1)  # (B, C)
    mean = (_grey((sums / counts.sum(-1))[..., None, None]) + 0.5).floor()[..., 0]  # (B, 1, 1)
    return _as_table(mean + factor[:, None, None] * (_levels(factor) - mean))


def _posterise(bits: Tensor, counts: Tensor) -> Tensor:
    lost = (2 ** (8 - bits))[:, None, None]
    return _as_table(_levels(bits) // lost * lost)


def _solarise(threshold: Tensor, counts: Tensor) -> Tensor:
    levels = _levels(threshold)
    return _as_table(torch.where(levels < threshold[:, None, None], levels, 255 - levels))


def _solarise_add(addition: Tensor, counts: Tensor) -> Tensor:
    levels = _levels(addition)
    return _as_table(levels + (levels < 128) * addition[:, None, None])


def _invert(_: Tensor, counts: Tensor) -> Tensor:
    return _as_table(255 - _levels(counts)).expand(counts.shape)


def _auto_contrast(_: Tensor, counts: Tensor) -> Tensor:
    """Stretches every channel from its darkest and lightest level to 0 and 255."""
    levels = _levels(counts)
    low = torch.where(counts > 0, levels, 255).amin(-1, keepdim=True)
    high = torch.where(counts > 0, levels, 0).amax(-1, keepdim=True)
    stretched = (levels - low) * 255 // (high - low).clamp(min=1)
    return _as_table(torch.where(high > low, stretched, levels))


def _equalise(_: Tensor, counts: Tensor) -> Tensor:
    """The cumulative histogram of every channel, in the whole numbers of Pillow's ImageOps.equalize."""
    levels = _levels(counts)
    lightest = torch.where(counts > 0, levels, 0).amax(-1, keepdim=True)
    step = (counts.sum(-1, keepdim=True) - counts.gather(-1, lightest)) // 255
    below = counts.cumsum(-1) - counts
    return _as_table(torch.where(step > 0, (step // 2 + below) // step.clamp(min=1), levels))


# (values (B,), counts of every level (B, C, V)) -> tables that broadcast to (B, C, V)
TABLES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": _brightness,
    "contrast": _contrast,
    "posterise": _posterise,
    "solarise": _solarise,
    "solarise_add": _solarise_add,
    "invert": _invert,
    "auto_contrast": _auto_contrast,
    "equalise": _equalise,
}
COUNTED = ("contrast", "auto_contrast", "equalise")  # those that need the picture's histogram


def _grey(images: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, 1, H, W), floats."""
    if images.shape[1] != 3:
        return images.float().mean(1, keepdim=True)
    red, green, blue = images.float().split(1, dim=1)
    return (LUMA[0] * red).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def _without_colour(images: Tensor, _: Tensor) -> Tensor:
    return stored(_grey(images), images).repeat(1, images.shape[1], 1, 1)


def _colour(images: Tensor, factor: Tensor) -> Tensor:
    return stored(torch.lerp(_grey(images), images.float(), factor[:, None, None, None]), images)


def _sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Away from Pillow's SMOOTH of the picture; like there, the outermost pixels stay."""
    # whole numbers are exact, and half as wide: 13 * 255 fits 16 bits
    wide = images.to(torch.int16) if images.dtype == torch.uint8 else images
    rows = wide[..., :-2, :] + wide[..., 1:-1, :] + wide[..., 2:, :]
    around = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    inside = wide[..., 1:-1, 1:-1]
    smooth = (around + 4 * inside).float() / SMOOTHED
    sharp = images.clone()
    sharp[..., 1:-1, 1:-1] = stored(torch.lerp(smooth, inside.float(), factor[:, None, None, None]), images)
    return sharp


def _blur(images: Tensor, deviation: Tensor) -> Tensor:
    """Gaussian blur as Pillow has it: three box blurs of the same variance, with a part of a pixel at both ends."""
    variance = deviation.square() / 3
    whole = ((torch.sqrt(12 * variance + 1) - 1) / 2).floor()  # pixels on both sides that count in full
    part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance) / (6 * (variance - (whole + 1) ** 2))
    reach = int(images.shape[-1] if not len(whole) else whole.max()) + 1
    distance = torch.arange(-reach, reach + 1, device=images.device).abs()
    weights = (whole[:, None] + part[:, None] + 1 - distance).clamp(0, 1) / (2 * (whole + part) + 1)[:, None]
    blurred = images.float().flatten(0, 1)[None]  # (1, B C, H, W): a picture's kernel is its own
    kernel = weights.repeat_interleave(images.shape[1], 0)[:, None, None]  # (B C, 1, 1, taps)
    for along, pad in ((kernel, (reach, reach, 0, 0)), (kernel.mT, (0, 0, reach, reach))):
        for _ in range(3):
            blurred = F.conv2d(F.pad(blurred, pad, mode="replicate"), along, groups=len(along))
            if images.dtype == torch.uint8:  # Pillow keeps 8 bits from one blur to the next
                blurred.round_()
    return stored(blurred.view(images.shape), images)


# (images (B, C, H, W), values (B,)) -> (B, C, H, W) of the same kind
PASSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "grey": _without_colour,
    "colour": _colour,
    "sharpness": _sharpness,
    "blur": _blur,
}


def counts_of(images: Tensor) -> Tensor:
    """How often every level occurs in each channel.  # (B, C, H, W) -> (B, C, V) int64"""
    index = as_index(images)
    counts = torch.zeros(*images.shape[:2], 256, dtype=torch.int32, device=images.device)
    return counts.scatter_add_(-1, index, counts.new_ones(()).expand(index.shape)).long()


def look_up(images: Tensor, tables: Tensor) -> Tensor:
    """Every pixel's level through the table of its picture and channel.  # (B, C, H, W), (B, C, V)"""
    return tables.gather(-1, as_index(images)).view(images.shape).to(images.dtype)


def as_index(images: Tensor) -> Tensor:
    """The nearest levels, as an index.  # (B, C, H, W) -> (B, C, H W) int64"""
    return (images if images.dtype == torch.uint8 else images.round()).flatten(2).long()


def put(images: Tensor, rows: Tensor, new: Tensor) -> None:
    """``images[rows] = new``, eight bytes at a time where a picture's size allows: several times faster than one by one."""
    kind = torch.int64 if new[0].numel() * new.element_size() % 8 == 0 else new.dtype
    flat, rest = images.view(len(images), -1), new.reshape(len(new), -1)
    flat.view(kind).index_copy_(0, rows, rest.view(kind))


def inside(boxes: Tensor, height: int, width: int) -> Tensor:
    """Which pixels lie in a box (left, top, width, height) of each picture.  # (B, 4) -> (B, 1, H, W) bool"""
    left, top, wide, tall = boxes[:, :, None, None].unbind(1)  # each (B, 1, 1)
    x, y = (torch.arange(side, device=boxes.device) for side in (width, height))
    across, down = (x >= left) & (x < left + wide), (y >= top) & (y < top + tall)  # (B, 1, W), (B, 1, H)
    return (down.mT & across)[:, None]


def cut_boxes(half: NDArray[np.float64], places: NDArray[np.float64], height: int, width: int) -> NDArray[np.int64]:
    """The box of each cut-out: ``half`` (B,) a side about ``places`` (B, 2), may leave the picture.  # -> (B, 4)"""
    reach = (half * min(height, width)).astype(np.int64)[:, None]
    corner = (places * [width, height]).astype(np.int64) - reach
    return np.concatenate([corner, 2 * reach, 2 * reach], -1)


def in_parts(operation: Callable[..., Tensor], images: Tensor, *arguments: Tensor) -> Tensor:
    """``operation(images, *arguments)``, on a processor a few pictures at a time."""
    count = len(images) if images.is_cuda else max(PART // max(images[0].numel(), 1), 1)
    if len(images) <= count:
        return operation(images, *arguments)
    return torch.cat([operation(*some) for some in zip(*(each.split(count) for each in (images, *arguments)))])


def operate(images: Tensor, name: str, values: NDArray[np.float64], *, fill: int = 128) -> Tensor:
    """One operation alone, on every picture.

    Args:
        images: (B, C, H, W), uint8, or floats as levels.
        name: of `GEOMETRY`, `TABLES` or `PASSES`.
        values: (B,).
        fill: the level of what a geometric operation uncovers.
    """
    height, width = images.shape[-2:]
    if name in GEOMETRY:
        frames = np.broadcast_to(np.array([0.0, 0.0, width, height]), (len(images), 4))
        return resample(images, GEOMETRY[name](values, height, width), (height, width), frames=frames, fill=fill)
    amounts = torch.from_numpy(values).to(images.device, torch.float32)
    if name in TABLES:
        counts = counts_of(images)
        return look_up(images, TABLES[name](amounts, counts).expand(counts.shape))
    return PASSES[name](images, amounts)
