"""The masked objectives: which cells are hidden, the head that predicts patches, masked codes, who can carry them."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from tests.models.tiny import SHALLOW, TINY
from tests.objectives.masked import (
    CARRIERS,
    KINDS,
    LOADS_A_COMPILER,
    VOCABULARY,
    cross_entropy,
    inputs_of,
    make,
    names,
    predictions_by_hand,
    preprocessing,
    size_of,
    steps,
)
from vitrail.errors import ConfigError
from vitrail.models import create_backbone
from vitrail.models.layers import cut_patches, join_patches
from vitrail.objectives import MaskedCodes, MaskedPatch
from vitrail.objectives.masking import Masked, _rectangles, block_mask, random_ranks

OBJECTIVES = ["patch", "codes"]


# which cells


def test_ranks_are_an_order_of_each_images_own():
    ranks = random_ranks(names(50), 21, 3, "x")
    assert (np.sort(ranks, 1) == np.arange(21)).all()
    assert len(np.unique(ranks, axis=0)) == 50
    assert np.array_equal(random_ranks(names(10, first=20), 21, 3, "x"), ranks[20:30])
    for seed, stream in ((4, "x"), (3, "y")):
        assert not np.array_equal(random_ranks(names(50), 21, seed, stream), ranks)


def test_every_cell_is_as_likely_as_another():
    drawn, cells, count = 4000, 21, 8
    often = (random_ranks(names(drawn), cells, 0, "x") < count).mean(0)
    share = count / cells
    assert np.abs(often - share).max() < 4 * math.sqrt(share * (1 - share) / drawn)


@pytest.mark.parametrize(
    ("grid", "count"),
    [((14, 14), 75), ((7, 12), 32), ((12, 7), 33), ((1, 9), 3), ((2, 2), 1), ((3, 5), 15), ((1, 1), 1), ((20, 4), 50)],
)
def test_blocks_hide_an_exact_count_and_are_each_images_own(grid, count):
    hidden = block_mask(names(40), grid, count, 3)
    assert hidden.shape == (40, math.prod(grid))
    assert (hidden.sum(1) == count).all()
    assert np.array_equal(block_mask(names(10, first=20), grid, count, 3), hidden[20:30])
    if math.comb(math.prod(grid), count) > 100:
        assert len(np.unique(hidden, axis=0)) > 20
        assert not np.array_equal(block_mask(names(40), grid, count, 4), hidden)


def test_rectangles_have_any_area_between_and_any_shape_between():
    """On a grid of 1000 x 1000, so that rounding is nothing: areas from 81,633 up to 90,000, all that are to be hidden."""
    chances = np.random.default_rng(0).random((60, 4))
    chances[:4, :2] = [[0, 0], [0, 1], [1, 0], [1, 1]]
    blocks = _rectangles(chances, np.full(60, 90_000), (1000, 1000))
    heights, widths = blocks.any(2).sum(1), blocks.any(1).sum(1)
    areas, shapes = heights * widths, np.log(heights / widths)
    least = 16 / 196 * 1000**2
    np.testing.assert_allclose(areas, least + chances[:, 0] * (90_000 - least), rtol=0.01)
    np.testing.assert_allclose(shapes, (2 * chances[:, 1] - 1) * math.log(0.3), atol=0.01)
    rest = 1000 - np.stack([heights, widths], 1) + 1
    corners = np.stack([blocks.any(2).argmax(1), blocks.any(1).argmax(1)], 1)
    assert np.array_equal(corners, np.floor(chances[:, 2:] * rest))


def blocks_by_hand(chance, count, side=14, least=16):
    """The paper's algorithm 1, one rectangle after another, with the attempts of the authors' code; the rest at random."""
    hidden = np.zeros((side, side), bool)
    while (missing := count - hidden.sum()) > 0:
        for _ in range(10):
            area = chance.uniform(least, missing)
            aspect = math.exp(chance.uniform(math.log(0.3), math.log(1 / 0.3)))
            height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if height > side or width > side:
                continue
            top, left = chance.randint(0, side - height), chance.randint(0, side - width)
            block = hidden[top : top + height, left : left + width]
            if 0 < (~block).sum() <= missing:
                block[:] = True
                break
        else:
            break
    shown = np.flatnonzero(~hidden)
    hidden.flat[chance.sample(shown.tolist(), count - hidden.sum())] = True
    return hidden


def touching(hidden):
    """How many pairs of neighbours, in a row and in a column, are both hidden: the mean over images (B, h, w)."""
    beside = (hidden[:, :, 1:] & hidden[:, :, :-1]).sum((1, 2)).mean()
    return np.array([beside, (hidden[:, 1:] & hidden[:, :-1]).sum((1, 2)).mean()])


# the more are to be hidden, the more often an attempt fails
@pytest.mark.parametrize(("count", "tolerance"), [(75, 0.02), (170, 0.005)])
def test_blocks_hang_together_as_those_of_the_papers_algorithm(count, tolerance):
    chance = random.Random(0)
    expected = touching(np.stack([blocks_by_hand(chance, count) for _ in range(500)]))
    found = touching(block_mask(names(500), (14, 14), count, 0).reshape(-1, 14, 14))
    scattered = touching((random_ranks(names(500), 196, 0, "x") < count).reshape(-1, 14, 14))
    assert np.abs(found / expected - 1).max() < tolerance
    assert (found > 1.03 * scattered).all()


def test_joining_patches_inverts_cutting_them():
    images = torch.arange(2 * 3 * 12 * 20).view(2, 3, 12, 20)
    patches = cut_patches(images, (4, 5))
    assert patches.shape == (2, 12, 3, 4, 5)
    assert torch.equal(patches[1, 6], images[1, :, 4:8, 10:15])
    assert torch.equal(join_patches(patches, (12, 20)), images)


# what is learned


@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.parametrize("name", KINDS)
def test_only_what_is_chosen_carries_a_loss_and_it_reaches_the_encoder_and_the_mask(name, kind):
    objective = make(KINDS[name], kind)
    inputs, seen = inputs_of(objective), []
    objective.head.register_forward_pre_hook(lambda module, given: given[0].x.retain_grad() or seen.append(given[0]))
    objective(*inputs)[0].backward()
    (tokens,) = seen
    count = math.prod(tokens.grid)
    reached = tokens.x.grad[:, -count:].abs().amax(2) > 0  # (B, M)
    r, s = objective.head.repeats
    chosen = inputs[1].view(2, tokens.grid[0], r, tokens.grid[1], s).any(4).any(2).flatten(1)
    assert torch.equal(reached, chosen)
    assert not tokens.x.grad[:, :-count].any()
    first_block = next(name for name in objective.encoder.layers()[1] if name.endswith(".weight"))
    for parameter in (objective.mask_token, objective.head.proj.weight, objective.encoder.get_parameter(first_block)):
        assert parameter.grad.any()
    assert objective.encoder.get_parameter(objective.encoder.first_layer).grad.any()


@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.parametrize("name", KINDS)
def test_first_values_are_small_and_centred(name, kind):
    objective = make(KINDS[name], kind, shake=False)
    assert 0.01 < objective.mask_token.std() < 0.04
    assert 0.018 < objective.head.proj.weight.std() < 0.022
    assert not objective.head.proj.bias.any()
    assert "mask_token" in objective.no_decay()
    assert "head.proj.weight" not in objective.no_decay()
    groups = [name for layer in objective.layers() for name in layer]
    assert sorted(groups) == sorted(name for name, _ in objective.named_parameters())


# colours of one channel and of five, images that are no squares, and two digits
VARIANTS = {"oblong": ("mean", 3, None), "1 channel": ("downsized", 1, None)}
VARIANTS |= {"5 channels": ("pixels", 5, None), "bf16 autocast": ("mean", 3, torch.bfloat16)}


# every architecture and, for the convolutions on pixels, a ViT with a stem; every pair of objective and variant
STEPS = [
    (name, *pair)
    for name, pair in zip(CARRIERS, [(kind, variant) for kind in OBJECTIVES for variant in VARIANTS], strict=True)
]


@pytest.mark.parametrize(("name", "kind", "variant"), STEPS)
def test_two_steps_on_a_batch_lower_its_loss(name, kind, variant):
    target, channels, dtype = VARIANTS[variant]
    objective = make(TINY[name], kind, target, shake=False, in_channels=channels)
    losses = steps(objective, inputs_of(objective), dtype)
    assert losses[2] < losses[1] < losses[0] < math.inf


@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.parametrize("name", ["vit, no norm", "pvt"])
def test_a_saved_objective_has_the_same_loss_and_its_encoder_loads_alone(name, kind):
    objective, other = make(KINDS[name], kind).eval(), make(KINDS[name], kind, shake=False).eval()
    inputs = inputs_of(objective)
    assert not torch.equal(other(*inputs)[0], objective(*inputs)[0])
    other.load_state_dict(objective.state_dict())
    assert torch.equal(other(*inputs)[0], objective(*inputs)[0])
    fresh = create_backbone(objective.encoder.config).eval()
    fresh.load_state_dict(objective.encoder.state_dict())
    assert torch.equal(fresh(inputs[0]), objective.encoder(inputs[0]))


# cells of one patch and of several, hidden patches that are replaced by the mask alone and also by others
@pytest.mark.slow
@LOADS_A_COMPILER
@pytest.mark.parametrize(("name", "kind"), [("vit", "codes"), ("pvt", "patch")])
def test_a_compiled_objective_is_one_graph_with_the_same_loss_and_learns(name, kind):
    torch.compiler.reset()
    objective = make(SHALLOW[name], kind, shake=False)
    inputs = inputs_of(objective)
    compiled = torch.compile(objective, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs)[0], objective(*inputs)[0], atol=1e-5, rtol=1e-5)
    losses = steps(compiled, inputs)
    assert losses[2] < losses[1] < losses[0]


# who cannot


@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.parametrize("name", [name for name in SHALLOW if name not in Masked.carried_by])
def test_an_architecture_that_cannot_names_those_that_can(name, kind):
    with pytest.raises(ConfigError, match=r"the objective Masked\w* does not support") as raised:
        make(SHALLOW[name], kind)
    assert all(each in raised.value.remedy for each in Masked.carried_by)
    assert SHALLOW[name].about in raised.value.what


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_an_encoder_that_drops_patches_is_refused(kind):
    encoder = create_backbone(TINY["cait"], patch_dropout=0.25)
    with pytest.raises(ConfigError, match=r"patch_dropout=0.25, .*Masked\w+ predicts\n.*patch_dropout=0.0"):
        MaskedCodes(encoder) if kind == "codes" else MaskedPatch(encoder, preprocessing())


@pytest.mark.parametrize("share", [0, -0.5, 1.01, math.nan])
def test_a_share_is_some_of_the_patches(share):
    with pytest.raises(ConfigError, match=f"share is {share}\n.*0, 1"):
        MaskedCodes(create_backbone(TINY["vit"]), share=share)


@pytest.mark.parametrize("name", ["vit", "pvt"])
def test_images_that_are_not_whole_cells_are_refused(name):
    objective = make(TINY[name], "codes")
    config = objective.encoder.config
    (height, width), (down, across) = size_of(config), config.cell
    for size in ((height + config.patch_size[0] // 2, width), (height, width + across // 2)):
        match = rf"{size[0]}x{size[1]} pixels .* {down}x{across}.*\n.*multiple of {down} .* {across}"
        with pytest.raises(ConfigError, match=match):
            objective.draw(names(2), size, 0)
        with pytest.raises(ConfigError, match=match):
            objective(torch.zeros(2, 3, *size), torch.ones(2, 4, dtype=torch.bool), torch.zeros(2, 4).long())


@pytest.mark.parametrize("name", KINDS)
def test_the_loss_is_the_mean_cross_entropy_of_the_hidden_patches(name):
    objective = make(KINDS[name], "codes").eval()
    images, hidden, codes = inputs_of(objective)
    own = torch.arange(hidden.shape[1]).expand_as(hidden)
    with torch.no_grad():
        loss, measured = objective(images, hidden, codes)
        predicted = predictions_by_hand(objective, images, own.masked_fill(hidden, -1))
    answers = [
        (logits, code)
        for logits, is_hidden, code in zip(predicted.reshape(-1, VOCABULARY), hidden.flatten(), codes.flatten())
        if is_hidden
    ]
    np.testing.assert_allclose(loss, np.mean([cross_entropy(*each) for each in answers]), rtol=2e-5)
    right = np.mean([logits.argmax() == code for logits, code in answers])
    assert measured["accuracy"] == pytest.approx(right)


def test_codes_of_what_shows_are_not_read():
    objective = make(TINY["vit"], "codes").eval()
    images, hidden, codes = inputs_of(objective)
    loss = objective(images, hidden, codes)[0]
    assert torch.equal(objective(images, hidden, torch.where(hidden, codes, 0))[0], loss)
    assert not torch.equal(objective(images, hidden, torch.where(hidden, 0, codes))[0], loss)


def test_hidden_patches_are_shown_grey_and_with_the_codes_that_are_predicted():
    objective = make(TINY["vit"], "codes").eval()
    images, hidden, codes = inputs_of(objective)
    assert list(objective.show(images, hidden, codes)) == ["masked"]
    given = []
    objective.drawn = lambda codes, size: given.append(codes) or images
    masked = objective.show(images, hidden, codes)["masked"]
    patch_size = objective.encoder.config.patch_size
    patches = cut_patches(masked, patch_size)
    assert (patches[hidden] == 0).all()
    assert torch.equal(patches[~hidden], cut_patches(images, patch_size)[~hidden])
    told, predicted = given
    assert torch.equal(told, codes)
    assert torch.equal(predicted[~hidden], codes[~hidden])
    accuracy = objective(images, hidden, codes)[1]["accuracy"]
    assert (predicted == codes)[hidden].float().mean() == accuracy
    assert not torch.equal(predicted, codes)


def test_the_papers_share_of_the_patches_is_hidden_in_blocks():
    objective = MaskedCodes(create_backbone(TINY["beit"], patch_size=16))
    (hidden,) = objective.draw(names(30), (224, 224), 5)
    assert hidden.dtype == torch.bool
    assert (hidden.sum(1) == 75).all()
    assert np.array_equal(hidden.numpy(), block_mask(names(30), (14, 14), 75, 5))
    assert torch.equal(objective.draw(names(6, first=9), (224, 224), 5)[0], hidden[9:15])


@pytest.mark.parametrize("name", ["swin", "pvt"])
def test_cells_of_a_pyramid_are_hidden_as_a_whole(name):
    objective = make(TINY[name], "codes")
    (r, s), (down, across) = objective.head.repeats, objective.encoder.config.cell
    (hidden,) = objective.draw(names(10), (6 * down, 7 * across), 0)
    cells = hidden.view(10, 6, r, 7, s)
    assert (cells == cells[:, :, :1, :, :1]).all()
    assert (cells[:, :, 0, :, 0].sum((1, 2)) == round(75 / 196 * 42)).all()


def test_a_vocabulary_is_a_number_of_codes():
    for vocabulary in (1, 0, 8192.0):
        with pytest.raises(ConfigError, match=rf"vocabulary is {vocabulary}\n.*from 2"):
            MaskedCodes(create_backbone(TINY["vit"]), vocabulary)
