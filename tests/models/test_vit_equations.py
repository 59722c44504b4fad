"""The ViT against its equations, written here from the paper with loops over images, patches, heads and tokens."""

from __future__ import annotations

import math

import pytest
import torch


def norm(x, weight, bias, eps=1e-6):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / (variance + eps).sqrt() * weight + bias


def gelu(x, kind):
    if kind == "exact":
        return x * (1 + torch.erf(x / math.sqrt(2))) / 2
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def msa(x, w, name, heads, relative=None, prefix=1):
    """Appendix A, one head and one pair of tokens at a time, for one image: (T, D) to (T, D)."""
    tokens, width = x.shape
    size = width // heads
    projected = x @ w[f"{name}.qkv.weight"].T + w[f"{name}.qkv.bias"]
    answers = []
    for head in range(heads):
        q, k, v = (projected[:, part * width + head * size :][:, :size] for part in range(3))
        logits = torch.empty(tokens, tokens, dtype=x.dtype)
        for i in range(tokens):
            for j in range(tokens):
                logits[i, j] = q[i] @ k[j] / math.sqrt(size)
                if relative is not None:
                    logits[i, j] += q[i] @ relative[i - j + tokens - 1] / math.sqrt(size)
        weights = logits.exp() / logits.exp().sum(1, keepdim=True)
        answers.append(weights @ v)
    return torch.cat(answers, 1) @ w[f"{name}.proj.weight"].T + w[f"{name}.proj.bias"]


def encoder(image, w, config):
    """Equations (1) to (4) for one image (C, H, W): all tokens after the last norm (T, D)."""
    (high, wide), (rows, columns) = config.patch_size, config.grid
    cut = [
        image[:, r * high : (r + 1) * high, c * wide : (c + 1) * wide].flatten()
        for r in range(rows)
        for c in range(columns)
    ]
    kernel = w["patch_embed.proj.weight"].flatten(1)
    z = torch.cat([w["cls_token"][0], torch.stack(cut) @ kernel.T + w["patch_embed.proj.bias"]])
    places = w.get("pos_embed")
    if config.positions_at == "stem" and places is not None:
        z = z + places[0]
    for layer in range(config.depth):
        if config.positions_at != "stem" and places is not None:
            z = z + places[layer if config.positions_at == "every" else 0]
        relative = w.get("pos_embed_relative")
        if relative is not None:
            relative = relative[0 if config.positions_at == "shared" else layer]
        name = f"blocks.{layer}"
        y = norm(z, w[f"{name}.norm1.weight"], w[f"{name}.norm1.bias"])
        z = z + msa(y, w, f"{name}.attn", config.heads, relative) * w.get(f"{name}.ls1.gamma", 1)
        y = norm(z, w[f"{name}.norm2.weight"], w[f"{name}.norm2.bias"])
        y = gelu(y @ w[f"{name}.mlp.fc1.weight"].T + w[f"{name}.mlp.fc1.bias"], config.gelu)
        z = z + (y @ w[f"{name}.mlp.fc2.weight"].T + w[f"{name}.mlp.fc2.bias"]) * w.get(f"{name}.ls2.gamma", 1)
    return norm(z, w["norm.weight"], w["norm.bias"])


