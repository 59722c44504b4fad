"""Draws a picture to look inside a model with: two wall clocks, one large and one small, which belong to nobody.

python examples/clocks.py clocks.png
"""

from __future__ import annotations

import math
import sys

from PIL import Image, ImageDraw, ImageFilter, ImageFont

WIDTH, HEIGHT, FINER = 640, 512, 3  # drawn three times as large, then made smaller, so that edges are smooth
PAPER, STRIPE, SHADE, RIM, FACE, INK, RED = "#b7a88f", "#ae9f86", "#6d6353", "#5b3a1e", "#f6f1e3", "#1d1b18", "#a02c23"


def clock(draw: ImageDraw.ImageDraw, x: float, y: float, radius: float, hours: float) -> None:
    """One clock around (x, y), all in pixels, at a time in hours."""

    def disc(size: float, colour: str) -> None:
        draw.ellipse((x - size, y - size, x + size, y + size), fill=colour)

    def spot(turns: float, length: float) -> tuple[float, float]:
        return x + length * math.sin(turns * math.tau), y - length * math.cos(turns * math.tau)

    disc(radius, RIM)
    disc(radius * 0.9, "#c9a25f")
    disc(radius * 0.86, FACE)
    font = ImageFont.load_default(radius * 0.17)
    for minute in range(60):
        start = 0.74 if minute % 5 == 0 else 0.79
        draw.line(
            (*spot(minute / 60, radius * start), *spot(minute / 60, radius * 0.83)), fill=INK, width=int(radius * 0.018)
        )
    for hour in range(1, 13):
        draw.text(spot(hour / 12, radius * 0.6), str(hour), fill=INK, font=font, anchor="mm")
    for turns, length, width, colour in (
        (hours / 12, 0.42, 0.06, INK),
        (hours % 1, 0.62, 0.04, INK),
        (0.57, 0.66, 0.014, RED),
    ):
        draw.line(
            (*spot(turns + 0.5, radius * 0.1), *spot(turns, radius * length)), fill=colour, width=int(radius * width)
        )
    disc(radius * 0.05, INK)


def picture() -> Image.Image:
    """A striped wall with both."""
    image = Image.new("RGB", (WIDTH * FINER, HEIGHT * FINER), PAPER)
    draw = ImageDraw.Draw(image)
    for left in range(0, WIDTH * FINER, 96):
        draw.rectangle((left, 0, left + 47, HEIGHT * FINER), fill=STRIPE)
    places = ((255, 305, 150, 10.15), (450, 125, 75, 7.6))
    for x, y, radius, _ in places:  # the shadows on the wall
        draw.ellipse(
            [FINER * each for each in (x - radius + 14, y - radius + 18, x + radius + 14, y + radius + 18)], fill=SHADE
        )
    image = image.filter(ImageFilter.GaussianBlur(10 * FINER))
    draw = ImageDraw.Draw(image)
    for x, y, radius, hours in places:
        clock(draw, x * FINER, y * FINER, radius * FINER, hours)
    return image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)


if __name__ == "__main__":
    picture().save(sys.argv[1] if len(sys.argv) > 1 else "clocks.png")
