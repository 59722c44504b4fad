"""Boxes in another convention than that of their format: fractions in place of pixels, corners in place of sides."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.errors import DataError

Corners = tuple[float, float, float, float]
FEWEST, LARGEST_SHARE = 3, 0.3  # boxes that reach out of their image, above which they are taken to be corners
ROUNDING = 1.0  # pixels


@dataclass
class Convention:
    """Compares the boxes of a split with their images, one after the other."""

    boxes: int = 0
    reach_out: int = 0
    could_be_corners: bool = True
    could_be_fractions: bool = True

    def add(self, given: Corners, box: Corners, size: tuple[int, int]) -> None:
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
