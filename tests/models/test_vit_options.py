"""What later papers changed in the ViT, each option against its definition."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.models.conftest import gradients


def test_a_norm_after_the_mean_is_no_norm_before_it(make, pictures):
    model, images = make(pool="gap", pool_norm=True, registers=2), pictures()
    seen = []
    model.blocks[-1].register_forward_hook(lambda module, given, result: seen.append(result))
    features = model.pool(model.forward_features(images))
    mean = seen[0][:, 3:].mean(1)
    torch.testing.assert_close(features, F.layer_norm(mean, (16,), model.fc_norm.weight, model.fc_norm.bias, 1e-6))
    assert "fc_norm.weight" in model.layers()[-1]
    assert not any(name.startswith("norm.") for name in model.state_dict())


def test_the_class_token_stands_beside_the_mean(make, pictures):
    model, images = make(pool="cls+gap", registers=1), pictures()
    x = model.forward_features(images).x
    torch.testing.assert_close(model.pool(model.forward_features(images)), torch.cat([x[:, 0], x[:, 2:].mean(1)], 1))
    assert model.head.weight.shape == (7, 32)
    torch.testing.assert_close(model(images), model.head(torch.cat([x[:, 0], x[:, 2:].mean(1)], 1)))
    model.reset_head(3)
    assert model.head.weight.shape == (3, 32)


def test_the_class_token_may_be_read_alone_though_a_second_one_takes_part(make, pictures):
    alone, both, images = make(prefix=("cls", "dist"), pool="cls-only"), make(prefix=("cls", "dist")), pictures()
    state = {name: each for name, each in both.state_dict().items() if not name.startswith("head.")}
    head = both.head["cls"]
    alone.load_state_dict({**state, "head.weight": head.weight, "head.bias": head.bias})
    wanted = both.heads(both.pool(both.forward_features(images)))["cls"]
    features = alone.pool(alone.forward_features(images))
    for logits in (alone(images), alone.heads(features)["cls"], alone.forward_with_attention(images)[0]):
        torch.testing.assert_close(logits, wanted)
    assert all(gradient.any() for gradient in gradients(alone, alone(images).square().sum()).values())
    alone.reset_head(3)
    assert alone(images).shape == (2, 3)


@pytest.mark.parametrize(
    ("positions", "at"),
    [
        *(("learned", at) for at in ("stem", "every", "shared")),
        *(("learned2d", "stem"), ("learned2d", "every"), ("sincos2d", "stem"), ("sincos2d", "every")),
        *(("relative", "stem"), ("relative", "shared")),
    ],
)
def test_without_a_position_the_class_token_is_as_with_one_of_zeros(make, pictures, positions, at):
    bare = make(positions=positions, positions_at=at, prefix_positions=False)
    if positions == "relative":  # no offset to a patch, nor from one
        rows = 2 * 16 - 1
        assert bare.pos_embed_relative.shape[1] == rows
        index = bare._layers(bare.patchify(pictures()), None)[0][2].relative.index
        assert (index[0] == rows).all() and (index[:, 0] == rows).all()
        assert index[1:, 1:].max() < rows
        return
    full = make(positions=positions, positions_at=at)
    state = {**full.state_dict(), **bare.state_dict()}
    for name, table in full.state_dict().items():
        if table.shape != state[name].shape:
            state[name] = torch.cat([torch.zeros_like(table[:, :1]), state[name]], 1)
        elif name == "pos_embed_prefix":
            state[name] = torch.zeros_like(table)
    full.load_state_dict(state)
    images = pictures(2, 3, 24, 40)
    torch.testing.assert_close(bare(images), full(images))


def test_without_skips_each_branch_replaces_what_it_reads(make, pictures):
    model, images = make(skips=False), pictures()
    x = model._begin(model.place(model.patchify(images)))
    for block in model.blocks:
        x = block.attn(block.norm1(x))
        x = block.mlp(block.norm2(x))
    torch.testing.assert_close(model.forward_features(images).x, model.norm(x))
    logits = model(images)
    torch.testing.assert_close(logits, model.head(model.norm(x)[:, 0]))
    for name, gradient in gradients(model, logits.square().sum()).items():
        assert gradient.any(), name
