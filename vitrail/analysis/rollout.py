"""Contribution of patches to the output through all layers: attention rollout and gradient-weighted relevance.

Both propagate backwards from the tokens that are pooled, so each layer costs a vector-matrix product. Attention matrices
are computed in slices of rows; no full matrix is in memory.

B images, P prefix tokens, N = h w positions, T = P + N tokens, R of the queries, K keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from vitrail.analysis.attention import Place, compute_query_shares
from vitrail.analysis.attention_geometry import Lift, spread_to_finer
from vitrail.analysis.perturbation import check_targets
from vitrail.errors import ConfigError
from vitrail.models import AttentionRecord
from vitrail.models.backbone import at_rest

Matrix = Callable[[AttentionRecord, slice, Lift], Tensor]


def rollout(model: Any, images: Tensor, query: Place | None = None) -> Tensor:
    """Computes attention rollout (Abnar & Zuidema 2020, section 3; ViT paper, appendix D.8): (B, h, w) on the patch grid.

    The attention of each layer is averaged over heads, normalised by row, and averaged with the identity for the skip
    connection; these matrices are multiplied through all layers. The result, in fp32, is the row of the pooled tokens: the
    class token, or else the mean of all patches. With prefix tokens the sum is less than one, as their share is omitted.

    Attention of windows and lines is mapped to its positions in the image, without padding. Keys of a reduced map and
    positions of a merged map are divided equally among their source positions. In the class-attention layers of CaiT,
    patch tokens are unchanged; for talking heads, the softmax before the second mixing of heads is used.

    Args:
        images: normalised, (B, C, H, W).
        query: row and column of a position of the last layer's map, instead of the pooled tokens.

    Raises:
        ConfigError: a model without attention, or a query out of range.
    """

    def average_heads(record: AttentionRecord, rows: slice, lift: Lift) -> Tensor:
        weights = lift.mask_outside(record.weights(rows), rows).mean(1)  # (B, R, K)
        return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)

    with at_rest(model):
        records: list[AttentionRecord] = []
        model.forward_recording(images, records.append)
        return _propagate_back(model, images, records, query, average_heads, identity_weight=0.5, attention_weight=0.5)


def relevance(model: Any, images: Tensor, targets: Tensor | None = None) -> Tensor:
    """Computes the gradient-weighted attention of one class (Chefer et al. 2021, "Generic Attention-model Explainability",
    equations 5 and 6): (B, h, w) on the patch grid, in fp32, non-negative and not normalised.

    As in `rollout`, but the attention of each layer is multiplied by the gradient of the class logit, clamped at zero,
    averaged over heads and added to the identity. The graph of the backward pass holds the activations of all layers but no
    attention matrices, so fused attention can be used.

    Args:
        images: normalised, (B, C, H, W).
        targets: (B,) class indices; by default the predictions.

    Raises:
        ConfigError: a model without attention, or without a head.
    """

    def weight_by_gradient(record: AttentionRecord, rows: slice, lift: Lift) -> Tensor:
        gradient = record.gradient(gradients[record], rows)
        return lift.mask_outside(record.weights(rows) * gradient, rows).clamp(min=0).mean(1)  # (B, R, K)

    if not model.config.classes:
        raise ConfigError(
            "the model has no head, so there is no prediction to explain",
            "train one: `vitrail train DATA --init MODEL`",
        )
    with at_rest(model, gradients=True):
        records: list[AttentionRecord] = []
        # a copy that requires a gradient, as the parameters may be frozen
        logits = model.forward_recording(images.clone().requires_grad_(), records.append)
        chosen = logits.argmax(1) if targets is None else check_targets(targets, *logits.shape).to(logits.device)
        answers = logits.gather(1, chosen[:, None]).sum()
        of_output = torch.autograd.grad(answers, [record.output for record in records])  # type: ignore[arg-type]
        gradients = WeakKeyDictionary(zip(records, of_output))  # so that a record is freed after its use
        del logits, answers
        with torch.no_grad():
            return _propagate_back(
                model, images, records, None, weight_by_gradient, identity_weight=1.0, attention_weight=1.0
            )


def _propagate_back(
    model: Any,
    images: Tensor,
    records: list[AttentionRecord],
    query: Place | None,
    matrix: Matrix,
    *,
    identity_weight: float,
    attention_weight: float,
) -> Tensor:
    """Propagates the shares of the pooled tokens backwards through all layers to the patches: (B, h, w).

    Args:
        records: attention records of all layers; each is freed after use.
        matrix: returns (B, R, K) for the given rows of a layer, zero outside the image.
        identity_weight, attention_weight: fractions of its share that a query keeps and passes to its keys. Tokens that are
            not queries keep their share.
    """
    grids = model.attention_grids(tuple(images.shape[2:]))
    lift = Lift(grids[-1], images.device)
    shares = compute_query_shares(model, grids[-1], query, images.device).expand(len(images), -1)  # (B, T)
    while records:
        record, below = records.pop(), Lift(grids[len(records)], images.device)
        shares = _carry_between(shares, lift, below)
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
