"""Counting the cost of a network on the meta device, without allocating memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitrail.models.backbone import Backbone
from vitrail.models.costs import Cost


def count_cost(backbone: Backbone) -> Cost:
    """Counts the cost of a network on the meta device."""
    # views of parameters, such as a repeated class token, require a gradient even without a graph
    backbone = backbone.requires_grad_(False)
    parameters = sum(parameter.numel() for parameter in backbone.parameters())
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        tokens = backbone.forward_features(image_for(backbone))
        backbone.head(backbone.pool(tokens))
    batched = sum(
        counts.get(product, 0)
        for name, counts in counter.get_flop_counts().items()
        for product in (torch.ops.aten.bmm, torch.ops.aten.baddbmm)
        if name.endswith((".attn", ".attn_pool"))
    )
    return Cost(parameters, counter.get_total_flops() // 2, batched // 2, tokens.x.shape[1])


def saved_bytes(module: nn.Module, images: Tensor) -> int:
    """Returns the bytes that a module on the meta device stores for the backward pass of ``images``."""
    parameters = {id(parameter.untyped_storage()) for parameter in module.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if id(storage) not in parameters:
            kept[id(storage)] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        answer = module(images)
    assert answer is not None  # the graph keeps the storages alive until here, so their ids are unique
    return sum(kept.values())


def image_for(backbone: Backbone) -> Tensor:
    """Returns an image of the config's size on the meta device."""
    return torch.empty(1, backbone.config.in_channels, *backbone.config.image_size, device="meta")
