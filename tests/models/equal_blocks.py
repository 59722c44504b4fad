"""The cost of a network of equal blocks from two of its blocks: counting all of them takes a second a model."""

from __future__ import annotations

from vitrail.models import Config, configure, cost_of, sketch
from vitrail.models.known import Cost


def cost_by_two_blocks(config: Config) -> Cost:
    """`cost_of(config)`: every parameter is counted, and the work of block 2 is that of all that follow."""
    one, two = (cost_of(configure(config, depth=depth)) for depth in (1, 2))
    multiply_adds, attention = (
        first + (config.depth - 1) * (both - first)
        for first, both in ((one.multiply_adds, two.multiply_adds), (one.attention, two.attention))
    )
    return Cost(parameter_count(config), multiply_adds, attention, two.tokens)


def parameter_count(config: Config) -> int:
    return sum(parameter.numel() for parameter in sketch(config).parameters())
