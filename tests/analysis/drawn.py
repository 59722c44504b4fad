"""Pictures to draw on, and what is left of their ground."""

from __future__ import annotations

import math

import numpy as np

from vitrail.analysis.palette import PAPER


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(math.prod(shape)).integers(0, 256, shape).astype(np.uint8)


def is_paper(picture: np.ndarray) -> np.ndarray:
    return (picture == PAPER).all(-1)
