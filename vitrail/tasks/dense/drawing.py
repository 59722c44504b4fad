"""Drawing annotations and answers over pictures: a colour for each class, boxes with their labels, and classes as tints.

The colour of a class depends on the names of the classes alone, so it is the same in every picture, report and page. Colours lie
on rings in OKLCH (Ottosson 2020, "A perceptual color space for image processing"), each of one lightness and chroma. From one
place to the next the hue turns by the golden angle, so the places of a ring are spread almost evenly, and those of the next ring
fall between them. Sizes of lines and letters follow the picture.

H and W of the picture, M objects, n boxes (left, top, right, bottom) in its pixels.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import count
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from vitrail.data.sources.annotations import Objects, OutlinedObjects
from vitrail.images.rle import Rle

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
LETTERS, MIN_LETTERS = 1 / 36, 11  # height of text: share of the picture's mean side, pixels
LINE, MIN_LINE = 1 / 200, 2  # width of the lines of boxes, in the same way
TINT = 0.45  # of a class over its pixels; its border has the colour itself
FILL = 0.4  # the same of an object
MIN_NAMED = 0.01  # share of the picture from which a class is named in it
COARSE = 96  # pixels of the longer side of the map in which the places of names are searched


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
    colours = (_to_srgb(gray + share * chroma * direction) for share in np.linspace(1, 0, 101))
    shown = next(rgb for rgb in colours if (rgb >= 0).all() and (rgb <= 1).all())
    red, green, blue = (255 * shown).round().astype(int).tolist()
    return red, green, blue


def _to_srgb(lab: NDArray[np.float64]) -> NDArray[np.float64]:
    """OKLab to sRGB, (3,) in [0, 1]; outside of it where a screen cannot show the colour."""
    linear = TO_SRGB @ (TO_ROOTS @ lab) ** 3
    size = np.abs(linear)
    return np.sign(linear) * np.where(size <= 0.0031308, 12.92 * size, 1.055 * size ** (1 / 2.4) - 0.055)


def draw_boxes(image: Image.Image, boxes: ArrayLike, captions: Sequence[str], colours: Sequence[Colour]) -> Image.Image:
    """A copy of an RGB image with boxes (n, 4) and captions, the first ones on top; an empty caption is not drawn."""
    drawn = image.copy()
    pen, line = ImageDraw.Draw(drawn), _scale(image, LINE, MIN_LINE)
    rows = list(zip(np.asarray(boxes, np.float64).reshape(-1, 4).tolist(), colours, strict=True))[::-1]
    for (left, top, right, bottom), colour in rows:
        # the last pixel of a box is the one before its right or lower edge
        box = round(left), round(top), max(round(right) - 1, round(left)), max(round(bottom) - 1, round(top))
        # a dark rim outside, so that the colour stands out from any picture
        pen.rectangle((box[0] - 1, box[1] - 1, box[2] + 1, box[3] + 1), outline=INK)
        pen.rectangle(box, outline=colour, width=line)
    _draw_captions(drawn, boxes, captions, colours)
    return drawn


def draw_masks(
    image: Image.Image, masks: Sequence[Rle], boxes: ArrayLike, captions: Sequence[str], colours: Sequence[Colour]
) -> Image.Image:
    """A copy of an RGB image with masks, filled and outlined, the smaller ones on top, and captions as `draw_boxes` has them.

    Boxes (n, 4) are in pixels of the image, to which masks of another size are scaled.
    """
    drawn, line = image.copy(), _scale(image, LINE, MIN_LINE)
    pairs = list(zip(masks, colours, strict=True))[::-1]  # of two equally large ones, the first is on top
    for mask, colour in sorted(pairs, key=lambda pair: -pair[0].area):
        patch, (left, top) = _scale_mask(mask, image)
        place, wide = (left - 1, top - 1), np.pad(patch, 2)
        rim = ~_shrink(~wide) & ~wide  # the pixels beside the mask, so that the colour stands out from any picture
        drawn.paste(INK, place, Image.fromarray(255 * rim[1:-1, 1:-1].astype(np.uint8)))
        inner = whole = wide[1:-1, 1:-1]
        for _ in range(line):
            inner = _shrink(inner)
        strength = np.where(inner, round(255 * FILL), 255 * whole).astype(np.uint8)
        drawn.paste(colour, place, Image.fromarray(strength))
    _draw_captions(drawn, boxes, captions, colours)
    return drawn


def tint_classes(
    image: Image.Image, map: NDArray[np.uint8], classes: Sequence[str], colours: Mapping[str, Colour]
) -> Image.Image:
    """A copy of an RGB image, in which the pixels of each class have its colour, with a name on its largest parts.

    ``map`` (h, w) holds indices of ``classes``; it is enlarged to the image. The background, and 255, are not tinted.
    """
    levels = np.asarray(Image.fromarray(map).resize(image.size, Image.Resampling.NEAREST))
    table, is_tinted = np.zeros((256, 3), np.float32), np.zeros(256, bool)
    for index, name in enumerate(classes):
        table[index], is_tinted[index] = colours[name], name not in BACKGROUND
    strength = np.where(is_tinted, TINT, 0).astype(np.float32)[levels]  # (H, W)
    strength[_find_borders(levels) & is_tinted[levels]] = 1
    pixels = np.asarray(image, np.float32)
    mixed = pixels + strength[..., None] * (table[levels] - pixels)
    drawn = Image.fromarray(mixed.round().astype(np.uint8))
    pen, font = ImageDraw.Draw(drawn), _load_font(image)
    counts = np.bincount(map.reshape(-1), minlength=256)
    for index, name in enumerate(classes):
        if is_tinted[index] and counts[index] >= MIN_NAMED * map.size:
            x, y = find_middle(map == index)
            _draw_tag(pen, (x * image.width, y * image.height), name, colours[name], font, image.size, centred=True)
    return drawn


def outline(image: Image.Image, mask: NDArray[np.bool_], colour: Colour) -> Image.Image:
    """A copy of an RGB image with the border of a mask (H, W) of its size, between dark rims."""
    drawn, width = image.copy(), _scale(image, LINE, MIN_LINE)
    border = Image.fromarray(_find_borders(mask.astype(np.uint8)).astype(np.uint8) * 255)
    for shade, reach in ((INK, width), (colour, width - 1)):
        drawn.paste(shade, mask=border.filter(ImageFilter.MaxFilter(2 * reach + 1)))
    return drawn


def find_middle(mask: NDArray[np.bool_]) -> tuple[float, float]:
    """A point (x, y) well inside of the thickest part of a mask (h, w) with some pixels, as shares of width and height."""
    step = math.ceil(max(mask.shape) / COARSE)
    coarse = mask[::step, ::step]
    inside = coarse if coarse.any() else mask
    smaller = inside
    while smaller.any():
        inside, smaller = smaller, _shrink(smaller)
    rows, columns = inside.nonzero()
    middle = len(rows) // 2
    return float(columns[middle] + 0.5) / inside.shape[1], float(rows[middle] + 0.5) / inside.shape[0]


def shorten(words: str, font: ImageFont.FreeTypeFont, room: float) -> str:
    """Joins ``words`` into one line and truncates it to ``room`` pixels, with "…" at the end."""
    words = " ".join(words.split())
    if font.getlength(words) <= room:
        return words
    fit = bisect_right(range(len(words)), room, key=lambda letters: font.getlength(words[:letters] + "…"))
    return words[: fit - 1].rstrip() + "…" if fit else ""


def load_font(size: int) -> ImageFont.FreeTypeFont:
    """The font of Pillow in a size in pixels."""
    font = ImageFont.load_default(size)
    assert isinstance(font, ImageFont.FreeTypeFont)  # always the case if a size is given
    return font


def _load_font(image: Image.Image) -> ImageFont.FreeTypeFont:
    return load_font(_scale(image, LETTERS, MIN_LETTERS))


def _scale(image: Image.Image, share: float, least: int) -> int:
    return max(least, round(share * math.sqrt(image.width * image.height)))


def _find_borders(levels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """The pixels whose right or lower neighbour is of another class: (H, W)."""
    borders = np.zeros(levels.shape, bool)
    borders[:, :-1] = levels[:, :-1] != levels[:, 1:]
    borders[:-1] |= levels[:-1] != levels[1:]
    return borders


def _shrink(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The pixels of a mask (h, w) whose four neighbours lie in it, too; beyond its edges nothing does."""
    padded = np.pad(mask, 1)
    return mask & padded[2:, 1:-1] & padded[:-2, 1:-1] & padded[1:-1, 2:] & padded[1:-1, :-2]


