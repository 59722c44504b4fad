"""Masked autoencoders: against those of transformers and a twin in loops, for every architecture that can carry them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.models.conftest import assert_near, gradients, shaken
from tests.models.theirs import VIT, build
from tests.models.tiny import SHALLOW, TINY
from vitrail.errors import ConfigError
from vitrail.models import Backbone, Config, create_backbone, sketch
from vitrail.models.config import changed
from vitrail.models.positions import sincos2d
from vitrail.objectives import MAE
from vitrail.objectives.mae import split

SIZES = {"decoder_width": 16, "decoder_depth": 2, "decoder_heads": 2}
CARRIERS = {name: TINY[name] for name in MAE.carried_by}
CARRIERS["vit, two tokens and registers"] = replace(TINY["vit"], prefix=("cls", "dist"), registers=3)
CARRIERS["vit, mean of patches"] = replace(TINY["vit"], prefix=(), pool="gap", pool_norm=True, positions="relative")
FOUR = np.array([[0, 3, 0], [0, 5, 0], [1, 3, 0], [0, 3, 1]])  # epoch, sample and view
NAMES = {
    "vit.embeddings.position_embeddings": "encoder.pos_embed",
    "vit.embeddings.patch_embeddings.projection": "encoder.patch_embed.proj",
    "vit.embeddings.": "encoder.",
    "vit.layernorm.": "encoder.norm.",
    "vit.layers.": "encoder.blocks.",
    "decoder.decoder_layers.": "decoder.blocks.",
    "decoder.decoder_": "decoder.",
    ".layernorm_before.": ".norm1.",
    ".layernorm_after.": ".norm2.",
    ".attention.o_proj.": ".attn.proj.",
    ".attention.": ".attn.",
}


def mae(config: Config, **changes: Any) -> MAE:
    """Numbers of some size in every tensor."""
    objective = MAE(create_backbone(config), **{**SIZES, **changes})
    shaken(objective)
    return objective


def batch(objective: MAE, size: tuple[int, int] = (32, 32)) -> tuple[Tensor, Tensor]:
    images = torch.randn(4, objective.encoder.config.in_channels, *size, generator=torch.Generator().manual_seed(1))
    return images, *objective.draw(FOUR, size, seed=0)


def ours(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """What transformers has in memory, by our names."""
    found: dict[str, Tensor] = {}
    for name, tensor in theirs.items():
        for old, new in NAMES.items():
            name = name.replace(old, new)
        found[name] = tensor
    for name in [name for name in found if ".q_proj." in name]:
        parts = [found.pop(name.replace("q_proj", f"{each}_proj")) for each in "qkv"]
        found[name.replace("q_proj", "qkv")] = torch.cat(parts)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("norm_pix", [True, False])
def test_loss_and_gradients_are_those_of_transformers(norm_pix):
    sizes = {"decoder_hidden_size": 16, "decoder_num_hidden_layers": 2, "decoder_intermediate_size": 64}
    theirs = build("mae", **sizes, mask_ratio=0.75, norm_pix_loss=norm_pix, layer_norm_eps=1e-6)
    with torch.no_grad():
        theirs.decoder.decoder_pos_embed[0] = torch.cat([torch.zeros(1, 16), sincos2d((4, 4), 16, endpoint=False)])
    theirs.requires_grad_()
    config = replace(
        TINY["vit"], gelu="exact", mlp_width=VIT["intermediate_size"], classes=0, position_resize="bicubic"
    )
    objective = mae(config, norm_pix=norm_pix)
    weights = ours(theirs.state_dict())
    assert torch.equal(weights.pop("decoder.pos_embed")[0, 1:], sincos2d((4, 4), 16, endpoint=False))
    objective.load_state_dict(weights)
    images, noise = batch(objective)
    expected = theirs(images, noise=noise).loss
    loss, _ = objective(images, noise)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    assert_near(loss, expected, 1e-6)
    asked = ours(gradients(theirs, expected))
    found = gradients(objective, loss)
    asked.pop("decoder.pos_embed")
    assert asked.keys() == found.keys()
    for name, gradient in found.items():
        assert gradient.any(), name
        assert_near(gradient, asked[name], 1e-5)


@pytest.mark.slow
def test_fixed_positions_are_those_of_transformers():
    pytest.importorskip("transformers")
    from transformers.models.vit_mae.modeling_vit_mae import build_2d_sinusoidal_position_embedding

    rows_first = build_2d_sinusoidal_position_embedding(3, 5, 16)
    assert torch.equal(sincos2d((3, 5), 16, endpoint=False), rows_first.roll(8, 1))


def plainly(objective: MAE, images: Tensor, noise: Tensor) -> float:
    """The loss, image by image and patch by patch, in the paper's order: shuffled, encoded, put back, decoded, compared."""
    encoder, decoder, losses = objective.encoder, objective.decoder, []
    p, q = encoder.config.patch_size
    for image, numbers in zip(images, noise):
        patches = encoder.place(encoder.patchify(image[None]))
        rows, columns = patches.grid
        order = sorted(range(rows * columns), key=lambda place: numbers[place])
        kept = order[: rows * columns // 4]
        tokens = encoder.encode(patches._replace(x=patches.x[:, kept], ids=torch.tensor([kept])))
        x = decoder.embed(tokens.x)[0]
        seen = dict(zip(kept, x[len(x) - len(kept) :]))
        places = sincos2d(patches.grid, x.shape[1], endpoint=False).to(x)
        full = [seen.get(place, decoder.mask_token[0, 0]) + places[place] for place in range(rows * columns)]
        sequence = torch.stack([*x[: len(encoder.prefix)], *full])[None]
        for block in decoder.blocks:
            sequence = block(sequence)
        told = decoder.pred(decoder.norm(sequence))[0, len(encoder.prefix) :].detach().numpy()
        for place in sorted(set(range(rows * columns)) - set(kept)):
            row, column = divmod(place, columns)
            patch = image[:, row * p : (row + 1) * p, column * q : (column + 1) * q].numpy()
            values = np.array([patch[:, y, x] for y in range(p) for x in range(q)]).ravel()
            values = (values - values.mean()) / np.sqrt(values.var(ddof=1) + 1e-6)
            losses.append(((told[place] - values) ** 2).mean())
    return float(np.mean(losses))


@pytest.mark.parametrize("name", CARRIERS)
def test_the_loss_is_that_of_a_twin_in_loops_on_an_oblong_of_oblong_patches_and_five_channels(name):
    config = changed(CARRIERS[name], patch_size=(4, 8), in_channels=5)
    objective = mae(config).double().eval()
    images, noise = batch(objective, (24, 40))
    loss, _ = objective(images.double(), noise)
    assert loss.item() == pytest.approx(plainly(objective, images.double(), noise), rel=1e-9)


def test_three_quarters_are_hidden_and_the_lowest_noise_is_seen():
    visible, hidden = split(torch.tensor([[0.3, 0.9, 0.1, 0.5, 0.2, 0.7, 0.6, 0.4, 0.8]]), 0.75)
    assert visible.tolist() == [[2, 4]]
    assert sorted(hidden[0].tolist()) == [0, 1, 3, 5, 6, 7, 8]
    assert [each.shape[1] for each in split(torch.rand(1, 3), 0.99)] == [1, 2]
    assert [each.shape[1] for each in split(torch.rand(1, 3), 0.01)] == [2, 1]


def test_noise_is_a_function_of_the_image_and_the_seed_alone():
    objective = mae(TINY["vit"])
    (noise,) = objective.draw(FOUR, (32, 48), seed=7)
    assert noise.shape == (4, 24)
    assert noise.dtype == torch.float32
    assert len(noise.unique()) == noise.numel()
    assert torch.equal(objective.draw(FOUR[2:3], (32, 48), seed=7)[0], noise[2:3])
    assert not torch.equal(objective.draw(FOUR, (32, 48), seed=8)[0], noise)


def test_masked_patches_do_not_reach_the_decoder():
    objective = mae(TINY["vit"]).eval()
    images, noise = batch(objective)
    told, hidden = objective._predict(images, noise)
    pixels = objective._cut(images)
    other = objective._join(pixels.scatter(1, hidden[..., None].expand(-1, -1, pixels.shape[2]), 9.0), (32, 32))
    assert (other != images).any()
    assert torch.equal(objective._predict(other, noise)[0], told)


def test_the_encoder_works_on_visible_patches_alone(monkeypatch):
    objective, seen = mae(TINY["vit"]), []
    objective.encoder.blocks[0].register_forward_hook(lambda block, given, found: seen.append(given[0].shape))
    objective(*batch(objective))
    assert seen == [(4, 1 + 4, 16)]


FORMS = {
    "oblong": {"image_size": (16, 48)},
    "grey": {"in_channels": 1},
    "five channels": {"in_channels": 5},
    "bf16": {},
}


@pytest.mark.parametrize(("name", "form"), [*zip(CARRIERS, [*FORMS, "bf16"], strict=True)])
def test_two_steps_lower_the_loss_of_a_batch(name, form):
    torch.manual_seed(0)
    config = changed(CARRIERS[name], **FORMS[form])
    objective = MAE(create_backbone(config), **SIZES)
    given = batch(objective, config.image_size)
    optimiser = torch.optim.AdamW(objective.parameters(), 3e-3)
    losses = []
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16, enabled=form == "bf16"):
            loss, measured = objective(*given)
        assert loss.dtype == torch.float32
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert np.isfinite(losses).all()
    assert losses[2] < losses[1] < losses[0]
    assert measured["explained"] == pytest.approx(1 - losses[2] / (191 / 192), abs=0.02)


