"""Pictures laid on white."""

from __future__ import annotations

from PIL import Image

ROWS = 1 << 20  # pixels that are laid on white at one time: several copies of all of a large picture would be held else


def on_white(image: Image.Image) -> Image.Image:
    """A picture of any mode with transparency as RGB, what is clear of it white."""
    width, height = image.size
    opaque = Image.new("RGB", image.size)
    step = max(1, ROWS // max(width, 1))
    for top in range(0, height, step):
        box = (0, top, width, min(top + step, height))
        seen = image.crop(box).convert("RGBA")
        opaque.paste(Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB"), box)
    return opaque
