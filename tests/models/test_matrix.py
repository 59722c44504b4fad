"""Every architecture times everything that a backbone promises, on the small configs of `tests.models.tiny`.

A new name there is tried without an edit here: sizes follow from the config and from the model's own feature maps.
Variants of an architecture are tried where they have code of their own.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from tests.models.conftest import gradients, shaken
from tests.models.tiny import SHALLOW, TINY, shares
from tests.slow import slow_except
from vitrail.errors import ConfigError
from vitrail.models import ARCHITECTURES, Patches, configure, create_backbone
from vitrail.models.backbone import TAKE_SUBSETS, takes_subsets
from vitrail.models.config import grid_of
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.weights.native import load_model, save_model

FIRST_OF_EACH = [*{config.architecture: name for name, config in reversed(TINY.items())}.values()]
of_every_variant = pytest.mark.parametrize("config", slow_except(TINY, FIRST_OF_EACH), indirect=True)


@pytest.fixture(params=FIRST_OF_EACH)
def config(request):
    """A small config without chance: no dropout, no dropped branches or patches."""
    tiny = TINY[request.param]
    return configure(tiny, **dict.fromkeys(shares(tiny), 0.0))


@pytest.fixture
def model(config):
    return build(config)


def build(config, dtype=torch.float64, **changes):
    return shaken(create_backbone(config, **changes)).to(dtype).eval()


def draw(config, *, batch=2, size=None, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, config.in_channels, *(size or config.image_size), generator=generator).to(dtype)


def stride(model):
    """Pixels, (height, width), by which an image grows so that the last feature map grows by about one."""
    config = model.config
    with torch.no_grad():
        last = model.feature_maps(draw(config, batch=1, dtype=next(model.parameters()).dtype))[-1].shape[2:]
    return [patch * max(side // least, 1) for patch, side, least in zip(config.patch_size, config.grid, last)]


def sizes(model, *growths):
    """Image sizes, each the native one with so many strides more in height and width."""
    (height, width), (down, across) = model.config.image_size, stride(model)
    return [(height + rows * down, width + columns * across) for rows, columns in growths]


def distance(found, expected):
    """The largest difference, relative to the largest expected value."""
    return (found.float() - expected.float()).abs().max() / expected.abs().max()


@of_every_variant
def test_square_and_oblong_images_of_any_batch_get_an_answer_each_of_its_own(model):
    for size in sizes(model, (0, 0), (0, 1), (2, 1)):
        images = draw(model.config, batch=3, size=size)
        logits = model(images)
        assert logits.shape == (3, 7)
        assert logits.isfinite().all()
        torch.testing.assert_close(model(images[1:2]), logits[1:2])


def test_an_image_turned_on_its_side_is_another_image(model):
    """Rows are no columns anywhere: sizes of two transposed images differ, and so do the features of square ones."""
    (size,) = sizes(model, (0, 1))
    images = draw(model.config, size=size)
    for oblong, turned in ((images, images.mT), (images[..., : size[0]], images[..., : size[0]].mT)):
        ours, theirs = model.feature_maps(oblong)[0], model.feature_maps(turned)[0]
        assert ours.mT.shape == theirs.shape
        assert not torch.allclose(ours.mT, theirs)


def test_images_have_any_number_of_channels_and_another_one_is_refused(config):
    channels = 5
    model = build(config, in_channels=channels)
    images = draw(model.config)
    assert model(images).shape == (2, 7)
    assert model.get_parameter(model.first_layer).shape[1] == channels
    for verb in (model, model.patchify):
        with pytest.raises(ConfigError, match=rf"\(2, {channels + 1}, .* model of {channels} channels\n.*in_channels"):
            verb(torch.cat([images, images[:, :1]], 1))


@of_every_variant
def test_the_verbs_one_after_another_are_the_model(model):
    for size in sizes(model, (0, 0), (1, 0)):
        images = draw(model.config, size=size)
        patches = model.patchify(images)
        assert patches.ids is None
        assert patches.x.shape[1] == math.prod(patches.grid)
        assert patches.x.shape[2] == model.patch_width
        tokens = model.encode(model.place(patches))
        assert tokens.x.shape[2] == model.width
        assert tokens.grid == grid_of(size, model.config.cell)
        features = model.pool(tokens)
        torch.testing.assert_close(model.head(features), model(images))
        torch.testing.assert_close(model.forward_features(images).x, tokens.x)
        mean = torch.stack(list(model.heads(features).values())).mean(0)
        torch.testing.assert_close(mean, model(images))


@of_every_variant
def test_feature_maps_are_images_that_keep_the_shape_of_the_image(model):
    height, width = model.config.image_size
    square, wide = (
        model.feature_maps(draw(model.config, size=size)) for size in ((height, width), (height, 2 * width))
    )
    assert len(square) == len(wide)
    areas = [math.prod(each.shape[2:]) for each in square]
    assert areas == sorted(areas, reverse=True)
    for one, two in zip(square, wide):
        assert one.shape[:3] == two.shape[:3]
        assert 2 * one.shape[3] - 1 <= two.shape[3] <= 2 * one.shape[3]
    assert square[-1].shape[:2] == (2, model.width)
    assert tuple(each.shape[1] for each in square) == model.config.widths
    assert len(model.config.cells) == len(square)


@of_every_variant
def test_dense_maps_are_feature_maps_of_which_the_last_is_normed_as_the_tokens_are(model):
    config, images = model.config, draw(model.config)
    maps, dense = model.feature_maps(images), model.dense_maps(images)
    assert len(dense) == len(config.dense_layers)
    for layer, found in zip(config.dense_layers, dense):
        assert found.shape == maps[layer].shape
        if config.widths[layer] != model.width:
            assert torch.equal(found, maps[layer])
    tokens, cells = model.forward_features(images).x, dense[-1].flatten(2).mT
    if getattr(config, "pool", "cls") == "gap":
        tokens = model.fc_norm(tokens)
    torch.testing.assert_close(cells, tokens[:, tokens.shape[1] - cells.shape[1] :])
    assert torch.equal(model.dense_maps(images, [0, -1])[1], dense[-1])


@of_every_variant
def test_attention_comes_with_the_same_logits_and_its_grids_say_where_each_number_belongs(model):
    for size in sizes(model, (0, 0), (0, 1)):
        images = draw(model.config, size=size)
        grids = model.attention_grids(size)
        if model.config.attention == "none":
            assert grids == []
            with pytest.raises(ConfigError, match=r"no attention\n.*feature_maps"):
                model.forward_with_attention(images)
            continue
        with torch.no_grad():
            logits, matrices = model.forward_with_attention(images)
            assert torch.equal(logits, model(images))
        for matrix, grid in zip(matrices, grids, strict=True):
            check_attention(matrix, grid)


def check_attention(matrix, grid):
    batch, _, queries, keys = matrix.shape
    assert (batch, matrix.dtype) == (2, torch.float32)
    torch.testing.assert_close(matrix.sum(-1), torch.ones(matrix.shape[:3]))
    assert (matrix >= 0).all()
    asking, asked = math.prod(grid.queries), math.prod(grid.keys)
    rows = torch.arange(asking) if grid.rows is None else grid.rows
    assert len(rows) == queries - grid.prefix
    assert torch.equal(rows[rows >= 0].sort().values, torch.arange(asking))  # each place asks once
    assert (rows >= -1).all()
    columns = torch.arange(asked).expand(len(rows), -1) if grid.columns is None else grid.columns
    assert columns.shape == (len(rows), keys - grid.prefix)
    assert ((columns >= -1) & (columns < asked)).all()
    ordered = columns.sort(1).values
    assert not ((ordered.diff(dim=1) == 0) & (ordered[:, 1:] >= 0)).any()  # and no place answers it twice


@of_every_variant
def test_layers_hold_every_parameter_once_in_the_order_of_depth(model):
    layers = model.layers()
    assert len(layers) == model.config.blocks + 2
    names = [name for layer in layers for name in layer]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert all(layer[name] is model.get_parameter(name) for layer in layers for name in layer)
    assert all(layers)
    assert model.first_layer in layers[0]
    assert "head.weight" in layers[-1]


def test_only_kernels_decay(model):
    named = dict(model.named_parameters())
    assert model.no_decay() <= named.keys()
    assert {name for name, each in named.items() if each.ndim == 1} <= model.no_decay()
    assert not {model.first_layer, "head.weight"} & model.no_decay()


def test_a_new_head_answers_zero_for_other_classes_and_leaves_the_features(model):
    images = draw(model.config)
    before = model.forward_features(images).x
    model.reset_head(4)
    assert model.config.classes == 4
    assert torch.equal(model(images), torch.zeros(2, 4, dtype=torch.float64))
    assert torch.equal(model.forward_features(images).x, before)
    assert model.state_dict().keys() == create_backbone(model.config).state_dict().keys()


def test_no_classes_give_features(config):
    model = build(config, classes=0)
    images = draw(config)
    torch.testing.assert_close(model(images), model.pool(model.forward_features(images)))


def test_saving_and_loading_gives_the_same_model(tmp_path, config):
    classifier = create_classifier(config, classes=7)
    shaken(classifier).eval()
    images = draw(config, dtype=torch.float32)
    again = load_model(save_model(tmp_path / "model", classifier))
    assert again.config == classifier.config
    assert torch.equal(again(images), classifier(images))


def test_a_model_on_the_meta_device_takes_weights_by_assignment(model):
    images = draw(model.config)
    with torch.device("meta"):
        empty = create_backbone(model.config)
    assert all(each.is_meta for each in (*empty.parameters(), *empty.buffers()))
    empty.load_state_dict(model.state_dict(), assign=True)
    assert torch.equal(empty.eval()(images), model(images))


@of_every_variant
def test_a_model_resized_to_another_image_answers_there_as_before(model):
    (size,) = sizes(model, (1, 2))
    new = configure(model.config, image_size=size)
    other = create_backbone(new).double().eval()
    other.load_state_dict(type(model).resize_tensors(model.state_dict(), model.config, new))
    images = draw(new)
    torch.testing.assert_close(other(images), model(images), atol=1e-6, rtol=1e-6)


@of_every_variant
def test_a_subset_of_the_patches_is_encoded_or_refused(model):
    config = model.config
    patches = model.patchify(draw(config))
    count = patches.x.shape[1]
    ids = torch.arange(count).expand(2, -1)
    if takes_subsets(config):
        whole, all_kept, half = (
            model.encode(model.place(each))
            for each in (
                patches,
                Patches(patches.x, patches.grid, ids),
                Patches(patches.x[:, 1::2], patches.grid, ids[:, 1::2]),
            )
        )
        torch.testing.assert_close(all_kept.x, whole.x)
        assert whole.x.shape[1] - half.x.shape[1] == count - ids[:, 1::2].shape[1]
        return
    remedy = "window=0" if config.architecture in TAKE_SUBSETS else TAKE_SUBSETS[0]
    for verb in (model.place, model.encode):
        with pytest.raises(ConfigError, match=rf"{config.about}.* requires the whole grid .*\n.*{remedy}"):
            verb(Patches(patches.x[:, 1::2], patches.grid, ids[:, 1::2]))


@pytest.mark.parametrize(
    "kind", ["bf16 weights", pytest.param("bf16 autocast", marks=pytest.mark.slow), "fp16 autocast"]
)
def test_fewer_digits_stay_near_fp32(config, kind):
    model, images = build(config, torch.float32), draw(config, dtype=torch.float32)
    exact = model(images).detach()
    if kind == "bf16 weights":
        model.bfloat16()
        found = [model(images), model(images).detach()]
    else:
        with torch.autocast("cpu", torch.bfloat16 if kind == "bf16 autocast" else torch.float16):
            found = [model(images)]
            with torch.inference_mode():
                found.append(model(images))
    assert {each.dtype for each in found} == {torch.bfloat16 if kind == "bf16 weights" else torch.float32}
    assert all(distance(each.detach(), exact) < 0.06 for each in found)
    found[0].float().square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.dtype == parameter.dtype
        assert parameter.grad.isfinite().all(), name


def test_every_parameter_gets_a_gradient(model):
    found = gradients(model.train(), model(draw(model.config)).square().sum())
    for name, gradient in found.items():
        assert gradient.isfinite().all(), name
        assert gradient.any(), name


def test_checkpointing_computes_again_what_gives_the_same_loss_and_gradients(config):
    images, calls, found = draw(config), [], []
    count = torch.nn.modules.module.register_module_forward_pre_hook(lambda module, given: calls.append(module))
    for again in (False, True):
        model = build(config, checkpoint=again).train()
        for outputs in ([model(images)], model.dense_maps(images)):
            calls.clear()
            loss = sum(each.square().sum() for each in outputs)
            found.append((loss, gradients(model, loss), len(calls)))
    count.remove()
    for (loss, kept, once), (loss_again, recomputed, twice) in zip(found[:2], found[2:]):
        assert twice > once
        torch.testing.assert_close(loss, loss_again)
        for name in kept:
            torch.testing.assert_close(kept[name], recomputed[name], msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", FIRST_OF_EACH)
def test_all_chance_together_still_trains_and_is_off_in_evaluation(name):
    tiny = TINY[name]
    torch.manual_seed(0)
    dropped = [share for share in shares(tiny) if share != "patch_dropout" or takes_subsets(tiny)]
    model = build(tiny, torch.float32, **dict.fromkeys(dropped, 0.2))
    images = draw(tiny, batch=4, dtype=torch.float32)
    assert torch.equal(model(images), model(images))
    patches = model.patchify(images)
    count = patches.x.shape[1]
    model.train()
    assert model.place(patches).x.shape[1] == round(count * (0.8 if "patch_dropout" in dropped else 1))
    assert not torch.equal(model(images), model(images))
    model(images).square().sum().backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


def test_two_steps_on_a_batch_lower_its_loss(config):
    torch.manual_seed(0)
    model = create_backbone(config).train()
    images, targets = draw(config, batch=7, dtype=torch.float32), torch.arange(7)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        losses.append(F.cross_entropy(model(images), targets))
        optimiser.zero_grad()
        losses[-1].backward()
        optimiser.step()
    assert losses[2] < losses[1] < losses[0]


def test_every_architecture_is_here():
    assert {config.architecture for config in TINY.values()} == set(ARCHITECTURES)
    assert {config.architecture for config in SHALLOW.values()} == set(ARCHITECTURES)
