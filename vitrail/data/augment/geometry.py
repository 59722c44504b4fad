"""Geometric operations as matrices, so that any number of them needs one resampling.

Axes: B images, C channels, H and W of the input, h and w of the output. A matrix (3, 3) maps (x, y, 1) of the output to
the input; both are in pixels from the upper left corner, so the centre of a pixel is at one half. Applying A and then B
is the matrix A @ B.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.data.to_device import to_device
from vitrail.images.pixel_format import PixelFormat

Numbers = NDArray[np.float64]
Border = Literal["edge", "reflect", "zero"]


def _rows(*entries: ArrayLike) -> Numbers:
    """Matrices (B, 3, 3) from the six entries of their first two rows, each a number or of shape (B,)."""
    six = np.stack(np.broadcast_arrays(*entries), -1).astype(np.float64)  # (B, 6)
    return np.concatenate([six, np.broadcast_to([0.0, 0.0, 1.0], (*six.shape[:-1], 3))], -1).reshape(-1, 3, 3)


def rotation(degrees: Numbers, height: int, width: int) -> Numbers:
    """Counterclockwise about the centre.  # (B,) -> (B, 3, 3)"""
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    x, y = width / 2, height / 2
    return _rows(cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y)


def box(boxes: NDArray[np.int64], height: int, width: int) -> Numbers:
    """The part (left, top, width, height) of an image, scaled to (height, width).  # (B, 4) -> (B, 3, 3)"""
    left, top, wide, tall = boxes.T
    return _rows(wide / width, 0, left, 0, tall / height, top)


def flip(flipped: NDArray[np.bool_], width: int) -> Numbers:
    """Horizontal flip where ``flipped``.  # (B,) -> (B, 3, 3)"""
    return _rows(np.where(flipped, -1, 1), 0, np.where(flipped, width, 0), 0, 1, 0)


def shift(pixels: NDArray[np.int64]) -> Numbers:
    """Right and down, by ``pixels`` (B, 2).  # -> (B, 3, 3)"""
    return _rows(1, 0, -pixels[:, 0], 0, 1, -pixels[:, 1])


def affine(x_of_y: ArrayLike = 0, y_of_x: ArrayLike = 0, *, right: ArrayLike = 0, down: ArrayLike = 0) -> Numbers:
    """A shear and a shift in pixels, with the coefficients of Pillow's Image.transform.  # (B,) -> (B, 3, 3)"""
    return _rows(1, x_of_y, right, y_of_x, 1, down)


def resample(
    images: Tensor,
    matrices: Tensor,
    seen: Tensor | None = None,
    within: Tensor | None = None,
    *,
    size: tuple[int, int],
    fill: int = 128,
    border: Border = "edge",
    step: int = 1,
) -> Tensor:
    """Transforms every image by its matrix with bilinear interpolation, as Pillow does: (B, C, h, w) of the same type.

    Args:
        images: (B, C, H, W), uint8, or floats with levels 0 to 255.
        matrices: (B, 3, 3), on the CPU.
        seen: (B, 2, h) from `visible`; all other pixels become ``fill``.
        within: (B, 4) as left, top, right, bottom in input pixels, on the CPU: no pixel outside is read.
        size: (h, w).
        border: padding: the edge pixels, a reflection about them, or 0.
        step: the images are first averaged over ``step`` by ``step`` pixels.
    """
    source = images.float()
    if step > 1:
        source = F.avg_pool2d(source, step, ceil_mode=True)
    # -1 to 1 from the centre of the first pixel to that of the last: then grid_sample reflects as numpy pads
    scales = [2 / (step * max(side - 1, 1)) for side in source.shape[:-3:-1]]
    unit = torch.tensor(
        [[scales[0], 0, -1 - step / 2 * scales[0]], [0, scales[1], -1 - step / 2 * scales[1]]], dtype=torch.float64
    )
    places = _map_pixels(to_device((unit @ matrices).float(), images.device), size)
    if within is not None:
        centres = within.view(-1, 2, 2) + torch.tensor([[step / 2], [-step / 2]])  # (B, low or high, x or y)
        ends = to_device((centres * unit.diagonal() + unit[:, 2]).float(), images.device)
        places.clamp_(*ends[..., None, None].unbind(1))
    padding = "reflection" if border == "reflect" else "border"
    made = F.grid_sample(source, places.permute(0, 2, 3, 1), mode="bilinear", padding_mode=padding, align_corners=True)
    made = store_like(made, images)
    if border == "zero":
        edges = np.array([[0.0, 0.0, images.shape[-1], images.shape[-2]]])
        _cover(made, visible(matrices.numpy(), edges, size), 0)
    if seen is not None:
        _cover(made, seen, fill)
    return made


def scale_part(image: Tensor, part: Sequence[int], size: tuple[int, int]) -> Tensor:
    """Scales the part (left, top, width, height) of a uint8 image to ``size``, as `resample` does up to one level.

    A CPU does so twice as fast.  # (C, H, W) -> (C, h, w)
    """
    left, top, wide, tall = part
    return F.interpolate(image[None, :, top : top + tall, left : left + wide], size, mode="bilinear")[0]


