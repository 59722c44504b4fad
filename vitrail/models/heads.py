"""Heads after the blocks: linear heads and attention pooling.

B images, T tokens, D width, H heads, E = D / H, K classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vitrail.models.attention import attend, attention_path
from vitrail.models.layers import Dense, LayerNorm, Mlp, by_hand, dense


class AttentionPool(nn.Module):
    """Attention pooling with one learned query, followed by an MLP: the MAP head of Zhai et al. 2022 (big_vision)."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.latent = nn.Parameter(torch.empty(1, 1, width))
        self.q = Dense(width, width)
        self.kv = Dense(width, 2 * width)
        self.proj = Dense(width, width)
        self.norm = LayerNorm(width, eps=config.norm_eps)
        self.mlp = Mlp(width, config.mlp_width, gelu=config.gelu)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, D)."""
        q = self.q(self.latent.to(x.dtype)).expand(x.shape[0], -1, -1).unflatten(-1, (self.heads, -1))  # (B, 1, H, E)
        k, v = self.kv(x).unflatten(-1, (2, self.heads, -1)).unbind(2)  # (B, T, H, E) each
        path = attention_path(x.device.type, x.dtype, training=k.requires_grad, tokens=x.shape[1])
        pooled = attend(*(part.transpose(1, 2) for part in (q, k, v)), path=path)  # (B, H, 1, E)
        y = self.proj(pooled.transpose(1, 2).flatten(2))[:, 0]  # (B, D)
        return y + self.mlp(self.norm(y))


class Head(Dense):
    """Linear head. It computes in the type of its weights even under autocast, because bf16 logits have only two digits.

    In pretraining, a hidden layer with tanh precedes it (paper, section 3.1).
    """

    def __init__(self, width: int, classes: int, *, pre_logits: bool = False) -> None:
        super().__init__(width, classes)
        self.pre_logits = Dense(width, width) if pre_logits else None

    def forward(self, input: Tensor, gelu: str | None = None) -> Tensor:
        """(B, D) to (B, K)."""
        with by_hand(input):
            x = input.to(self.weight.dtype)
            if self.pre_logits is not None:
                x = self.pre_logits(x).tanh()
            return dense(x, self.weight, self.bias, gelu)


class Heads(nn.ModuleDict):
    """A head for each prefix token, averaged (DeiT, Touvron et al. 2021a)."""

    def compute_logits(self, features: Tensor) -> dict[str, Tensor]:
        """Returns the logits of every head by the name of its token."""
        parts = features.chunk(len(self), -1)
        return {name: head(part) for (name, head), part in zip(self.items(), parts)}

    def forward(self, features: Tensor) -> Tensor:
        return torch.stack(list(self.compute_logits(features).values())).mean(0)
