"""Attention: plain and fused implementations, over all tokens or in windows.

B images, T tokens, D width, H heads, E = D / H, Q queries, K keys.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.grid_windows import GridWindows
from vitrail.models.layers import Dense, dense
from vitrail.models.recording import AttentionRecord, OnAttention, attention_weights

# Range of token counts in which plain attention is faster, by device, type and training; fused attention is used otherwise.
# Measured by benchmarks/attention.py. In bf16 training on a CPU, fused attention is up to 6 times slower with few tokens, 1.3
# to 2.3 times with 197 or 257, up to 2.6 times with 577, and faster with 1,025. In inference it is faster on CPUs with AMX;
# without AMX, plain attention is 1.0 to 1.9 times faster with 197 or 257 tokens.
PLAIN = {
    ("cpu", torch.bfloat16, True): (0, 577),
    ("cpu without AMX", torch.bfloat16, True): (0, 577),
    ("cpu without AMX", torch.bfloat16, False): (64, 577),
}


_processors: list[str] = []


def processor() -> str:
    """Returns the CPU's key in `PLAIN`. Cached when the first model is built, because a compiler could not trace it."""
    if not _processors:
        _processors.append("cpu" if torch.cpu.get_capabilities().get("amx_tile") else "cpu without AMX")
    return _processors[0]


def attention_path(device: str, dtype: torch.dtype, *, training: bool, tokens: int, learned_bias: bool = False) -> str:
    """Returns "plain" or "fused", whichever was faster in benchmarks/attention.py.

    On the meta device it is "plain", whose cost can be counted. ``learned_bias``: the logits have a bias that requires a
    gradient.
    """
    # torch's fused kernel has no gradient for a bias on the CPU; its fallback is slower than plain attention
    if device == "meta" or (device == "cpu" and learned_bias and torch.is_grad_enabled()):
        return "plain"
    least, most = PLAIN.get((processor() if device == "cpu" else device, dtype, training), (1, 0))
    return "plain" if least <= tokens <= most else "fused"


def attend(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, dropout: float = 0.0, path: str) -> Tensor:
    """Multi-head attention, equation (7): queries (B, H, Q, E), keys and values (B, H, K, E) to (B, H, Q, E).

    Args:
        bias: (B or 1, H, Q, K), added to the scaled logits.
        path: "plain" or "fused" (torch's kernel); equal up to rounding.
    """
    if path == "plain":
        weights = attention_weights(q, k, bias)
        return (F.dropout(weights, dropout) if dropout else weights) @ v
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)


def attend_in_windows(q: Tensor, k: Tensor, v: Tensor, windows: GridWindows, *, dropout: float = 0.0) -> Tensor:
    """Attention of patches to their window and to the prefix tokens, and of prefix tokens to all tokens: (B, H, T, E) each to
    (B, H, T, E).
    """
    device, training, prefix = q.device.type, q.requires_grad, windows.prefix
    before, patches = zip(*(part.split([prefix, part.shape[2] - prefix], 2) for part in (q, k, v)))
    mine, *others = (windows.cut(part) for part in patches)  # (B n, H, S, E)
    if prefix:
        count = windows.rows * windows.columns
        shared = (part[:, None].expand(-1, count, -1, -1, -1).flatten(0, 1) for part in before[1:])
        others = [torch.cat(pair, 2) for pair in zip(shared, others)]  # (B n, H, P + S, E)
    keys, values = others
    bias = windows.padding_bias(q.shape[0], q)
    path = attention_path(device, q.dtype, training=training, tokens=keys.shape[2])
    y = windows.join(attend(mine, keys, values, bias=bias, dropout=dropout, path=path))  # (B, N, H, E)
    if prefix:
        path = attention_path(device, q.dtype, training=training, tokens=k.shape[2])
        y = torch.cat([attend(before[0], k, v, dropout=dropout, path=path).transpose(1, 2), y], 1)
    return y.transpose(1, 2)


class Relative(NamedTuple):
    """Relative positions of one layer: a ``table`` (R, E) of offsets, and an ``index`` (T, K) or (B, T, K) into it."""

    table: Tensor
    index: Tensor

    def bias(self, q: Tensor, rows: slice) -> Tensor:
        """Returns the scaled relative logits q.r of the queries ``rows`` (paper, appendix D.4): (B, H, Q, K)."""
        logits = q * q.shape[-1] ** -0.5 @ self.table.to(q.dtype).mT  # (B, H, Q, R)
        index = self.index if self.index.ndim == 3 else self.index[None]
        return logits.gather(-1, index[:, None, rows].expand(*q.shape[:3], -1))


class Context(NamedTuple):
    """How the tokens of a layer attend: with ``relative`` positions, or in ``windows`` of the patches; and of how many leading
    ``queries`` the output is needed.
    """

    relative: Relative | None = None
    windows: GridWindows | None = None
    queries: int | None = None

    @property
    def is_per_image(self) -> bool:
        """Whether it differs between the images of a batch, so that none of them may be left out."""
        return self.relative is not None and self.relative.index.ndim == 3


EVERYWHERE = Context()  # every token attends to all tokens


class Attention(nn.Module):
    """Multi-head self-attention, MSA (paper, appendix A)."""

    def __init__(self, width: int, heads: int, *, qkv_bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = Dense(width, 3 * width, bias=qkv_bias)
        self.proj = Dense(width, width)

    def split(self, x: Tensor, queries: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Projects (B, T, D) to q of the first ``queries`` tokens (default: all), k and v: (B, H, Q or T, E) each."""
        if queries is None:
            q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        else:
            weight, bias, width = self.qkv.weight, self.qkv.bias, x.shape[-1]
            of_q, of_kv = (None, None) if bias is None else (bias[:width], bias[width:])
            q = dense(x[:, :queries], weight[:width], of_q).unflatten(-1, (self.heads, -1))
            k, v = dense(x, weight[width:], of_kv).unflatten(-1, (2, self.heads, -1)).unbind(2)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def forward(self, x: Tensor, context: Context = EVERYWHERE, on_attention: OnAttention | None = None) -> Tensor:
        """(B, T, D) to (B, T, D), or to (B, Q, D) with only the first Q tokens as queries."""
        relative, windows, queries = context
        q, k, v = self.split(x, queries)
        dropout = self.dropout if self.training else 0.0
        if windows is not None:
            assert relative is None and queries is None
            output = attend_in_windows(q, k, v, windows, dropout=dropout)
        else:
            bias = relative.bias(q, slice(queries)) if relative else None
            learned = bias is not None and bias.requires_grad
            path = attention_path(
                x.device.type, q.dtype, training=q.requires_grad, tokens=k.shape[2], learned_bias=learned
            )
            output = attend(q, k, v, bias=bias, dropout=dropout, path=path)
        if on_attention is not None:
            biased = windows or relative  # the record has the whole matrix, with zeros outside of windows
            on_attention(AttentionRecord(partial(self.split, x), output, biased.bias if biased else None))
        return self.proj(output.transpose(1, 2).flatten(2))
