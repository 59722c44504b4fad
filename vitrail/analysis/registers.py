"""Test-time registers (Jiang et al. 2025, "Vision Transformers Don't Need Trained Registers"): the neurons that make outliers
write into an additional token instead of patches.

B images, N patches, T tokens, D width, M hidden neurons of an MLP, n of them moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.analysis.equivariance import Model
from vitrail.analysis.tokens import LEAST, OUTLIER, MapNorms, find_onset, measure_neurons, measure_norms
from vitrail.errors import ConfigError, DataError
from vitrail.models.backbone import eval_mode
from vitrail.models.config import changed
from vitrail.text import plural

AnyModel = TypeVar("AnyModel", bound=Model)
LOOKED_AT = 32  # images with outliers on which neurons are compared


class MovedNeuron(NamedTuple):
    """A hidden neuron of the MLP of a block, with its mean |activation| at outliers and at the other patches."""

    block: int
    index: int
    at_outliers: float
    elsewhere: float


class Register(NamedTuple):
    """The neurons of a test-time register; the norms of each feature map without it; and the share of the images whose most
    probable class is the same with it, None for models without classes.
    """

    neurons: Sequence[MovedNeuron]
    before: Sequence[MapNorms]
    same_answers: float | None


def add_register(model: AnyModel, batches: Sequence[Tensor], count: int = 1) -> tuple[AnyModel, Register]:
    """Returns a copy of a ViT, or of a task with one, that has a test-time register, and what the register changes. The copy
    shares the weights of ``model``, which does not change.

    The register is a zero token without position, placed before the patches. At ``count`` neurons it is given the activation of
    largest magnitude over all tokens, and the patches are given zero: those with the largest mean |activation| at the outliers,
    in the MLPs of all blocks up to the first whose output has them.

    Args:
        batches: normalised images (B, C, H, W) of one size, on which outliers and neurons are found.

    Raises:
        ConfigError: the model is no ViT.
        DataError: no feature map has artefacts on these images.
    """
    if model.config.architecture != "vit":
        what = f"test-time registers are for ViTs, and this is {model.config.about}"
        raise ConfigError(what, "leave registers out")
    before = measure_norms(model, batches)
    if (onset := find_onset(before)) is None:
        what = f"no feature map has artefacts on {plural(sum(map(len, batches)), 'image')}, so there is nothing to move"
        raise DataError(what, f"leave registers out, or give more images: {LEAST} outliers are the fewest that count")
    rows = np.flatnonzero((before[onset].ratios > OUTLIER).any((1, 2)))[:LOOKED_AT]
    means = measure_neurons(model, torch.cat(list(batches))[torch.from_numpy(rows)], onset, before[onset].median)
    assert means is not None, "a ViT with outliers"
    at, elsewhere = means  # (onset + 1, M) each
    found = (divmod(each, at.shape[1]) for each in at.flatten().topk(min(count, at.numel())).indices.tolist())
    neurons = [MovedNeuron(*place, *(each[place].item() for each in (at, elsewhere))) for place in found]
    moved = _move(model, neurons)
    answers = getattr(model, "answers_classes", model.config.classes > 0)
    with eval_mode(model), eval_mode(moved) as device:
        on_device = (images.to(device) for images in batches if answers)
        one, other = (getattr(each, "backbone", each) for each in (model, moved))
        is_same = [one(images).argmax(1) == other(images).argmax(1) for images in on_device]
    return moved, Register(neurons, before, torch.cat(is_same).float().mean().item() if answers else None)


def _move(model: AnyModel, neurons: Sequence[MovedNeuron]) -> AnyModel:
    copied = deepcopy(model, {id(tensor): tensor for tensor in model.parameters()})
    backbone: Any = getattr(copied, "backbone", copied)
    zero = next(backbone.parameters()).new_zeros(1, 1, backbone.width)
    tokens = torch.cat([backbone.reg_token.detach(), zero], 1) if backbone.config.registers else zero  # (1, R + 1, D)
    backbone.reg_token = nn.Parameter(tokens, requires_grad=False)
    backbone.config = changed(backbone.config, registers=tokens.shape[1])
    sizes = {}

    def move(indices: list[int], _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, register = inputs[0].clone(), inputs[0].shape[1] - sizes["patches"] - 1  # (B, T, M)
        if register >= 0:  # unless these are the pooled tokens only, in the last block
            values = hidden[..., indices]  # (B, T, n)
            hidden[:, register:, indices] = 0
            hidden[:, register, indices] = values.gather(1, values.abs().argmax(1, keepdim=True))[:, 0]
        return (hidden,)

    def count(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        sizes["patches"] = inputs[0].shape[1] - backbone.leading

    backbone.dropout.register_forward_pre_hook(count)  # before tokens of queries enter, which come before all others
    for block in {neuron.block for neuron in neurons}:
        indices = [neuron.index for neuron in neurons if neuron.block == block]
        backbone.blocks[block].mlp.fc2.register_forward_pre_hook(partial(move, indices))
    return copied
