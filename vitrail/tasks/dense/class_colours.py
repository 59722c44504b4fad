"""A colour for each class, the same in every picture, report and page: it depends on the names of the classes alone.

Colours lie on rings in OKLCH (Ottosson 2020, "A perceptual color space for image processing"), each of one lightness and
chroma. From one place to the next the hue turns by the golden angle, so the places of a ring are spread almost evenly, and
those of the next ring fall between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import count
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Colour = tuple[int, int, int]

GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))
PLACES = 8  # of a ring, a Fibonacci number: their hues are at least 32 degrees apart
RINGS = ((0.72, 0.17), (0.63, 0.17), (0.84, 0.13))  # lightness and chroma; black text is readable on all of them
INK: Colour = (11, 13, 18)  # of text on these colours
BACKGROUND = ("background", "_background_", "__background__")  # names of a class for what is none of the others
BLACK: Colour = (0, 0, 0)

# from OKLCH's cone responses to linear sRGB, and from OKLab to the cube roots of the responses
TO_SRGB = np.array([[4.0767416621, -3.3077115913, 0.2309699292], [-1.2684380046, 2.6097574011, -0.3413193965],
                    [-0.0041960863, -0.7034186147, 1.7076147010]])  # fmt: skip
TO_ROOTS = np.array(
    [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.2914855480]]
)


def class_colours(names: Sequence[str]) -> dict[str, Colour]:
    """The colour of each class, red, green and blue from 0 to 255. A class for the background is black.

    A name takes the place that its hash gives, or the next that is free. So a name keeps its colour in nearly every list of
    names, and any order of one list gives the same colours.
    """
    chosen = _choose_places(frozenset(names) - set(BACKGROUND))
    return {name: _colour_at(chosen[name]) if name in chosen else BLACK for name in names}


def to_hex(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


@cache
def _choose_places(names: frozenset[str]) -> dict[str, int]:
    chosen: dict[str, int] = {}
    taken: set[int] = set()
    for name in sorted(names):
        first = crc32(name.encode("utf-8", "replace"))
        tried = (ring * PLACES + (first + step) % PLACES for ring in count() for step in range(PLACES))
        chosen[name] = next(place for place in tried if place not in taken)
        taken.add(chosen[name])
    return chosen


@cache
def _colour_at(place: int) -> Colour:
    lightness, chroma = RINGS[place // PLACES % len(RINGS)]
    hue = place * GOLDEN_ANGLE
    direction = np.array([0.0, math.cos(hue), math.sin(hue)])
    gray = np.array([lightness, 0.0, 0.0])
    # the strongest colour of this hue that a screen can show
    shown = next(
        rgb for share in np.linspace(1, 0, 101) if _is_shown(rgb := _to_srgb(gray + share * chroma * direction))
    )
    red, green, blue = (255 * shown).round().astype(int).tolist()
    return red, green, blue


def _to_srgb(lab: NDArray[np.float64]) -> NDArray[np.float64]:
    """OKLab to sRGB, (3,) in [0, 1]; outside of it where a screen cannot show the colour."""
    linear = TO_SRGB @ (TO_ROOTS @ lab) ** 3
    size = np.abs(linear)
    return np.sign(linear) * np.where(size <= 0.0031308, 12.92 * size, 1.055 * size ** (1 / 2.4) - 0.055)


def _is_shown(rgb: NDArray[np.float64]) -> bool:
    return bool((rgb >= 0).all() and (rgb <= 1).all())
