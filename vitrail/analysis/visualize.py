"""Draws the attention map of a head on an image with one function call.

C channels, H and W of an image or of the model input, h and w of a layer's map, T tokens.
"""

from __future__ import annotations

import sys
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.analysis.attention import Lift, Place, check_index, compute_head_maps, compute_query_shares, select_head
from vitrail.analysis.render import to_rgb, to_thumbnail, to_uint8
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import ConfigError, DataError
from vitrail.images.decode import convert_image
from vitrail.models import AttentionGrid, device_of
from vitrail.runtime.progress import in_notebook
from vitrail.tasks import Task
from vitrail.tasks.user_images import to_pixels

if TYPE_CHECKING:
    from vitrail.analysis.figure import AttentionFigure

FORMATS = ("png", "jpg", "jpeg", "webp", "svg", "pdf")
TOKENS = {"cls": "class", "dist": "distillation"}
LONGER_SIDE = 1100  # of the image in the figure in pixels, twice the resolution of a panel
SQUARES = 8  # from this enlargement on, pixels keep hard edges


def visualize_attention(
    model: Any,
    image: Any,
    layer_idx: int = 11,
    head_idx: int | None = 0,
    *,
    query: Place | None = None,
    path: str | PathLike[str] | None = None,
) -> AttentionFigure:
    """Draws the attention of the class token in one layer and head: the image beside its overlaid attention map.

    For models that pool patches, the queries are the patches, and their attention is averaged (`attention_map`). The figure
    has a scale, the maximum, and the total attention on patches.

    Args:
        model: a `Task`, or a backbone, which has no preprocessing and takes only normalised tensors.
        image: the path of an image file, an image for `Task.preprocess`, or a normalised model input: a float tensor
            (1, C, H, W), or (C, H, W) with values outside of [0, 1]. Of images the visible part is shown; model inputs without
            their normalisation or, if it is unknown, scaled from minimum to maximum.
        layer_idx: index into `attention_grids`; negative indices count from the end.
        head_idx: index of the head; None averages over heads.
        query: row and column of a query patch in the layer's map, outlined in the figure.
        path: optional output file; .png, .jpg, .webp, .svg or .pdf.

    Returns:
        A matplotlib figure, which displays itself in a notebook. In a script that has imported ``matplotlib.pyplot`` it is a
        figure of pyplot, so that ``plt.show()`` shows it, unless it is saved to ``path``. Its attribute ``attention`` is the
        map, (h, w) in fp32.

    Raises:
        ConfigError: layer, head or query out of range; a model without attention; several images; an image that a backbone
            does not accept; an unknown file extension; matplotlib is not installed.
        DataError: the image cannot be used.
        DiskError: ``path`` cannot be written.
    """
    target = _check_path(path)
    images, picture = _read_image(model, image)
    maps = compute_head_maps(model, images, layer_idx, query)  # (1, heads, h, w)
    attention = select_head(maps, head_idx)[0].cpu().numpy()
    if not np.isfinite(attention).all():
        raise DataError("the attention is not finite", "check the image and the weights for NaN")

    size = images.shape[2], images.shape[3]
    grids = model.attention_grids(size)
    layer = check_index("layer", layer_idx, len(grids))
    tokens = Lift(grids[layer], images.device).tokens
    if query is not None:
        query = query[0] % attention.shape[0], query[1] % attention.shape[1]
    queries = _describe_queries(model, grids[layer]) if query is None else "patch in row {}, column {}".format(*query)
    heads = maps.shape[1]
    head_name = f"mean of {heads} heads" if head_idx is None else f"head {head_idx % heads}"
    title = f"layer {layer}, {head_name} ({queries})"
    visible = _undo_normalisation(model, images) if picture is None else _crop_visible(picture, model.preprocessing)

    try:
        from vitrail.analysis.figure import AttentionFigure
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] != "matplotlib":
            raise
        raise ConfigError("drawing a figure needs matplotlib", "pip install 'vitrail[figure]'") from missing

    cell = grids[layer].cell
    pyplot = sys.modules.get("matplotlib.pyplot")
    # a notebook would show a figure of pyplot twice, and figures that are only saved would stay open
    shows = pyplot is not None and target is None and not in_notebook()
    make = partial(pyplot.figure, FigureClass=AttentionFigure) if shows else AttentionFigure
    shown = _enlarge(visible)
    figure = make(picture=shown, attention=attention, title=title, size=size, cell=cell, tokens=tokens, query=query)
    if target is not None:
        figure.save(target)
    return figure