@pytest.mark.parametrize("name", CARRIERS)
def test_every_parameter_but_those_of_pooling_and_head_is_trained(name):
    objective = mae(CARRIERS[name])
    loss, _ = objective(*batch(objective))
    idle = [name for name, gradient in gradients(objective, loss).items() if not gradient.any()]
    assert not [name for name in idle if not name.startswith(("encoder.head.", "encoder.fc_norm."))]


@pytest.mark.parametrize("name", ["vit", "vit, mean of patches"])
def test_the_state_gives_the_same_loss_and_the_encoder_s_alone_a_backbone(name):
    objective, again = mae(CARRIERS[name]).eval(), MAE(create_backbone(CARRIERS[name]), **SIZES).eval()
    given = batch(objective)
    again.load_state_dict(objective.state_dict())
    assert torch.equal(again(*given)[0], objective(*given)[0])
    start = "encoder."
    of_encoder = {n.removeprefix(start): t for n, t in objective.state_dict().items() if n.startswith(start)}
    backbone = create_backbone(CARRIERS[name]).eval()
    backbone.load_state_dict(of_encoder)
    assert torch.equal(backbone(given[0]), objective.encoder(given[0]))


@pytest.mark.parametrize("norm_pix", [True, False])
def test_a_picture_shows_what_is_seen_and_a_perfect_decoder_s_is_the_image(norm_pix, monkeypatch):
    config = replace(TINY["vit"], patch_size=(4, 8), pad=True)
    objective = mae(config, norm_pix=norm_pix).double()
    images, noise = (each.double() for each in batch(objective, (23, 37)))
    pixels = objective._cut(images)
    _, hidden = split(noise, 0.75)
    target = pixels.gather(1, hidden[..., None].expand(-1, -1, pixels.shape[2]))
    mean, deviation = target.mean(2, keepdim=True), (target.var(2, keepdim=True) + 1e-6).sqrt()
    told = (target - mean) / deviation if norm_pix else target
    monkeypatch.setattr(objective.decoder, "forward", lambda tokens, hidden, prefix: told)
    shown = objective.show(images, noise)
    torch.testing.assert_close(shown["reconstructed"], images)
    grey = shown["visible"] == 0
    assert torch.equal(shown["visible"][~grey], images[~grey])
    assert 0.6 < grey.double().mean() < 0.9
    loss, measured = objective(images, noise)
    assert loss < 1e-20
    assert measured["explained"] == pytest.approx(1)


