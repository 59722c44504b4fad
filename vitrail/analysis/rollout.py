"""Contribution of patches to the output through all layers: attention rollout and gradient-weighted relevance.

Both propagate backwards from the tokens that are pooled, so each layer costs a vector-matrix product. Attention matrices
are computed in slices of rows; no full matrix is in memory.

B images, P prefix tokens, N = h w positions, T = P + N tokens, R of the queries, K keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.analysis.attention import Lift, compute_query_shares, spread_to_finer
from vitrail.errors import ConfigError
from vitrail.models import AttentionRecord
from vitrail.models.backbone import eval_mode
from vitrail.tasks.dense.task import DenseTask

Matrix = Callable[[AttentionRecord, slice, Lift], Tensor]


def rollout(model: Any, images: Tensor) -> Tensor:
    """Computes attention rollout (Abnar & Zuidema 2020, section 3; ViT paper, appendix D.8): (B, h, w) on the patch grid.

    The attention of each layer is averaged over heads, normalised by row, and averaged with the identity for the skip
    connection; these matrices are multiplied through all layers. The result, in fp32, is the row of the pooled tokens: the
    class token, or else the mean of all patches. With prefix tokens the sum is less than one, as their share is omitted.

    Attention of windows and lines is mapped to its positions in the image, without padding. Keys of a reduced map and
    positions of a merged map are divided equally among their source positions. In the class-attention layers of CaiT,
    patch tokens are unchanged; for talking heads, the softmax before the second mixing of heads is used.

    Raises `ConfigError` for a model without attention.
    """

    def average_heads(record: AttentionRecord, rows: slice, lift: Lift) -> Tensor:
        weights = lift.mask_outside(record.weights(rows), rows).mean(1)  # (B, R, K)
        return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)

    with eval_mode(model):
        records: list[AttentionRecord] = []
        model.forward_recording(images, records.append)
        shares = _start_at_pooled(model, images)
        return _propagate_back(model, images, records, shares, average_heads, identity_weight=0.5, attention_weight=0.5)


def relevance(model: Any, images: Tensor, targets: Tensor | None = None) -> Tensor:
    """Computes the gradient-weighted attention of one class (Chefer et al. 2021, "Generic Attention-model Explainability",
    equations 5 and 6): (B, h, w) on the patch grid, in fp32, non-negative and not normalised.

    As in `rollout`, but the attention of each layer is multiplied by the gradient of the class logit, clamped at zero,
    averaged over heads and added to the identity. The graph of the backward pass holds the activations of all layers but no
    attention matrices, so fused attention can be used.

    Args:
        targets: (B,) class indices; by default the predictions.

    Raises:
        ConfigError: a model without attention, or without a head.
    """
    if not model.config.classes:
        what = "the model has no head, so there is no prediction to explain"
        raise ConfigError(what, "train one: `vitrail train DATA --init MODEL`")
    with eval_mode(model, gradients=True):
        records: list[AttentionRecord] = []
        # a copy that requires a gradient, as the parameters may be frozen
        logits = model.forward_recording(images.clone().requires_grad_(), records.append)
        chosen = logits.argmax(1) if targets is None else _check_targets(targets, *logits.shape).to(logits.device)
        answers = logits.gather(1, chosen[:, None]).sum()
        of_output = torch.autograd.grad(answers, [record.output for record in records])  # type: ignore[arg-type]
        weight = _weight_by_gradient(records, of_output)
        del logits, answers
        with torch.no_grad():
            shares = _start_at_pooled(model, images)
            return _propagate_back(model, images, records, shares, weight, identity_weight=1.0, attention_weight=1.0)


def _check_targets(targets: Tensor, images: int, classes: int) -> Tensor:
    """Returns a copy of ``targets``, (B,) int64. Raises `ConfigError` unless they are one valid class per image."""
    whole = not targets.is_floating_point() and targets.dtype != torch.bool
    if targets.shape != (images,) or not whole or ((targets < 0) | (targets >= classes)).any():
        what = f"targets are {targets.tolist()} for {images} images and a model of {classes} classes"
        raise ConfigError(what, f"give one class index per image, {images} whole numbers from 0 to {classes - 1}")
    # a copy, as autograd does not accept tensors created in inference mode
    return targets.to(torch.long, copy=True)


def relevance_of_score(model: DenseTask, images: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
    """Computes the gradient-weighted attention of one score of a task that answers for places: (B, h, w) on the patch grid.

    As in `relevance`, but it starts from the tokens that the head reads. The share of a token is the product of its features
    with their gradient, clamped at zero (Grad-CAM, Selvaraju et al. 2017, for each place); all shares of an image sum to
    one. Shares of the map of a block or of a stage join those of later maps at its last layer; of stages before the first layer
    with attention they are left out. Raises `ConfigError` for a model without attention.

    Args:
        score: from outputs of the task to (B,).
    """
    with eval_mode(model, gradients=True):
        records: list[AttentionRecord] = []
        # a copy that requires a gradient, as the parameters may be frozen
        images = images.clone().requires_grad_()
        maps = model.backbone.dense_maps(images, model.dense_layers, records.append)
        read = [each.view_as(each) for each in maps]  # whose gradients do not come by way of later maps
        total = score(model.answer_maps(read, images)).sum()
        gradients = torch.autograd.grad(total, [*(record.output for record in records), *read], materialize_grads=True)  # type: ignore[arg-type]
        weight = _weight_by_gradient(records, gradients[: len(records)])
        with torch.no_grad():
            shares = _share_reading(model, images, len(records), read, gradients[len(records) :])
            return _propagate_back(model, images, records, shares, weight, identity_weight=1.0, attention_weight=1.0)


def _share_reading(
    model: DenseTask, images: Tensor, layers: int, maps: list[Tensor], gradients: Sequence[Tensor]
) -> dict[int, Tensor]:
    """Returns the shares (B, T) of the tokens that a score reads after each number of layers, from maps (B, D, h, w)."""
    grids = model.attention_grids((images.shape[2], images.shape[3]))[:layers]
    shares: dict[int, Tensor] = {}
    for layer, x, gradient in zip(model.dense_layers, maps, gradients):
        cell = model.config.cells[layer][0]
        number = sum(grid.cell[0] <= cell for grid in grids)  # of a whole stage, or of all blocks, which are alike
        if number := number * (layer + 1) // sum(each[0] <= cell for each in model.config.cells):
            parts = (x.float() * gradient.float()).sum(1).clamp(min=0).flatten(1)  # (B, h w)
            shares[number] = F.pad(parts, (Lift(grids[number - 1], x.device).prefix, 0))
    total = sum(each.sum(1, keepdim=True) for each in shares.values())
    return {number: each / (total + torch.finfo(torch.float32).tiny) for number, each in shares.items()}


def _weight_by_gradient(records: list[AttentionRecord], of_output: Sequence[Tensor]) -> Matrix:
    """Returns the clamped mean over heads of attention times the gradient of the score, given that of all layers' outputs."""
    gradients = WeakKeyDictionary(zip(records, of_output))  # so that a record is freed after its use

    def weigh(record: AttentionRecord, rows: slice, lift: Lift) -> Tensor:
        gradient = record.gradient(gradients[record], rows)
        return lift.mask_outside(record.weights(rows) * gradient, rows).clamp(min=0).mean(1)  # (B, R, K)

    return weigh


