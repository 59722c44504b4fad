"""The record of attention, of every architecture, against the plain definition with its matrix in the graph."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.models.conftest import assert_near, shaken
from tests.models.plainly import records_of, run_plainly
from tests.models.tiny import TINY
from tests.slow import slow_except
from vitrail.errors import ConfigError
from vitrail.models import Backbone, ViTConfig, create_backbone

OTHERS = {
    "registers": replace(TINY["vit"], registers=2),
    "two tokens": replace(TINY["vit"], prefix=("cls", "dist")),
    "one is read": replace(TINY["vit"], prefix=("cls", "dist"), pool="cls-only"),
    "mean": replace(TINY["vit"], prefix=(), pool="gap", pool_norm=True),
    "token and mean": replace(TINY["vit"], pool="cls+gap"),
    "attention pooling": replace(TINY["vit"], pool="map"),
    "relative": replace(TINY["vit"], positions="relative"),
    "no bias": replace(TINY["beit"], relative_bias="none"),
}
CASES = {**{name: config for name, config in TINY.items() if config.attention != "none"}, **OTHERS}
# each kind of layer that is recorded: plain, in windows, axial, filled up, of classes, biased, along lines, reduced, relative
LAYERS = (
    *("vit", "vit, windows", "axial", "swin, odd map", "cait", "beit", "axial resnet, odd map"),
    *("pvt, odd map", "pvt v2, linear", "registers", "relative"),
)


def make(name: str, dtype: torch.dtype = torch.float64) -> Backbone:
    return shaken(create_backbone(CASES[name])).to(dtype).eval()


def draw(model: Backbone, dtype: torch.dtype = torch.float64, batch: int = 2) -> torch.Tensor:
    shape = (batch, model.config.in_channels, *model.config.image_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("name", slow_except(CASES, LAYERS))
def test_logits_matrices_and_their_gradients_are_those_of_the_plain_definition(name):
    """The gradient is that of the same logit where the matrix is in the graph."""
    model, targets = make(name), torch.tensor([3, 5])
    images = draw(model)
    expected, matrices, truths = run_plainly(model, images, targets)
    logits, attention = model.forward_with_attention(images)
    assert_near(logits, expected)
    for found, matrix, grid in zip(attention, matrices, model.attention_grids(model.config.image_size), strict=True):
        assert found.dtype == torch.float32
        keys = grid.prefix + grid.keys[0] * grid.keys[1] if grid.columns is None else grid.columns.shape[1]
        assert found.shape[3] == keys
        torch.testing.assert_close(found[:, :, : matrix.shape[2]], matrix.float(), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:3]), atol=1e-5, rtol=0)
    records: list = []
    logits = model.forward_recording(images.requires_grad_(), records.append)
    gradients_of_outputs = torch.autograd.grad(
        logits.gather(1, targets[:, None]).sum(), [record.output for record in records]
    )
    for record, of_output, truth in zip(records, gradients_of_outputs, truths, strict=True):
        gradient = record.gradient(of_output)
        assert gradient.dtype == torch.float32 and gradient.shape == record.shape
        needed = truth.shape[2]
        assert truth.any()
        assert_near(gradient[:, :, :needed], truth.float(), 1e-4)
        assert not gradient[:, :, needed:].any()
        for rows in (slice(0, 1), slice(1, max(needed, 2)), slice(needed - 1, None)):
            torch.testing.assert_close(record.gradient(of_output, rows), gradient[:, :, rows], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", LAYERS)
def test_any_rows_put_together_are_the_matrix(name, monkeypatch):
    model = make(name, torch.float32)
    for record in records_of(model, draw(model, torch.float32)):
        whole, (batch, heads, queries, keys) = record.weights(), record.shape
        assert whole.shape == record.shape
        for at_once in (1, 3 * batch * heads * keys, 5 * batch * heads * keys + 1, 1 << 21):
            monkeypatch.setattr("vitrail.models.attention.AT_ONCE", at_once)
            pieces = list(record.slices())
            rows = [row for piece in pieces for row in range(queries)[piece]]
            assert rows == list(range(queries))
            assert all(piece.stop - piece.start <= max(at_once // (batch * heads * keys), 1) for piece in pieces)
            together = torch.cat([record.weights(piece) for piece in pieces], 2)
            torch.testing.assert_close(together, whole, atol=1e-6, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("name", LAYERS)
def test_recording_changes_no_bit_of_the_logits(name):
    model = make(name, torch.float32)
    images, watched = draw(model, torch.float32, batch=3), []
    assert torch.equal(model.forward_recording(images, watched.append), model(images))
    assert len(watched) == len(model.attention_grids(model.config.image_size))
    with torch.autocast("cpu", torch.bfloat16):
        rough: list = []
        assert torch.equal(model.forward_recording(images, rough.append), model(images))
        for record in rough:
            assert record.weights().dtype == torch.float32
            assert (record.weights().sum(-1) - 1).abs().max() < 1e-5


@torch.no_grad()
def test_a_record_keeps_no_place_in_a_graph_where_there_is_none():
    model = make("vit")
    assert all(record.output is None for record in records_of(model, draw(model)))


def test_a_model_without_attention_raises():
    model = create_backbone(TINY["bit"]).eval()
    with pytest.raises(ConfigError, match=r"a BiT ResNet has no attention\n.*feature_maps"):
        model.forward_recording(torch.zeros(1, 3, *model.config.image_size), print)


def test_the_places_of_every_layer_cover_the_image():
    for name, config in CASES.items():
        for grid in create_backbone(config).attention_grids((48, 32)):
            places = grid.keys if grid.queries == (0, 0) else grid.queries
            assert [length * cell for length, cell in zip(places, grid.cell)] == [48, 32], name
            held = range(places[0] * places[1])
            if grid.rows is not None:
                assert sorted(place for place in grid.rows.tolist() if place >= 0) == [*held], name
            if grid.columns is not None:
                assert set(grid.columns.flatten().tolist()) - {-1} == set(held), name


def _random_tokens(model: Backbone) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of the shape that the model gives, (B, T, D), and what it pools of them."""
    tokens = model.forward_features(draw(model))
    x = torch.randn(tokens.x.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return x, model.pool(tokens._replace(x=x))


@torch.no_grad()
@pytest.mark.parametrize("name", ["swin", "cait", "beit", "beit, one table", "axial resnet", "pvt", *OTHERS])
def test_the_shares_of_tokens_make_what_is_pooled(name):
    model = make(name)
    x, pooled = _random_tokens(model)
    shares = model.pooling_shares(x.shape[1])
    assert shares.shape == (x.shape[1],)
    torch.testing.assert_close(shares.sum(), torch.tensor(1.0))
    weighted = (shares.double()[:, None] * x).sum(1)  # (B, D)
    if isinstance(model.config, ViTConfig) and model.config.pool == "map":
        # its attention says for each image what counts: here the mean stands for it
        torch.testing.assert_close(weighted, x[:, len(model.prefix) :].mean(1))
    elif isinstance(model.config, ViTConfig) and len(pooled[0]) > len(weighted[0]):
        parts = torch.stack(pooled.chunk(len(pooled[0]) // len(weighted[0]), 1))
        torch.testing.assert_close(weighted, parts.mean(0), atol=1e-6, rtol=1e-6)  # tokens side by side count alike
    else:
        norm = getattr(model, "fc_norm", torch.nn.Identity())
        torch.testing.assert_close(norm(weighted), pooled, atol=1e-6, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_in_training_every_image_is_seen_once_in_every_layer(name):
    model = shaken(create_backbone(replace(CASES[name], drop_path=0.5, checkpoint=True))).train()
    images = draw(model, torch.float32, batch=16).requires_grad_()
    records: list[int] = []
    model.forward_recording(images, lambda record: records.append(record.shape[0])).sum().backward()
    assert records == [16] * len(model.attention_grids(model.config.image_size))
