"""Counting the cost of a network and of its training on the meta device, without allocating memory.

Counted are the operations of matrix products and convolutions, two for each multiply-add; norms, activations and softmax are not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitrail.models.backbone import Backbone
from vitrail.models.known import Cost

Module = TypeVar("Module", bound=nn.Module)


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
    """Returns the bytes that a module on the meta device stores for the backward pass of ``images``, without its parameters."""
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


def on_meta(module: Module, frozen: Collection[str] = ()) -> Module:
    """Returns a copy of a module, in training mode, whose parameters and buffers are on the meta device.

    Parameters that are named in ``frozen`` take no gradient.
    """
    copies: dict[int, object] = {id(buffer): torch.empty_like(buffer, device="meta") for buffer in module.buffers()}
    for name, parameter in module.named_parameters():
        empty = torch.empty_like(parameter, device="meta", requires_grad=False)
        copies[id(parameter)] = nn.Parameter(empty, parameter.requires_grad and name not in frozen)
    return copy.deepcopy(module, copies).train()


def count_operations(compute: Callable[[], object]) -> int:
    """Returns the floating-point operations of ``compute``."""
    with FlopCounterMode(display=False) as counter:
        compute()
    return counter.get_total_flops()


def step_operations(
    objective: nn.Module,
    inputs: Sequence[Tensor],
    *,
    frozen: Collection[str] = (),
    backward: Callable[[Any, Sequence[Tensor]], object] | None = None,
) -> int:
    """Returns the operations of the forward and the backward pass of ``objective``: what a training step really executes, without
    those of layers that are frozen or not needed. Attention counts as its matrix products, each once, even where a fused kernel
    computes some of them again. The optimiser is not counted.

    Args:
        inputs: of the forward pass, whose first output is the loss; only their shapes and types matter.
        frozen: names of parameters that are not trained in this step.
        backward: both passes, where they are more than one forward and one backward pass.

    Raises:
        RuntimeError: the objective looks at the values of tensors, which the meta device does not have.
    """

    def run(objective: nn.Module, inputs: Sequence[Tensor]) -> None:
        objective(*inputs)[0].backward()

    empty = [torch.empty_like(tensor, device="meta") for tensor in inputs]
    twin = on_meta(objective, frozen)
    return count_operations(lambda: (backward or run)(twin, empty))


def image_for(backbone: Backbone) -> Tensor:
    """Returns an image of the config's size on the meta device."""
    return torch.empty(1, backbone.config.in_channels, *backbone.config.image_size, device="meta")
