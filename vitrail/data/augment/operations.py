"""The operations on images, each for a whole batch with one value per image, and each equal to Pillow's; and random erasing.

Three kinds: geometric operations are matrices (geometry.py); tone operations are tables of 256 levels per image and
channel, which compose exactly; the rest are passes over the pixels. Grey means ITU-R 601 luma for three channels, and the
mean of the channels for any other number.

Axes: B images, C channels, H, W; V = 256 levels; M erased images, P pixels in all their boxes. Images are uint8, or floats with
levels 0 to 255 (a table uses the nearest level). Values have Pillow's units: ImageEnhance's factor, ImageOps's bits or threshold,
degrees, a standard deviation in pixels; translations and cut-outs are relative to the side, hue shifts to the colour circle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitrail.data.augment.geometry import Numbers, affine, rotation, store_like
from vitrail.data.augment.policy import Augment
from vitrail.data.rng import FIRST, GOLDEN, SECOND
from vitrail.data.to_device import to_device

Strength = Callable[[Numbers, Numbers], Numbers]
LUMA = (0.299, 0.587, 0.114)
HALF = 128.0  # Pillow's threshold of solarise
CHUNK = 2**18  # numbers that a CPU processes at a time, so that they and the results fit in the cache of a core
# levels of a plane, from which on `bytes.translate` is faster than torch, which needs indices of eight bytes
LONG = 2**12


def _levels(like: Tensor) -> Tensor:
    return torch.arange(256, device=like.device)


def _as_table(levels: Tensor) -> Tensor:
    return levels.clamp(0, 255).to(torch.uint8)


def _brightness(_: Tensor, factor: Tensor) -> Tensor:
    return _as_table(factor[:, None, None] * _levels(factor))


def _contrast(middle: Tensor, factor: Tensor) -> Tensor:
    """Relative to the rounded mean grey of the image."""
    return _as_table(middle + factor[:, None, None] * (_levels(factor) - middle))


def _find_middle(images: Tensor) -> Tensor:
    """The rounded mean grey.  # -> (B, 1, 1)"""
    # 32 bits are enough for the sum of 8 million levels, and four times faster than 64
    of_rows = images.sum(-1, dtype=torch.int32 if images.dtype == torch.uint8 else None)  # (B, C, H)
    mean = of_rows.sum(-1)[..., None, None] / images[0, 0].numel()  # (B, C, 1, 1)
    return (_grey(mean) + 0.5).floor()[..., 0]