def _start_at_pooled(model: Any, images: Tensor) -> dict[int, Tensor]:
    """Returns the shares (B, T) of the pooled tokens after the last layer."""
    grids = model.attention_grids(tuple(images.shape[2:]))
    shares = compute_query_shares(model, grids[-1], None, images.device)
    return {len(grids): shares.expand(len(images), -1)}


def _propagate_back(
    model: Any,
    images: Tensor,
    records: list[AttentionRecord],
    start: Mapping[int, Tensor],
    matrix: Matrix,
    *,
    identity_weight: float,
    attention_weight: float,
) -> Tensor:
    """Propagates shares of tokens backwards through all layers to the patches: (B, h, w).

    Args:
        records: attention records of all layers; each is freed after use.
        start: shares (B, T) that join after so many layers.
        matrix: returns (B, R, K) for the given rows of a layer, zero outside the image.
        identity_weight, attention_weight: fractions of its share that a query keeps and passes to its keys. Tokens that are
            not queries keep their share.
    """
    grids = model.attention_grids(tuple(images.shape[2:]))
    lift = Lift(grids[len(records) - 1], images.device)
    shares = torch.zeros(len(images), lift.tokens, device=images.device)
    while records:
        joining = start.get(len(records))
        record, below = records.pop(), Lift(grids[len(records)], images.device)
        shares = _carry_between(shares, lift, below)
        shares = shares if joining is None else shares + joining
        carried = torch.zeros_like(shares)
        for rows in record.slices():
            carried += below.carry(shares, matrix(record, rows, below), rows)
        shares = shares * (1 - (1 - identity_weight) * below.asks) + attention_weight * carried
        lift = below
    return shares[:, lift.prefix :].unflatten(1, lift.map)


def _carry_between(shares: Tensor, above: Lift, below: Lift) -> Tensor:
    """Maps token shares (B, T) of one layer to the previous layer, where a map was merged or tokens were added."""
    places = spread_to_finer(shares[:, above.prefix :], above.map, below.map)
    assert below.prefix in (0, above.prefix), "prefix tokens may be added between layers, but not removed"
    return torch.cat([shares[:, : below.prefix], places], 1)
