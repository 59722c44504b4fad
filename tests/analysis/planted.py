"""A ViT whose neuron 5 of block 1 is on for the one patch that is not black, and writes a large number."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.models.tiny import TINY
from vitrail.models.config import changed

CONFIG = changed(TINY["vit"], image_size=(64, 64), positions="none")


def draw_images(count: int) -> Tensor:
    """Black images (B, 3, 64, 64), equal but for the first of 64 patches, which is the same in all of them."""
    images = torch.zeros(count, 3, 64, 64)
    images[:, :, :8, :8] = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0))
    return images


def plant_outliers(backbone, images: Tensor) -> None:
    inputs, generator = [], torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.normal_(std=0.05, generator=generator)
        backbone.patch_embed.proj.bias.normal_(generator=generator)  # black patches are as long as others
        for name, parameter in backbone.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.fill_(1.0)
    mlp = backbone.blocks[1].mlp
    hook = mlp.register_forward_pre_hook(lambda _, given: inputs.append(given[0][0, -64:]))  # (64, D)
    with torch.no_grad():
        backbone.feature_maps(images)
        hook.remove()
        bright, black = inputs[0][0], inputs[0][1:].mean(0)
        mlp.fc1.weight[5] = 40 * (bright - black) / (bright - black).square().sum()
        mlp.fc1.bias[5] = -mlp.fc1.weight[5] @ (bright + black) / 2
        mlp.fc2.weight[:, 5] = 0.0
        mlp.fc2.weight[3, 5] = 500.0
