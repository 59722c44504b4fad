"""Where the pixels of a batch come from: what crops, flips and geometric operations did, for targets that must follow.

B images, H and W of the picture an image was made from, upright, h and w of the image as the network takes it. Points are
(x, y) in pixels from the upper left corner, so that a pixel's centre is at one half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrail.data.augment.geometry import Numbers
from vitrail.data.pictures import Picture
from vitrail.data.preprocessing import Preprocessing

UNKNOWN = (float("nan"),) * 4


@dataclass(frozen=True, eq=False)
class Frames:
    """What a batch that was read shows of its pictures, before any augmentation.

    Args:
        crops: (B, 4) left, top, right, bottom of the part that is shown, in pixels of the picture; it may reach beyond it.
            NaN where a transform of the user's own made the image.
        pictures: (B, 2) height and width of each picture; NaN as well.
    """

    crops: NDArray[np.float64]
    pictures: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.crops)

    def take(self, rows: NDArray[np.intp]) -> Frames:
        return Frames(self.crops[rows], self.pictures[rows])

    @classmethod
    def whole(cls, images: int, size: tuple[int, int]) -> Frames:
        """Of images that are their pictures, each (height, width)."""
        height, width = size
        return cls(np.tile([0.0, 0.0, width, height], (images, 1)), np.tile([float(height), width], (images, 1)))

    @classmethod
    def of(cls, pictures: Sequence[Picture]) -> Frames:
        """Of images that were made one by one."""
        crops = np.array([picture.crop or UNKNOWN for picture in pictures], np.float64).reshape(-1, 4)
        return cls(crops, np.array([picture.full or UNKNOWN[:2] for picture in pictures], np.float64).reshape(-1, 2))

    @classmethod
    def seen(cls, preprocessing: Preprocessing, sizes: Sequence[tuple[int, int]]) -> Frames:
        """Of pictures of these sizes (height, width) as ``preprocessing`` shows them to a model."""
        corners = np.array([preprocessing.visible_box(*size) for size in sizes], np.float64).reshape(-1, 4)
        return cls(corners[:, [1, 0, 3, 2]], np.array(sizes, np.float64).reshape(-1, 2))

    def move(self, points: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.float64]:
        """Points (B, N, 2) of images of ``size`` (height, width), which no augmentation moved, as points of their pictures."""
        corner, span = self.crops[:, None, :2], self.crops[:, None, 2:] - self.crops[:, None, :2]
        return corner + points / np.array([size[1], size[0]]) * span


@dataclass(frozen=True, eq=False)
class Placement:
    """What became of a batch's pictures.

    Args:
        matrices: (B, 3, 3) send (x, y, 1) of the image as the network takes it to the point of the picture shown there.
        size: (h, w).
        frames: what was read of each picture: the crop box and the picture's size.
    """

    matrices: Numbers
    size: tuple[int, int]
    frames: Frames

    def move(self, points: NDArray[np.float64], rows: NDArray[np.intp] | slice = slice(None)) -> NDArray[np.float64]:
        """Points (B, N, 2) of the pictures, or of those in ``rows``, as points of the images."""
        inverse = np.linalg.inv(self.matrices[rows])  # (B, 3, 3)
        return points @ inverse[:, :2, :2].transpose(0, 2, 1) + inverse[:, None, :2, 2]


def place(frames: Frames, read: tuple[int, int], matrices: Numbers, size: tuple[int, int]) -> Placement:
    """The placement of images of ``size`` that ``matrices`` (B, 3, 3) made from images of ``read`` (height, width) pixels."""
    left, top, right, bottom = frames.crops.T
    scale = np.tile(np.eye(3), (len(frames), 1, 1))  # from pixels that were read to pixels of the picture
    scale[:, 0, 0], scale[:, 0, 2] = (right - left) / read[1], left
    scale[:, 1, 1], scale[:, 1, 2] = (bottom - top) / read[0], top
    return Placement(scale @ matrices, size, frames)
