"""The colours, fonts and sign of pages and charts, for light and dark themes, and the colour scale of numbers.

The scale is a curve through CIELAB (CIE, 1976) from dark blue over rose and amber to pale yellow. It is perceptually
uniform and monotonic in lightness, and therefore readable in greyscale and with colour vision deficiencies.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

LIGHT = {"paper": "#fbfaf7", "card": "#ffffff", "ink": "#1c2230", "muted": "#626978", "rule": "#e4e1d9"}
LIGHT |= {"cobalt": "#234f9e", "ruby": "#b22a40", "amber": "#c07a12", "emerald": "#25785a", "violet": "#6b3f8f"}
DARK = {"paper": "#14161b", "card": "#1b1e25", "ink": "#e9e6df", "muted": "#9ba1ae", "rule": "#30343e"}
DARK |= {"cobalt": "#86adf4", "ruby": "#f07a88", "amber": "#eeb24c", "emerald": "#62c69b", "violet": "#bd93e0"}
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="3" fill="#23262e"/>'
    '<path d="M2 2h5v6H2z" fill="#234f9e"/><path d="M8 2h6v4H8z" fill="#c07a12"/>'
    '<path d="M2 9h5v5H2z" fill="#25785a"/><path d="M8 7h6v7H8z" fill="#b22a40"/></svg>'
)
FONTS = {
    "sans": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif",
    "serif": "'Iowan Old Style','Palatino Linotype',Palatino,'Source Serif 4','Liberation Serif',Georgia,serif",
    "mono": "ui-monospace,'SF Mono',Menlo,Consolas,'Liberation Mono',monospace",
}


def write_properties(values: Mapping[str, str]) -> str:
    """Returns values by name as CSS custom properties."""
    return ";".join(f"--{name}:{value}" for name, value in values.items())


# CSS of pages: what both themes share, the light theme, and the rule of the dark one
SHARED, OF_LIGHT = write_properties({**FONTS, "lead": "#23262e"}), write_properties(LIGHT)
DARK_RULE = f"@media(prefers-color-scheme:dark){{:root{{{write_properties(DARK)}}}}}"


def parse_colour(colour: str) -> np.ndarray:
    """Converts ``#rrggbb`` to uint8 (3,)."""
    return np.frombuffer(bytes.fromhex(colour[1:]), np.uint8)


PAPER, INK, MUTED = (parse_colour(LIGHT[name]) for name in ("paper", "ink", "muted"))
ABSENT = parse_colour("#a3a6ad")  # colour of NaN: a grey that the scale does not contain
LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R 601

# equidistant on the curve
ANCHORS = "#08122c #1f3164 #645482 #8e6476 #b07264 #d18857 #efab52 #f7d284 #faedc0"
SCALE = np.stack([parse_colour(colour) for colour in ANCHORS.split()])  # (9, 3)


def map_colours(levels: np.ndarray) -> np.ndarray:
    """Maps levels (...) in [0, 1] to colours, uint8 (..., 3). Levels outside are clipped, NaN is grey."""
    stops = np.linspace(0, 1, len(SCALE))
    painted = np.stack([np.interp(levels, stops, channel) for channel in SCALE.T], axis=-1)
    return np.where(np.isnan(levels)[..., None], ABSENT, painted.round()).astype(np.uint8)
