"""The share of attention that lies inside object masks, against the share of the area: whether a model attends to regions
that are relevant for the class (Dosovitskiy et al. 2021, section 4.5).

B images, H x W pixels of the model's input, h x w cells of a map, L layers.
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


def measure_shares(model: Task, images: Tensor, mask: Tensor) -> dict[str, float]:
    """Measures the share inside the mask (1, H, W) of one image (1, C, H, W) by each method: ``area``, the share of a constant
    map; ``layer 0`` and so on, the mean over the heads of what the pooled tokens attend to; ``rollout``; and ``gradient`` for
    the predicted class, if the model predicts classes. Raises `ConfigError` for a model without attention.
    """
    size = images.shape[2], images.shape[3]
    grids = model.attention_grids(size)
    heats = {"rollout": rollout(model, images)}
    if model.answers_classes:
        heats["gradient"] = relevance(model, images)
    shares = {"area": float(mask.double().mean())}
    for layer, maps in compute_layer_maps(model, images, range(len(grids))).items():
        shares[f"layer {layer}"] = float(compute_share_inside(maps.mean(1).cpu(), mask, grids[layer].cell))
    for name, heat in heats.items():
        shares[name] = float(compute_share_inside(heat.cpu(), mask, grids[0].cell))
    return shares


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
