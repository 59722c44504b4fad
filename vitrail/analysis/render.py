"""Renders images: overlays of heat maps, colour maps, mosaics and contact sheets.

Images are uint8 with channels last. Axes: H and W of an image, h and w of a map or a tile, C channels, R rows and K
columns of a grid of tiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vitrail.analysis.palette import INK, LUMA, MUTED, PAPER, map_colours, parse_colour
from vitrail.errors import ConfigError
from vitrail.files import replace_file
from vitrail.tasks.dense.drawing import load_font, shorten

Box = tuple[float, float, float, float]  # top, left, bottom, right, in pixels
Range = tuple[float, float]  # values at the two ends of a scale

DIM, FADED = 0.22, 0.35  # brightness and saturation where the heat is lowest, relative to the image
GLOW, TINT = 0.5, 0.3  # amber where the heat is highest: added to dark colours, mixed into bright ones
AMBER, FRAME = parse_colour("#ffb02e"), parse_colour("#e9e6df")
BRIGHT = 0.97  # quantile of the positive values that is shown at full brightness
UNSEEN = 0.15  # brightness outside the model input
STRIP = 100_000  # pixels computed at a time, few enough for the CPU cache
MARGIN, GAP, NEAR = 32, 16, 7  # of a contact sheet in pixels: margin, gap between tiles, gap above captions
TITLE, CAPTION, FOOTNOTE = 24, 15, 13  # font sizes


def to_rgb(picture: np.ndarray) -> np.ndarray:
    """Converts an image (H, W[, C]) to (H, W, 3). With fewer than three channels, the first one is shown in grey."""
    picture = picture[..., None] if picture.ndim == 2 else picture
    return picture[..., :3] if picture.shape[-1] >= 3 else np.repeat(picture[..., :1], 3, axis=-1)


def to_uint8(picture: np.ndarray) -> np.ndarray:
    """Converts an image of any shape to uint8. Floats in [0, 1] are scaled and rounded; uint8 is unchanged."""
    return picture if picture.dtype == np.uint8 else (picture * 255).round().clip(0, 255).astype(np.uint8)


def to_thumbnail(picture: np.ndarray) -> np.ndarray:
    """Converts a model input (C, h, w), uint8 or float in [0, 1], to an image, uint8 (h, w, 3)."""
    return np.ascontiguousarray(to_uint8(to_rgb(picture.transpose(1, 2, 0))))


def overlay(
    picture: np.ndarray,
    heat: np.ndarray,
    *,
    box: Box | None = None,
    reach: tuple[float, float] = (1.0, 1.0),
    range: Range | None = None,
) -> np.ndarray:
    """Overlays a heat map on an image: dark where the heat is low, amber where it is high.

    Args:
        picture: uint8 (H, W) or (H, W, C); the result is (H, W, 3).
        heat: (h, w), one value per patch, interpolated bilinearly. Non-finite values are shown as the lowest.
        box: (top, left, bottom, right) of the visible part of the image, in pixels (`Preprocessing.visible_box`). The rest
            is dark grey and separated by a thin frame. By default the whole image.
        reach: height and width of the map relative to the box, above 1 if padded patches extend beyond it.
        range: values shown as darkest and brightest, for comparable overlays; by default those of the map.

    Raises:
        ConfigError: invalid shape, type or box.
    """
    height, width = _check_picture(picture)
    if heat.ndim != 2 or not heat.size:
        raise ConfigError(f"a map of shape {heat.shape}", "give (h, w), one value per patch")
    top, left, bottom, right = box or (0.0, 0.0, float(height), float(width))
    if not (top < bottom and left < right):
        raise ConfigError(f"an empty box {box}", "give (top, left, bottom, right) in pixels of the picture")
    level = np.nan_to_num(scale_levels(heat, range)).astype(np.float32)
    low, far = top + reach[0] * (bottom - top), left + reach[1] * (right - left)  # lower and right ends of the map
    down = _interpolate(top, low, height, level.shape[0])  # (H, h)
    across = level @ _interpolate(left, far, width, level.shape[1]).T  # (h, W)
    seen_rows, seen_columns = _mark_within(top, bottom, height), _mark_within(left, right, width)
    result = np.empty((height, width, 3), np.uint8)
    for strip in np.array_split(np.arange(height), math.ceil(height * width / STRIP)):
        planes = np.ascontiguousarray(to_rgb(picture[strip]).transpose(2, 0, 1), np.float32)  # (3, S, W)
        grey, light = np.tensordot(LUMA, planes, 1), down[strip] @ across  # each (S, W)
        visible = seen_rows[strip, None] & seen_columns
        result[strip] = np.where(visible, _light(planes, grey, light), grey * UNSEEN).round().transpose(1, 2, 0)
    thick = max(1.0, round(min(height, width) / 240))
    rows, columns = _mark_within(top, bottom, height, thick), _mark_within(left, right, width, thick)
    result[(rows[:, None] & columns) & ~(seen_rows[:, None] & seen_columns)] = FRAME
    return result


def scale_levels(values: np.ndarray, range: Range | None = None) -> np.ndarray:
    """Scales values (...) to [0, 1], by ``range`` or by their own range. Non-finite values become NaN, constant values 0.

    Raises `ConfigError` for a range whose ends are not in ascending order.
    """
    values = np.where(np.isfinite(values), values, np.nan).astype(np.float64)
    finite = values[~np.isnan(values)]
    if range is None:
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
        return (values - low) / ((high - low) or 1.0)
    low, high = range
    if not low < high:
        raise ConfigError(f"a scale from {low:g} to {high:g}", "give two numbers in ascending order")
    return ((values - low) / (high - low)).clip(0, 1)


def find_light_range(heat: np.ndarray) -> Range:
    """Returns the range of an overlay: from the minimum, at least 0, to a high quantile of the positive values.

    A few outlier patches can receive most of the attention ("Vision Transformers Need Registers", Darcet et al., 2024,
    section 2). With the quantile they do not darken all other patches.
    """
    finite = heat[np.isfinite(heat)].astype(np.float64)
    counting = finite[finite > 0]
    if not counting.size:
        return 0.0, 1.0
    low, high = max(float(finite.min()), 0.0), float(np.quantile(counting, BRIGHT))
    return (low, high) if high > low else (0.0, high)


def _light(planes: np.ndarray, grey: np.ndarray, light: np.ndarray) -> np.ndarray:
    """Brightens an image (3, H, W) with luma ``grey`` (H, W) by ``light`` (H, W) in [0, 1]."""
    amber = AMBER.astype(np.float32)[:, None, None]
    # low light desaturates and darkens; high light preserves bright pixels and adds amber to dark ones
    faded = grey + (planes - grey) * (FADED + (1 - FADED) * light)
    lit = faded * (DIM + (1 - DIM) * light)
    lit += amber * (light * GLOW) * (1 - lit / 255)
    tint = TINT * light**2
    return lit * (1 - tint) + amber * tint


def _check_picture(picture: np.ndarray) -> tuple[int, int]:
    if picture.dtype != np.uint8 or picture.ndim not in (2, 3) or not picture.size:
        fact = f"an image of type {picture.dtype} and shape {picture.shape}"
        raise ConfigError(fact, "give uint8 (H, W) or (H, W, C)")
    return picture.shape[0], picture.shape[1]


def _interpolate(start: float, stop: float, pixels: int, cells: int) -> np.ndarray:
    """Returns the interpolation weights of ``cells`` between ``start`` and ``stop``: float32 (pixels, cells), rows sum to 1.

    Linear between cell centres, with averaging if there are more cells than pixels, as in Pillow.
    """
    per_pixel = cells / (stop - start)
    places = ((np.arange(pixels) + 0.5 - start) * per_pixel - 0.5).clip(0, cells - 1)
    distance = np.abs(places[:, None] - np.arange(cells))
    weights = (1 - distance / max(per_pixel, 1.0)).clip(0)
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)


def _mark_within(start: float, stop: float, pixels: int, beyond: float = 0.0) -> np.ndarray:
    """Returns a mask of the pixels whose centres lie in the interval, extended by ``beyond``: bool (pixels,)."""
    centres = np.arange(pixels) + 0.5
    return (centres > start - beyond) & (centres < stop + beyond)


def draw_scale_bar(low: float, high: float, *, label: str = "", width: int = 320) -> np.ndarray:
    """Draws the colour scale from ``low`` to ``high`` with numbers and a label below: uint8 (H, width, 3)."""
    font, ends = load_font(FOOTNOTE), (f"{low:.3g}", f"{high:.3g}")
    canvas = _make_canvas(FOOTNOTE + NEAR + _measure_line(font), width)
    canvas[:FOOTNOTE] = map_colours(np.linspace(0, 1, width))
    sheet, y = Image.fromarray(canvas), FOOTNOTE + NEAR
    room = width - 2 * max(map(font.getlength, ends)) - 2 * GAP
    _write(sheet, (0, y), ends[0], width, FOOTNOTE, INK)
    _write(sheet, (width / 2, y), label, room, FOOTNOTE, MUTED, anchor="ma")
    _write(sheet, (width, y), ends[1], width, FOOTNOTE, INK, anchor="ra")
    return np.asarray(sheet)


def draw_contact_sheet(
    tiles: Sequence[np.ndarray],
    captions: Sequence[str],
    *,
    columns: int,
    title: str,
    footnote: str = "",
    width: int = 1280,
) -> np.ndarray:
    """Arranges images of one shape, such as all heads of a layer, on one sheet: uint8 (H, width, 3).

    Args:
        tiles: uint8 (h, w) or (h, w, C) each, scaled to the width of a column.
        captions: one caption per tile. Captions, ``title`` and ``footnote`` are truncated with "…" if they are too long.
    """
    side = (width - 2 * MARGIN - (columns - 1) * GAP) // columns
    height, across = tiles[0].shape[:2]
    tall = max(1, round(side * height / across))
    heading, caption_line, last = (_measure_line(load_font(size)) for size in (TITLE, CAPTION, FOOTNOTE))
    top, step = MARGIN + (heading + GAP if title else 0), tall + NEAR + caption_line + GAP
    bottom = top + math.ceil(len(tiles) / columns) * step - GAP
    sheet = Image.fromarray(_make_canvas(bottom + (GAP + last if footnote else 0) + MARGIN, width))
    _write(sheet, (MARGIN, MARGIN), title, width - 2 * MARGIN, TITLE, INK)
    # strongly enlarged tiles keep hard pixel edges
    resampling = Image.Resampling.NEAREST if side >= 4 * across else Image.Resampling.LANCZOS
    for index, (tile, caption) in enumerate(zip(tiles, captions, strict=True)):
        x, y = MARGIN + index % columns * (side + GAP), top + index // columns * step
        sheet.paste(Image.fromarray(np.ascontiguousarray(to_rgb(tile))).resize((side, tall), resampling), (x, y))
        _write(sheet, (x, y + tall + NEAR), caption, side, CAPTION, INK)
    _write(sheet, (MARGIN, bottom + GAP), footnote, width - 2 * MARGIN, FOOTNOTE, MUTED)
    return np.asarray(sheet)


def draw_mosaic(values: np.ndarray, *, range: Range = (-1.0, 1.0), cell: int = 4, gap: int = 3) -> np.ndarray:
    """Draws maps (R, K, h, w) as R rows and K columns of tiles on one scale, each value ``cell`` pixels wide: uint8 (H, W, 3).

    Used for the similarity of position embeddings, (14, 14, 14, 14). Raises `ConfigError` unless the range is ascending.
    """
    return _lay_tiles(map_colours(scale_levels(values, range)), cell, gap)


def draw_filters(pictures: np.ndarray, columns: int, *, cell: int = 6, gap: int = 4) -> np.ndarray:
    """Draws filters, uint8 (n, h, w, 3), row by row, each pixel enlarged to ``cell`` pixels: uint8 (H, W, 3)."""
    rows = math.ceil(len(pictures) / columns)
    tiles = np.broadcast_to(PAPER, (rows * columns, *pictures.shape[1:])).copy()
    tiles[: len(pictures)] = pictures
    return _lay_tiles(tiles.reshape(rows, columns, *pictures.shape[1:]), cell, gap)


def save_png(path: Path, pixels: np.ndarray) -> None:
    """Writes an image, uint8 (H, W[, 3]), atomically to ``path``. Raises `DiskError` if that fails."""
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    replace_file(path, buffer.getvalue())


def _lay_tiles(tiles: np.ndarray, cell: int, gap: int) -> np.ndarray:
    """Places tiles (R, K, h, w, 3), each pixel enlarged to a square of ``cell`` pixels, with ``gap`` pixels around each."""
    tiles = tiles.repeat(cell, axis=2).repeat(cell, axis=3)
    rows, columns, height, width, _ = tiles.shape
    canvas = _make_canvas(rows * (height + gap) + gap, columns * (width + gap) + gap)
    cells = canvas[gap:, gap:].reshape(rows, height + gap, columns, width + gap, 3)
    cells[:, :height, :, :width] = tiles.transpose(0, 2, 1, 3, 4)
    canvas[gap:, gap:] = cells.reshape(rows * (height + gap), columns * (width + gap), 3)
    return canvas


def _make_canvas(height: int, width: int) -> np.ndarray:
    return np.broadcast_to(PAPER, (height, width, 3)).copy()


def _measure_line(font: ImageFont.FreeTypeFont) -> int:
    """Returns the line height in pixels, ascent plus descent."""
    return sum(font.getmetrics())


def _write(
    sheet: Image.Image,
    place: tuple[float, float],
    words: str,
    room: float,
    size: int,
    ink: np.ndarray,
    anchor: str = "la",
) -> None:
    """Writes one line of text at ``place``, its top left corner unless another Pillow ``anchor`` is given."""
    font = load_font(size)
    ImageDraw.Draw(sheet).text(place, shorten(words, font, room), tuple(ink.tolist()), font, anchor)
