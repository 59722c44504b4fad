"""Swin's windows against attention over the whole map with a mask, and their bias by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.models.conftest import shaken
from tests.models.swins import TINY, make, pictures
from vitrail.models.swin import Block, Windows


def neighbours(height: int, width: int, window: int, *, shifted: bool) -> tuple[int, int, int, list[tuple]]:
    """Height and width of the map filled up to whole windows of ``side``, and what two of its places have in common
    that see each other: the window they are moved to and, on each axis, whether they came over the edge.
    """
    side = min(height, width, window)
    shift = window // 2 if shifted and min(height, width) > window else 0
    tall, wide = math.ceil(height / side) * side, math.ceil(width / side) * side

    def of(place: int, length: int) -> tuple[int, bool]:
        return (place - shift) % length // side, place < shift

    return tall, wide, side, [(of(y, tall), of(x, wide)) for y in range(tall) for x in range(wide)]


def over_the_whole_map(block: Block, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The attention of a block as one masked matrix, the bias looked up pair by pair: its output (B, h, w, D) and the matrix
    (B, H, N, N) of the places that are no filling.
    """
    attn, (batch, height, width, _) = block.attn, x.shape
    tall, wide, _, groups = neighbours(height, width, attn.window, shifted=block.shifted)
    x = F.pad(x, (0, 0, 0, wide - width, 0, tall - height)).flatten(1, 2)
    q, k, v = attn.qkv(x).reshape(batch, tall * wide, 3, attn.heads, -1).permute(2, 0, 3, 1, 4)
    reach = 2 * attn.window - 1
    offsets, alone = torch.zeros(tall * wide, tall * wide, dtype=torch.long), torch.zeros(tall * wide, tall * wide)
    for query in range(tall * wide):
        for key in range(tall * wide):
            if groups[query] != groups[key]:
                alone[query, key] = -math.inf
                continue
            down, right = query // wide - key // wide, query % wide - key % wide
            offsets[query, key] = (down + attn.window - 1) * reach + right + attn.window - 1
    bias = attn.relative_position_bias_table[offsets].permute(2, 0, 1) + alone
    weights = (q @ k.mT / math.sqrt(q.shape[-1]) + bias).softmax(-1)
    answer = attn.proj((weights @ v).transpose(1, 2).flatten(2))
    real = [y * wide + x for y in range(height) for x in range(width)]
    return answer[:, real].unflatten(1, (height, width)), weights[:, :, real][:, :, :, real]


# whole windows; filled up; one row of windows, narrower than one; one place
MAPS = [(6, 9), (7, 8), (3, 7), (1, 1)]


@pytest.mark.parametrize(("window", "shifted"), [(3, True), (4, False), (4, True)])
@pytest.mark.parametrize("size", MAPS, ids=str)
def test_windows_are_attention_over_the_whole_map_with_a_mask_gradients_included(size, window, shifted):
    config = replace(TINY, window=window)
    block = shaken(Block(config, 8, 2, 0.0, shifted=shifted)).double()
    x = torch.randn(2, *size, 8, generator=torch.Generator().manual_seed(3)).double().requires_grad_()
    answer, dense = over_the_whole_map(block, x)
    records = []
    found = block.attn(x, block.windows(*size), records.append)
    torch.testing.assert_close(found, answer)
    towards = torch.randn(found.shape, generator=torch.Generator().manual_seed(4)).double()
    wanted = [x, *block.attn.parameters()]
    for mine, other in zip(*(torch.autograd.grad((each * towards).sum(), wanted) for each in (found, answer))):
        torch.testing.assert_close(mine, other)
    # the grid says where each entry of the windows' matrices stands in the dense one
    matrices, grid = records[0].weights(), block.windows(*size).grid(*size, (4, 4))
    assert (grid.prefix, grid.queries, grid.keys) == (0, size, size)
    assert matrices.shape[2:] == grid.columns.shape
    rebuilt = torch.zeros_like(dense)
    for row, query in enumerate(grid.rows.tolist()):
        for column, key in enumerate(grid.columns[row].tolist()):
            if query >= 0 and key >= 0:
                rebuilt[:, :, query, key] += matrices[:, :, row, column]
    assert sorted(grid.rows[grid.rows >= 0].tolist()) == list(range(math.prod(size)))
    torch.testing.assert_close(rebuilt, dense, atol=1e-6, rtol=1e-5)


def test_places_that_only_the_shift_brought_together_are_shut_out_wholly():
    weights = make().forward_with_attention(pictures(48, 48))[1][1]  # 4 x 4 windows of 3 x 3, shifted
    last = weights[:, :, -9:].reshape(2, 2, 3, 3, 3, 3)
    assert (last[:, :, 1, 1, 1, 1] > 0).all()
    assert not last[:, :, 2, :, :2].any()
    assert not last[:, :, :, 2, :, :2].any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 144))


def test_the_bias_of_a_pair_by_hand():
    attn = make(window=4).stages[0].blocks[0].attn
    table = attn.relative_position_bias_table  # (7 x 7, 2)
    whole, clamped = (attn.bias(Windows(1, 1, side, 0)) for side in (4, 2))
    assert whole.shape == (1, 2, 16, 16)
    assert whole[0, 1, 0 * 4 + 3, 2 * 4 + 1] == table[(3 - 2) * 7 + 3 + 2, 1]  # two up, two to the right
    assert clamped.shape == (1, 2, 4, 4)
    assert clamped[0, 0, 0, 3] == table[2 * 7 + 2, 0]  # one up, one to the left
    assert clamped[0, 0, 2, 2] == table[3 * 7 + 3, 0]
