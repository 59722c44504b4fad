"""How much of each patch is in the answer, through all layers: attention rollout and gradient-weighted relevance.

Both follow the tokens that the answer is read from backwards, so each layer costs one vector times its matrix, which is
computed in pieces: no matrix of all tokens by all tokens is ever whole.

B images, P prefix tokens, N = h w places, T = P + N tokens, R of the queries, K keys.
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
    """Attention rollout (Abnar & Zuidema 2020, section 3; ViT paper, appendix D.8): (B, h, w) on the patch grid, in fp32.

    The attention of each layer, averaged over its heads, half of it and half identity for the skip connection, rows
    normalised, is multiplied through all layers; the row of the tokens that the answer is read from is what is given: the
    class token, or without one the mean of all places. What stays at prefix tokens belongs to no patch, so the sum is
    less than one where there are such tokens.

    Attention of windows and lines counts where it lies on the map, without the places that fill the map up; a key of a
    reduced map and a place of a merged one stand for the places that they were made of, in equal parts. In CaiT the
    patches rest while the class token asks, and the heads of its talking blocks are those before they are mixed again.

    Args:
        images: normalised, (B, C, H, W).
        query: row and column of a place of the last layer's map, instead of the tokens that the answer is read from.

    Raises:
        ConfigError: a model without attention, or a place that is not there.
    """

    def average_heads(record: AttentionRecord, rows: slice, lift: Lift) -> Tensor:
        weights = lift.mask_outside(record.weights(rows), rows).mean(1)  # (B, R, K)
        return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)

    with at_rest(model):
        records: list[AttentionRecord] = []
        model.forward_recording(images, records.append)
        return _propagate_back(model, images, records, query, average_heads, identity_weight=0.5, attention_weight=0.5)


def relevance(model: Any, images: Tensor, targets: Tensor | None = None) -> Tensor:
    """Gradient-weighted attention (Chefer et al. 2021, "Generic Attention-model Explainability", equations 5 and 6) of
    one class: (B, h, w) on the patch grid, in fp32, none below zero, of no particular sum.

    As `rollout`, but each layer's attention is weighted by the gradient of the class's logit, of which what is negative
    counts as nothing, before it is averaged over heads and added to the identity. It needs a backward pass, whose graph
    holds the activations of all layers, but no attention matrix: the fast path may be taken.

    Args:
        images: normalised, (B, C, H, W).
        targets: (B,) indices of classes; by default what the model answers.

    Raises:
        ConfigError: a model without attention, or without a head.
    """

    def weight_by_gradient(record: AttentionRecord, rows: slice, lift: Lift) -> Tensor:
        gradient = record.gradient(gradients[record], rows)
        return lift.mask_outside(record.weights(rows) * gradient, rows).clamp(min=0).mean(1)  # (B, R, K)

    if not model.config.classes:
        raise ConfigError(
            "the model has no head, so it gives no answer to explain", "train one: `vitrail train DATA --init MODEL`"
        )
    with at_rest(model, gradients=True):
        records: list[AttentionRecord] = []
        # a copy that asks for a gradient: the parameters may be frozen
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
    """Shares of the last tokens carried back through all layers to the patches: (B, h, w).

    Args:
        records: of all layers; each is freed after its use.
        matrix: (B, R, K) of the given rows of a layer, zero outside of the image.
        identity_weight, attention_weight: how much of its share a query keeps, and how much goes to its keys. Tokens that are
            no queries keep all of it.
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
    """Shares of the tokens of one layer (B, T) as those of the layer before it, where a map was merged or tokens joined."""
    places = spread_to_finer(shares[:, above.prefix :], above.map, below.map)
    assert below.prefix in (0, above.prefix), "tokens that leave on the way have no place in any of the layers' tables"
    return torch.cat([shares[:, : below.prefix], places], 1)
