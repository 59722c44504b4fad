"""Every architecture by the plain definition of attention, whose matrices stay in the graph and get their gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vitrail.models import Backbone
from vitrail.models.attention import GridWindows
from vitrail.models.cait import TalkingHeads

# `vitrail.models.vit` has the name too, but its pooling is no layer
WHERE = ("attention", "beit", "swin", "cait", "pvt")


def run_plainly(model: Backbone, images: Tensor, targets: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Logits; of each layer the matrix and the gradient by it of the logits of ``targets`` (B,), both (B, H, Q, K).

    The last layer may have only those queries that are needed. Heads of talking blocks are those before they are mixed again.
    """
    kept: list[Tensor] = []

    def keep(weights: Tensor) -> Tensor:
        weights.retain_grad()
        kept.append(weights)
        return weights

    def attend(q, k, v, *, bias=None, dropout=0.0, path=None):
        return keep((q @ k.mT / q.shape[-1] ** 0.5 + (0 if bias is None else bias)).softmax(-1)) @ v

    def attend_in_windows(q, k, v, windows, *, dropout=0.0):
        return attend(q, k, v, bias=masked(windows, k.shape[2]))

    def attend_along_lines(q, k, bias):
        weights = (q @ k.mT / q.shape[-1] ** 0.5 + bias).softmax(-1)  # (B, L, H, T, T)
        return keep(weights.flatten(0, 1)).view_as(weights)

    def talk(self, q, k):
        logits = torch.einsum("ca,baqe,bake->bcqk", self.proj_l.weight, q / q.shape[-1] ** 0.5, k)
        return keep((logits + self.proj_l.bias[:, None, None]).softmax(-1))

    with pytest.MonkeyPatch.context() as patch, torch.enable_grad():
        for name in WHERE:
            patch.setattr(f"vitrail.models.{name}.attend", attend)
        patch.setattr("vitrail.models.attention.attend_in_windows", attend_in_windows)
        patch.setattr("vitrail.models.resnet.attention_weights", attend_along_lines)
        patch.setattr(TalkingHeads, "softmax", talk)
        logits = model(images.clone().requires_grad_())
        logits.gather(1, targets[:, None]).sum().backward()
    model.zero_grad()
    shapes = [record.shape for record in records_of(model, images)]
    gradients = [each.grad for each in kept]
    matrices = [_in_order(each, shape) for each, shape in zip(kept, shapes, strict=True)]
    return logits.detach(), matrices, [_in_order(each, shape) for each, shape in zip(gradients, shapes, strict=True)]


def masked(windows: GridWindows, tokens: int) -> Tensor:
    """Minus infinity for pairs of patches of different windows, whose sides are those of ``windows``: (T, T)."""
    mask = torch.zeros(tokens, tokens)
    for query in range(windows.prefix, tokens):
        for key in range(windows.prefix, tokens):
            places = (divmod(token - windows.prefix, windows.grid[1]) for token in (query, key))
            of_query, of_key = ((row // windows.height, column // windows.width) for row, column in places)
            if of_query != of_key:
                mask[query, key] = -math.inf
    return mask


def _in_order(matrix: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """Groups, which count as images or as heads, one after another: to (B, H, Q, K)."""
    batch, heads, *_ = shape
    matrix = matrix.detach()
    return matrix.reshape(batch, -1, heads, *matrix.shape[2:]).transpose(1, 2).flatten(2, 3)


def records_of(model: Backbone, images: Tensor) -> list:
    records: list = []
    with torch.no_grad():
        model.forward_recording(images, records.append)
    return records
