"""Attention: records of a layer's matrix, windows of a grid of patches, and the plain and fused implementations.

B images, H heads, D width, E = D / H; Q queries, K keys, R rows of a record, G groups of S queries;
P prefix tokens, h x w = N patches, T = P + N tokens, n windows of s x t = S patches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models.config import grid_of
from vitrail.models.layers import Dense, by_hand, dense
from vitrail.models.rope import Rotation
from vitrail.torch_private import check


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(E) + bias), the definition (paper, equation 6): (B, H, Q, E), (B, H, K, E) -> (B, H, Q, K)."""
    with by_hand(q):
        logits = q * q.shape[-1] ** -0.5 @ k.mT
        return (logits if bias is None else logits + bias).softmax(-1)


AT_ONCE = 1 << 21  # maximum number of matrix elements per slice of `AttentionRecord.slices`, unless one row has more
ALL = slice(None)


class AttentionRecord:
    """The attention of one layer for a batch. Any rows of the matrix can be computed on demand.

    Args:
        split: recomputes q (B, H, Q, E), k and v (B, H, K, E) from the input of the layer, the only stored tensor.
        output: output of the attention, (B, H, Q', E), in the autograd graph; Q' < Q if only the first queries are needed.
        bias: maps queries (B, H, R, E) and their rows to what is added to the scaled logits: (B or 1, H, R, K).
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
        """Returns q, k and v in fp32."""
        q, k, v = self.split()
        return q.float(), k.float(), v.float()

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, H, Q, K."""
        q, k, _ = self.parts
        return q.shape[0], q.shape[1], q.shape[2], k.shape[2]

    def slices(self) -> Iterator[slice]:
        """Yields slices of rows that need no more memory than the model itself."""
        batch, heads, queries, keys = self.shape
        step = max(AT_ONCE // (batch * heads * keys), 1)
        return (slice(start, min(start + step, queries)) for start in range(0, queries, step))

    def weights(self, rows: slice = ALL) -> Tensor:
        """Returns the attention weights of the queries ``rows`` in fp32: (B, H, R, K), rows that sum to one."""
        q, k, _ = self.parts
        q = q[:, :, rows]
        return attention_weights(q, k, None if self.bias is None else self.bias(q, rows).float())

    def gradient(self, of_output: Tensor, rows: slice = ALL) -> Tensor:
        """Returns the gradient of `weights`, (B, H, R, K) in fp32, given that of ``output``.

        The matrix need not be in an autograd graph. The gradient is zero for queries without an output.
        """
        q, _, v = self.parts
        with by_hand(v):
            return F.pad(of_output.float(), (0, 0, 0, q.shape[2] - of_output.shape[2]))[:, :, rows] @ v.mT


class GroupedAttentionRecord(AttentionRecord):
    """Attention within groups, such as windows or lines: q (B, G, H, S, E), k and v (B, G, H, K, E).

    Rows are the queries group by group, K the keys of a group. ``bias`` returns that of groups: (1 or G, H, S, K).
    """

    @property
    def shape(self) -> tuple[int, int, int, int]:
        q, k, _ = self.parts
        return q.shape[0], q.shape[2], q.shape[1] * q.shape[3], k.shape[3]

    def weights(self, rows: slice = ALL) -> Tensor:
        groups, inside = self._groups(rows)
        q, k, _ = (part[:, groups] for part in self.parts)
        weights = attention_weights(q, k, None if self.bias is None else self.bias(q, groups).float())
        return concatenate_groups(weights)[:, :, inside]

    def gradient(self, of_output: Tensor, rows: slice = ALL) -> Tensor:
        groups, inside = self._groups(rows)
        q, _, v = self.parts
        with by_hand(v):
            gradient = of_output.float().reshape(q.shape)[:, groups] @ v[:, groups].mT
        return concatenate_groups(gradient)[:, :, inside]

    def _groups(self, rows: slice) -> tuple[slice, slice]:
        """Returns the groups of ``rows`` and their indices within the groups."""
        side = self.parts[0].shape[3]
        start, stop, _ = rows.indices(self.shape[2])
        first = start // side
        return slice(first, -(-stop // side)), slice(start - first * side, stop - first * side)


def concatenate_groups(groups: Tensor) -> Tensor:
    """(B, G, H, S, K) to (B, H, G S, K)."""
    return groups.transpose(1, 2).flatten(2, 3)


class AttentionGrid(NamedTuple):
    """The mapping between rows (queries) and columns (keys) of an attention matrix and the cells of the image.

    The first ``prefix`` rows and columns are tokens without a cell. The others are the cells of the grids in row-major order,
    unless ``rows`` (Q,) and ``columns`` (Q, K) give the index of the cell; -1 is a cell outside of the image, or one that
    the query cannot attend to. A grid of (0, 0) has no cells: the prefix tokens are the only queries.

    ``cell`` is the size (height, width) of a cell in pixels: of the queries, or of the keys if there are no query cells. If
    there are fewer keys than cells, a key covers several cells. With k keys along an axis for n ``covered`` cells (by default
    all), key i covers the cells floor(i n / k) to ceil((i + 1) n / k) - 1.
    """

    prefix: int
    queries: tuple[int, int]
    keys: tuple[int, int]
    cell: tuple[int, int]
    rows: Tensor | None = None
    columns: Tensor | None = None
    covered: tuple[int, int] | None = None


OnAttention = Callable[[AttentionRecord], None]  # called with the attention of each layer during the forward pass


class GridWindows(NamedTuple):
    """``rows`` x ``columns`` windows of ``height`` x ``width`` patches of a ``grid`` (h, w) that follows ``prefix`` tokens.

    Windows reach over the grid at the bottom and on the right by fewer patches than there are rows or columns of windows.
    """

    prefix: int
    grid: tuple[int, int]
    rows: int
    columns: int
    height: int
    width: int

    @classmethod
    def over(cls, prefix: int, grid: tuple[int, int], longest: int) -> GridWindows:
        """Returns as few windows as possible of at most ``longest`` patches a side, all of one size, as small as possible."""
        rows, columns = (opaque(count, 1) for count in grid_of(grid, (longest, longest)))
        height, width = (opaque(length, 1) for length in grid_of(grid, (rows, columns)))
        return cls(prefix, grid, rows, columns, height, width)

    @property
    def _beyond(self) -> tuple[int, int]:
        """Rows and columns of patches by which the windows reach over the grid."""
        return self.rows * self.height - self.grid[0], self.columns * self.width - self.grid[1]

    @property
    def is_padded(self) -> bool:
        """Whether windows reach over the grid; in a graph they may always do so, and one graph is valid for all sizes."""
        return torch.compiler.is_compiling() or any(self._beyond)

    def cut(self, x: Tensor) -> Tensor:
        """Partitions patches into windows, padded with zeros: (B, H, N, E) to (B n, H, S, E)."""
        x = x.unflatten(2, self.grid)
        if self.is_padded:
            below, right = self._beyond
            x = F.pad(x, (0, 0, 0, right, 0, below))
        batch, heads, *_, width = x.shape
        x = x.reshape(batch, heads, self.rows, self.height, self.columns, self.width, width)
        return x.permute(0, 2, 4, 1, 3, 5, 6).reshape(-1, heads, self.height * self.width, width)

    def join(self, x: Tensor) -> Tensor:
        """The inverse of `cut`, without padding: (B n, H, S, E) to (B, N, H, E)."""
        _, heads, _, width = x.shape
        x = x.reshape(-1, self.rows, self.columns, heads, self.height, self.width, width)
        x = x.permute(0, 1, 4, 2, 5, 3, 6).reshape(-1, self.rows * self.height, self.columns * self.width, heads, width)
        if torch.compiler.is_compiling():
            # a slice would branch on whether anything is cut off, which needs two graphs
            for axis, length in enumerate(self.grid, 1):
                x = x.index_select(axis, torch.arange(length, device=x.device))
        else:
            x = x[:, : self.grid[0], : self.grid[1]]
        return x.flatten(1, 2)

    def padding_bias(self, batch: int, like: Tensor) -> Tensor | None:
        """Returns the bias that masks padding among the keys of a window, prefix tokens first: (B n, 1, S, P + S), or None."""
        if not self.is_padded:
            return None
        inside = torch.ones(1, 1, math.prod(self.grid), 1, dtype=like.dtype, device=like.device)
        inside = F.pad(self.cut(inside), (0, 0, self.prefix, 0), value=1.0).mT  # (n, 1, 1, P + S)
        bias = torch.zeros_like(inside).masked_fill(inside == 0, -math.inf)
        return bias.repeat(batch, 1, 1, 1).expand(-1, -1, self.height * self.width, -1)

    def bias(self, q: Tensor, rows: slice) -> Tensor:
        """Returns the bias of the whole matrix that leaves the same pairs, for the queries ``rows`` of q: (1, 1, R, T)."""
        down, across = (torch.arange(length, device=q.device) for length in self.grid)
        windows = down[:, None] // self.height * self.columns + across // self.width  # (h, w)
        keys = F.pad(windows.flatten(), (self.prefix, 0), value=-1)
        queries = keys[rows, None]
        is_apart = (queries != keys) & (queries >= 0) & (keys >= 0)
        return torch.zeros(is_apart.shape, device=q.device).masked_fill(is_apart, -math.inf)[None, None]


def opaque(length: Any, least: int) -> Any:
    """Returns a length as an independent symbol of at least ``least`` in a graph that is exported with dynamic size. As
    expressions of the image size, lengths of windows would grow with each stage, and tracing would take several times as long.
    """
    if isinstance(length, int) or not torch.compiler.is_exporting():
        return length
    number = torch.scalar_tensor(length, dtype=torch.int64).item()
    check(number >= least)
    return number


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

    On the meta device it is "plain", whose cost can be counted. ``learned_bias``: a bias of the logits requires a gradient.
    """
    # torch's fused kernel has no gradient for a bias on the CPU; its fallback is slower than plain attention
    if device == "meta" or (device == "cpu" and learned_bias and torch.is_grad_enabled()):
        return "plain"
    least, most = PLAIN.get((processor() if device == "cpu" else device, dtype, training), (1, 0))
    return "plain" if least <= tokens <= most else "fused"


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, dropout: float = 0.0, path: str | None = None
) -> Tensor:
    """Multi-head attention, equation (7): queries (B, H, Q, E), keys and values (B, H, K, E) to (B, H, Q, E).

    Args:
        bias: (B or 1, H, Q, K), added to the scaled logits.
        path: "plain" or "fused" (torch's kernel), equal up to rounding; by default `attention_path`.
    """
    if path is None:
        learned = bias is not None and bias.requires_grad
        path = attention_path(q.device.type, q.dtype, training=q.requires_grad, tokens=k.shape[2], learned_bias=learned)
    if path == "plain":
        weights = attention_weights(q, k, bias)
        return (F.dropout(weights, dropout) if dropout else weights) @ v
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)


def attend_in_windows(q: Tensor, k: Tensor, v: Tensor, windows: GridWindows, *, dropout: float = 0.0) -> Tensor:
    """Attention of patches to their window and to the prefix tokens, and of prefix tokens to all tokens: (B, H, T, E) each to
    (B, H, T, E).
    """
    prefix = windows.prefix
    before, patches = zip(*(part.split([prefix, part.shape[2] - prefix], 2) for part in (q, k, v)))
    mine, *others = (windows.cut(part) for part in patches)  # (B n, H, S, E)
    if prefix:
        count = windows.rows * windows.columns
        shared = (part[:, None].expand(-1, count, -1, -1, -1).flatten(0, 1) for part in before[1:])
        others = [torch.cat(pair, 2) for pair in zip(shared, others)]  # (B n, H, P + S, E)
    bias = windows.padding_bias(q.shape[0], q)
    y = windows.join(attend(mine, *others, bias=bias, dropout=dropout))  # (B, N, H, E)
    if prefix:
        y = torch.cat([attend(before[0], k, v, dropout=dropout).transpose(1, 2), y], 1)
    return y.transpose(1, 2)


def attend_masked(q: Tensor, k: Tensor, v: Tensor, closed: Tensor, *, dropout: float = 0.0) -> Tensor:
    """Attention of T tokens where the first S do not attend to those that are ``closed`` (B, S, T) to them."""
    count = closed.shape[1]
    bias = torch.zeros_like(closed, dtype=q.dtype).masked_fill(closed, -math.inf)[:, None]  # (B, 1, S, T)
    masked = attend(q[:, :, :count], k, v, bias=bias, dropout=dropout)
    return torch.cat([masked, attend(q[:, :, count:], k, v, dropout=dropout)], 2)


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
    """How the tokens of a layer attend: with ``relative`` positions, in ``windows`` of the patches, or with a ``rotation`` of q
    and k; of how many leading ``queries`` the output is needed; and which tokens are ``closed`` to the first ones, (B, S, T).
    """

    relative: Relative | None = None
    windows: GridWindows | None = None
    queries: int | None = None
    rotation: Rotation | None = None
    closed: Tensor | None = None

    @property
    def is_per_image(self) -> bool:
        """Whether it differs between the images of a batch, so that none of them may be left out."""
        if self.closed is not None:
            return True
        if self.rotation is not None and self.rotation.cos.ndim == 4:
            return True
        return self.relative is not None and self.relative.index.ndim == 3


EVERYWHERE = Context()  # every token attends to all tokens


class Attention(nn.Module):
    """Multi-head self-attention, MSA (paper, appendix A).

    Args:
        qkv_bias: True, False, or "qv": k has none, and the others are ``q_bias`` and ``v_bias``.
        bias: whether the output layer has one.
        norm: of the joined heads, before the output layer.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        qkv_bias: bool | str = True,
        dropout: float = 0.0,
        bias: bool = True,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = Dense(width, 3 * width, bias=qkv_bias is True)
        self.q_bias = nn.Parameter(torch.empty(width)) if qkv_bias == "qv" else None
        self.v_bias = nn.Parameter(torch.empty(width)) if qkv_bias == "qv" else None
        self.norm = norm or nn.Identity()
        self.proj = Dense(width, width, bias=bias)

    def split(
        self, x: Tensor, queries: int | None = None, rotation: Rotation | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Projects (B, T, D) to q of the first ``queries`` tokens (default: all), k and v: (B, H, Q or T, E) each. q and k are
        rotated.
        """
        bias, width = self.qkv.bias, x.shape[-1]
        if self.q_bias is not None and self.v_bias is not None:
            bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        if queries is None:
            # the module, whose hooks run
            qkv = self.qkv(x) if self.q_bias is None else dense(x, self.qkv.weight, bias)
            q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).unbind(2)
        else:
            weight = self.qkv.weight  # read once: with an adapter it is computed
            of_q, of_kv = (None, None) if bias is None else (bias[:width], bias[width:])
            q = dense(x[:, :queries], weight[:width], of_q).unflatten(-1, (self.heads, -1))
            k, v = dense(x, weight[width:], of_kv).unflatten(-1, (2, self.heads, -1)).unbind(2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return (q, k, v) if rotation is None else (rotation.apply(q), rotation.apply(k), v)

    def forward(self, x: Tensor, context: Context = EVERYWHERE, on_attention: OnAttention | None = None) -> Tensor:
        """(B, T, D) to (B, T, D), or to (B, Q, D) with only the first Q tokens as queries."""
        relative, windows, queries, rotation, closed = context
        q, k, v = self.split(x, queries, rotation)
        dropout = self.dropout if self.training else 0.0
        if windows is not None:
            assert relative is None and queries is None
            output = attend_in_windows(q, k, v, windows, dropout=dropout)
        elif closed is not None:
            assert relative is None and queries is None and on_attention is None
            output = attend_masked(q, k, v, closed, dropout=dropout)
        else:
            bias = relative.bias(q, slice(queries)) if relative else None
            output = attend(q, k, v, bias=bias, dropout=dropout)
        if on_attention is not None:
            biased = windows or relative  # the record has the whole matrix, with zeros outside of windows
            split = partial(self.split, x, rotation=rotation)
            on_attention(AttentionRecord(split, output, biased.bias if biased else None))
        return self.proj(self.norm(output.transpose(1, 2).flatten(2)))
