"""PVT against transformers' at square sizes, against a twin of plain loops at others, and by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.models.conftest import assert_near, gradients, outputs_of, shaken
from vitrail.errors import ConfigError
from vitrail.models import AttentionGrid, create_backbone
from vitrail.models.pvt import PVT, PVTConfig

TINY = PVTConfig(
    image_size=64,
    classes=5,
    widths=(8, 12, 12, 16),
    depths=(1, 2, 1, 2),
    heads=(1, 2, 3, 2),
    mlp_ratios=(3, 2, 2, 2),
    reductions=(4, 3, 2, 1),
)


def make(dtype: torch.dtype = torch.float64, **changes) -> PVT:
    return shaken(create_backbone(replace(TINY, **changes))).to(dtype).eval()


def pictures(height: int, width: int, channels: int = 3) -> torch.Tensor:
    return torch.randn(2, channels, height, width, generator=torch.Generator().manual_seed(1)).double()


def blocks_of(model: PVT) -> list[torch.nn.Module]:
    return [block for stage in model.stages for block in stage.blocks]


# against transformers

THEIRS = {
    r"patch_embed\.proj": "pvt.encoder.patch_embeddings.0.projection",
    r"patch_embed\.norm": "pvt.encoder.patch_embeddings.0.layer_norm",
    r"cls_token": "pvt.encoder.patch_embeddings.3.cls_token",
    r"stages\.(\d)\.pos_embed": r"pvt.encoder.patch_embeddings.\1.position_embeddings",
    r"stages\.(\d)\.downsample\.proj": r"pvt.encoder.patch_embeddings.\1.projection",
    r"stages\.(\d)\.downsample\.norm": r"pvt.encoder.patch_embeddings.\1.layer_norm",
    r"stages\.(\d)\.blocks\.(\d)\.norm(\d)": r"pvt.encoder.block.\1.\2.layer_norm_\3",
    r"stages\.(\d)\.blocks\.(\d)\.attn\.q": r"pvt.encoder.block.\1.\2.attention.self.query",
    r"stages\.(\d)\.blocks\.(\d)\.attn\.sr": r"pvt.encoder.block.\1.\2.attention.self.sequence_reduction",
    r"stages\.(\d)\.blocks\.(\d)\.attn\.norm": r"pvt.encoder.block.\1.\2.attention.self.layer_norm",
    r"stages\.(\d)\.blocks\.(\d)\.attn\.proj": r"pvt.encoder.block.\1.\2.attention.output.dense",
    r"stages\.(\d)\.blocks\.(\d)\.mlp\.fc(\d)": r"pvt.encoder.block.\1.\2.mlp.dense\3",
    r"norm": "pvt.encoder.layer_norm",
    r"head": "classifier",
}


def named_as_theirs(ours: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A state dict, or gradients by name, under the names of a ``PvtForImageClassification``, on disk as in memory."""
    renamed = {}
    for name, tensor in ours.items():
        if found := re.fullmatch(r"stages\.(\d)\.blocks\.(\d)\.attn\.kv\.(\w+)", name):
            stage, block, kind = found.groups()
            for part, each in zip(("key", "value"), tensor.chunk(2)):
                renamed[f"pvt.encoder.block.{stage}.{block}.attention.self.{part}.{kind}"] = each
            continue
        [(ours_of, theirs_of)] = [
            each for each in THEIRS.items() if re.fullmatch(rf"{each[0]}(\.weight|\.bias)?", name)
        ]
        renamed[re.sub(f"^{ours_of}", theirs_of, name)] = tensor
    return renamed


@pytest.fixture(scope="module")
def with_transformers() -> tuple[PVT, torch.nn.Module]:
    transformers = pytest.importorskip("transformers")
    ours = make(conv_norm_eps=1e-6)  # they have one eps
    config = transformers.PvtConfig(
        image_size=64,
        num_labels=5,
        hidden_sizes=list(TINY.widths),
        depths=list(TINY.depths),
        num_attention_heads=list(TINY.heads),
        mlp_ratios=list(TINY.mlp_ratios),
        sequence_reduction_ratios=list(TINY.reductions),
        attn_implementation="eager",
    )
    theirs = transformers.PvtForImageClassification(config).double().eval()
    theirs.load_state_dict(named_as_theirs(ours.state_dict()))
    return ours, theirs


def test_logits_features_of_every_block_and_attention_are_transformers(with_transformers):
    ours, theirs = with_transformers
    images = pictures(64, 64)
    mine = outputs_of(blocks_of(ours))
    with torch.no_grad():
        logits = ours(images)
        answer = theirs(images, output_hidden_states=True, output_attentions=True)
        assert_near(logits, answer.logits)
        *others, last = answer.hidden_states
        assert len(mine) == len(others) == 6
        for found, expected in zip(mine, others):
            assert_near(found, expected)
        assert_near(ours.forward_features(images).x, last)
        for found, expected in zip(ours.forward_with_attention(images)[1], answer.attentions, strict=True):
            assert_near(found, expected.float(), 1e-5)