CASES = {
    "the paper's": {},
    "exact gelu": {"gelu": "exact"},
    "layer scale": {"layer_scale": 0.1},
    "oblong": {"image_size": (16, 40), "patch_size": (8, 10), "in_channels": 2},
    "one head": {"heads": 1},
    "positions at every layer": {"positions_at": "every"},
    "positions shared by all layers": {"positions_at": "shared"},
    "relative positions": {"positions": "relative"},
    "shared relative positions": {"positions": "relative", "positions_at": "shared"},
    "no positions": {"positions": "none"},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_logits_are_those_of_equations_1_to_4(make, pictures, changes):
    model = make(depth=2, **changes)
    config, w = model.config, model.state_dict()
    images = pictures(2, config.in_channels, *config.image_size)
    expected = torch.stack([encoder(image, w, config) for image in images])  # (B, T, D)
    torch.testing.assert_close(model.forward_features(images).x, expected, atol=1e-11, rtol=1e-9)
    logits = expected[:, 0] @ w["head.weight"].T + w["head.bias"]
    torch.testing.assert_close(model(images), logits, atol=1e-11, rtol=1e-9)


def test_the_head_of_pre_training_has_a_hidden_layer_with_tanh(make, pictures):
    model = make(pre_logits=True)
    w, images = model.state_dict(), pictures()
    y = torch.stack([encoder(image, w, model.config)[0] for image in images])
    hidden = torch.tanh(y @ w["head.pre_logits.weight"].T + w["head.pre_logits.bias"])
    torch.testing.assert_close(model(images), hidden @ w["head.weight"].T + w["head.bias"], atol=1e-11, rtol=1e-9)


def test_gap_is_the_mean_of_the_patches_without_class_token_and_registers(make, pictures):
    model = make(pool="gap", registers=2)
    images = pictures()
    tokens = model.forward_features(images).x
    assert tokens.shape == (2, 1 + 2 + 16, 16)
    expected = model.head(sum(tokens[:, index] for index in range(3, 19)) / 16)
    torch.testing.assert_close(model(images), expected)


def test_map_is_attention_of_one_learned_query_and_an_mlp(make, pictures):
    model = make(pool="map", prefix=())
    w = {name.removeprefix("attn_pool."): each for name, each in model.state_dict().items()}
    images = pictures(1)
    x = model.forward_features(images).x[0]  # (T, D)
    q = w["latent"][0, 0] @ w["q.weight"].T + w["q.bias"]
    k, v = (x @ w["kv.weight"].T + w["kv.bias"]).chunk(2, 1)
    answers = []
    for head in (slice(0, 8), slice(8, 16)):
        weights = torch.softmax(torch.stack([q[head] @ key[head] for key in k]) / math.sqrt(8), 0)
        answers.append(sum(weight * value[head] for weight, value in zip(weights, v)))
    y = torch.cat(answers) @ w["proj.weight"].T + w["proj.bias"]
    z = gelu(norm(y, w["norm.weight"], w["norm.bias"]) @ w["mlp.fc1.weight"].T + w["mlp.fc1.bias"], "tanh")
    z = y + z @ w["mlp.fc2.weight"].T + w["mlp.fc2.bias"]
    torch.testing.assert_close(model.pool(model.forward_features(images))[0], z, atol=1e-11, rtol=1e-9)


def test_learned_2d_positions_are_half_of_the_column_and_half_of_the_row(make, pictures):
    model = make(positions="learned2d", image_size=(16, 40))
    patches = model.patchify(pictures(1, 3, 16, 40))
    added = (model.place(patches).x - patches.x)[0].unflatten(0, (2, 5))
    for row in range(2):
        for column in range(5):
            expected = torch.cat([model.pos_embed_x[0, column], model.pos_embed_y[0, row]])
            torch.testing.assert_close(added[row, column], expected)


def test_registers_have_no_position_and_take_part(make, pictures):
    model, images = make(registers=3, positions_at="every"), pictures()
    seen = []
    model.blocks[1].register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    model.blocks[0].register_forward_hook(lambda module, given, result: seen.append(result))
    before = model(images)
    torch.testing.assert_close(seen[0][:, 1:4], seen[1][:, 1:4])
    assert not torch.allclose(seen[0][:, :1], seen[1][:, :1])
    with torch.no_grad():
        model.reg_token[0, 2] *= 2
    assert not torch.allclose(model(images), before)


def test_two_prefix_tokens_have_a_head_each_and_logits_are_their_mean(make, pictures):
    model, images = make(prefix=("cls", "dist")), pictures()
    tokens = model.forward_features(images)
    features = model.pool(tokens)
    assert features.shape == (2, 32)
    heads = model.heads(features)
    w = model.state_dict()
    for place, name in enumerate(("cls", "dist")):
        expected = tokens.x[:, place] @ w[f"head.{name}.weight"].T + w[f"head.{name}.bias"]
        torch.testing.assert_close(heads[name], expected)
    torch.testing.assert_close(model(images), (heads["cls"] + heads["dist"]) / 2)


def test_dropout_is_after_every_dense_layer_but_qkv_and_after_positions(make, pictures):
    model = make(dropout=0.5, depth=2).train()
    places = []
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Dropout):
            assert module.p == 0.5
            module.register_forward_hook(lambda module, given, result, name=name: places.append(name))
    model(pictures())
    block = [".dropout", ".mlp.dropout", ".mlp.dropout"]
    assert places == ["dropout"] + [f"blocks.{layer}{name}" for layer in range(2) for name in block]
