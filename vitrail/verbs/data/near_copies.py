"""Images of one split that are nearly those of another: resized, recompressed or slightly edited copies.

n images, of which thumbnails of 16 x 16 grey pixels are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 16  # pixels of a thumbnail
SMALLEST = 32  # pixels of the shorter side of images that are compared
FLAT = 8.0  # standard deviation of the levels of a thumbnail, below which it shows too little
BANDS, BITS = 4, 14  # of a hash; hashes that differ in fewer bits than there are bands agree in one band
ALIKE = 0.985  # correlation of two thumbnails
BLOCK = 1024  # images that are compared with many others at once
SIMILAR = 0.9  # cosine of the features of two images


def make_thumbnail(picture: Image.Image | NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """Returns (16, 16) grey levels of a picture; None for one that is small, no Pillow image, or nearly of one colour."""
    if isinstance(picture, np.ndarray) or min(picture.size) < SMALLEST:
        return None
    levels = np.asarray(picture.resize((SIDE, SIDE), Image.Resampling.BOX).convert("L"))
    return levels if levels.std() >= FLAT else None


def find_near_copies(
    thumbnails: Sequence[NDArray[np.uint8] | None], groups: NDArray[np.integer]
) -> list[tuple[int, int]]:
    """Finds the pairs of images of different groups whose thumbnails are alike, each with the smaller index first.

    A difference hash (the sign of the change between neighbouring pixels) chooses candidates, and the correlation of the
    thumbnails decides, so brightness and contrast do not matter.

    Args:
        thumbnails: of n images, as `make_thumbnail` gives them.
        groups: (n,) the split of each image.
    """
    rows = np.array([row for row, levels in enumerate(thumbnails) if levels is not None], np.int64)
    if not len(rows) or len(np.unique(groups[rows])) < 2:
        return []
    levels = np.stack([thumbnails[row] for row in rows.tolist()]).astype(np.float32)  # (m, 16, 16)
    hashes = _hash(levels)
    flat = levels.reshape(len(rows), -1)
    flat -= flat.mean(1, keepdims=True)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    found: set[tuple[int, int]] = set()
    for first, second in _list_candidates(hashes, groups[rows]):
        alike = (flat[first] * flat[second]).sum(1) >= ALIKE
        found |= set(zip(rows[first[alike]].tolist(), rows[second[alike]].tolist()))
    return sorted(found)


def find_similar(first: NDArray[np.float32], second: NDArray[np.float32]) -> list[tuple[int, int]]:
    """Finds the pairs of rows of two arrays of features, (a, D) and (b, D), whose cosine is at least `SIMILAR`."""
    one, other = (values / np.linalg.norm(values, axis=1, keepdims=True).clip(min=1e-12) for values in (first, second))
    found = []
    for start in range(0, len(one), BLOCK):
        rows, columns = np.nonzero(one[start : start + BLOCK] @ other.T >= SIMILAR)
        found += zip((rows + start).tolist(), columns.tolist())
    return found


def _hash(levels: NDArray[np.float32]) -> NDArray[np.uint64]:
    """(m,) 56 bits: whether each of 8 x 8 blocks is darker than the next one in its row."""
    blocks = levels.reshape(len(levels), 8, 2, 8, 2).mean((2, 4))  # (m, 8, 8)
    bits = (blocks[:, :, 1:] > blocks[:, :, :-1]).reshape(len(levels), -1)  # (m, 56)
    return bits @ (np.uint64(1) << np.arange(BANDS * BITS, dtype=np.uint64))


def _list_candidates(
    hashes: NDArray[np.uint64], groups: NDArray[np.integer]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Arrays of pairs, the smaller index first, of different groups whose hashes differ in fewer bits than `BANDS`."""
    for band in range(BANDS):
        values = (hashes >> np.uint64(band * BITS)) & np.uint64(2**BITS - 1)
        order = np.argsort(values, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(values[order])) + 1):
            if len(members) < 2 or len(np.unique(groups[members])) < 2:
                continue
            for start in range(0, len(members), BLOCK):
                part = members[start : start + BLOCK]
                differing = np.bitwise_count(hashes[part, None] ^ hashes[None, members])
                near = (differing < BANDS) & (groups[part, None] != groups[None, members]) & (part[:, None] < members)
                one, other = np.nonzero(near)
                yield part[one], members[other]
