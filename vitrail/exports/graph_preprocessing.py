"""Preprocessing as part of a graph: resizes and crops pictures of any size exactly as Pillow does, and normalises them.

Pillow resamples one axis, rounds to 8 bits, then resamples the other axis, with fixed-point weights. Here each axis is a
product with a matrix that is computed in the graph from the input size and is no larger than the crop. All computations are
in float64 and in the order of Pillow 13. Sums of products of 8-bit and 22-bit integers are exact in float64, so the pixels are
identical to those of Pillow.

B pictures, C channels, H x W pixels of a picture, h x w pixels of the model's input.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from vitrail.data.preprocessing import WHOLE_PIXELS, Preprocessing
from vitrail.errors import ConfigError
from vitrail.torch_private import check

HALF_WIDTHS = {"box": 0.5, "bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}  # radius of the kernels without downscaling
SHARPNESS = -0.5  # of the cubic kernel
UNIT = 2**22  # weights are multiples of 1 / UNIT
REMEDY = "export without pictures, and prepare images as config.json says"


class Preparation(nn.Module):
    """`Preprocessing` as a module: upright uint8 pictures (B, C, H, W) to normalised fp32 images (B, C, h, w).

    Lengths that depend on H and W are float64 scalars, the precision of Python.
    """

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        if preprocessing.resize == "fit":
            what = "a graph cannot contain the preprocessing 'fit', whose border depends on the shape of the picture"
            raise ConfigError(what, REMEDY)
        if preprocessing.pixel_range is not None:
            what = "the model takes images of more than 8 bits ({:g} to {:g}), and such a graph takes uint8"
            raise ConfigError(what.format(*preprocessing.pixel_range), REMEDY)
        self.preprocessing = preprocessing

    def forward(self, pictures: Tensor) -> Tensor:
        return self.preprocessing.normalise(self.frame(pictures))

    def frame(self, pictures: Tensor) -> Tensor:
        """Returns the results of `Preprocessing.picture`: uint8 (B, C, h, w)."""
        lines = [torch.arange(length, device=pictures.device) for length in pictures.shape[2:]]  # (H,), (W,)
        lengths, crop = [_length(line) for line in lines], self.preprocessing.size
        scaled = self._scale(*lengths)
        is_cut = (scaled[0] * scaled[1] > WHOLE_PIXELS) & (self.preprocessing.resize != "none")
        rows, columns = (self._make_matrix(*axis, is_cut) for axis in zip(lines, scaled, crop))  # (h, H), (w, W)
        cropped = [torch.where(is_cut, *pair) for pair in zip(crop, scaled)]
        fewer_rows, fewer_columns = (old - new for old, new in zip(lengths, cropped))
        # rows first if most of them are dropped, as in Pillow 13 and newer
        rows_first = (fewer_rows > 0) & (fewer_rows > 2 * fewer_columns)
        return _multiply(pictures, rows, columns, rows_first)

    def _scale(self, height: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
        """`Preprocessing.resized`."""
        if self.preprocessing.resize == "none":
            return height, width
        # `squash` scales to the size that `short` covers
        down, across = replace(self.preprocessing, resize="squash").resized(1, 1)
        if self.preprocessing.resize == "squash":
            return torch.full_like(height, down), torch.full_like(width, across)
        rounded = torch.floor if self.preprocessing.rounding == "floor" else torch.round
        return rounded(across * height / width).clamp(min=down), rounded(down * width / height).clamp(min=across)

    def _make_matrix(self, line: Tensor, scaled: Tensor, new: int, is_cut: Tensor) -> Tensor:
        """Returns the resampling matrix of one axis, (new, old).

        Args:
            line: pixel indices 0, 1, ..., (old,).
            scaled: length after scaling, before the crop.
            new: length of the crop.
            is_cut: whether only the crop is scaled, from a box around it.
        """
        corner = torch.round if self.preprocessing.crop_rounding == "even" else torch.floor
        offset = corner((scaled - new) / 2)
        positions = torch.arange(new, dtype=torch.float64, device=line.device)
        if self.preprocessing.resize == "none":
            return _ones_at(positions + offset, line)
        old = _length(line)
        step = old / scaled
        # Pillow's boxes are fp32
        low, high = (offset * step).float(), torch.minimum((offset + new) * step, old).float()
        step = torch.where(is_cut, (high - low).double() / new, step)
        start, offset = torch.where(is_cut, low.double(), 0.0), torch.where(is_cut, 0.0, offset)
        if self.preprocessing.interpolation == "nearest":
            return _ones_at(_nearest(start, step, offset, positions), line)
        centres = start + (positions + offset + 0.5) * step  # (new,)
        return _weights(centres[:, None], step.clamp(min=1), line, self.preprocessing.interpolation)


def _multiply(pictures: Tensor, rows: Tensor, columns: Tensor, rows_first: Tensor) -> Tensor:
    """Multiplies pictures (B, C, H, W) by the matrices (h, H) and (w, W). Returns uint8 (B, C, h, w)."""
    factors = pictures.double(), rows, columns.mT
    if torch.compiler.is_exporting():
        return torch.cond(rows_first, _by_rows_first, _by_columns_first, factors).to(torch.uint8)
    return (_by_rows_first if rows_first else _by_columns_first)(*factors).to(torch.uint8)


def _by_rows_first(pictures: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return _in_8_bits(_in_8_bits(rows @ pictures) @ columns)


def _by_columns_first(pictures: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return _in_8_bits(rows @ _in_8_bits(pictures @ columns))


def _length(line: Tensor) -> Tensor:
    return torch.scalar_tensor(line.shape[0], dtype=torch.float64, device=line.device)


def _ones_at(positions: Tensor, line: Tensor) -> Tensor:
    """Returns a selection matrix (new, old). Positions outside of the line have a zero row, which gives black."""
    return (positions[:, None] == line).double()


def _nearest(start: Tensor, step: Tensor, offset: Tensor, positions: Tensor) -> Tensor:
    """Returns the nearest pixel of each pixel of the crop, (new,). Steps are summed as in Pillow, for equal rounding errors."""
    count = torch.sym_int((offset + len(positions)).long().item())
    check(count >= len(positions))
    steps = step.expand(count).clone()
    steps[0] = start + step / 2
    return steps.cumsum(0)[count - len(positions) :].floor()


def _weights(centres: Tensor, stretch: Tensor, line: Tensor, interpolation: str) -> Tensor:
    """Returns the matrix (new, old) of a kernel that is scaled by ``stretch`` and centred at ``centres`` (new, 1)."""
    reach = HALF_WIDTHS[interpolation] * stretch
    is_near = (line >= (centres - reach + 0.5).floor()) & (line < (centres + reach + 0.5).floor())
    distances = (line - centres + 0.5) * (1 / stretch)
    weights = torch.where(is_near, _kernel(distances, interpolation), 0.0)
    weights = weights / weights.sum(1, keepdim=True)
    return (weights * UNIT + 0.5).floor() / UNIT


def _kernel(distances: Tensor, interpolation: str) -> Tensor:
    """Returns the box, triangle, cubic (Keys 1981) or Lanczos kernel (a sinc windowed by a sinc three times as wide)."""
    if interpolation == "box":
        return ((distances > -0.5) & (distances <= 0.5)).double()
    far = distances.abs()
    if interpolation == "bilinear":
        return (1 - far).clamp(min=0)
    if interpolation == "bicubic":
        inner = ((SHARPNESS + 2) * far - (SHARPNESS + 3)) * far * far + 1
        outer = (((far - 5) * far + 8) * far - 4) * SHARPNESS
        return torch.where(far < 1, inner, torch.where(far < 2, outer, 0.0))
    return torch.where(far < 3, torch.sinc(far) * torch.sinc(far / 3), 0.0)


def _in_8_bits(images: Tensor) -> Tensor:
    """Rounds half up and clips to [0, 255]."""
    return (images + 0.5).floor().clamp(0, 255)