def move_image(image: Tensor, matrix: Numbers, fill: int) -> Tensor:
    """`resample` of an image (C, H, W) by a shift, or a flip and a shift: by slices, in a third of the time on a CPU."""
    height, width = image.shape[-2:]
    flipped = matrix[0, 0] < 0
    right, down = matrix[0, 2] - width * flipped, matrix[1, 2]
    x, y = math.floor(right), math.floor(down)
    wide = F.pad(image.float()[None], (max(-x, 0), max(x + 1, 0), max(-y, 0), max(y + 1, 0)), mode="replicate")[0]
    wide = wide[:, max(y, 0) :, max(x, 0) :][:, : height + 1, : width + 1]
    wide = torch.lerp(wide[..., :-1], wide[..., 1:], right - x)
    made = store_like(torch.lerp(wide[:, :-1], wide[:, 1:], down - y), image)
    for start, side, lines in ((down, height, made.mT), (right, width, made)):
        first, end = (min(max(math.ceil(edge - start - 0.5), 0), side) for edge in (0, side))
        lines[..., :first] = fill
        lines[..., end:] = fill
    return made.flip(-1) if flipped else made


def resample_maps(maps: Tensor, matrices: Numbers, *, size: tuple[int, int], pixel_format: PixelFormat) -> Tensor:
    """Transforms every map (B, H, W) by its matrix (B, 3, 3): (B, h, w) of the same type.

    By the nearest pixel, a pixel of the output has the value of the input pixel in which its centre lies. Bilinearly, it has
    the mean of four, and is ignored where one of these is. What lies outside of the input is ignored.
    """
    # in double precision where there is one: a centre on the edge of a pixel must not depend on the rounding
    dtype = torch.float32 if maps.device.type == "mps" else torch.float64
    places = _map_pixels(to_device(torch.from_numpy(matrices[:, :2]).to(dtype), maps.device), size)
    column, row = places.floor().long().unbind(1)  # each (B, h, w)
    height, width = maps.shape[1:]
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    if pixel_format.interpolation == "nearest":
        nearest = (row * width + column).where(inside, 0)
        return maps.flatten(1).gather(1, nearest.flatten(1)).view_as(nearest).where(inside, pixel_format.ignored)
    known = torch.where(pixel_format.is_known(maps), maps.to(dtype), torch.nan).flatten(1)
    corner = (places - 0.5).floor()
    right, lower = (places - 0.5 - corner).unbind(1)  # the shares of the neighbours to the right and below
    total = torch.zeros_like(right)
    for step_x, step_y in product((0, 1), repeat=2):
        share = (right if step_x else 1 - right) * (lower if step_y else 1 - lower)
        x, y = (corner[:, 0] + step_x).clamp(0, width - 1), (corner[:, 1] + step_y).clamp(0, height - 1)
        values = known.gather(1, (y * width + x).long().flatten(1)).view_as(share)
        total += torch.where(share > 0, share * values, 0)
    return torch.where(inside & ~total.isnan(), total, pixel_format.ignored).to(maps.dtype)


def _map_pixels(terms: Tensor, size: tuple[int, int]) -> Tensor:
    """Where the centres of the output's pixels lie, by the first two rows of matrices.  # (B, 2, 3) -> (B, 2, h, w)"""
    x_factor, y_factor, offset = terms[..., None, None].unbind(2)  # each (B, 2, 1, 1)
    x, y = (torch.arange(side, device=terms.device, dtype=terms.dtype) + 0.5 for side in (size[1], size[0]))
    return x_factor * x + (y_factor * y[:, None] + offset)


def visible(matrices: Numbers, frames: Numbers, size: tuple[int, int]) -> Tensor:
    """For each output row the first column that maps into the frame, and the one after the last: (B, 2, h) int16, on the CPU.

    Computed in double precision: in single precision about one pixel in a million is on the wrong side.

    Args:
        matrices: (B, 3, 3).
        frames: (B, 4) as left, top, right, bottom in input pixels.
        size: (h, w).
    """
    y = np.arange(size[0]) + 0.5
    factor = matrices[:, :2, 0, None]  # (B, x or y, 1)
    start = matrices[:, :2, 1, None] * y + matrices[:, :2, 2, None] + factor / 2  # the first column's place, (B, 2, h)
    edges = frames.reshape(-1, 2, 2, 1).swapaxes(0, 1)  # (low or high, B, x or y, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        # a position that is constant along the row gives infinities, and 0 / 0 on an edge: the low edge is inside
        columns = np.nan_to_num((edges - start) / factor, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    ends = np.stack([columns.min(0).max(1), columns.max(0).min(1)], axis=1)  # (B, 2, h)
    return torch.from_numpy(np.ceil(ends).clip(0, size[1]).astype(np.int16))


def _cover(made: Tensor, seen: Tensor, level: int) -> None:
    first, last = to_device(seen, made.device)[:, :, None, :, None].unbind(1)  # each (B, 1, h, 1)
    column = torch.arange(made.shape[-1], dtype=torch.int16, device=made.device)
    # comparisons and a masked fill would each take longer than all of this
    inside = torch.minimum(column - first, last - 1 - column).clamp_(-1, 0).add_(1).to(made.dtype)  # (B, 1, h, w)
    made.mul_(inside).add_((1 - inside) * level)


def store_like(values: Tensor, like: Tensor) -> Tensor:
    """Convert floats to the type of ``like``, rounded for uint8, clamped to 0 ... 255. Modifies ``values`` in place."""
    if like.dtype != torch.uint8:
        return values.clamp_(0, 255)
    # via int16, because CPUs have vector instructions for that conversion
    return values.round_().clamp_(0, 255).to(torch.int16).to(torch.uint8)
