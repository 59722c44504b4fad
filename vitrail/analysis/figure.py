"""The figure of one attention map: the model input beside the same image with the attention map overlaid.

H and W of the image, h and w of the map. Lengths are in inches; the axes of both panels are in pixels of the model input.
"""

from __future__ import annotations

import math
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from vitrail.analysis.attention import compute_reach
from vitrail.analysis.palette import LIGHT
from vitrail.analysis.render import find_light_range, overlay
from vitrail.files import replace_file

PIXELS_PER_INCH = 100
WIDE, TALL = 5.5, 6.5  # maximum size of a panel
ROOM = 4.0  # minimum width of a column, for its text
EDGE, HEAD, FOOT = 0.35, 0.75, 1.0  # margins: sides and gap between panels, title above, scale below
BAR, MARK, BEYOND = 0.14, 0.03, 0.04  # height of the scale, width of its mark, overhang of the mark
TITLE, WORDS = 14, 10.5  # font sizes in points
PAPER, INK, MUTED = (LIGHT[name] for name in ("paper", "ink", "muted"))
GREY = 128  # grey level of the image under the scale


class AttentionFigure(Figure):
    """An image and its attention map. Displays itself in a notebook, without pyplot and its list of open figures.

    The map is interpolated bilinearly. The brightness scale ends at ``range``; values above it are equally bright.

    Args:
        picture: the model input as uint8 (H, W, 3), in any resolution.
        attention: (h, w) in fp32.
        size, cell: (height, width) of the model input and of a cell of the map in pixels; the last cells may extend beyond.
        tokens: number of tokens of the layer, including prefix tokens; a mark on the scale shows uniform attention.
        query: (row, column) of the query patch, which is outlined.
        from_pyplot: size and colours that pyplot passes to every figure; this one has its own.
    """

    def __init__(
        self,
        picture: np.ndarray,
        attention: np.ndarray,
        title: str,
        *,
        size: tuple[int, int],
        cell: tuple[int, int],
        tokens: int,
        query: tuple[int, int] | None = None,
        **from_pyplot: Any,
    ) -> None:
        height, width, _ = picture.shape
        wide = min(WIDE, TALL * width / height)
        tall, column = wide * height / width, max(wide, ROOM)
        across, down = 2 * column + 3 * EDGE, HEAD + tall + FOOT
        super().__init__(figsize=(across, down), dpi=PIXELS_PER_INCH, facecolor=PAPER)
        FigureCanvasAgg(self)
        self.attention = attention
        # a constant map has no scale
        self.range = find_light_range(attention) if attention.min() < attention.max() else None
        lit = overlay(picture, attention, reach=compute_reach(attention.shape, cell, size), range=self.range)
        lefts = EDGE, 2 * EDGE + column
        titles = "model input", title
        for left, shown, words, colour in zip(lefts, (picture, lit), titles, (MUTED, INK)):
            panel = self._add_axes(left, FOOT, wide, tall)
            panel.imshow(shown, extent=(0, size[1], size[0], 0), origin="upper", aspect="auto")
            self._write(left, FOOT + tall + 0.17, words, column, TITLE, colour)
            if query is not None:
                _draw_outline(panel, query, cell)
        grid = "{} × {} patches of {} × {} pixels".format(*attention.shape, *cell)
        self._write(lefts[0], FOOT - 0.28, grid, column, WORDS, MUTED)
        self._draw_scale(lefts[1], column, 1 / tokens)
        self._write(lefts[1], 0.22, self._describe_peak(tokens), column, WORDS, MUTED)

    def _draw_scale(self, left: float, width: float, equal: float) -> None:
        """Draws the brightness scale of the map, with numbers below it."""
        low, high = self.range or (float(self.attention.min()),) * 2
        bar = self._add_axes(left, FOOT - 0.17 - BAR, width, BAR)
        pixels = round(width * PIXELS_PER_INCH)
        grey, light = np.full((1, pixels), GREY, np.uint8), np.linspace(low, high, pixels)[None]
        bar.imshow(overlay(grey, light, range=self.range), extent=(0, width, 0, BAR), aspect="auto")
        if self._has_mark(equal):
            corner = (equal - low) / (high - low) * width - MARK / 2, -BEYOND
            look = {"facecolor": "white", "edgecolor": INK, "linewidth": 1, "clip_on": False}
            bar.add_patch(Rectangle(corner, MARK, BAR + 2 * BEYOND, **look))
        decimals = max(0, 1 - math.floor(math.log10(high or 1)))  # two significant digits for the upper end
        dark, bright, most = (f"{number:.{decimals}f}" for number in (low, high, self.attention.max()))
        self._write(left, 0.45, dark, width, WORDS, INK)
        if high > low:
            more = "" if bright == most else " or more"
            self._write(left + width, 0.45, bright + more, width, WORDS, INK, align="right")
        self._write(left + width / 2, 0.45, "attention per patch", width, WORDS, MUTED, align="center")

    def _has_mark(self, equal: float) -> bool:
        """Whether uniform attention lies within the scale."""
        return self.range is not None and self.range[0] < equal < self.range[1]

    def _describe_peak(self, tokens: int) -> str:
        """Returns a sentence that compares the maximum with uniform attention and gives the total attention on patches."""
        highest, whole = float(self.attention.max()), float(self.attention.sum())
        uniform = f"{'mark: ' if self._has_mark(1 / tokens) else ''}1/{tokens}"
        times = f"{highest * tokens:.1f} times uniform ({uniform})"
        return f"maximum {highest:.2g}, {times}; {whole * 100:.1f} % on patches"

    def _add_axes(self, left: float, bottom: float, width: float, height: float) -> Axes:
        across, down = self.get_size_inches()
        axes = self.add_axes((left / across, bottom / down, width / across, height / down))
        axes.set_axis_off()
        return axes

    def _write(
        self, x: float, y: float, words: str, room: float, size: float, colour: str, align: str = "left"
    ) -> None:
        """Writes one line of text with its baseline at (x, y), scaled down to fit into ``room``."""
        across, down = self.get_size_inches()
        text = self.text(x / across, y / down, words, fontsize=size, color=colour, ha=align, va="baseline")
        wide = text.get_window_extent().width / self.dpi
        text.set_fontsize(size * min(1.0, room / wide))

    def render(self, format: str) -> bytes:
        """Returns the figure encoded in a format such as "png" or "svg"."""
        buffer = BytesIO()
        self.savefig(buffer, format=format, dpi=PIXELS_PER_INCH, facecolor=PAPER)
        return buffer.getvalue()

    def save(self, path: Path) -> None:
        """Writes the figure atomically to ``path``, in the format of its extension. Raises `DiskError` if that fails."""
        replace_file(path, self.render(path.suffix[1:].lower()))

    def _repr_png_(self) -> bytes:
        return self.render("png")


def _draw_outline(panel: Axes, query: tuple[int, int], cell: tuple[int, int]) -> None:
    """Outlines the query patch in white on dark, visible on any image."""
    (row, column), (height, width) = query, cell
    for colour, thick in ((INK, 4.5), ("white", 2.0)):
        corner = column * width, row * height
        panel.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=colour, linewidth=thick))
