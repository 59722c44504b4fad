"""Attention: the definition, the fused kernel, and records of attention weights.

B images, T tokens, D width, H heads, E = D / H, Q queries, K keys, R rows of a record; G groups of S queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.layers import Dense, by_hand, dense


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(E) + bias), the definition (paper, equation 6): (B, H, Q, E), (B, H, K, E) -> (B, H, Q, K)."""
    with by_hand(q):
        logits = q * q.shape[-1] ** -0.5 @ k.mT
        return (logits if bias is None else logits + bias).softmax(-1)


# Tokens from and up to which plain attention is the faster one, by device, type and training; what is not named here is
# fused. Measured by benchmarks/attention.py. In bf16 on a CPU the fused backward pass makes training up to 6 times slower with
# few tokens, 1.3 to 2.3 times with 197 or 257 and up to 2.6 times with 577; with 1,025 it wins. In inference it wins where
# the processor has AMX; without, plain attention is 1.0 to 1.9 times faster with 197 or 257 tokens.
PLAIN = {
    ("cpu", torch.bfloat16, True): (0, 577),
    ("cpu without AMX", torch.bfloat16, True): (0, 577),
    ("cpu without AMX", torch.bfloat16, False): (64, 577),
}


_processors: list[str] = []


def processor() -> str:
    """The CPU's name in `PLAIN`, asked for once: by the first network that is made, as a compiler could not trace it."""
    if not _processors:
        _processors.append("cpu" if torch.cpu.get_capabilities().get("amx_tile") else "cpu without AMX")
    return _processors[0]


def attention_path(device: str, dtype: torch.dtype, *, training: bool, tokens: int, learned_bias: bool = False) -> str:
    """ "plain" or "fused": the faster way to compute attention here, from what benchmarks/attention.py measured.

    On the meta device it is the definition, whose costs can be counted. ``learned_bias`` says that the logits have a bias
    which needs a gradient.
    """
    # on a CPU torch's kernel has no gradient for a bias: it would be the definition, and slower than this one
    if device == "meta" or (device == "cpu" and learned_bias and torch.is_grad_enabled()):
        return "plain"
    least, most = PLAIN.get((processor() if device == "cpu" else device, dtype, training), (1, 0))
    return "plain" if least <= tokens <= most else "fused"


def attend(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, dropout: float = 0.0, path: str) -> Tensor:
    """Equation (7) for all heads: (B, H, Q, E) queries on (B, H, K, E) keys and values to (B, H, Q, E).

    Args:
        bias: (B or 1, H, Q, K), added to the scaled logits.
        path: "plain" is the definition, "fused" torch's kernel; equal up to rounding.
    """
    if path == "plain":
        weights = attention_weights(q, k, bias)
        return (F.dropout(weights, dropout) if dropout else weights) @ v
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)


AT_ONCE = 1 << 21  # numbers of a matrix that `AttentionRecord.slices` asks for at one time, unless one row has more
ALL = slice(None)