def test_gradients_are_transformers(with_transformers):
    ours, theirs = with_transformers
    images, targets = pictures(64, 64), torch.tensor([3, 1])
    mine = named_as_theirs(gradients(ours, F.cross_entropy(ours(images), targets)))
    others = gradients(theirs, F.cross_entropy(theirs(images).logits, targets))
    assert mine.keys() == others.keys()
    for name, expected in others.items():
        # the gradient of a key's bias is zero but for rounding
        assert (mine[name] - expected).abs().max() <= 1e-9 * max(float(expected.abs().max()), 1e-3), name


# against a twin


def twin(named: Mapping[str, torch.Tensor], config: PVTConfig, image: torch.Tensor):
    """Logits, tokens after each block and attention, with convolutions, loops over heads, and torch's interpolation."""
    outputs, matrices = [], []

    def norm(name, x, eps=config.norm_eps):
        return F.layer_norm(x, x.shape[-1:], named[f"{name}.weight"], named[f"{name}.bias"], eps)

    def linear(name, x):
        return x @ named[f"{name}.weight"].T + named[f"{name}.bias"]

    def conv(name, x):
        kernel = named[f"{name}.weight"]
        return F.conv2d(x, kernel, named[f"{name}.bias"], stride=kernel.shape[2:])

    def attention(name, x, stage, h, w):
        if config.reductions[stage] > 1:
            small = conv(f"{name}.sr", x.mT.reshape(len(x), -1, h, w)).flatten(2).mT
            small = norm(f"{name}.norm", small, config.conv_norm_eps)
        else:
            small = x
        whole = (linear(f"{name}.q", x), *linear(f"{name}.kv", small).chunk(2, -1))
        found, parts = [], []
        for q, k, v in zip(*(each.chunk(config.heads[stage], -1) for each in whole)):
            weights = (torch.einsum("bqe,bke->bqk", q, k) / q.shape[-1] ** 0.5).softmax(-1)
            found.append(weights)
            parts.append(weights @ v)
        matrices.append(torch.stack(found, 1))
        return linear(f"{name}.proj", torch.cat(parts, -1))

    for stage, depth in enumerate(config.depths):
        owner = f"stages.{stage}.downsample" if stage else "patch_embed"
        p, q = (2, 2) if stage else config.patch_size
        image = F.pad(image, (0, -image.shape[3] % q, 0, -image.shape[2] % p))
        image = conv(f"{owner}.proj", image)
        h, w = image.shape[2:]
        x = norm(f"{owner}.norm", image.flatten(2).mT, config.conv_norm_eps)
        table, (rows, columns) = named[f"stages.{stage}.pos_embed"], config.grids(config.image_size)[stage]
        prefix, places = table[:, : -rows * columns], table[:, -rows * columns :]
        places = F.interpolate(places.mT.reshape(1, -1, rows, columns), size=(h, w), mode="bilinear")
        x = x + places.flatten(2).mT
        if stage == len(config.depths) - 1:
            x = torch.cat([(named["cls_token"] + prefix).expand(len(x), -1, -1), x], 1)
        for block in range(depth):
            name = f"stages.{stage}.blocks.{block}"
            x = x + attention(f"{name}.attn", norm(f"{name}.norm1", x), stage, h, w)
            y = F.gelu(linear(f"{name}.mlp.fc1", norm(f"{name}.norm2", x)))
            x = x + linear(f"{name}.mlp.fc2", y)
            outputs.append(x)
        image = x[:, -h * w :].mT.reshape(len(x), -1, h, w)
    return linear("head", norm("norm", x)[:, 0]), outputs, matrices


SIZES = {"square": (64, 64), "oblong": (64, 96), "tall": (160, 96), "filled up": (59, 101)}


@pytest.mark.parametrize(("name", "trained"), [*zip(SIZES, (64, (96, 64), 64, (96, 64)))])
def test_any_size_is_the_twins_block_by_block_gradients_included(name, trained):
    model, images = make(image_size=trained, pad=name == "filled up"), pictures(*SIZES[name])
    seen = outputs_of(blocks_of(model))
    logits, attention = model.forward_with_attention(images)
    expected, outputs, matrices = twin(dict(model.named_parameters()), model.config, images)
    assert_near(logits, expected, 1e-6)  # tables are resized in fp32
    assert torch.equal(logits, model(images))
    for found, other in zip(seen[:6], outputs, strict=True):
        assert_near(found, other, 1e-6)
    for found, other in zip(attention, matrices, strict=True):
        assert_near(found, other.float(), 1e-5)
    mine, others = (gradients(model, each.square().sum()) for each in (logits, expected))
    for name, other in others.items():
        assert (mine[name] - other).abs().max() <= 1e-5 * max(float(other.abs().max()), 1e-3), name


