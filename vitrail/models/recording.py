"""Records of the attention of a layer, from which any rows of its matrix can be computed on demand.

B images, H heads, E width of a head, Q queries, K keys, R rows of a record; G groups of S queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from vitrail.models.layers import by_hand


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
        bias: returns the bias of queries (B, H, R, E), given their row indices: (B or 1, H, R, K), added to the scaled
            logits.
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