class AttentionRecord:
    """The attention of one layer for the images that went through it, computed when it is asked for, any rows of it.

    Args:
        split: gives q (B, H, Q, E), k and v (B, H, K, E) once more from the input of the layer, which is all that is kept.
        output: of the layer, (B, H, Q', E), with its place in the graph; fewer than Q where only the first are needed.
        bias: of queries (B, H, R, E), which are the given rows: (B or 1, H, R, K), added to the scaled logits.
    """

    def __init__(
        self,
        split: Callable[[], tuple[Tensor, Tensor, Tensor]],
        output: Tensor | None = None,
        bias: Callable[[Tensor, slice], Tensor] | None = None,
    ) -> None:
        self.split, self.bias = split, bias
        self.output = output if output is not None and output.requires_grad else None

    @cached_property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v in fp32."""
        q, k, v = self.split()
        return q.float(), k.float(), v.float()

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, H, Q, K."""
        q, k, _ = self.parts
        return q.shape[0], q.shape[1], q.shape[2], k.shape[2]

    def slices(self) -> Iterator[slice]:
        """All rows, in pieces that are small enough to need no more memory than the model itself."""
        batch, heads, queries, keys = self.shape
        step = max(AT_ONCE // (batch * heads * keys), 1)
        return (slice(start, min(start + step, queries)) for start in range(0, queries, step))

    def weights(self, rows: slice = ALL) -> Tensor:
        """What the queries ``rows`` attend to, in fp32: (B, H, R, K), rows that sum to one."""
        q, k, _ = self.parts
        q = q[:, :, rows]
        return attention_weights(q, k, None if self.bias is None else self.bias(q, rows).float())

    def gradient(self, of_output: Tensor, rows: slice = ALL) -> Tensor:
        """The gradient of `weights`, (B, H, R, K) in fp32, from that of ``output``: the matrix itself need be in no graph.

        Zero for queries whose answer was not needed.
        """
        q, _, v = self.parts
        with by_hand(v):
            return F.pad(of_output.float(), (0, 0, 0, q.shape[2] - of_output.shape[2]))[:, :, rows] @ v.mT


class GroupedAttentionRecord(AttentionRecord):
    """The same where queries attend inside of windows or lines: q (B, G, H, S, E), k and v (B, G, H, K, E).

    The rows are the queries of one group after another, K the keys of one. ``bias`` gives those of groups: (1 or G, H, S, K).
    """

    @property
    def shape(self) -> tuple[int, int, int, int]:
        q, k, _ = self.parts
        return q.shape[0], q.shape[2], q.shape[1] * q.shape[3], k.shape[3]

    def weights(self, rows: slice = ALL) -> Tensor:
        groups, inside = self._groups(rows)
        q, k, _ = (part[:, groups] for part in self.parts)
        weights = attention_weights(q, k, None if self.bias is None else self.bias(q, groups).float())
        return _concatenate_groups(weights)[:, :, inside]

    def gradient(self, of_output: Tensor, rows: slice = ALL) -> Tensor:
        groups, inside = self._groups(rows)
        q, _, v = self.parts
        with by_hand(v):
            gradient = of_output.float().reshape(q.shape)[:, groups] @ v[:, groups].mT
        return _concatenate_groups(gradient)[:, :, inside]

    def _groups(self, rows: slice) -> tuple[slice, slice]:
        """The groups in which ``rows`` lie, and where in these."""
        side = self.parts[0].shape[3]
        start, stop, _ = rows.indices(self.shape[2])
        first = start // side
        return slice(first, -(-stop // side)), slice(start - first * side, stop - first * side)


def _concatenate_groups(groups: Tensor) -> Tensor:
    """(B, G, H, S, K) to (B, H, G S, K)."""
    return groups.transpose(1, 2).flatten(2, 3)


class AttentionGrid(NamedTuple):
    """How the rows (queries) and columns (keys) of an attention matrix lie in the image.

    The first ``prefix`` of both are tokens without a place; the rest are places of the grids, in row-major order, unless
    ``rows`` (Q,) and ``columns`` (Q, K) say which place each of them is; there -1 is a place outside of the image, or one
    that the query cannot see.
    A grid of (0, 0) has no places: the prefix tokens are the only queries.

    ``cell`` is how many pixels, (height, width), a place of the map is large: of the queries, or of the keys where no place
    asks. Where there are fewer keys than places, a key stands for several places: with k keys along an axis for n places
    that are ``covered``, all of them unless it says otherwise, key i for those from floor(i n / k) to ceil((i + 1) n / k) - 1.
    """

    prefix: int
    queries: tuple[int, int]
    keys: tuple[int, int]
    cell: tuple[int, int]
    rows: Tensor | None = None
    columns: Tensor | None = None
    covered: tuple[int, int] | None = None


OnAttention = Callable[[AttentionRecord], None]  # is given each layer's attention as the images go through


class Relative(NamedTuple):
    """Relative positions for one layer: ``table`` (R, E) of offsets, ``index`` (T, K) or (B, T, K) into it."""

    table: Tensor
    index: Tensor

    def bias(self, q: Tensor, rows: slice) -> Tensor:
        """The extra logits q.r of the queries ``rows``, scaled as the others are (paper, appendix D.4): (B, H, Q, K)."""
        logits = q * q.shape[-1] ** -0.5 @ self.table.to(q.dtype).mT  # (B, H, Q, R)
        index = self.index if self.index.ndim == 3 else self.index[None]
        return logits.gather(-1, index[:, None, rows].expand(*q.shape[:3], -1))


class Attention(nn.Module):
    """Multi-head self-attention, MSA (paper, appendix A)."""

    def __init__(self, width: int, heads: int, *, qkv_bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = Dense(width, 3 * width, bias=qkv_bias)
        self.proj = Dense(width, width)

    def split(self, x: Tensor, queries: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """q of the first ``queries`` tokens (by default of all), k, v: (B, T, D) to (B, H, Q or T, E) each."""
        if queries is None:
            q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        else:
            weight, bias, width = self.qkv.weight, self.qkv.bias, x.shape[-1]
            of_q, of_kv = (None, None) if bias is None else (bias[:width], bias[width:])
            q = dense(x[:, :queries], weight[:width], of_q).unflatten(-1, (self.heads, -1))
            k, v = dense(x, weight[width:], of_kv).unflatten(-1, (2, self.heads, -1)).unbind(2)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def forward(
        self,
        x: Tensor,
        relative: Relative | None = None,
        queries: int | None = None,
        on_attention: OnAttention | None = None,
    ) -> Tensor:
        """(B, T, D) to (B, T, D), or to (B, Q, D) with only the first Q tokens asking."""
        q, k, v = self.split(x, queries)
        bias = relative.bias(q, slice(queries)) if relative else None
        learned = bias is not None and bias.requires_grad
        path = attention_path(x.device.type, q.dtype, training=q.requires_grad, tokens=k.shape[2], learned_bias=learned)
        output = attend(q, k, v, bias=bias, dropout=self.dropout if self.training else 0.0, path=path)
        if on_attention is not None:
            on_attention(self.record(x, relative, output))
        return self.proj(output.transpose(1, 2).flatten(2))

    def record(self, x: Tensor, relative: Relative | None = None, output: Tensor | None = None) -> AttentionRecord:
        """What every token attends to, of (B, T, D)."""
        return AttentionRecord(partial(self.split, x), output, relative.bias if relative else None)
