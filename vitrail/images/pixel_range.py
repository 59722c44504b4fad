"""The range of the values of images of more than 8 bits. No numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vitrail.errors import ConfigError

Levels = tuple[float, float]  # what becomes 0 and 1


def check_levels(levels: Sequence[float]) -> None:
    """Raises `ConfigError` for anything else than two finite numbers, the smaller one first."""
    if len(levels) != 2 or not all(map(math.isfinite, levels)) or not levels[0] < levels[1]:
        given = ",".join(f"{level:g}" for level in levels)
        raise ConfigError(f"the pixel range is {given}", "give the values that become black and white, e.g. 0,4095")
