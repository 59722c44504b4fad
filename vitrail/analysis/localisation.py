"""The share of attention that lies inside object masks, against the share of the area: whether a model attends to regions
that are relevant for the class (Dosovitskiy et al. 2021, section 4.5); and the overlap of masks made of attention with them
(Caron et al. 2021, section 4.2.2).

B images, H x W pixels of the model's input, h x w cells of a map.
"""

from __future__ import annotations

from pathlib import Path, PurePath

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.analysis.attention import compute_layer_maps
from vitrail.analysis.rollout import relevance, rollout
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import DataError
from vitrail.images.decode import BadImage
from vitrail.images.masks import decode_mask
from vitrail.tasks import Task

KEPT = 0.6  # of a map, by the cells of its mask


def compute_share_inside(heat: Tensor, mask: Tensor, cell: tuple[int, int]) -> Tensor:
    """Computes the share of non-negative maps that lies inside masks, (B,) in fp64.

    The value of a cell is spread evenly over its pixels in the image. A constant map of whole cells therefore has the share of
    the area. A map of zeros has no share: NaN.

    Args:
        heat: (B, h, w).
        mask: (B, H, W), from 0 outside to 1 inside.
        cell: height and width of a cell in pixels; cells may reach beyond the image at the bottom and on the right.
    """
    (rows, columns), (height, width) = heat.shape[1:], mask.shape[1:]
    beyond = (0, columns * cell[1] - width, 0, rows * cell[0] - height)
    pixels = torch.stack([mask.double(), torch.ones_like(mask, dtype=torch.float64)], 1)  # (B, 2, H, W)
    inside, pixels_of_image = F.avg_pool2d(F.pad(pixels, beyond), cell).unbind(1)  # (B, h, w) each
    heat = heat.double() * (pixels_of_image > 0)
    covered = inside / pixels_of_image.clamp(min=torch.finfo(torch.float64).tiny)
    return (heat * covered).sum((1, 2)) / heat.sum((1, 2))


def compute_overlap(heat: Tensor, mask: Tensor, cell: tuple[int, int]) -> Tensor:
    """Computes the Jaccard index of masks and of the masks that maps make, (B,): the fewest cells that hold 60 % of the map.

    Arguments as of `compute_share_inside`. A map of zeros makes no mask: NaN.
    """
    values, order = heat.double().flatten(1).sort(descending=True)
    before = values.cumsum(1) - values
    kept = torch.zeros_like(values).scatter(1, order, (before < KEPT * values.sum(1, keepdim=True)).double())
    pixels = kept.view(heat.shape).repeat_interleave(cell[0], 1).repeat_interleave(cell[1], 2) > 0
    made, given = pixels[:, : mask.shape[1], : mask.shape[2]], mask > 0.5
    overlap = (made & given).sum((1, 2)) / (made | given).sum((1, 2)).clamp(min=1)
    return overlap.double().where(values[:, 0] > 0, torch.nan)


def measure_shares(model: Task, images: Tensor, mask: Tensor) -> dict[str, tuple[float, float]]:
    """Measures the share inside the mask (1, H, W) of one image (1, C, H, W) and the overlap of both masks by each method.

    ``layer 0`` and so on, the mean over the heads of what the pooled tokens attend to; ``best head``, the head of the last layer
    whose mask has the largest overlap; ``rollout``; and ``gradient`` for the predicted class, if the model predicts classes.
    Raises `ConfigError` for a model without attention.
    """
    size = images.shape[2], images.shape[3]
    grids = model.attention_grids(size)
    layers = compute_layer_maps(model, images, range(len(grids)))  # (1, heads, h, w) each
    heats = {f"layer {layer}": (maps.mean(1), grids[layer].cell) for layer, maps in layers.items()}
    heads, cell = layers[len(grids) - 1][0].cpu(), grids[-1].cell
    best = compute_overlap(heads, mask.expand(len(heads), -1, -1), cell).nan_to_num(-1.0).argmax()
    heats |= {"best head": (heads[best][None], cell), "rollout": (rollout(model, images), grids[0].cell)}
    if model.answers_classes:
        heats["gradient"] = relevance(model, images), grids[0].cell
    return {
        name: (float(compute_share_inside(heat.cpu(), mask, cell)), float(compute_overlap(heat.cpu(), mask, cell)))
        for name, (heat, cell) in heats.items()
    }


def read_mask(path: Path, size: tuple[int, int], preprocessing: Preprocessing) -> Tensor:
    """Reads the mask of an image, resized and cropped as the image: (1, H, W) in [0, 1], the covered share of each pixel.

    In the PNG black, or palette index 0, is outside of the objects, and any other value inside. Raises `DataError` for a mask
    that cannot be read, or has another ``size`` (height, width) than its image.
    """
    try:
        levels = decode_mask(path.read_bytes())
    except (OSError, BadImage) as error:
        raise DataError(f"the mask {path} cannot be read: {error}", "give a PNG of 8 bits") from error
    if levels.shape[:2] != size:
        found, wanted = (" x ".join(map(str, shape)) for shape in (levels.shape[:2], size))
        what = f"the mask {path} has {found} pixels, its image {wanted}"
        raise DataError(what, "give masks of the size of their images, upright as they are shown")
    inside = levels.reshape(*size, -1).max(2) > 0
    return torch.from_numpy(preprocessing.mask(inside))[None]


def find_mask(folder: Path, key: str) -> Path | None:
    """Returns the mask of the image ``key``: the PNG of the same name in ``folder``, or in subfolders of it named as those of
    the image, of which the most specific one counts. None if there is none.
    """
    parts = PurePath(key).with_suffix(".png").parts
    candidates = (folder.joinpath(*parts[start:]) for start in range(PurePath(key).is_absolute(), len(parts)))
    return next((path for path in candidates if path.is_file()), None)
