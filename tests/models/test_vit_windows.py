"""Windows of a plain ViT against attention over all tokens with a mask that is made by hand."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from tests.models.conftest import assert_near, gradients, shaken
from vitrail.errors import ConfigError
from vitrail.models import ViTConfig, configure, cost_of
from vitrail.models.attention import Attention, Context, GridWindows

WINDOWED = {"window": 2, "global_blocks": 1}  # in two blocks of three


def mask_by_hand(prefix: int, grid: tuple[int, int], longest: int) -> torch.Tensor:
    """Minus infinity where a patch would attend to another window, for windows that share an axis equally: (T, T)."""
    sides = [math.ceil(length / math.ceil(length / longest)) for length in grid]
    windows = [(row // sides[0], column // sides[1]) for row in range(grid[0]) for column in range(grid[1])]
    tokens: list = [None] * prefix + windows
    rows = [[0.0 if None in (query, key) or query == key else -math.inf for key in tokens] for query in tokens]
    return torch.tensor(rows, dtype=torch.float64)


def over_all_tokens(attn: Attention, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The attention of x (B, T, D) as whole matrices: output (B, T, D) and matrices (B, H, T, T)."""
    q, k, v = attn.qkv(x).reshape(*x.shape[:2], 3, attn.heads, -1).permute(2, 0, 3, 1, 4)
    weights = (q @ k.mT / math.sqrt(q.shape[-1]) + mask).softmax(-1)
    return attn.proj((weights @ v).transpose(1, 2).flatten(2)), weights


# filled up on both axes; on one; whole windows; narrower than a window; smaller than one; a single patch
GRIDS = [((5, 3), 2, 0), ((5, 3), 2, 2), ((4, 7), 3, 1), ((4, 6), 2, 2), ((7, 2), 3, 0), ((3, 4), 5, 1), ((1, 1), 2, 2)]


@pytest.mark.parametrize(("grid", "longest", "prefix"), GRIDS, ids=str)
def test_windows_are_attention_over_all_tokens_with_a_mask_gradients_included(grid, longest, prefix):
    attn = shaken(Attention(12, 3)).double()
    x = torch.randn(2, prefix + math.prod(grid), 12, generator=torch.Generator().manual_seed(3)).double()
    x.requires_grad_()
    windows = GridWindows.over(prefix, grid, longest)
    wanted, matrices = over_all_tokens(attn, x, mask_by_hand(prefix, grid, longest))
    records = []
    found = attn(x, Context(windows=windows), records.append)
    torch.testing.assert_close(found, wanted)
    towards = torch.randn(found.shape, generator=torch.Generator().manual_seed(4)).double()
    leaves = [x, *attn.parameters()]
    for ours, theirs in zip(*(torch.autograd.grad((each * towards).sum(), leaves) for each in (found, wanted))):
        torch.testing.assert_close(ours, theirs)
    recorded = records[0].weights()
    torch.testing.assert_close(recorded, matrices.float(), atol=1e-6, rtol=1e-5)
    assert torch.equal(recorded == 0, matrices == 0)


def test_windows_are_as_few_as_possible_of_one_size_and_none_lies_beyond_the_grid():
    for height, width, longest in product(range(1, 20), range(1, 20, 3), range(1, 9)):
        windows = GridWindows.over(1, (height, width), longest)
        for length, count, side in (
            (height, windows.rows, windows.height),
            (width, windows.columns, windows.width),
        ):
            assert count == math.ceil(length / longest) and side <= longest
            assert (count - 1) * side < length <= count * side
            assert count * (side - 1) < length  # a smaller side would not reach
    assert GridWindows.over(1, (22, 30), 14)[2:] == (2, 3, 11, 10)
    assert not GridWindows.over(1, (22, 30), 14).is_padded


# the mean of the patches reads every token of the last block
ONE_WINDOW = [{"pool": "gap"}, {"prefix": (), "pool": "gap"}, {"prefix": ("cls", "dist"), "registers": 2}]


@pytest.mark.parametrize("changes", ONE_WINDOW, ids=str)
def test_one_window_over_the_image_is_global_attention_with_the_same_weights(make, pictures, changes):
    images = pictures(2, 3, 40, 24, dtype=torch.float32)
    whole, one = (make(torch.float32, window=window, global_blocks=1, **changes) for window in (0, 5))
    assert one.load_state_dict(whole.state_dict())
    expected, found = whole(images), one(images)
    assert_near(found, expected, 2e-6)
    assert_near(one.dense_maps(images)[0], whole.dense_maps(images)[0], 2e-6)
    towards = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    of_whole, of_one = (gradients(model, (model(images) * towards).sum()) for model in (whole, one))
    largest = max(each.abs().max() for each in of_whole.values())
    for name, wanted in of_whole.items():
        assert (of_one[name] - wanted).abs().max() <= 1e-5 * largest, name
    smaller = make(torch.float32, window=3, global_blocks=1, **changes)
    smaller.load_state_dict(whole.state_dict())
    assert (smaller(images) - expected).abs().max() > 1e-2 * expected.abs().max()


def test_patches_outside_of_a_window_reach_a_patch_only_in_a_global_block(make, pictures):
    model, images = make(prefix=(), pool="gap", **WINDOWED), pictures(1, 3, 40, 24)
    other = images.clone()
    other[:, :, 32:] += 1  # the last row of patches, in a window without the second row
    *windowed, last = zip(model.feature_maps(images), model.feature_maps(other))
    for before, after in windowed:
        assert torch.equal(before[:, :, :4], after[:, :, :4])
        assert not torch.equal(before, after)
    assert not torch.isclose(*last).any(1).all()
    # by way of a prefix token it reaches all patches one block later
    tokens, changed = (make(**WINDOWED).feature_maps(each) for each in (images, other))
    assert torch.equal(tokens[0][:, :, :4], changed[0][:, :, :4])
    assert not torch.equal(tokens[1][:, :, :4], changed[1][:, :, :4])


def test_global_blocks_are_evenly_spaced_and_the_last_is_one():
    expected = {
        (12, 4): [2, 5, 8, 11],
        (24, 4): [5, 11, 17, 23],
        (12, 1): [11],
        (7, 3): [2, 4, 6],
        (5, 4): [1, 2, 3, 4],
    }
    for (depth, count), places in expected.items():
        config = ViTConfig(depth=depth, window=14, global_blocks=count)
        assert [block for block, is_global in enumerate(config.attends_globally) if is_global] == places
        assert all(ViTConfig(depth=depth, global_blocks=count).attends_globally)


def test_the_cost_counts_windows_with_their_padding():
    config = configure("vit-ti16", image_size=(336, 480), window=14)  # 21 x 30 patches in 2 x 3 windows of 11 x 10
    tokens, windowed = 1 + 21 * 30, 6 * 110 * (1 + 110) + (1 + 21 * 30)
    assert cost_of(config).attention == 2 * 192 * (4 * tokens**2 + 8 * windowed)


def test_other_plain_networks_have_no_windows():
    for name in ("beit-b16", "cait-xxs24", "axial-b16", "pvt-tiny"):
        with pytest.raises(ConfigError, match="has no field 'window'"):
            configure(name, window=14)


def test_networks_of_the_same_blocks_have_them():
    for name, window in (("deit-ti16-distilled", 8), ("deit3-s16", 8), ("r-vit-ti16", 4)):
        config = configure(name, image_size=256, depth=5)
        whole, windowed = cost_of(config), cost_of(configure(config, window=window, global_blocks=1))
        assert windowed.attention < whole.attention / 2, name
        assert windowed.parameters == whole.parameters, name
