"""The Swin Transformer: windows against attention over the whole map with a mask, merging by hand, verbs, numerics and sizes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.models.conftest import gradients, shaken
from tests.models.swins import TINY, make, pictures
from vitrail.models import create_backbone
from vitrail.models.swin import Block, PatchMerging, Swin, Windows


def test_four_neighbours_are_merged_column_by_column_and_odd_maps_are_filled_up():
    merging = shaken(PatchMerging(TINY, 2)).double()
    x = torch.randn(1, 3, 4, 2, generator=torch.Generator().manual_seed(0)).double()
    found = merging(x)
    assert found.shape == (1, 2, 2, 4)
    nothing = torch.zeros(2).double()
    four = {
        (0, 1): [x[0, 0, 2], x[0, 1, 2], x[0, 0, 3], x[0, 1, 3]],
        (1, 0): [x[0, 2, 0], nothing, x[0, 2, 1], nothing],
    }
    for (row, column), places in four.items():
        y = F.layer_norm(torch.cat(places), (8,), merging.norm.weight, merging.norm.bias, 1e-5)
        torch.testing.assert_close(found[0, row, column], merging.reduction.weight @ y)


# the verbs


def test_an_image_is_filled_up_with_zeros_to_whole_patches():
    model, images = make(), pictures(46, 61)
    assert torch.equal(model(images), model(F.pad(images, (0, 3, 0, 2))))
    assert model(pictures(1, 1)).isfinite().all()


def test_layers_go_from_the_patches_to_the_head_and_merging_belongs_to_the_stage_before_it():
    model = make()
    layers = [list(layer) for layer in model.layers()]
    assert sorted(name for layer in layers for name in layer) == sorted(dict(model.named_parameters()))
    assert len(layers) == 5 + 2
    assert all(name.startswith("patch_embed.") for name in layers[0])
    for number, block in enumerate(["0.blocks.0", "0.blocks.1", "1.blocks.0", "1.blocks.1", "1.blocks.2"], 1):
        others = {name for name in layers[number] if not name.startswith(f"stages.{block}.")}
        assert others == ({f"stages.1.downsample.{end}" for end in MERGING} if number == 2 else set())
    assert set(layers[-1]) == {"norm.weight", "norm.bias", "head.weight", "head.bias"}


MERGING = ("norm.weight", "norm.bias", "reduction.weight")


def test_only_kernels_decay():
    model = make()
    decayed = dict(model.named_parameters()).keys() - model.no_decay()
    ends = ("proj.weight", "qkv.weight", "fc1.weight", "fc2.weight", "reduction.weight", "head.weight")
    assert decayed == {name for name in model.state_dict() if name.endswith(ends)}
    assert "stages.0.blocks.1.attn.relative_position_bias_table" in model.no_decay()


def test_state_dict_names_and_shapes():
    shapes = {name: tuple(each.shape) for name, each in create_backbone("swin-t", classes=9).state_dict().items()}
    block = {name.removeprefix("stages.1.blocks.1."): shape for name, shape in shapes.items() if ".1.blocks.1." in name}
    dense = {"attn.qkv": (576, 192), "attn.proj": (192, 192), "mlp.fc1": (768, 192), "mlp.fc2": (192, 768)}
    expected = {f"{layer}.weight": shape for layer, shape in dense.items()}
    expected |= {f"{layer}.bias": shape[:1] for layer, shape in dense.items()}
    expected |= {f"norm{number}.{kind}": (192,) for number in (1, 2) for kind in ("weight", "bias")}
    assert block == {**expected, "attn.relative_position_bias_table": (169, 6)}
    others = {name: shape for name, shape in shapes.items() if ".blocks." not in name}
    assert others.pop("patch_embed.proj.weight") == (96, 3, 4, 4)
    for stage, width in ((1, 96), (2, 192), (3, 384)):
        assert others.pop(f"stages.{stage}.downsample.reduction.weight") == (2 * width, 4 * width)
        assert others.pop(f"stages.{stage}.downsample.norm.weight") == (4 * width,)
        assert others.pop(f"stages.{stage}.downsample.norm.bias") == (4 * width,)
    rest = {"patch_embed.proj.bias": (96,), "norm.weight": (768,), "norm.bias": (768,), "head.bias": (9,)}
    rest |= {"patch_embed.norm.weight": (96,), "patch_embed.norm.bias": (96,), "head.weight": (9, 768)}
    assert others == rest


# numerics


@pytest.mark.parametrize("size", [(48, 48), (41, 70)], ids=str)
def test_both_paths_of_attention_are_equal_gradients_included(size, monkeypatch):
    found = []
    for path in ("plain", "fused"):
        monkeypatch.setattr("vitrail.models.attention.attention_path", lambda *given, path=path, **more: path)
        model = make()
        logits = model(pictures(*size))
        with torch.no_grad():
            torch.testing.assert_close(model(pictures(*size)), logits)
        found.append((logits, gradients(model, logits.square().sum())))
    (plain, of_plain), (fused, of_fused) = found
    torch.testing.assert_close(fused, plain)
    for name in of_plain:
        torch.testing.assert_close(of_fused[name], of_plain[name])


def test_dropped_depth_grows_linearly_over_all_stages():
    drops = [block.drop_path for stage in make(drop_path=0.4).stages for block in stage.blocks]
    assert drops == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])


# another window


def test_bias_tables_follow_another_window_as_images():
    old, new = replace(TINY, window=3), replace(TINY, window=5, image_size=80)
    tensors = make().state_dict()
    resized = Swin.resize_tensors(tensors, old, new)
    name = "stages.1.blocks.2.attn.relative_position_bias_table"
    image = tensors[name].mT.reshape(1, 4, 5, 5)
    expected = F.interpolate(image, (9, 9), mode="bicubic").flatten(2)[0].mT
    torch.testing.assert_close(resized[name], expected, atol=1e-6, rtol=1e-6)
    same = [name for name in tensors if torch.equal(resized[name], tensors[name])]
    assert len(same) == len(tensors) - 5
    create_backbone(new).load_state_dict(resized)
    unchanged = Swin.resize_tensors(tensors, old, replace(old, image_size=80))
    assert all(torch.equal(each, tensors[name]) for name, each in unchanged.items())


# configs, sizes, first values


def test_first_values_are_the_authors():
    torch.manual_seed(0)
    weights = dict(
        create_backbone("swin-t", depths=(1, 1), heads=(3, 6), classes=50, head_bias=-2.0).named_parameters()
    )
    limit = math.sqrt(1 / 48)
    for name, x in weights.items():
        if name.startswith("patch_embed.proj."):
            assert limit * 0.9 < x.abs().max() <= limit
        elif x.ndim > 1:
            assert abs(x.mean()) < 5 * 0.02 / math.sqrt(x.numel())
            assert abs(x.std() / 0.02 - 1) < 5 / math.sqrt(2 * x.numel()), name
        else:
            value = -2.0 if name == "head.bias" else float(name.endswith("weight"))
            assert torch.equal(x, torch.full_like(x, value)), name


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
