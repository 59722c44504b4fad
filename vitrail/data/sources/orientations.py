"""Photographs that EXIF turns, where the size of the picture does not tell whether it was annotated before or after that."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from vitrail.data.sources.contents import choose_evenly, open_file, read_head
from vitrail.images.decode import BadImage, read_orientation

HEAD = 2**12  # bytes in which a file says that it has EXIF
LOOKED = 50_000  # pictures whose headers are read, evenly spaced
MIRRORED_OR_180, QUARTER = (2, 3, 4), (5, 6, 7, 8)  # values of EXIF's orientation
TIFF = (b"II", b"MM")

Picture = tuple[str, tuple[int, int]]  # its key, and the (height, width) that its annotation states, or (0, 0)


def find_turned(root: str, pictures: Sequence[Picture]) -> list[str]:
    """Returns the keys of pictures that EXIF turns without a change of the size that their annotation states."""
    looked = [pictures[row] for row in choose_evenly(len(pictures), LOOKED).tolist()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        turned = pool.map(partial(_is_turned, root), looked, chunksize=64)
        return [key for (key, _), is_turned in zip(looked, turned) if is_turned]


def _is_turned(root: str, picture: Picture) -> bool:
    key, (height, width) = picture
    path = os.path.join(root, key)
    head = read_head(path, HEAD)
    # WebP has EXIF at its end, and says so with a bit of its header
    may_have_exif = b"Exif" in head or b"eXIf" in head or head.startswith(TIFF) or head[12:16] == b"VP8X"
    orientation = _read_file(path) if may_have_exif else 1
    return orientation in MIRRORED_OR_180 or (orientation in QUARTER and height == width)


def _read_file(path: str) -> int:
    try:
        with open_file(path) as file:
            return read_orientation(file)
    except BadImage:
        return 1