def test_gradients_are_the_same_where_activations_are_computed_again():
    objective, thrifty = (mae(replace(TINY["vit"], checkpoint=each)) for each in (False, True))
    runs: list[int] = []
    thrifty.decoder.blocks[0].register_forward_pre_hook(lambda *given: runs.append(1))
    given = batch(objective)
    expected = gradients(objective, objective(*given)[0])
    for name, gradient in gradients(thrifty, thrifty(*given)[0]).items():
        assert torch.equal(gradient, expected[name]), name
    assert len(runs) == 2


def test_layers_and_weights_without_decay_are_told():
    objective = mae(TINY["vit"])
    layers = objective.layers()
    assert len(layers) == TINY["vit"].blocks + 2
    assert sum(len(layer) for layer in layers) == len(list(objective.parameters()))
    assert "decoder.mask_token" in layers[-1]
    spared = objective.no_decay()
    assert {"encoder.cls_token", "decoder.mask_token", "decoder.norm.weight", "decoder.pred.bias"} <= spared
    assert "decoder.blocks.0.attn.qkv.weight" not in spared


@pytest.mark.parametrize("name", [name for name in SHALLOW if name not in MAE.carried_by])
def test_an_architecture_that_cannot_names_those_that_can(name):
    with pytest.raises(ConfigError, match=r"objective MAE does not support(.|\n)*vit, beit, cait"):
        MAE(sketch(SHALLOW[name]))


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"patch_dropout": 0.5}, {}, "patch_dropout=0"),
        ({"window": 2, "global_blocks": 1}, {}, "window=0"),
        ({"stem": (), "stem_width": 32}, {}, "without a stem"),
        ({"patch_size": 1, "in_channels": 1}, {}, "norm_pix=False"),
        ({}, {"mask_ratio": 1.0}, "give a number between 0 and 1"),
        ({}, {"mask_ratio": 0}, "give a number between 0 and 1"),
        ({}, {"decoder_width": 18}, "a multiple of 4"),
        ({}, {"decoder_heads": 3}, "a divisor of width=16"),
    ],
)
def test_invalid_values_are_refused_with_a_remedy(changes, options, message):
    with pytest.raises(ConfigError, match=message):
        MAE(sketch(replace(TINY["vit"], **changes)), **{**SIZES, **options})


def test_an_image_of_one_patch_is_refused():
    objective = mae(TINY["vit"])
    with pytest.raises(ConfigError, match="cannot be masked"):
        objective(*batch(objective, (8, 8)))


def test_the_default_decoder_is_the_paper_s():
    encoder: Backbone = sketch("vit-b16", classes=0)
    with torch.device("meta"):
        decoder = MAE(encoder).decoder
    assert sum(parameter.numel() for parameter in decoder.parameters()) == 26_008_320


@pytest.mark.slow
def test_a_compiled_objective_is_one_graph_and_gives_the_same_gradients():
    objective = mae(SHALLOW["vit"])
    given = batch(objective)
    torch.compiler.reset()
    compiled = torch.compile(objective, fullgraph=True, backend="aot_eager")
    loss, expected = compiled(*given)[0], objective(*given)[0]
    torch.testing.assert_close(loss, expected)
    asked = gradients(objective, expected)
    for name, gradient in gradients(objective, loss).items():
        torch.testing.assert_close(gradient, asked[name], rtol=1e-4, atol=1e-6)
