"""Signs that boxes are not what their format says: fractions in place of pixels, corners in place of sides, turned pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from vitrail.data.sources.contents import choose_evenly, open_file, read_head
from vitrail.data.sources.shapes import Corners, Size
from vitrail.errors import DataError
from vitrail.images.decode import BadImage, read_orientation

FEWEST, LARGEST_SHARE = 3, 0.3  # boxes that reach out of their image, above which they are taken to be corners
ROUNDING = 1.0  # pixels
HEAD = 2**12  # bytes in which a file says that it has EXIF
LOOKED = 50_000  # pictures whose headers are read, evenly spaced
MIRRORED_OR_180, QUARTER = (2, 3, 4), (5, 6, 7, 8)  # values of EXIF's orientation
TIFF = (b"II", b"MM")


@dataclass
class Convention:
    """Compares the boxes of a split with their images, one after the other."""

    boxes: int = 0
    reach_out: int = 0
    could_be_corners: bool = True
    could_be_fractions: bool = True

    def add(self, given: Corners, box: Corners, size: Size) -> None:
        """Adds a box of an image of ``size`` (height, width), which is not counted if that is (0, 0).

        Args:
            given: its numbers as they stand in the file, in pixels unless the format says so.
            box: left, top, right, bottom as the format has it, in pixels.
        """
        height, width = size
        if not height or not width:
            return
        self.boxes += 1
        self.could_be_fractions &= min(given) >= 0 and max(given) <= 1 and min(size) > 2
        left, top, right, bottom = given
        inside = right <= width + ROUNDING and bottom <= height + ROUNDING
        self.could_be_corners &= inside and right > left and bottom > top
        begins, ends = min(box[:2]) >= -ROUNDING, box[2] <= width + ROUNDING and box[3] <= height + ROUNDING
        self.reach_out += not (begins and ends)

    def check(self, where: object) -> None:
        """Raises `DataError`, which names the file ``where``, if the boxes cannot be what the format says.

        That is if all numbers lie in 0 to 1, or if many boxes reach out of their image as the format has it and none does
        with its numbers as left, top, right, bottom.
        """
        if self.boxes and self.could_be_fractions:
            what = f"all boxes of {where} lie between 0 and 1: they are fractions of their image"
            raise DataError(what, "multiply them by the image's width and height")
        if self.could_be_corners and self.reach_out >= max(FEWEST, LARGEST_SHARE * self.boxes):
            what = f"{self.reach_out:,} of {self.boxes:,} boxes of {where} reach out of their image"
            remedy = "give left, top, width, height in COCO's format, and centre x, centre y, width, height in YOLO's"
            raise DataError(f"{what}: their numbers are left, top, right, bottom", remedy)


def find_turned(root: str, pictures: Sequence[tuple[str, Size]]) -> list[str]:
    """Returns the keys of pictures that EXIF turns without a change of the size that their annotation states.

    Args:
        pictures: the key of each, and the (height, width) that its annotation states, or (0, 0).
    """

    def is_turned(picture: tuple[str, Size]) -> bool:
        key, (height, width) = picture
        path = os.path.join(root, key)
        head = read_head(path, HEAD)
        # WebP has EXIF at its end, and says so with a bit of its header
        if not (b"Exif" in head or b"eXIf" in head or head.startswith(TIFF) or head[12:16] == b"VP8X"):
            return False
        try:
            with open_file(path) as file:
                orientation = read_orientation(file)
        except BadImage:
            return False
        return orientation in MIRRORED_OR_180 or (orientation in QUARTER and height == width)

    looked = [pictures[row] for row in choose_evenly(len(pictures), LOOKED).tolist()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [key for (key, _), turned in zip(looked, pool.map(is_turned, looked, chunksize=64)) if turned]
