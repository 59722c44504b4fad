"""The geometric transforms of a batch (crop, flip, geometric operations), to apply them to targets such as points.

B images, h and w of the model's input. Points are (x, y) in pixels from the upper left corner: a pixel's centre is at one half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitrail.data.augment.geometry import Numbers
from vitrail.data.prepare import Picture
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.windows import Windows

UNKNOWN = (float("nan"),) * 4


@dataclass(frozen=True, eq=False)
class Frames:
    """The regions of the pictures that a batch shows before augmentation.

    Args:
        crops: (B, 4) left, top, right, bottom of the region in pixels of the picture, which it may exceed.
        pictures: (B, 2) height and width of each picture. Both are NaN for images of a user's transform.
    """

    crops: NDArray[np.float64]
    pictures: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.crops)

    def take(self, rows: NDArray[np.intp]) -> Frames:
        return Frames(self.crops[rows], self.pictures[rows])

    def shrink(self, most: int) -> Frames:
        """Returns the frames of the same pictures, reduced to ``most`` pixels on the longer side if they are larger."""
        longer = self.pictures.max(1, keepdims=True)  # (B, 1)
        scale = np.minimum(most / longer, 1)
        return Frames(self.crops * scale, np.maximum((self.pictures * scale).round(), 1))

    @classmethod
    def join(cls, frames: Sequence[Frames]) -> Frames:
        """Returns the frames of several batches, one after the other."""
        return cls(np.concatenate([each.crops for each in frames]), np.concatenate([each.pictures for each in frames]))

    @classmethod
    def whole(cls, images: int, size: tuple[int, int]) -> Frames:
        """Returns the frames of images that show whole pictures of these sizes (height, width)."""
        height, width = size
        return cls(np.tile([0.0, 0.0, width, height], (images, 1)), np.tile([float(height), width], (images, 1)))

    @classmethod
    def of(cls, pictures: Sequence[Picture]) -> Frames:
        """Returns the frames of a list of pictures."""
        crops = np.array([picture.crop or UNKNOWN for picture in pictures], np.float64).reshape(-1, 4)
        return cls(crops, np.array([picture.full or UNKNOWN[:2] for picture in pictures], np.float64).reshape(-1, 2))

    @classmethod
    def seen(cls, preprocessing: Preprocessing, sizes: Sequence[tuple[int, int]]) -> Frames:
        """Returns the frames of pictures of these sizes (height, width) after ``preprocessing``."""
        corners = np.array([preprocessing.visible_box(*size) for size in sizes], np.float64).reshape(-1, 4)
        return cls(corners[:, [1, 0, 3, 2]], np.array(sizes, np.float64).reshape(-1, 2))

    @classmethod
    def of_windows(cls, windows: Windows, size: tuple[float, float]) -> Frames:
        """Returns the frames of all inputs that show one picture of this size (height, width), which `Windows` made."""
        crops = windows.boxes(int(size[0]), int(size[1]))
        return cls(crops, np.tile(np.array(size, np.float64), (len(crops), 1)))

    def move(self, points: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.float64]:
        """Maps points (B, N, 2) of images of ``size`` (height, width) without augmentation to points of their pictures."""
        corner, span = self.crops[:, None, :2], self.crops[:, None, 2:] - self.crops[:, None, :2]
        return corner + points / np.array([size[1], size[0]]) * span


@dataclass(frozen=True, eq=False)
class Placement:
    """The mapping between the images of a batch and their pictures.

    Args:
        matrices: (B, 3, 3), from (x, y, 1) of the model's input to the point of the picture.
        size: (h, w).
        frames: the crop box and the size of each picture.
        sampling: (B, 3, 3), from (x, y, 1) of the model's input to the pixel of the image as it was read, which shows the crop
            box; for targets that are read and cropped as the image is (`geometry.resample_maps`).
    """

    matrices: Numbers
    size: tuple[int, int]
    frames: Frames
    sampling: Numbers

    def move(self, points: NDArray[np.float64], rows: NDArray[np.intp] | slice = slice(None)) -> NDArray[np.float64]:
        """Maps points (B, N, 2) of the pictures, or of those in ``rows``, to points of the images."""
        inverse = np.linalg.inv(self.matrices[rows])  # (B, 3, 3)
        return points @ inverse[:, :2, :2].transpose(0, 2, 1) + inverse[:, None, :2, 2]


def place(frames: Frames, read: tuple[int, int], matrices: Numbers, size: tuple[int, int]) -> Placement:
    """Returns the placement of images of ``size``, which ``matrices`` (B, 3, 3) map to images of ``read`` (height, width)."""
    left, top, right, bottom = frames.crops.T
    scale = np.tile(np.eye(3), (len(frames), 1, 1))  # from pixels of the read image to pixels of the picture
    scale[:, 0, 0], scale[:, 0, 2] = (right - left) / read[1], left
    scale[:, 1, 1], scale[:, 1, 2] = (bottom - top) / read[0], top
    return Placement(scale @ matrices, size, frames, matrices)
