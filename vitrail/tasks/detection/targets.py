"""Objects of an image as rows of numbers, which follow the pixels of augmented images.

B images, M objects at most. Boxes are (left, top, right, bottom) in pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment.placement import Placement
from vitrail.data.sources.annotations import Objects
from vitrail.tasks.dense.targets import PlacedTargets, check_placed

LEAST_SHARE, LEAST_AREA = 0.25, 4.0  # of an object that a crop must show: share of its box, square pixels
ROWS = 16  # the rows of a batch's targets are a multiple of this, so that a compiled step sees few shapes


@dataclass(frozen=True)
class BoxTargets(PlacedTargets):
    """Rows of label, whether it is a crowd, and the box; a label of -1 fills up."""

    annotations: type[Objects] = Objects
    needs: str = "boxes"

    def collate(self, rows: Objects) -> Tensor:
        """Collates the objects of B images to (B, M, 7), with M a multiple of 16; the last column is the area of the object."""
        counts = rows.lengths()
        made = np.zeros((len(counts), ROWS * max(math.ceil(counts.max(initial=0) / ROWS), 1), 7), np.float32)
        made[..., 0] = -1
        images = np.arange(len(counts)).repeat(counts)
        places = np.arange(len(images)) - (rows.ends - counts).repeat(counts)
        made[images, places] = np.column_stack([rows.labels, rows.crowd, rows.boxes, rows.areas])
        return torch.from_numpy(made)

    def move(self, targets: Tensor, placement: Placement) -> tuple[Tensor, Tensor]:
        """Returns the objects (B, M, 6) in pixels of the images, and the weight (B,) of each image: images per object of all.

        The box of an object that was turned is that of its corners. Objects of which an image shows less than a quarter, or 4
        square pixels, are left out; crowds stay however little is shown. The column of areas is dropped.
        """
        check_placed(placement)
        moved = targets.cpu().double().numpy()
        corners = moved[..., [2, 3, 4, 3, 4, 5, 2, 5]].reshape(len(moved), -1, 2)
        corners = placement.move(corners).reshape(*moved.shape[:2], 4, 2)
        boxes = np.concatenate([corners.min(2), corners.max(2)], -1)  # (B, M, 4)
        clipped = boxes.clip(0, [*placement.size[::-1]] * 2)
        before, area = (np.prod(each[..., 2:] - each[..., :2], -1) for each in (boxes, clipped))
        is_crowd = moved[..., 1] > 0
        is_shown = (area >= LEAST_AREA) & ((area >= LEAST_SHARE * before) | is_crowd)
        labels = np.where(is_shown, moved[..., 0], -1)
        objects = np.concatenate([labels[..., None], moved[..., 1:2], clipped], -1)
        weight = torch.full((len(moved),), len(moved) / max(int(((labels >= 0) & ~is_crowd).sum()), 1))
        return torch.from_numpy(objects).float(), weight
