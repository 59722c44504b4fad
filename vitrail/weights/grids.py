"""The grid of patches of a table of positions, whose size alone does not determine it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import Config
from vitrail.models.config import grid_of

Grid = tuple[int, int]  # rows, columns


def choose_grid(
    fits: Callable[[Grid], bool],
    near: Grid,
    patch: Sequence[int],
    arguments: Mapping[str, Any],
    where: Path,
    about: str,
) -> Grid:
    """Returns the rows and columns of patches that a table of positions is for: as stated by ``grid`` or ``img_size``, or
    else those of the preprocessing's ``input_size`` or of the requested ``image_size`` if these fit, or else a square.

    Args:
        fits: whether a grid can have this table.
        near: the most square of these grids.
        patch: height and width of a patch in pixels.
        about: the table in words, for messages.

    Raises:
        CheckpointError: the stated grid does not fit; or none is stated, and a square does not fit.
    """
    sides, remedy = (patch[0], patch[1]), f"give its rows and columns of patches, such as --grid {near[0]}x{near[1]}"
    remedy += f", or {near[1]}x{near[0]}" if near[0] != near[1] else ""
    remedy += " (for a training, to `vitrail convert` first)"
    stated, size = arguments.get("grid"), arguments.get("img_size")
    if stated is None and size is not None:
        stated = (max(size[0] // sides[0], 1), max(size[1] // sides[1], 1))
    if stated is not None:
        if fits(stated):
            return stated
        has = "the grid has" if size is None or arguments.get("grid") else f"images of {size[0]}x{size[1]} have"
        what = f"{where} has {about}, but {has} {stated[0]}x{stated[1]} patches"
        raise CheckpointError(what, remedy)
    for size in (arguments.get("input_size"), arguments.get("image_size")):
        if size is not None and fits(grid := grid_of(size, sides)):
            return grid
    if near[0] == near[1] and fits(near):
        return near
    raise CheckpointError(f"{where} has {about}, which is not a square grid", remedy)


def factorise(number: int) -> Grid:
    """Returns the most nearly equal factors of a number, the smaller one first."""
    first = next((first for first in range(math.isqrt(max(number, 1)), 1, -1) if number % first == 0), 1)
    return first, max(number, 1) // first


def most_likely(counts: Sequence[int]) -> Grid:
    """Returns the most square grid of one of several numbers of patches: of the first that is a square, or else of the first
    that has a grid of at most 1 to 4, or else of the first.
    """
    grids = [factorise(count) for count in counts]
    return min(grids, key=lambda grid: (grid[0] != grid[1], grid[1] > 4 * grid[0]))


def check_grid_is_open(stated: object, *, has_table: bool, path: Path) -> None:
    """Raises `ConfigError` if ``path`` states its image size, or if its network has no table of positions."""
    if not has_table:
        raise ConfigError(f"{path} has no table of positions, and a grid was given", "leave --grid out")
    if stated:
        what = f"{path} states its image size, and a grid was given"
        raise ConfigError(what, "leave --grid out; --crop gives another input size")


def describe_grid(config: Config) -> str:
    """Returns the assumption of a grid of patches in words."""
    (height, width), (rows, columns) = config.image_size, config.grid
    return f"image size {height}x{width}, a grid of {rows}x{columns} patches (--grid states another)"
