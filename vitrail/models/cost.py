"""What a ViT costs before it is built: its parameters and its multiply-adds.

N patches, T tokens, D width, M MLP width, K classes.
"""

from __future__ import annotations

import torch

from vitrail.models.config import ViTConfig
from vitrail.models.vit import ViT


def parameter_count(config: ViTConfig) -> int:
    """Exact number of parameters, counted on the meta device: no memory is taken."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in ViT(config).parameters())


def multiply_adds(config: ViTConfig) -> int:
    """Multiply-adds of all matrix products of one image, with those of attention; norms, GELU, softmax and biases not.

    It counts the network as it is defined: `ViT.forward` does less where the last block need only answer for the class token.
    """
    patches = config.grid[0] * config.grid[1]
    tokens = len(config.prefix) + config.registers + patches
    width = config.width
    mlp = 2 * width * config.mlp_width  # of one token
    projection = patches * config.in_channels * config.patch_size[0] * config.patch_size[1] * width
    block = tokens * (4 * width**2 + mlp) + 2 * tokens**2 * width
    if config.positions == "relative":
        offsets = 2 * (len(config.prefix) + patches)  # with the row for pairs that have no offset
        block += tokens * offsets * width
    pooling = 2 * tokens * (width**2 + width) + 2 * width**2 + mlp if config.pool == "map" else 0
    heads = len(config.prefix) if config.pool == "cls" else 1
    hidden = width**2 if config.pre_logits else 0
    return projection + config.depth * block + pooling + heads * (hidden + width * config.classes)
