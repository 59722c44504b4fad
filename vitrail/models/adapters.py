"""Low-rank adapters (LoRA, Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1).

An adapter is a parametrisation of the ``weight`` of a dense layer, not a branch beside the layer: attention reads ``weight``
where it needs a part of it, and a branch would be left out there. The weights of the backbone stay as they are; the tensors of
`merge_tensors`, in which each update is added to its weight, are those of an ordinary model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vitrail.errors import ConfigError, nearest
from vitrail.models.backbone import Backbone
from vitrail.models.layers import Dense, by_hand

# dense layers of attention and MLP, by the end of their names; of the first five the rows are slices of q, k and v
SLICED = ("qkv", "kv", "q", "k", "v")
LAYERS = (*SLICED, "proj", "fc1", "fc2")
ORIGINAL, ADAPTER = ".parametrizations.weight.original", ".parametrizations.weight.0."  # within the names of tensors


class LowRank(nn.Module):
    """``W + scale * B A`` for each of the ``chosen`` of S equal slices of the rows of a weight W (O, I).

    A is (C, r, I), uniform within 1 / sqrt(I), and B (C, O / S, r), zero, for C chosen slices: the first update is none. The
    sum is computed in the type of the weights, not in that of autocast.
    """

    chosen: Tensor

    def __init__(self, weight: Tensor, *, rank: int, scale: float, slices: int, chosen: Collection[int]) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        new = {"dtype": weight.dtype, "device": weight.device}
        self.scale, self.slices = scale, slices
        bound = 1 / math.sqrt(inputs)
        self.a = nn.Parameter(torch.empty(len(chosen), rank, inputs, **new).uniform_(-bound, bound))
        self.b = nn.Parameter(torch.zeros(len(chosen), outputs // slices, rank, **new))
        self.register_buffer("chosen", torch.tensor(sorted(chosen), device=weight.device), persistent=False)

    def forward(self, weight: Tensor) -> Tensor:
        """(O, I) to (O, I)."""
        with by_hand(weight):
            update = self.b @ self.a  # (C, O / S, I)
            parts = weight.unflatten(0, (self.slices, -1))  # (S, O / S, I)
            return parts.index_add(0, self.chosen, update, alpha=self.scale).flatten(0, 1)


def add_adapters(
    backbone: Backbone,
    *,
    rank: int,
    alpha: float = 16.0,
    layers: Collection[str] = (),
    slices: str = "qkv",
    blocks: int | None = None,
    rslora: bool = False,
) -> list[str]:
    """Adds an adapter to dense layers in the blocks of a backbone, in place. The function that it computes stays the same.

    Args:
        rank: of each update.
        alpha: the scale of the updates is alpha / rank.
        layers: ends of the names of layers, of `LAYERS`; by default all that the blocks have.
        slices: which of "q", "k" and "v" are adapted, each with an update of its own.
        blocks: number of the last blocks that are adapted; by default all. What comes before needs no gradient.
        rslora: the scale is alpha / sqrt(rank) (Kalajdzievski 2023), whose step size does not depend on the rank.

    Returns:
        The names of the adapted layers.

    Raises:
        ConfigError: no such layers or blocks, or a rank above the rows or columns of a weight.
    """
    depth = backbone.config.blocks
    if blocks is not None and not 1 <= blocks <= depth:
        raise ConfigError(f"adapters in the last {blocks} blocks, and the network has {depth}", f"give 1 to {depth}")
    inside = {name.removesuffix(".weight") for names in backbone.layers()[1:-1][-(blocks or depth) :] for name in names}
    dense = {
        name: module
        for name, module in backbone.named_modules()
        if isinstance(module, Dense) and name in inside and _end(name) in LAYERS
    }
    if not dense:
        what = f"the blocks of {backbone.about} have no dense layers to adapt"
        raise ConfigError(what, f"train it without adapters, or choose a network with {', '.join(LAYERS)}")
    known = sorted({_end(name) for name in dense})
    for end in layers:
        if end not in known:
            raise ConfigError(f"the blocks of {backbone.about} have no layer {end!r}", nearest(end, known))
    scale = alpha / (math.sqrt(rank) if rslora else rank)
    adapted = []
    for name, module in dense.items():
        end = _end(name)
        parts = end if end in SLICED else "*"
        chosen = [index for index, part in enumerate(parts) if part == "*" or part in slices]
        if not chosen or (layers and end not in layers):
            continue
        outputs, inputs = module.weight.shape
        if rank > min(outputs // len(parts), inputs):
            what = f"adapters of rank {rank} for {name}, whose weight is {outputs // len(parts)} x {inputs}"
            raise ConfigError(what, f"give a rank of at most {min(outputs // len(parts), inputs)}")
        adapter = LowRank(module.weight, rank=rank, scale=scale, slices=len(parts), chosen=chosen)
        parametrize.register_parametrization(module, "weight", adapter)
        adapted.append(name)
    if not adapted:
        raise ConfigError(
            f"no layer of {', '.join(layers)} has the slices {slices!r}", "name others, or leave them out"
        )
    return adapted


def _end(name: str) -> str:
    return name.rpartition(".")[2]


def list_adapters(model: nn.Module) -> Iterator[tuple[str, LowRank]]:
    """Yields the adapters of a model, with the names of their layers."""
    for name, module in model.named_modules():
        if isinstance(module, LowRank):
            yield name.removesuffix(ADAPTER.rstrip(".")), module


def has_adapters(model: nn.Module) -> bool:
    return next(list_adapters(model), None) is not None


@torch.no_grad()
def merge_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Returns the state dict of a model without adapters that computes the same: each update is added to its weight."""
    merged: dict[str, Any] = {}
    for name, tensor in model.state_dict().items():
        layer, is_original, _ = name.partition(ORIGINAL)
        if is_original:
            merged[f"{layer}.weight"] = model.get_submodule(layer).weight
        elif ADAPTER not in name:
            merged[name] = tensor
    return merged