def _scale_mask(mask: Rle, image: Image.Image) -> tuple[NDArray[np.bool_], tuple[int, int]]:
    """The pixels of an image whose middle lies in a mask, within their box, (h, w), and its upper left corner (x, y)."""
    patch, (left, top) = mask.to_patch()
    y = ((np.arange(image.height) + 0.5) * mask.size[0] / image.height).astype(int) - top  # in the patch
    x = ((np.arange(image.width) + 0.5) * mask.size[1] / image.width).astype(int) - left
    rows, columns = (y >= 0) & (y < patch.shape[0]), (x >= 0) & (x < patch.shape[1])
    return patch[np.ix_(y[rows], x[columns])], (int(columns.argmax()), int(rows.argmax()))


def _draw_captions(drawn: Image.Image, boxes: ArrayLike, captions: Sequence[str], colours: Sequence[Colour]) -> None:
    """Draws captions above the upper left corners of boxes (n, 4), the first ones on top."""
    pen, font = ImageDraw.Draw(drawn), _load_font(drawn)
    rows = list(zip(np.asarray(boxes, np.float64).reshape(-1, 4).tolist(), captions, colours, strict=True))[::-1]
    for (left, top, _, _), caption, colour in rows:
        if caption:
            _draw_tag(pen, (left - 1, top - 1), caption, colour, font, drawn.size)