def test_the_attention_matrices_lie_on_the_stated_grids():
    """Keys are squares of the map: what is left over at its ends, as the last row and column of 16 by 3, is in none."""
    model, images = make(), pictures(96, 64)
    grids = model.attention_grids((96, 64))
    assert grids == [
        AttentionGrid(0, (24, 16), (6, 4), (4, 4), covered=(24, 16)),
        *[AttentionGrid(0, (12, 8), (4, 2), (8, 8), covered=(12, 6))] * 2,
        AttentionGrid(0, (6, 4), (3, 2), (16, 16), covered=(6, 4)),
        *[AttentionGrid(1, (3, 2), (3, 2), (32, 32), covered=(3, 2))] * 2,
    ]
    matrices = model.forward_with_attention(images)[1]
    for matrix, (prefix, queries, keys, *_), heads in zip(matrices, grids, (1, 2, 2, 3, 2, 2), strict=True):
        assert matrix.shape == (2, heads, prefix + queries[0] * queries[1], prefix + keys[0] * keys[1])
        torch.testing.assert_close(matrix.sum(-1), torch.ones(matrix.shape[:3]))
    # stage 2: the query at row 5, column 3 and the key of rows 3 to 5, columns 0 to 2, by hand
    block, x = model.stages[1].blocks[0], []
    block.attn.register_forward_pre_hook(lambda module, given: x.append(given[0]))
    model(images)
    named, place = dict(block.attn.named_parameters()), x[0][1].unflatten(0, (12, 8))
    q = (place[5, 3] @ named["q.weight"].T + named["q.bias"])[:6]
    logits = []
    for row in range(0, 12, 3):
        for column in range(0, 6, 3):
            square = place[row : row + 3, column : column + 3]  # (3, 3, D)
            small = torch.einsum("pqc,dcpq->d", square, named["sr.weight"]) + named["sr.bias"]
            small = F.layer_norm(small, (12,), named["norm.weight"], named["norm.bias"], 1e-5)
            logits.append(q @ (small @ named["kv.weight"].T + named["kv.bias"])[:6] / 6**0.5)
    assert_near(matrices[1][1, 0, 5 * 8 + 3], torch.stack(logits).softmax(0).detach().float(), 1e-5)


# verbs


def test_layers_hold_every_parameter_once_in_order_of_depth():
    model = make()
    layers = model.layers()
    assert len(layers) == 6 + 2
    assert sorted(name for layer in layers for name in layer) == sorted(dict(model.named_parameters()))
    assert layers[0].keys() == {
        f"patch_embed.{part}.{kind}" for part in ("proj", "norm") for kind in ("weight", "bias")
    } | {"stages.0.pos_embed"}
    starts = [("stages.0.",), ("stages.1.",), ("stages.1.blocks.1.",), ("stages.2.",), ("stages.3.", "cls_token")]
    for layer, start in zip(layers[1:], [*starts, ("stages.3.blocks.1.",)]):
        assert all(name.startswith(start) for name in layer)
    assert {"stages.3.pos_embed", "cls_token", "stages.3.downsample.proj.weight"} <= layers[5].keys()
    assert layers[-1].keys() == {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    assert {"cls_token", "stages.2.pos_embed", "norm.bias"} <= model.no_decay()
    assert not any(name.endswith(("sr.weight", "kv.weight", "proj.weight")) for name in model.no_decay())


def test_first_values_are_the_authors():
    torch.manual_seed(0)
    model = create_backbone("pvt-tiny", head_bias=-1.5)
    named = dict(model.named_parameters())
    for name in ("cls_token", "stages.1.pos_embed", "stages.2.blocks.0.attn.kv.weight", "head.weight"):
        assert named[name].std().item() == pytest.approx(0.02, rel=0.1), name
    for name, inputs in {
        "patch_embed.proj": 48,
        "stages.3.downsample.proj": 1280,
        "stages.0.blocks.0.attn.sr": 4096,
    }.items():
        for kind in ("weight", "bias"):
            assert inputs**-0.5 * 0.9 < named[f"{name}.{kind}"].abs().max() <= inputs**-0.5
    assert (named["head.bias"] == -1.5).all()
    assert not named["stages.0.blocks.0.attn.q.bias"].any()
    assert (named["stages.0.blocks.0.attn.norm.weight"] == 1).all()
    assert {each.eps for name, each in model.named_modules() if name.endswith(("attn.norm", "sample.norm"))} == {1e-5}
    assert {each.eps for name, each in model.named_modules() if name.endswith(("norm1", "norm2"))} == {1e-6}
    assert (model.patch_embed.norm.eps, model.norm.eps) == (1e-5, 1e-6)


# configs


def test_an_image_is_evaluated_as_the_size_of_a_config():
    model = make()
    with pytest.raises(ConfigError, match="80x64 pixels"):
        model(pictures(80, 64))
    with pytest.raises(ConfigError, match="2x5 cells in stage 2"):
        make(pad=True)(pictures(16, 40))
    with pytest.raises(ConfigError, match="in_channels"):
        model(pictures(64, 64, channels=1))
    assert make(in_channels=1)(pictures(64, 96, channels=1)).shape == (2, 5)
