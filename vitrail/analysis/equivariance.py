"""What convolutions have and a ViT lacks, in numbers: translation equivariance, and neighbourhoods of two dimensions
(Dosovitskiy et al. 2021, section 3.1, "Inductive bias"). The third, locality, is in `locality`.

B images, C channels, H x W pixels, h x w cells of a feature map, D its channels, F width of what the head reads, N patches or
squares of pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import ConfigError, nearest
from vitrail.models import Backbone, Patches, Tokens
from vitrail.models.backbone import TAKE_SUBSETS, at_rest
from vitrail.models.config import grid_of, is_whole
from vitrail.tasks import Task

Model = Task | Backbone
Pair = tuple[int, int]  # (height, width) or (down, right)

DIRECTIONS: dict[str, Pair] = {"diagonal": (1, 1), "down": (1, 0), "right": (0, 1)}
AT_ONCE = 16  # images that the network is shown at one time


class Response(NamedTuple):
    """How much the output changes when the images change.

    Args:
        moved: 1 - cosine similarity of the pooled features before and after, the mean over images.
        apart: the same between two different images before the change, the mean over all pairs: what ``moved`` is large or
            small by. None for a single image.
        changed: share of the images whose best class is another one afterwards; None for a model without a head. A head of
            zeros, as a new model has it, always gives the same.
    """

    moved: float
    apart: float | None
    changed: float | None


class MapEquivariance(NamedTuple):
    """How well one feature map moves with its image.

    Args:
        stride: pixels, (height, width), from one cell to the next; the image was moved by as many.
        margin: cells that were left out along each border.
        concordance: 1 where the map of the moved image is the moved map, 0 where the two have nothing in common. None where
            that cannot be said: fewer than two cells are left, or each image has the same in all of them.
    """

    stride: Pair
    margin: int
    concordance: float | None


class PermutationResponse(NamedTuple):
    """How much the output changes when the parts of an image are permuted.

    Args:
        pixels: squares of the image were exchanged: it was cut up and put together again.
        unplaced: patches were exchanged after projection, and no positions were added, before or after. None for
            architectures whose `encode` needs the whole grid, and so knows the places whatever was added.
    """

    pixels: Response
    unplaced: Response | None


def measure_shift_response(
    model: Model, images: Tensor, shifts: Sequence[int] | None = None, *, along: str = "diagonal"
) -> dict[int, Response]:
    """How much the output changes when the crop of a larger image is shifted; no padding is involved.

    A ViT sees the same patches after a shift by whole patches, at other positions, except for those that enter and leave.

    Args:
        images: (B, C, H, W), normalised, larger than the model's ``image_size`` by the largest shift at least.
        shifts: in pixels; by default 1, 2, 4 ... and the least that is whole patches, of `patchify`. To compare two
            architectures, give the same to both.
        along: "diagonal" moves both ways, "down" and "right" one.

    Returns:
        The response to each shift.

    Raises:
        ConfigError: images that are too small; invalid shifts.
    """
    images, config, step = check_images(images), model.config, _find_direction(along)
    shifts = _choose_shifts(config.patch_size, step) if shifts is None else list(shifts)
    if not shifts or not all(is_whole(shift, 1) for shift in shifts):
        raise ConfigError(f"shifts is {shifts}", "shifts = whole numbers of pixels from 1, such as [1, 2, 4]")
    moves = {shift: (shift * step[0], shift * step[1]) for shift in shifts}
    _check_room(images, config.image_size, moves.values())
    with at_rest(model) as device:

        def answer_window(move: Pair) -> _Answers:
            return _compute_answers(
                model, _crop_window(images, config.image_size, move), device, model.forward_features
            )

        still = answer_window((0, 0))
        return {shift: _compare_answers(still, answer_window(move)) for shift, move in moves.items()}


def measure_map_equivariance(
    model: Model, images: Tensor, *, margin: int = 1, along: str = "diagonal"
) -> list[MapEquivariance]:
    """Whether feature maps move as the image does: each is compared with the map of a window moved by one of its cells.

    The measure is Lin's concordance (1989) of a = the moved map and b = the map of the moved window over the cells that both
    have: 1 - |a - b|^2 / (|a - mean a|^2 + |b - mean b|^2 + |mean a - mean b|^2), the means being those of a channel over
    the cells of an image, all sums over cells, channels and images. It is one minus a relative error, and takes off more than
    a cosine would: the cosine of two maps is near 1 as soon as some channels are large everywhere, as they are in a ViT, and
    a centred one forgives another scale.

    Convolutions alone reach 1; zeros around the image and group norm over the whole of it keep a ResNet from it. A ViT's
    positions do, and attention to patches that left the window.

    Args:
        images: (B, C, H, W), normalised, larger than the model's ``image_size`` by the largest stride at least.
        margin: cells to leave out along each border of either map; fewer where the map is too small for it.
        along: "diagonal" moves both ways, "down" and "right" one.

    Returns:
        One for each map of `feature_maps`.

    Raises:
        ConfigError: images that are too small; a margin below 0.
    """
    images, size, step = check_images(images), model.config.image_size, _find_direction(along)
    if not is_whole(margin, 0):
        raise ConfigError(f"margin is {margin!r}", "margin = a whole number of cells from 0")
    with at_rest(model) as device:
        _check_room(images, size, [])
        first = model.feature_maps(_crop_window(images[:1], size, (0, 0)).to(device))
        strides = find_strides(model.config, size, first)
        margins = [_find_margin(map_, step, margin) for map_ in first]
        measured = {stride for stride, cells in zip(strides, margins) if cells is not None}
        moves = {stride: (stride[0] * step[0], stride[1] * step[1]) for stride in measured}
        _check_room(images, size, moves.values())
        sums = torch.zeros(len(first), 3, dtype=torch.float64)
        for part in images.split(AT_ONCE):
            still = model.feature_maps(_crop_window(part, size, (0, 0)).to(device))
            for stride, move in moves.items():
                moved = model.feature_maps(_crop_window(part, size, move).to(device))
                for place, cells in enumerate(margins):
                    if strides[place] == stride and cells is not None:
                        sums[place] += _compare_maps(still[place], moved[place], step, cells)
    eps = torch.finfo(first[0].dtype).eps
    return [
        MapEquivariance(stride, cells or 0, _compute_concordance(*map_sums, eps=eps))
        for stride, cells, map_sums in zip(strides, margins, sums.tolist())
    ]


def measure_permutation_response(
    model: Model, images: Tensor, *, square: int | None = None, seed: int = 0
) -> PermutationResponse:
    """How much the output changes when the parts of every image are permuted, in the same way for all; none keeps its place.

    A ViT whose positions were left out cannot know: its answer stays the same up to rounding, and all that it knows of two
    dimensions is in the positions that `place` adds. Where positions are part of attention the answer moves all the same.

    Args:
        images: (B, C, H, W), normalised, of a size that the model takes.
        square: side in pixels of the squares that change places; by default a patch, of `patchify`. What does not fill a
            square at the bottom and on the right stays. To compare two architectures, give the same to both.
        seed: of the order.

    Raises:
        ConfigError: images with fewer than two squares, or of a shape that the model does not take.
    """
    images = check_images(images)
    if square is not None and not is_whole(square, 1):
        raise ConfigError(f"square is {square!r}", "square = a whole number of pixels from 1")
    cut = _permute_squares(images, model.config.patch_size if square is None else (square, square), seed)

    def encode_unplaced(images: Tensor) -> Tokens:
        return model.encode(model.patchify(images))

    def encode_permuted(images: Tensor) -> Tokens:
        x, grid, ids = model.patchify(images)
        return model.encode(Patches(x[:, _draw_order(x.shape[1], seed)], grid, ids))

    with at_rest(model) as device:
        whole = _compute_answers(model, images, device, model.forward_features)
        pixels = _compare_answers(whole, _compute_answers(model, cut, device, model.forward_features))
        if model.config.architecture not in TAKE_SUBSETS:
            return PermutationResponse(pixels, None)
        in_order = _compute_answers(model, images, device, encode_unplaced)
        return PermutationResponse(
            pixels, _compare_answers(in_order, _compute_answers(model, images, device, encode_permuted))
        )


def check_images(images: Tensor) -> Tensor:
    """The images. Raises `ConfigError` for what is no batch of them."""
    if images.ndim != 4 or not len(images):
        raise ConfigError(f"images of shape {tuple(images.shape)}", "give normalised images (B, C, H, W), one at least")
    return images


def find_strides(config: Any, size: Pair, maps: Sequence[Tensor]) -> list[Pair]:
    """Pixels, (height, width), from one cell to the next of each of the `feature_maps` of images of ``size``.

    A map has every f-th row of the one before, rounded up; of all f that could be, the least.
    """
    before, stride = grid_of(size, config.patch_size), config.patch_size
    strides = []
    for map_ in maps:
        grid = (map_.shape[2], map_.shape[3])
        factors = grid_of(before, grid)
        before, stride = grid, (stride[0] * factors[0], stride[1] * factors[1])
        strides.append(stride)
    return strides


class _Answers(NamedTuple):
    """``directions`` (B, F) of the pooled features, vectors of length 1 in fp64; ``best`` (B,), where there is a head."""

    directions: Tensor
    best: Tensor | None


def _compute_answers(
    model: Model, images: Tensor, device: torch.device, tokens_of: Callable[[Tensor], Tokens]
) -> _Answers:
    features = torch.cat([model.pool(tokens_of(part.to(device))) for part in images.split(AT_ONCE)])  # (B, F)
    best = model.head(features).argmax(1).cpu() if model.config.classes else None
    return _Answers(F.normalize(features.cpu().double(), dim=1), best)


def _compare_answers(before: _Answers, after: _Answers) -> Response:
    # half the squared distance of two unit vectors is one minus their cosine, without its rounding where they are close
    moved = (before.directions - after.directions).square().sum(1).mean().item() / 2
    # and its mean over all pairs of a sample is the variance
    apart = before.directions.var(0).sum().item() if len(before.directions) > 1 else None
    if before.best is None or after.best is None:
        return Response(moved, apart, None)
    return Response(moved, apart, (before.best != after.best).double().mean().item())


def _find_direction(along: str) -> Pair:
    if along not in DIRECTIONS:
        raise ConfigError(f"along is {along!r}", nearest(str(along), DIRECTIONS))
    return DIRECTIONS[along]


def _choose_shifts(patch_size: Pair, step: Pair) -> list[int]:
    """1, 2, 4 ... and whole patches both ways."""
    whole = math.lcm(*(side for side, goes in zip(patch_size, step) if goes))
    return [*(2**power for power in range((whole - 1).bit_length())), whole]


def _check_room(images: Tensor, size: Pair, moves: Iterable[Pair]) -> None:
    """Raises `ConfigError` where a window of ``size`` cannot move as far over the images."""
    furthest = map(max, zip((0, 0), *moves))
    needed = [length + further for length, further in zip(size, furthest)]
    if any(has < needs for has, needs in zip(images.shape[2:], needed)):
        has, window, needs = ("x".join(map(str, lengths)) for lengths in (images.shape[2:], size, needed))
        what = f"images of {has} pixels have no room to move a window of {window} in"
        raise ConfigError(what, f"give images of {needs} pixels at least, or move it less far")


def _crop_window(images: Tensor, size: Pair, move: Pair) -> Tensor:
    (height, width), (down, right) = size, move
    return images[:, :, down : down + height, right : right + width]


def _find_margin(map_: Tensor, step: Pair, most: int) -> int | None:
    """Cells, up to ``most``, that can be left out along each border so that two are still compared; None for no number."""
    for margin in range(most, -1, -1):
        height, width = (side - goes - 2 * margin for side, goes in zip(map_.shape[2:], step))
        if min(height, width) > 0 and height * width > 1:
            return margin
    return None


def _compare_maps(still: Tensor, moved: Tensor, step: Pair, margin: int) -> Tensor:
    """The three sums that `_compute_concordance` takes, (3,), over what two maps (B, D, h, w) have in common."""
    (down, right), (height, width) = step, still.shape[2:]
    rows, columns = slice(margin, height - down - margin), slice(margin, width - right - margin)
    a = still[:, :, down:, right:][:, :, rows, columns].flatten(2).cpu().double()  # (B, D, cells)
    b = moved[:, :, rows, columns].flatten(2).cpu().double()
    of_a, of_b = a.mean(2, keepdim=True), b.mean(2, keepdim=True)
    between = (of_a - of_b).square().sum() * a.shape[2]
    spread = (a - of_a).square().sum() + (b - of_b).square().sum() + between
    return torch.stack([(a - b).square().sum(), spread, a.square().sum() + b.square().sum()])


def _compute_concordance(error: float, spread: float, power: float, *, eps: float) -> float | None:
    """1 - error / spread; None where the spread is no more than the rounding of maps of this power."""
    return None if spread <= (8 * eps) ** 2 * power else 1 - error / spread


def _draw_order(count: int, seed: int) -> Tensor:
    """Another order of so many things in which none is where it was, (N,): one cycle through all, drawn evenly."""
    walk = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    order = torch.empty_like(walk)
    order[walk] = walk.roll(1)
    return order


def _permute_squares(images: Tensor, square: Pair, seed: int) -> Tensor:
    """The images with their squares of (height, width) pixels in another order, row-major as `patchify` counts."""
    (height, width), (rows, columns) = square, (side // pixels for side, pixels in zip(images.shape[2:], square))
    if rows * columns < 2:
        has, of = ("x".join(map(str, lengths)) for lengths in (images.shape[2:], square))
        raise ConfigError(f"images of {has} pixels have fewer than two squares of {of}", "give a smaller square")
    inside = (..., slice(rows * height), slice(columns * width))
    squares = images[inside].unflatten(3, (columns, width)).unflatten(2, (rows, height)).transpose(3, 4)
    squares = squares.flatten(2, 3)[:, :, _draw_order(rows * columns, seed)]  # (B, C, N, P, Q)
    cut = images.clone()
    cut[inside] = squares.unflatten(2, (rows, columns)).transpose(3, 4).flatten(4, 5).flatten(2, 3)
    return cut
