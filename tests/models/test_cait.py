"""CaiT against its equations, written in NumPy one head and one image at a time; its verbs, sizes and first values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy
import torch

from tests.models.conftest import gradients, shaken
from tests.models.equal_blocks import cost_by_two_blocks
from vitrail.models import AttentionGrid, Patches, configure, cost_of, create_backbone
from vitrail.models.cait import CAITS, CaiT, CaiTConfig, mix_heads

SMALL = {"image_size": 32, "patch_size": 8, "classes": 7, "width": 12, "depth": 3, "heads": 3, "mlp_width": 20}
NEAR = {"atol": 1e-11, "rtol": 1e-9}


def make(dtype: torch.dtype = torch.float64, **changes) -> CaiT:
    return shaken(create_backbone(CaiTConfig(**{**SMALL, **changes}))).to(dtype).eval()


def pictures(batch=2, channels=3, height=32, width=32) -> torch.Tensor:
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Twin:
    """The paper's equations for one image (C, H, W); ``shares`` collects each layer's softmax (A, queries, keys)."""

    def __init__(self, model: CaiT) -> None:
        self.config = model.config
        self.w = {name: each.numpy() for name, each in model.state_dict().items()}
        self.shares: list[np.ndarray] = []

    def dense(self, x, name):
        return x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0)

    def norm(self, x, name):
        mean, variance = x.mean(1, keepdims=True), x.var(1, keepdims=True)
        return (x - mean) / np.sqrt(variance + 1e-6) * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def mlp(self, x, block):
        hidden = self.dense(self.norm(x, f"{block}.norm2"), f"{block}.mlp.fc1")
        hidden = hidden * (1 + scipy.special.erf(hidden / math.sqrt(2))) / 2
        return x + self.w[f"{block}.gamma_2"] * self.dense(hidden, f"{block}.mlp.fc2")

    def head(self, x, head):
        size = self.config.width // self.config.heads
        return x[:, head * size : (head + 1) * size]

    def patch_block(self, x, block):
        heads = range(self.config.heads)
        q, k, v = np.split(self.dense(self.norm(x, f"{block}.norm1"), f"{block}.attn.qkv"), 3, 1)
        logits = [self.head(q, a) @ self.head(k, a).T / math.sqrt(q.shape[1] / len(heads)) for a in heads]
        before, after = (self.w[f"{block}.attn.{name}.weight"] for name in ("proj_l", "proj_w"))
        more, extra = (self.w[f"{block}.attn.{name}.bias"] for name in ("proj_l", "proj_w"))
        mixed = [sum(before[out, a] * logits[a] for a in heads) + more[out] for out in heads]
        shares = [np.exp(each) / np.exp(each).sum(1, keepdims=True) for each in mixed]
        talked = [sum(after[out, a] * shares[a] for a in heads) + extra[out] for out in heads]
        found = np.concatenate([talked[a] @ self.head(v, a) for a in heads], 1)
        self.shares.append(np.stack(shares))
        return self.mlp(x + self.w[f"{block}.gamma_1"] * self.dense(found, f"{block}.attn.proj"), block)

    def class_block(self, token, x, block):
        u = self.norm(np.concatenate([token, x]), f"{block}.norm1")
        q, k, v = (
            self.dense(u[:1], f"{block}.attn.q"),
            self.dense(u, f"{block}.attn.k"),
            self.dense(u, f"{block}.attn.v"),
        )
        found, shares = [], []
        for a in range(self.config.heads):
            logits = np.exp(self.head(q, a) @ self.head(k, a).T / math.sqrt(q.shape[1] / self.config.heads))
            shares.append(logits / logits.sum())
            found.append(shares[-1] @ self.head(v, a))
        self.shares.append(np.stack(shares))
        found = self.dense(np.concatenate(found, 1), f"{block}.attn.proj")
        return self.mlp(token + self.w[f"{block}.gamma_1"] * found, block)

    def __call__(self, image):
        """All tokens after the last norm (1 + N, D), and the patches after each block."""
        (high, wide), (rows, columns) = self.config.patch_size, self.config.grid
        cut = [
            image[:, r * high : (r + 1) * high, c * wide : (c + 1) * wide].flatten()
            for r in range(rows)
            for c in range(columns)
        ]
        kernel = self.w["patch_embed.proj.weight"].reshape(self.config.width, -1)
        x, after = np.stack(cut) @ kernel.T + self.w["patch_embed.proj.bias"] + self.w["pos_embed"][0], []
        for layer in range(self.config.depth):
            x = self.patch_block(x, f"blocks.{layer}")
            after.append(x)
        token = self.w["cls_token"][0]
        for layer in range(self.config.class_depth):
            token = self.class_block(token, x, f"blocks_token_only.{layer}")
        return self.norm(np.concatenate([token, x]), "norm"), after


CASES = {
    "the paper's": {},
    "oblong": {"image_size": (16, 40), "patch_size": (8, 10), "in_channels": 2},
    "one head": {"heads": 1},
    "no bias of q, k, v": {"qkv_bias": False},
    "one class block": {"class_depth": 1},
}


@torch.no_grad()
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_tokens_blocks_logits_and_attention_are_those_of_the_equations(changes):
    model = make(**changes)
    config, images = model.config, pictures(2, model.config.in_channels, *model.config.image_size)
    tokens, maps, logits = model.forward_features(images).x, model.feature_maps(images), model(images)
    with_attention, matrices = model.forward_with_attention(images)
    assert torch.equal(with_attention, logits)
    assert len(maps) == config.depth
    assert len(matrices) == config.blocks
    for image in range(2):
        twin = Twin(model)
        expected, after = twin(images[image].numpy())
        torch.testing.assert_close(tokens[image], torch.from_numpy(expected), **NEAR)
        for mine, other in zip(maps, after, strict=True):
            torch.testing.assert_close(mine[image], torch.from_numpy(other).T.unflatten(1, config.grid), **NEAR)
        for mine, other in zip(matrices, twin.shares, strict=True):
            assert mine.dtype == torch.float32
            torch.testing.assert_close(mine[image], torch.from_numpy(other).float(), atol=1e-5, rtol=1e-4)
        head = torch.from_numpy(expected[0]) @ model.head.weight.T + model.head.bias
        torch.testing.assert_close(logits[image], head, **NEAR)
    assert model.heads(model.pool(model.forward_features(images))).keys() == {"cls"}


def test_mixing_heads_is_a_dense_layer_over_heads_gradients_included():
    matrices = torch.randn(2, 3, 5, 5, dtype=torch.float64, requires_grad=True)
    layer = shaken(torch.nn.Linear(3, 3)).double()
    towards, found = torch.randn_like(matrices), []
    for y in (mix_heads(matrices, layer), layer(matrices.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)):
        found.append((y, *torch.autograd.grad((y * towards).sum(), [matrices, layer.weight, layer.bias])))
    for ours, slow in zip(*found, strict=True):
        torch.testing.assert_close(ours, slow)


def test_patches_never_see_the_class_token():
    model, images = make(), pictures()
    before = model.forward_features(images).x
    with torch.no_grad():
        model.cls_token.mul_(2)
    after = model.forward_features(images).x
    assert torch.equal(before[:, 1:], after[:, 1:])
    assert not torch.allclose(before[:, 0], after[:, 0])


def test_grids_say_what_rows_and_columns_are():
    model = make()
    size = (24, 40)
    grids = model.attention_grids(size)
    assert grids == [AttentionGrid(0, (3, 5), (3, 5), (8, 8))] * 3 + [AttentionGrid(1, (0, 0), (3, 5), (8, 8))] * 2
    _, matrices = model.forward_with_attention(pictures(2, 3, *size))
    for grid, matrix in zip(grids, matrices, strict=True):
        assert matrix.shape == (2, 3, grid.prefix + math.prod(grid.queries), grid.prefix + math.prod(grid.keys))
        torch.testing.assert_close(matrix.sum(-1), torch.ones(matrix.shape[:-1]))


def test_a_subset_of_the_patches_is_the_whole_with_the_others_left_out():
    model, images = make(), pictures()
    patches = model.patchify(images)
    ids = torch.tensor([[3, 0, 9], [14, 2, 5]])
    kept = model.place(Patches(patches.x.gather(1, ids[..., None].expand(-1, -1, 12)), patches.grid, ids))
    everything = model.place(patches).x
    for image in range(2):
        torch.testing.assert_close(kept.x[image], everything[image, ids[image]])
    assert model.encode(kept).ids is ids
    mixed = ids.flip(1)
    again = model.encode(Patches(kept.x.flip(1), kept.grid, mixed)).x
    torch.testing.assert_close(again[:, 0], model.encode(kept).x[:, 0])
    torch.testing.assert_close(again[:, 1:].flip(1), model.encode(kept).x[:, 1:])


def test_depth_is_dropped_evenly_and_checkpointing_changes_nothing():
    found = []
    for again in (False, True):
        model = make(drop_path=0.4, checkpoint=again).train()
        assert [block.drop_path for block in model.blocks] == [0.4] * 3
        assert [block.drop_path for block in model.blocks_token_only] == [0, 0]
        torch.manual_seed(3)
        loss = model(pictures(16)).square().sum()
        found.append((loss, gradients(model, loss)))
    (loss, kept), (loss_again, recomputed) = found
    assert torch.equal(loss, loss_again)
    for name in kept:
        torch.testing.assert_close(kept[name], recomputed[name])


def test_parameters_lie_in_layers_by_depth():
    layers = make().layers()
    assert len(layers) == 3 + 2 + 2
    assert set(layers[0]) == {"patch_embed.proj.weight", "patch_embed.proj.bias", "cls_token", "pos_embed"}
    assert all(name.startswith("blocks.2.") for name in layers[3])
    assert all(name.startswith("blocks_token_only.0.") for name in layers[4])
    assert set(layers[-1]) == {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    assert {"blocks.0.gamma_1", "cls_token", "pos_embed", "blocks.0.attn.proj_l.bias"} <= make().no_decay()
    assert "blocks.0.attn.proj_l.weight" not in make().no_decay()


def test_first_values_are_the_authors():
    torch.manual_seed(0)
    model = create_backbone("cait-xxs24", depth=2, head_bias=-2.0, layer_scale=0.25)
    bound = (3 * 16 * 16) ** -0.5
    for name, x in model.state_dict().items():
        if name.startswith("patch_embed"):
            assert 0.95 * bound < x.abs().max() <= bound
        elif "gamma" in name or x.ndim == 1:
            value = 0.25 if "gamma" in name else -2 if name == "head.bias" else float(name.endswith("weight"))
            assert torch.equal(x, torch.full_like(x, value)), name
        elif x.numel() > 1000:
            assert math.isclose(x.std(), 0.02, rel_tol=0.05), name
            assert abs(x.mean()) < 0.002, name
        else:
            assert 0.005 < x.std() < 0.04, name


# image size: parameters, 10^9 multiply-adds with 1,000 classes
SIZES = {
    "cait-xxs24": {224: (11_956_264, 2.523), 384: (12_029_224, 9.599)},
    "cait-xxs36": {224: (17_299_720, 3.756), 384: (17_372_680, 14.313)},
    "cait-xs24": {384: (26_670_088, 19.241)},
    "cait-s24": {224: (46_916_200, 9.327), 384: (47_062_120, 32.110)},
    "cait-s36": {384: (68_366_632, 47.908)},
    "cait-m36": {384: (271_221_352, 172.944)},
    "cait-m48": {448: (356_460_520, 329.108)},
}


def test_the_cost_extrapolated_from_two_blocks_is_exact():
    config = configure("cait-xxs24", depth=3, width=24, heads=2, mlp_width=32, image_size=96)
    assert cost_by_two_blocks(config) == cost_of(config)


@pytest.mark.parametrize("names", [["cait-xxs24"], pytest.param(CAITS, marks=pytest.mark.slow)], ids=["one", "all"])
def test_every_model_costs_what_is_published(names):
    assert SIZES.keys() == CAITS.keys()
    assert {name: next(iter(SIZES[name])) for name in names} == {name: configure(name).image_size[0] for name in names}
    found = {name: {size: figures(configure(name, image_size=size)) for size in SIZES[name]} for name in names}
    assert found == {name: SIZES[name] for name in names}


def figures(config):
    cost = cost_by_two_blocks(config)
    return cost.parameters, round(cost.multiply_adds / 1e9, 3)


def test_attention_costs_products_and_mixing():
    """16 patches of 3 heads, 3 blocks; 17 keys for one query, 2 blocks."""
    assert cost_of(CaiTConfig(**SMALL)).attention == 3 * (2 * 16**2 * 12 + 2 * 16**2 * 3**2) + 2 * 2 * 17 * 12
