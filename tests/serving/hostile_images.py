"""Image files that are broken, grafted or lie about their size: made from sound ones of every format, by a seeded chance."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from functools import cache
from io import BytesIO
from random import Random

import numpy as np
from PIL import Image

EXTREMES = (b"\0", b"\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0")
FAR = 65_500  # pixels of a side that a header claims
# format -> modes and how they are saved
SOUND = {
    "JPEG": [("RGB", {}), ("L", {}), ("CMYK", {}), ("RGB", {"progressive": True}), ("RGB", {"exif": b"Exif\0\0II*\0"})],
    "PNG": [("RGB", {}), ("RGBA", {}), ("P", {}), ("L", {}), ("1", {}), ("I;16", {}), ("LA", {"optimize": True})],
    "GIF": [("P", {}), ("L", {}), ("RGB", {})],
    "TIFF": [("RGB", {}), ("L", {"compression": "tiff_lzw"}), ("RGB", {"compression": "tiff_adobe_deflate"}), ("1", {})],
    "WEBP": [("RGB", {}), ("RGBA", {"lossless": True}), ("RGB", {"quality": 20})],
    "BMP": [("RGB", {}), ("L", {}), ("P", {})],
}  # fmt: skip


@cache
def sound_files() -> tuple[bytes, ...]:
    """A small file of each format and mode, and one with several frames where a format has them."""
    pixels = np.random.default_rng(0).integers(0, 256, (30, 41, 4), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    made = []
    for kind, ways in SOUND.items():
        for mode, how in ways:
            image = picture.convert("L").convert("I").convert("I;16") if mode == "I;16" else picture.convert(mode)
            made.append(saved(image, kind, **how))
    frames = [picture.convert("RGB").rotate(angle) for angle in (90, 180)]
    made += [saved(frames[0], kind, save_all=True, append_images=frames) for kind in ("GIF", "TIFF", "WEBP", "PNG")]
    return tuple(made)


def saved(image: Image.Image, kind: str, **how: object) -> bytes:
    file = BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


def cut(chance: Random, content: bytes) -> bytes:
    return content[: chance.randrange(len(content))]


def flipped(chance: Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 2, 8, 64))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def spliced(chance: Random, content: bytes) -> bytes:
    other = chance.choice(sound_files())
    return cut(chance, content) + other[chance.randrange(len(other)) :]


def overwritten(chance: Random, content: bytes) -> bytes:
    """An extreme value somewhere in the first bytes, where sizes and counts are."""
    place, value = chance.randrange(min(len(content), 200)), chance.choice(EXTREMES)
    return content[:place] + value + content[place + len(value) :]


def stuffed(chance: Random, content: bytes) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] + chance.randbytes(chance.choice((1, 16, 4096))) + content[place:]


def repeated(chance: Random, content: bytes) -> bytes:
    start = chance.randrange(len(content))
    piece = content[start : start + chance.randrange(1, 400)]
    return content[:start] + piece * chance.choice((2, 50)) + content[start:]


MUTATIONS: tuple[Callable[[Random, bytes], bytes], ...] = (cut, flipped, spliced, overwritten, stuffed, repeated)


def mutated(chance: Random) -> bytes:
    """A sound file changed once or twice; what is left may still be an image."""
    content = chance.choice(sound_files())
    for _ in range(chance.choice((1, 1, 2))):
        content = chance.choice(MUTATIONS)(chance, content) or b"\0"
    return content


def chunk(name: bytes, data: bytes) -> bytes:
    """A chunk of a PNG, with a checksum that is right."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(side: int, *more: bytes) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + body


def jpeg(side: int) -> bytes:
    """A sound JPEG whose frame header claims another size."""
    content = sound_files()[0]
    place = content.index(b"\xff\xc0") + 5
    return content[:place] + struct.pack(">HH", side, side) + content[place + 4 :]


def gif(side: int) -> bytes:
    sizes = struct.pack("<HHB", side, side, 0)
    return b"GIF89a" + sizes[:4] + b"\0\0\0," + bytes(4) + sizes + b"\2\1L\0;"


def bmp(side: int) -> bytes:
    sizes = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + sizes


def tiff(side: int) -> bytes:
    """One strip of raw grey bytes which is not there."""
    values = {256: side, 257: side, 258: 8, 259: 1, 262: 1, 273: 200, 277: 1, 278: side, 279: side * side}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in values.items())
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(values)) + entries + bytes(4)


def webp(side: int) -> bytes:
    """An extended header with a canvas as large as the format knows, and no picture."""
    canvas = struct.pack("<I", min(side, 1 << 14) - 1)[:3]
    body = (
        b"WEBPVP8X" + struct.pack("<II", 10, 0) + canvas * 2 + b"VP8L" + struct.pack("<I", 5) + b"/\xff\xff\xff\x0f\0"
    )
    return b"RIFF" + struct.pack("<I", len(body)) + body


BOMBS: tuple[Callable[[int], bytes], ...] = (png, jpeg, gif, bmp, tiff, webp)


def bomb(chance: Random) -> bytes:
    """A few bytes whose header claims gigabytes, or whose text unpacks to megabytes."""
    side = chance.choice((FAR, 1 << 14, 12_000, 8_001))
    if chance.random() < 0.1:
        return png(side, chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(20_000_000))))
    return chance.choice(BOMBS)(side)
