"""What a network costs in operations, counted on the meta device."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from vitrail.models import Config, cost_of, sketch

SAMPLE = 1_000  # training images that are judged without augmentation, and validation images of the curve
COUNTED = 8  # images of the batch whose operations are counted


def count_step(config: Config) -> float:
    """The operations that a training step executes for one image; on the meta device, where nothing is computed."""
    with torch.device("meta"):
        network, images = sketch(config), torch.empty(COUNTED, config.in_channels, *config.image_size)
    with FlopCounterMode(display=False) as counter:
        network.train()(images).sum().backward()
    return counter.get_total_flops() / COUNTED


def count_macs6(config: Config) -> float:
    """6 x the multiply-adds of a forward pass of one image: the definition of the axis of compute."""
    return 6.0 * cost_of(config).multiply_adds