def _posterise(_: Tensor, bits: Tensor) -> Tensor:
    lost = (2 ** (8 - bits))[:, None, None]
    return _as_table(_levels(bits) // lost * lost)


def _solarise(_: Tensor, threshold: Tensor) -> Tensor:
    levels = _levels(threshold)
    return _as_table(torch.where(levels < threshold[:, None, None], levels, 255 - levels))


def _solarise_add(_: Tensor, addition: Tensor) -> Tensor:
    levels = _levels(addition)
    return _as_table(levels + (levels < 128) * addition[:, None, None])


def _invert(_: Tensor, values: Tensor) -> Tensor:
    return _as_table(255 - _levels(values)).expand(len(values), 1, 256)


def _auto_contrast(ends: Tensor, _: Tensor) -> Tensor:
    """Stretch every channel so that its darkest and lightest levels become 0 and 255."""
    low, high = ends.split(1, dim=-1)
    levels = _levels(ends)
    stretched = (levels - low) * 255 // (high - low).clamp(min=1)
    return _as_table(torch.where(high > low, stretched, levels))


def _find_ends(images: Tensor) -> Tensor:
    """The darkest and the lightest level of every channel.  # -> (B, C, 2)"""
    channels = images.flatten(2)
    return torch.stack([channels.amin(-1), channels.amax(-1)], -1).round().long()


def _equalise(counts: Tensor, _: Tensor) -> Tensor:
    """Equalise the histogram of every channel with the integer arithmetic of Pillow's ImageOps.equalize."""
    levels = _levels(counts)
    lightest = torch.where(counts > 0, levels, 0).amax(-1, keepdim=True)
    step = (counts.sum(-1, keepdim=True) - counts.gather(-1, lightest)) // 255
    below = counts.cumsum(-1) - counts
    return _as_table(torch.where(step > 0, (step // 2 + below) // step.clamp(min=1), levels))


def _count_levels(images: Tensor) -> Tensor:
    """The histogram of every channel.  # -> (B, C, V)"""
    index = index_levels(images)
    if images.device.type == "cpu":
        counts = torch.stack([plane.bincount(minlength=256) for plane in index.flatten(0, 1)])
        return counts.view(*images.shape[:2], 256)
    ones = torch.ones((), dtype=torch.int32, device=images.device)
    counts = torch.zeros(*images.shape[:2], 256, dtype=torch.int32, device=images.device)
    return counts.scatter_add_(-1, index, ones.expand(index.shape)).long()


def _grey(images: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, 1, H, W), floats."""
    if images.shape[1] != 3:
        return images.float().mean(1, keepdim=True)
    red, green, blue = images.float().split(1, dim=1)
    return (LUMA[0] * red).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def _to_grey(images: Tensor, _: Tensor) -> Tensor:
    return store_like(_grey(images), images).expand(images.shape)


def _colour(images: Tensor, factor: Tensor) -> Tensor:
    factor = to_device(factor, images.device)[:, None, None, None]
    made = images.to(torch.float32, copy=True)
    grey = _grey(made)
    return store_like(made.mul_(factor).add_(grey.mul_(1 - factor)), images)


def _hue(images: Tensor, turn: Tensor) -> Tensor:
    """Shift the hue of HSV by ``turn`` of the circle; value and saturation stay. Needs three channels, else a no-op."""
    if images.shape[1] != 3:
        return images.clone()
    red, green, blue = images.float().unbind(1)  # (B, H, W) each
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    # selection by weights of 0 and 1 is twice as fast on a CPU as `where`
    is_red, is_green = (value == red).float(), (value == green).float()
    hue = torch.lerp(red - green, blue - red, is_green).lerp_(green - blue, is_red).div_(chroma.clamp(min=1e-6))
    # in sixths of the circle: red is at 0, green at 2, blue at 4
    hue += is_green.mul_(-2).add_(4).mul_(is_red.neg_().add_(1)).add_(6 * to_device(turn, images.device)[:, None, None])
    made = torch.stack([hue + 5, hue + 3, hue + 1], 1)  # (B, 3, H, W): the phase of each channel
    made.sub_((made / 6).floor_(), alpha=6).sub_(2).abs_().neg_().add_(2).clamp_(0, 1).mul_(chroma[:, None])
    return store_like(made.neg_().add_(value[:, None]), images)


def _sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Extrapolate from Pillow's SMOOTH, a 3 x 3 mean with weight 5 in the middle; border pixels do not change."""
    # the sum of nine levels is exact in 16 bits
    wide = images.to(torch.int16) if images.dtype == torch.uint8 else images
    rows = wide[..., :-2, :] + wide[..., 1:-1, :] + wide[..., 2:, :]
    around = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    share = ((1 - to_device(factor, images.device)) / 13)[:, None, None, None]  # weight of each neighbour
    sharper = around.float().mul_(share).addcmul_(wide[..., 1:-1, 1:-1].float(), 1 - 9 * share)
    made = images.clone()
    made[..., 1:-1, 1:-1] = store_like(sharper, images)
    return made


def _blur(images: Tensor, deviation: Tensor) -> Tensor:
    """Pillow's Gaussian blur: three box blurs with the same variance, with fractional pixels at both ends."""
    variance = deviation.square() / 3
    whole = ((torch.sqrt(12 * variance + 1) - 1) / 2).floor()  # pixels on either side with full weight
    part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance) / (6 * (variance - (whole + 1) ** 2))
    reach = int(whole.max()) + 1
    distances = torch.arange(reach + 1)[:, None]
    weights = (whole + part + 1 - distances).clamp(0, 1) * torch.where(distances > 0, 2, 1)  # (reach + 1, B)
    shares = to_device((weights / weights.cumsum(0))[..., None, None, None], images.device)
    blurred = images.float()
    for _ in range(2):  # along the rows of the image (columns of its transpose), then along the columns
        blurred = blurred.mT.contiguous()
        side = blurred.shape[-2]
        wide = F.pad(blurred, (0, 0, reach, reach), mode="replicate")
        other, pair = torch.empty_like(wide), torch.empty_like(blurred)
        for _ in range(3):  # between two buffers, as to allocate and pad would take as long as to blur
            before, blurred = wide.narrow(-2, reach, side), other.narrow(-2, reach, side)
            for away in range(1, reach + 1):
                torch.lerp(wide.narrow(-2, reach - away, side), wide.narrow(-2, reach + away, side), 0.5, out=pair)
                torch.lerp(before, pair, shares[away], out=blurred)
                before = blurred
            if images.dtype == torch.uint8:  # Pillow rounds to 8 bits after each blur
                blurred.round_()
            other.narrow(-2, 0, reach).copy_(blurred[..., :1, :])
            other.narrow(-2, reach + side, reach).copy_(blurred[..., -1:, :])
            wide, other = other, wide
    return store_like(blurred, images)


def _enhance(m: Numbers, sign: Numbers) -> Numbers:
    return 0.1 + 1.8 * m


def _enhance_more(m: Numbers, sign: Numbers) -> Numbers:
    return np.maximum(0.1, 1 + 0.9 * m * sign)


class Operation(NamedTuple):
    """An operation on images: a matrix, a table or a pass, how RandAugment chooses its value, and the setting that draws it.

    Args:
        matrix: of a geometric operation, (values (B,), height, width) -> (B, 3, 3).
        table: of a tone operation, (what ``look`` returns, values (B,)) -> tables that broadcast to (B, C, V).
        look: images (B, C, H, W) -> what the table depends on besides the value (B, ...).
        run: of any other, (images (B, C, H, W), values (B,) on the CPU) -> (B, C, H, W) of the same kind.
        strength: (magnitude / 10, sign) -> value, by Cubuk et al. 2020; lengths relative to the side (224 pixels in their code).
        increasing: the same of timm's ``inc1``, where it differs.
        sometimes: the probability of the operation in a policy, of all views or of even and odd ones, and the range of its value.
    """

    matrix: Callable[[Numbers, int, int], Numbers] | None = None
    table: Callable[[Tensor, Tensor], Tensor] | None = None
    look: Callable[[Tensor], Tensor] | None = None
    run: Callable[[Tensor, Tensor], Tensor] | None = None
    strength: Strength | None = None
    increasing: Strength | None = None
    sometimes: Callable[[Augment], tuple[float | tuple[float, float], tuple[float, float]]] | None = None


# a new operation is a row here, and its name in `policy.OPERATIONS` or the setting that ``sometimes`` reads
IMAGE_OPERATIONS: dict[str, Operation] = {
    "rotate": Operation(matrix=rotation, strength=lambda m, sign: 30 * m * sign),
    "shear_x": Operation(matrix=lambda ratio, *_: affine(ratio), strength=lambda m, sign: 0.3 * m * sign),
    "shear_y": Operation(matrix=lambda ratio, *_: affine(0, ratio), strength=lambda m, sign: 0.3 * m * sign),
    "translate_x": Operation(
        matrix=lambda share, height, width: affine(right=share * width), strength=lambda m, sign: 0.45 * m * sign
    ),
    "translate_y": Operation(
        matrix=lambda share, height, width: affine(down=share * height), strength=lambda m, sign: 0.45 * m * sign
    ),
    "cutout": Operation(strength=lambda m, sign: 40 / 224 * m),
    "brightness": Operation(table=_brightness, strength=_enhance, increasing=_enhance_more),
    "contrast": Operation(table=_contrast, look=_find_middle, strength=_enhance, increasing=_enhance_more),
    "colour": Operation(run=_colour, strength=_enhance, increasing=_enhance_more),
    "sharpness": Operation(run=_sharpness, strength=_enhance, increasing=_enhance_more),
    "posterise": Operation(
        table=_posterise,
        strength=lambda m, sign: np.clip(np.floor(4 * m), 1, 8),
        increasing=lambda m, sign: np.clip(4 - np.floor(4 * m), 1, 8),
    ),
    "solarise_add": Operation(table=_solarise_add, strength=lambda m, sign: np.floor(110 * m)),
    "invert": Operation(table=_invert),
    "auto_contrast": Operation(table=_auto_contrast, look=_find_ends),
    "equalise": Operation(table=_equalise, look=_count_levels),
    "hue": Operation(run=_hue),
    # those that settings draw, in the order in which they are applied
    "grey": Operation(run=_to_grey, sometimes=lambda policy: (policy.grey, (0.0, 0.0))),
    "blur": Operation(run=_blur, sometimes=lambda policy: (policy.blur_views, policy.blur)),
    "solarise": Operation(
        table=_solarise,
        strength=lambda m, sign: np.floor(256 * m),
        increasing=lambda m, sign: 256 - np.minimum(256, np.floor(256 * m)),
        sometimes=lambda policy: (policy.solarise_views, (HALF, HALF)),
    ),
}
GEOMETRY = {name: each.matrix for name, each in IMAGE_OPERATIONS.items() if each.matrix}
TABLES = {name: each.table for name, each in IMAGE_OPERATIONS.items() if each.table}
PASSES = {name: each.run for name, each in IMAGE_OPERATIONS.items() if each.run}
LOOKING = {name: each.look for name, each in IMAGE_OPERATIONS.items() if each.look}


def make_tables(name: str, images: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    """The tables of a tone operation for ``images[rows]``.  # -> (M, C, V)"""
    values = to_device(values, images.device)
    look = LOOKING.get(name)
    seen = torch.cat([look(chunk) for _, chunk in split_rows(images, rows)]) if look else values
    return TABLES[name](seen, values).expand(-1, images.shape[1], -1)


def look_up(images: Tensor, tables: Tensor) -> Tensor:
    """Map every level through the table of its image and channel.  # (B, C, H, W), (B, C, V)"""
    if images.dtype == torch.uint8 and images.device.type == "cpu" and images[0, 0].numel() >= LONG:
        planes = zip(images.flatten(0, 1).numpy(), tables.flatten(0, 1).numpy())
        made = bytearray().join([plane.tobytes().translate(table.tobytes()) for plane, table in planes])
        return torch.frombuffer(made, dtype=torch.uint8).view(images.shape)
    return tables.gather(-1, index_levels(images)).view(images.shape).to(images.dtype)


def index_levels(images: Tensor) -> Tensor:
    """The nearest levels as indices.  # (B, C, H, W) -> (B, C, H W) int64"""
    return (images if images.dtype == torch.uint8 else images.round()).flatten(2).long()


def put(images: Tensor, rows: Tensor, new: Tensor) -> None:
    """``images[rows] = new``, eight bytes at a time if the size of an image allows it, which is several times faster."""
    if len(rows) == 1 and images.device.type == "cpu":  # several times faster again
        images.narrow(0, int(rows), 1).copy_(new)
        return
    kind = torch.int64 if new[0].numel() * new.element_size() % 8 == 0 else new.dtype
    flat, rest = images.view(len(images), -1), new.reshape(len(new), -1)
    flat.view(kind).index_copy_(0, rows, rest.view(kind))


def inside(boxes: Tensor, height: int, width: int) -> Tensor:
    """Which pixels are in the box (left, top, width, height) of each image.  # (B, 4) -> (B, 1, H, W) bool"""
    left, top, wide, tall = boxes[:, :, None, None].unbind(1)  # each (B, 1, 1)
    x, y = (torch.arange(side, device=boxes.device) for side in (width, height))
    across, down = (x >= left) & (x < left + wide), (y >= top) & (y < top + tall)  # (B, 1, W), (B, 1, H)
    return (down.mT & across)[:, None]


def cut_boxes(half: NDArray[np.float64], places: NDArray[np.float64], height: int, width: int) -> NDArray[np.int64]:
    """The boxes of cut-outs: half sides ``half`` (B,), centres ``places`` (B, 2); may exceed the image.  # -> (B, 4)"""
    reach = (half * min(height, width)).astype(np.int64)[:, None]
    corner = (places * [width, height]).astype(np.int64) - reach
    return np.concatenate([corner, 2 * reach, 2 * reach], -1)


def split_rows(images: Tensor, rows: Tensor, *arguments: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yields ``(rows, images[rows], *arguments)`` (M, ...) for all rows at once, or on a CPU in chunks."""
    count = max(CHUNK // max(images[0].numel(), 1), 1) if images.device.type == "cpu" else len(rows)
    for chunk, *rest in zip(*(tensor.split(count) for tensor in (rows, *arguments))):
        if len(chunk) == 1 and images.device.type == "cpu":  # a view, which saves a copy
            yield chunk, images.narrow(0, int(chunk), 1), *rest
        else:
            yield chunk, images.index_select(0, chunk), *rest


# becomes unit noise after the usual normalisation of photographs
NOISE_MEAN, NOISE_DEVIATION = 0.45 * 255, 0.225 * 255


def noise_boxes(images: Tensor, rows: Tensor, boxes: NDArray[np.int64], states: NDArray[np.uint64]) -> None:
    """Writes normal noise, independent for each pixel and channel, into the boxes (M, 4) of ``images[rows]``, in place.

    The noise of a box is made from the first words of its generator, whose state (M,) `rng.keys` gives.
    """
    areas = boxes[:, 2] * boxes[:, 3]
    total = int(areas.sum())
    table = np.column_stack([boxes[:, :3], np.cumsum(areas) - areas, states.view(np.int64)])
    owner = torch.repeat_interleave(to_device(areas, images.device), output_size=total)  # (P,)
    left, top, wide, before, state = to_device(table, images.device)[owner].unbind(1)  # each (P,)
    pixel = torch.arange(total, device=images.device) - before
    channels = torch.arange(images.shape[1], device=images.device)
    noise = normal(state[:, None], pixel[:, None] * len(channels) + channels)  # (P, C)
    values = store_like(NOISE_MEAN + NOISE_DEVIATION * noise, images)
    images[rows[owner], :, top + pixel // wide, left + pixel % wide] = values


def normal(states: Tensor, positions: Tensor) -> Tensor:
    """Standard normal numbers from the words of `rng.words`: the halves of a word are the two uniforms of Box and Muller.

    ``states`` and ``positions`` are int64 and broadcast; a state has the bits of the unsigned one.
    """
    word = _finalise(states + (positions + 1) * _signed(GOLDEN))
    high, low = (word >> 32) & 0xFFFFFFFF, word & 0xFFFFFFFF
    radius = torch.sqrt(-2 * torch.log((high.float() + 0.5) * 2.0**-32))
    return radius * torch.cos(low.float() * (2 * torch.pi * 2.0**-32))


def _finalise(word: Tensor) -> Tensor:
    """`rng._finalise` on signed words: overflow is the same, and only right shifts need the sign bits masked."""
    for shift, factor in ((30, FIRST), (27, SECOND), (31, 1)):
        word = (word ^ ((word >> shift) & (2 ** (64 - shift) - 1))) * _signed(factor)
    return word


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word
