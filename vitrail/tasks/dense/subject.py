"""What of an answer is explained: the score of one object, or of the pixels of one class.

B images, h and w of the model's input, H and W of the picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitrail.tasks.dense.class_colours import Colour
from vitrail.tasks.dense.drawing import draw_boxes, outline


@dataclass(frozen=True, eq=False)
class Subject:
    """A score of one image, which stays that of the same cells when the image is changed.

    Args:
        label: its class.
        score: its probability.
        colour: of the class.
        logit: from outputs of the task to the score, (B,), with a gradient.
        probability: from outputs of the task to the score as a probability, (B,).
        region: where it lies: a box (left, top, right, bottom) in pixels of the picture, or a mask (H, W).
    """

    label: str
    score: float
    colour: Colour
    logit: Callable[[Tensor], Tensor]
    probability: Callable[[Tensor], Tensor]
    region: NDArray[np.float64] | NDArray[np.bool_]

    def row(self) -> dict[str, Any]:
        """Label and score; then the box as x0, y0, x1, y1, or the share of the picture."""
        row = {"label": self.label, "score": round(self.score, 6)}
        if self.region.ndim == 2:
            return {**row, "share": round(float(self.region.mean()), 6)}
        return {**row, **{name: round(float(at), 2) for name, at in zip(("x0", "y0", "x1", "y1"), self.region)}}

    def draw_over(self, image: Image.Image) -> Image.Image:
        """A copy of the picture, in RGB and in its own size, with the box or the outline of the region."""
        if self.region.ndim == 2:
            return outline(image, self.region.astype(bool), self.colour)
        return draw_boxes(image, self.region[None], [f"{self.label} {self.score:.2f}"], [self.colour])