def _check_path(path: str | PathLike[str] | None) -> Path | None:
    if path is None:
        return None
    path = Path(path)
    if path.suffix[1:].lower() not in FORMATS:
        remedy = f"use a file name that ends in .{', .'.join(FORMATS)}"
        raise ConfigError(f"a figure cannot be saved as {path.name!r}", remedy)
    return path


def _read_image(model: Any, image: Any) -> tuple[Tensor, Image.Image | np.ndarray | None]:
    """Returns the model input (1, C, H, W), and the image it was made from, or None for tensors."""
    device = device_of(model)
    is_batch = isinstance(image, list | tuple) or (isinstance(image, np.ndarray | Tensor) and image.ndim == 4)
    if is_batch and len(image) != 1:
        raise ConfigError(f"{len(image)} images", "give a single image, such as images[:1]")
    if isinstance(image, list | tuple):
        image = image[0]
    if isinstance(image, Tensor) and _is_input(model, image):
        return (image if image.ndim == 4 else image[None]).detach().to(device), None
    if not isinstance(model, Task):
        what = f"a backbone has no preprocessing and does not accept a {type(image).__name__} as image"
        raise ConfigError(what, "give a normalised float tensor (1, C, H, W), or use a Task as the model")
    if isinstance(image, str | PathLike):
        try:
            image = Path(image).read_bytes()
        except OSError as error:
            raise DataError(f"{image} cannot be read: {error.strerror}", "give the path of an image file") from error
    elif isinstance(image, np.ndarray | Tensor) and image.ndim == 4:
        image = image[0]
    return model.preprocess([image]), to_pixels(image, model.preprocessing)


def _is_input(model: Any, image: Tensor) -> bool:
    """Whether a tensor is a normalised model input, and not an image to be preprocessed."""
    if not image.is_floating_point() or image.ndim not in (3, 4):
        return False
    return image.ndim == 4 or not isinstance(model, Task) or not bool(((image >= 0) & (image <= 1)).all())


def _describe_queries(model: Any, grid: AttentionGrid) -> str:
    """Describes the default queries of this layer."""
    shares = compute_query_shares(model, grid, None, torch.device("cpu"))  # (T,)
    tokens = [TOKENS[name] for name, share in zip(model.prefix[: grid.prefix], shares.tolist()) if share]
    queries = [" and ".join(tokens) + (" tokens" if tokens[1:] else " token")] if tokens else []
    if shares[grid.prefix :].any():
        queries.append("all patches")
    return " and ".join(queries)


def _crop_visible(picture: Image.Image | np.ndarray, preprocessing: Preprocessing) -> np.ndarray:
    """Returns the visible part of an image in its original resolution: uint8 (H, W, 3)."""
    whole = picture if isinstance(picture, np.ndarray) else np.asarray(convert_image(picture, preprocessing.channels))
    whole = to_uint8(to_rgb(whole))
    top, left, bottom, right = map(round, preprocessing.visible_box(*whole.shape[:2]))
    box = left, top, max(right, left + 1), max(bottom, top + 1)
    return np.asarray(Image.fromarray(np.ascontiguousarray(whole)).crop(box))


def _undo_normalisation(model: Any, images: Tensor) -> np.ndarray:
    """Converts a model input (1, C, H, W) back to an image: uint8 (H, W, 3)."""
    if isinstance(model, Task):
        return to_thumbnail(model.preprocessing.denormalise(images)[0].cpu().numpy())
    values = images[0].float()  # (C, H, W)
    low, high = values.min(), values.max()
    return to_thumbnail(((values - low) / (high - low).clamp(min=1e-12)).cpu().numpy())


def _enlarge(picture: np.ndarray) -> np.ndarray:
    """Resizes an image to the resolution of the figure: uint8 (H, W, 3)."""
    height, width, _ = picture.shape
    factor = LONGER_SIDE / max(height, width)
    resampling = Image.Resampling.NEAREST if factor >= SQUARES else Image.Resampling.BICUBIC
    size = max(1, round(width * factor)), max(1, round(height * factor))
    return np.asarray(Image.fromarray(picture).resize(size, resampling))
