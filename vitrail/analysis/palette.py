"""The colours of everything that is drawn: of pages on light and dark, of light on a picture, of a number.

The scale is a curve through CIELAB (CIE, 1976) from night blue over rose and amber to pale yellow: equal steps of a
number look about equally far apart, and lightness alone tells them, so it reads in grey and for every kind of sight.
"""

from __future__ import annotations

import numpy as np

LIGHT = {"paper": "#fbfaf7", "card": "#ffffff", "ink": "#1c2230", "muted": "#626978", "rule": "#e4e1d9"}
LIGHT |= {"cobalt": "#234f9e", "ruby": "#b22a40", "amber": "#c07a12", "emerald": "#25785a", "violet": "#6b3f8f"}
DARK = {"paper": "#14161b", "card": "#1b1e25", "ink": "#e9e6df", "muted": "#9ba1ae", "rule": "#30343e"}
DARK |= {"cobalt": "#86adf4", "ruby": "#f07a88", "amber": "#eeb24c", "emerald": "#62c69b", "violet": "#bd93e0"}


def parse_colour(colour: str) -> np.ndarray:
    """``#rrggbb`` as uint8 (3,)."""
    return np.frombuffer(bytes.fromhex(colour[1:]), np.uint8)


PAPER, INK, MUTED = (parse_colour(LIGHT[name]) for name in ("paper", "ink", "muted"))
ABSENT = parse_colour("#a3a6ad")  # no number: a grey, which the scale never is
LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R 601

# at equal distances along the curve
ANCHORS = "#08122c #1f3164 #645482 #8e6476 #b07264 #d18857 #efab52 #f7d284 #faedc0"
SCALE = np.stack([parse_colour(colour) for colour in ANCHORS.split()])  # (9, 3)


def map_colours(levels: np.ndarray) -> np.ndarray:
    """Levels (...) in [0, 1] on the scale, as uint8 (..., 3); what is below or above takes its end, NaN is grey."""
    stops = np.linspace(0, 1, len(SCALE))
    painted = np.stack([np.interp(levels, stops, channel) for channel in SCALE.T], axis=-1)
    return np.where(np.isnan(levels)[..., None], ABSENT, painted.round()).astype(np.uint8)