def _draw_tag(
    pen: ImageDraw.ImageDraw,
    place: tuple[float, float],
    words: str,
    colour: Colour,
    font: ImageFont.FreeTypeFont,
    size: tuple[int, int],
    *,
    centred: bool = False,
) -> None:
    """Words on a patch of the colour, above a place or centred on it, moved into the picture of ``size`` (width, height)."""
    gap = max(2, round(font.size / 5))
    words = shorten(words, font, size[0] - 2 * gap)
    wide, tall = math.ceil(font.getlength(words)) + 2 * gap, sum(font.getmetrics()) + gap
    left, top = (place[0] - wide / 2, place[1] - tall / 2) if centred else (place[0], place[1] - tall)
    left, top = (round(min(max(at, 0), limit)) for at, limit in zip((left, top), (size[0] - wide, size[1] - tall)))
    pen.rectangle((left, top, left + wide - 1, top + tall - 1), fill=colour)
    pen.text((left + gap, top + gap / 2), words, INK, font)


def draw_annotation(
    image: Image.Image,
    target: Objects | NDArray[np.uint8],
    classes: Sequence[str],
    size: tuple[int, int],
    captions: Sequence[str] | None = None,
) -> Image.Image:
    """A copy of a picture, in RGB and of any size, with its objects or the class of each of its pixels (H, W).

    ``size`` is that of the picture in which ``target`` is measured, (height, width). The captions of objects are by default their
    names, with "(ignored)" behind those of crowds.
    """
    colours = class_colours(classes)
    if not isinstance(target, Objects):
        return tint_classes(image, target, classes, colours)
    names = [classes[label] for label in target.labels.tolist()]
    if captions is None:
        captions = [f"{name} (ignored)" if crowd else name for name, crowd in zip(names, target.crowd.tolist())]
    boxes = target.boxes * np.tile([image.width / size[1], image.height / size[0]], 2)
    drawn = boxes, captions, [colours[name] for name in names]
    is_outlined = isinstance(target, OutlinedObjects)
    return draw_masks(image, target.masks(), *drawn) if is_outlined else draw_boxes(image, *drawn)


def scale_to_show(image: Image.Image, side: int) -> Image.Image:
    """A picture with at most ``side`` pixels on its longer side; one of up to half as many is enlarged with hard edges."""
    longer = max(image.size)
    times = side // longer if longer <= side // 2 else min(side / longer, 1)
    resampling = Image.Resampling.NEAREST if times > 1 else Image.Resampling.LANCZOS
    return image.resize((max(round(image.width * times), 1), max(round(image.height * times), 1)), resampling)
