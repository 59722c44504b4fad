"""Measures two inductive biases of CNNs: translation equivariance and two-dimensional neighbourhood structure
(Dosovitskiy et al. 2021, section 3.1, "Inductive bias"). The third, locality, is in `locality`.

B images, C channels, H x W pixels, h x w cells of a feature map, D its channels, F width of the pooled features, N patches or
squares of pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.models import Backbone, Patches, Tokens
from vitrail.models.backbone import device_of, eval_mode, takes_subsets
from vitrail.models.config import changed
from vitrail.models.layers import cut_patches, join_patches
from vitrail.models.rope import is_rotary
from vitrail.models.vit import ROPE_FIELDS
from vitrail.tasks import Task

Model = Task | Backbone
Pair = tuple[int, int]  # (height, width) or (down, right)

AT_ONCE = 16  # images per forward pass
MARGIN = 1  # cells along the borders of maps that are not compared


class Response(NamedTuple):
    """How much the output changes when the images change."""

    moved: float  # 1 - cosine similarity of the pooled features before and after, mean over images
    apart: float | None  # the same between different images before the change, as a reference; None for a single image
    changed: float | None  # share of the images whose predicted class changes; None for a model without a head


class MapEquivariance(NamedTuple):
    """Translation equivariance of one feature map: 1 if the map of the shifted image equals the shifted map, 0 if the two are
    unrelated, None if it is undefined: fewer than two cells remain, or the map is constant in each image.
    """

    stride: Pair  # in pixels from one cell to the next, the distance by which the image was shifted
    margin: int  # cells excluded along each border
    concordance: float | None


class PermutationResponse(NamedTuple):
    """How much the output changes when the patches of an image are permuted, or patch embeddings without positions; None for
    models whose `encode` needs the whole grid and therefore depends on positions in any case.

    Of a model with rotary positions ``unplaced`` is without added positions only, ``unrotated`` without both.
    """

    pixels: Response
    unplaced: Response | None
    unrotated: Response | None = None


def measure_shift_response(model: Model, images: Tensor, shifts: Sequence[int] | None = None) -> dict[int, Response]:
    """Measures how much the output changes when the crop of a larger image is shifted diagonally, without padding.

    After a shift by whole patches, a ViT receives the same patches at other positions, except at the borders.

    Args:
        images: (B, C, H, W), larger than the model's ``image_size`` by at least the largest shift, or a `ConfigError` is raised.
        shifts: in pixels; by default 1, 2, 4 ... and the smallest shift by whole patches.
    """
    images, size = check_images(images), model.config.image_size
    if shifts is None:
        whole = math.lcm(*model.config.patch_size)
        shifts = [*(2**power for power in range((whole - 1).bit_length())), whole]
    _check_room(images, size, (max(shifts), max(shifts)))

    def answer_window(shift: int) -> _Answers:
        return _compute_answers(model, _crop_window(images, size, (shift, shift)), model.forward_features)

    with eval_mode(model):
        still = answer_window(0)
        return {shift: _compare_answers(still, answer_window(shift)) for shift in shifts}


def measure_map_equivariance(model: Model, images: Tensor) -> list[MapEquivariance]:
    """Measures the translation equivariance of all `feature_maps` under a diagonal shift of the image by one cell of each map.

    The measure is Lin's concordance (1989) of a = the shifted map and b = the map of the shifted window over their common
    cells: 1 - |a - b|^2 / (|a - mean a|^2 + |b - mean b|^2 + |mean a - mean b|^2). Means are taken per channel over the
    cells of an image, sums over cells, channels and images. It is one minus a relative error and stricter than a cosine: the
    cosine of two maps is near 1 if some channels are large everywhere, as in a ViT, and a centred cosine ignores scale.

    Pure convolutions reach 1. Zero padding and group normalisation over the whole image lower the value for a ResNet,
    position embeddings and attention to patches outside the window for a ViT. `MARGIN` cells along each border of both maps
    are excluded, fewer of small maps.

    Args:
        images: (B, C, H, W), larger than the model's ``image_size`` by at least the largest stride, or a `ConfigError` is raised.
    """
    images, size, strides = check_images(images), model.config.image_size, model.config.cells
    with eval_mode(model) as device:
        _check_room(images, size, (0, 0))
        first = model.feature_maps(_crop_window(images[:1], size, (0, 0)).to(device))
        margins = [_find_margin(map_) for map_ in first]
        moves = {stride for stride, margin in zip(strides, margins) if margin is not None}
        for move in moves:
            _check_room(images, size, move)
        sums = torch.zeros(len(first), 3, dtype=torch.float64)
        for part in images.split(AT_ONCE):
            still = model.feature_maps(_crop_window(part, size, (0, 0)).to(device))
            for move in moves:
                moved = model.feature_maps(_crop_window(part, size, move).to(device))
                for number, margin in enumerate(margins):
                    if strides[number] == move and margin is not None:
                        sums[number] += _compare_maps(still[number], moved[number], margin)
    eps = torch.finfo(first[0].dtype).eps
    found = []
    for stride, margin, (error, spread, power) in zip(strides, margins, sums.tolist()):
        # undefined if the spread does not exceed the rounding error
        concordance = None if spread <= (8 * eps) ** 2 * power else 1 - error / spread
        found.append(MapEquivariance(stride, margin or 0, concordance))
    return found


def measure_permutation_response(model: Model, images: Tensor) -> PermutationResponse:
    """Measures how much the output changes when the patches of each image are permuted, in the same order for all images.

    The order is random, without fixed points. Incomplete patches at the bottom and right edges are not moved.

    Without position embeddings, the output of a ViT is invariant up to rounding: all two-dimensional information is in the
    positions that `place` adds. If attention depends on positions, the output changes even without them.

    Raises `ConfigError` for images (B, C, H, W) with fewer than two patches.
    """
    images = check_images(images)
    cut = _permute_squares(images, model.config.patch_size)

    def encode_unplaced(images: Tensor) -> Tokens:
        return model.encode(model.patchify(images))

    def encode_permuted(images: Tensor) -> Tokens:
        x, grid, ids = model.patchify(images)
        return model.encode(Patches(x[:, _draw_order(x.shape[1])], grid, ids))

    with eval_mode(model):
        whole = _compute_answers(model, images, model.forward_features)
        pixels = _compare_answers(whole, _compute_answers(model, cut, model.forward_features))
        if not takes_subsets(model.config):
            return PermutationResponse(pixels, None)

        def compare() -> Response:
            in_order = _compute_answers(model, images, encode_unplaced)
            return _compare_answers(in_order, _compute_answers(model, images, encode_permuted))

        unplaced = compare()
        if not is_rotary(model.config):
            return PermutationResponse(pixels, unplaced)
        with _without_rotation(model.backbone if isinstance(model, Task) else model):
            return PermutationResponse(pixels, unplaced, compare())


@contextmanager
def _without_rotation(backbone: Backbone) -> Iterator[None]:
    """Within the block, q and k of a ViT are not rotated."""
    config = backbone.config
    backbone.config = changed(config, rope="none", **dict.fromkeys(ROPE_FIELDS[1:]))
    try:
        yield
    finally:
        backbone.config = config


def check_images(images: Tensor) -> Tensor:
    """Returns the images. Raises `ConfigError` unless they are a non-empty batch."""
    if images.ndim != 4 or not len(images):
        raise ConfigError(f"images of shape {tuple(images.shape)}", "give at least one normalised image, (B, C, H, W)")
    return images


class _Answers(NamedTuple):
    """Normalised pooled features ``directions`` (B, F) in fp64, and predicted classes ``best`` (B,), None without a head."""

    directions: Tensor
    best: Tensor | None


def _compute_answers(model: Model, images: Tensor, tokens_of: Callable[[Tensor], Tokens]) -> _Answers:
    device = device_of(model)
    features = torch.cat([model.pool(tokens_of(part.to(device))) for part in images.split(AT_ONCE)])  # (B, F)
    best = model.head(features).argmax(1).cpu() if model.config.classes else None
    return _Answers(F.normalize(features.cpu().double(), dim=1), best)


def _compare_answers(before: _Answers, after: _Answers) -> Response:
    # half the squared distance of unit vectors is one minus their cosine, with less rounding error for close vectors
    moved = (before.directions - after.directions).square().sum(1).mean().item() / 2
    # its mean over all pairs of a sample is the variance
    apart = before.directions.var(0).sum().item() if len(before.directions) > 1 else None
    if before.best is None or after.best is None:
        return Response(moved, apart, None)
    return Response(moved, apart, (before.best != after.best).double().mean().item())


def _check_room(images: Tensor, size: Pair, move: Pair) -> None:
    """Raises `ConfigError` if the images are too small to shift a window of ``size`` by ``move``."""
    needed = [length + further for length, further in zip(size, move)]
    if any(has < needs for has, needs in zip(images.shape[2:], needed)):
        has, window, needs = ("x".join(map(str, lengths)) for lengths in (images.shape[2:], size, needed))
        what = f"images of {has} pixels are too small for shifts of a window of {window}"
        raise ConfigError(what, f"give images of at least {needs} pixels")


def _crop_window(images: Tensor, size: Pair, move: Pair) -> Tensor:
    (height, width), (down, right) = size, move
    return images[:, :, down : down + height, right : right + width]


def _find_margin(map_: Tensor) -> int | None:
    """Returns the largest margin up to `MARGIN` that leaves at least two cells to compare, or None."""
    for margin in range(MARGIN, -1, -1):
        height, width = (side - 1 - 2 * margin for side in map_.shape[2:])
        if min(height, width) > 0 and height * width > 1:
            return margin
    return None


def _compare_maps(still: Tensor, moved: Tensor, margin: int) -> Tensor:
    """Returns the squared error, the spread and the power, (3,), of the common cells of two maps (B, D, h, w)."""
    height, width = still.shape[2:]
    rows, columns = slice(margin, height - 1 - margin), slice(margin, width - 1 - margin)
    a = still[:, :, 1:, 1:][:, :, rows, columns].flatten(2).cpu().double()  # (B, D, cells)
    b = moved[:, :, rows, columns].flatten(2).cpu().double()
    of_a, of_b = a.mean(2, keepdim=True), b.mean(2, keepdim=True)
    between = (of_a - of_b).square().sum() * a.shape[2]
    spread = (a - of_a).square().sum() + (b - of_b).square().sum() + between
    return torch.stack([(a - b).square().sum(), spread, a.square().sum() + b.square().sum()])


def _draw_order(count: int) -> Tensor:
    """Draws a uniformly random cyclic permutation, (N,), which has no fixed points."""
    walk = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    order = torch.empty_like(walk)
    order[walk] = walk.roll(1)
    return order


def _permute_squares(images: Tensor, square: Pair) -> Tensor:
    """Permutes squares of (height, width) pixels, numbered in row-major order as in `patchify`."""
    (height, width), (rows, columns) = square, (side // pixels for side, pixels in zip(images.shape[2:], square))
    if rows * columns < 2:
        has, of = ("x".join(map(str, lengths)) for lengths in (images.shape[2:], square))
        raise ConfigError(f"images of {has} pixels have fewer than two patches of {of}", "use larger images")
    inside = (..., slice(rows * height), slice(columns * width))
    squares = cut_patches(images[inside], square)[:, _draw_order(rows * columns)]  # (B, N, C, P, Q)
    cut = images.clone()
    cut[inside] = join_patches(squares, (rows * height, columns * width))
    return cut
