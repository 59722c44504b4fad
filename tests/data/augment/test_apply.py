"""Whole policies: their order, what they keep, and that a picture's augmentation is its own."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.augment.operate import operate
from vitrail.data.augment.apply import augment, draw_erasing, draw_flips, draw_layers, draw_shifts
from vitrail.data.augment.crops import crop_box
from vitrail.data.augment.operations import CHUNK, GEOMETRY, NOISE_DEVIATION, NOISE_MEAN, cut_boxes, normal
from vitrail.data.augment.policy import POLICIES, Augment
from vitrail.data.rng import keys, words

COUNT, SIZE = 40, (48, 60)
NONE = Augment(crop="none", flip=0.0)
# of the policies those that run other code: the rest differ from one of these in numbers
KINDS = ("none", "flip", "inception", "strong2", "deit", "three_augment", "moco", "simclr", "small")


def ids_of(count=COUNT, epoch=0, view=0):
    return np.stack([np.full(count, epoch), np.arange(count), np.full(count, view)], 1).astype(np.int64)


@cache
def sources():
    from sklearn.datasets import load_sample_images

    return load_sample_images().images


def photographs(count=COUNT, size=SIZE, channels=3):
    """(B, C, H, W) uint8: parts of the two photographs that scikit-learn carries."""
    rng, made = np.random.default_rng(1), []
    for number in range(count):
        top, left = rng.integers(0, 427 - 2 * size[0]), rng.integers(0, 640 - 2 * size[1])
        made.append(sources()[number % 2][top:, left:][: 2 * size[0] : 2, : 2 * size[1] : 2])
    return torch.from_numpy(np.stack(made)[..., [0, 1, 2, 1, 0][:channels]]).permute(0, 3, 1, 2).contiguous()


def run(images, policy, *, size=SIZE, seed=0, cropped=True, ids=None):
    ids = ids_of(len(images)) if ids is None else ids
    return augment(images, ids, policy, size=size, seed=seed, cropped=cropped)[0]


@cache
def drawn(policy):
    return draw_flips(policy, ids_of(), 0), draw_layers(policy, ids_of(), 0)


def one_by_one(image, row, policy):
    """A picture (1, C, H, W) through its flip and its operations, in the order in which they were drawn."""
    flips, layers = drawn(policy)
    if flips[row]:
        image = image.flip(-1)
    for layer in layers:
        name, value = str(layer.names[row]), layer.values[row : row + 1]
        if name == "cutout":
            ((left, top, wide, tall),) = cut_boxes(value, layer.places[row : row + 1], *image.shape[-2:]).tolist()
            image = image.clone()
            image[..., max(top, 0) : max(top + tall, 0), max(left, 0) : max(left + wide, 0)] = policy.fill
        elif name:
            image = operate(image, name, value, fill=policy.fill)
    return image


def turns_of(policy):
    """How many geometric operations each picture has."""
    turns = [np.isin(layer.names, list(GEOMETRY)) for layer in draw_layers(policy, ids_of(), 0)]
    return np.sum(turns, axis=0) * np.ones(COUNT)


@pytest.mark.parametrize("name", ["light2", "strong2", "deit", "three_augment", "moco", "simclr", "none", "flip"])
def test_the_result_is_one_operation_after_the_other(name):
    policy = replace(POLICIES[name], crop="none", erase=0.0, flip=0.5)
    images, turns, flips = photographs(), turns_of(policy), draw_flips(policy, ids_of(), 0)
    made = run(images, policy)
    assert (turns < 2).sum() > COUNT // 2
    for row in np.flatnonzero(turns < 2):
        expected = one_by_one(images[row : row + 1], row, policy)[0]
        if not (flips[row] and turns[row]):
            assert torch.equal(made[row], expected)
        else:  # one matrix rounds some places the other way than a flip and then a turn
            assert ((made[row].int() - expected.int()).abs() > 8).float().mean() < 0.01


def test_neighbouring_tables_become_one():
    names = ("brightness", "posterise", "solarise", "solarise_add", "invert", "contrast", "equalise", "auto_contrast")
    policy = replace(NONE, layers=6, operations=names, magnitude=7.0)
    images = photographs()
    expected = torch.cat([one_by_one(images[row : row + 1], row, policy) for row in range(COUNT)])
    assert torch.equal(run(images, policy), expected)


def test_two_turns_are_resampled_once():
    policy = replace(NONE, layers=2, operations=("rotate",), magnitude=4.0, fill=0)
    degrees = sum(layer.values for layer in draw_layers(policy, ids_of(), 0))
    straight = np.flatnonzero(np.abs(degrees) < 1e-9)  # turned by 12 degrees and back
    assert len(straight) > 5
    images = photographs()
    made = run(images, policy)
    assert (made[straight].int() - images[straight].int()).abs().max() <= 1
    other = operate(images, "rotate", degrees, fill=0)
    assert (made.int() - other.int()).abs().max() <= 1


def test_turns_follow_one_another_in_their_order():
    policy = replace(NONE, layers=2, operations=("rotate", "translate_x"), magnitude=8.0)
    down, across = torch.meshgrid(torch.linspace(40, 200, SIZE[0]), torch.linspace(0, 55, SIZE[1]), indexing="ij")
    images = (down + across).to(torch.uint8).expand(COUNT, 3, -1, -1)  # smooth: sampled once or twice, much the same
    made = run(images, policy)
    for row in np.flatnonzero(turns_of(policy) == 2):
        expected = one_by_one(images[row : row + 1], row, policy)[0]
        kept = expected != policy.fill  # what leaves the picture comes back here, and not there
        assert ((made[row].int() - expected.int())[kept].abs() > 4).float().mean() < 0.1


def test_grey_uncovered_after_a_tone_operation_stays_grey():
    policy = replace(NONE, layers=2, operations=("invert", "translate_x"), magnitude=9.0, fill=128)
    first, second = draw_layers(policy, ids_of(), 0)
    black = torch.zeros(COUNT, 3, *SIZE, dtype=torch.uint8)
    made = run(black, policy)
    before = np.flatnonzero((first.names == "invert") & (second.names == "translate_x"))
    after = np.flatnonzero((first.names == "translate_x") & (second.names == "invert"))
    assert set(made[before].unique().tolist()) == {255, 128}
    assert set(made[after].unique().tolist()) == {255, 127}


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_an_augmentation_is_a_function_of_the_picture_its_ids_and_the_seed(three_threads):
    """Not of the other pictures of its batch, and not of the number of threads."""
    images, order, wrong = photographs(), np.array([31, 4, 17]), []
    assert images.numel() > CHUNK
    for name in KINDS:
        augmented = partial(run, policy=POLICIES[name], cropped=False)
        threaded = augmented(images)
        assert torch.get_num_threads() == 3
        torch.set_num_threads(1)
        alone = augmented(images)
        equal = {
            "threads": torch.equal(threaded, alone),
            "batch": torch.equal(alone[order], augmented(images[order], ids=ids_of()[order])),
        }
        changed = {"seed": {"seed": 1}, "epoch": {"ids": ids_of(epoch=1)}, "view": {"ids": ids_of(view=1)}}
        equal |= {
            key: name == "none" or not torch.equal(alone, augmented(images, **how)) for key, how in changed.items()
        }
        wrong += [(name, key) for key, is_right in equal.items() if not is_right]
        torch.set_num_threads(3)
    assert not wrong


def test_the_augmentation_of_a_crop_is_its_own():
    images, order = photographs(), np.array([31, 4, 17])
    for name in KINDS:
        whole = run(images, POLICIES[name])
        assert torch.equal(whole[order], run(images[order], POLICIES[name], ids=ids_of()[order])), name


@pytest.mark.parametrize("name", ["deit", "simclr", "three_augment", "flip"])
def test_large_pictures_one_at_a_time_are_as_several(name, monkeypatch):
    images = photographs()
    several = [run(given, POLICIES[name]) for given in (images, images / 255)]
    monkeypatch.setattr("vitrail.data.augment.operations.CHUNK", 1)
    monkeypatch.setattr("vitrail.data.augment.apply.LARGE", 1)
    for given, expected in zip((images, images / 255), several):
        before = given.clone()
        made = run(given, POLICIES[name])
        assert torch.equal(made, expected) if made.dtype == torch.uint8 else torch.allclose(made, expected, atol=1e-4)
        assert torch.equal(given, before)


@pytest.mark.parametrize("name", ["translate_x", "translate_y"])
def test_large_pictures_move_as_small_ones_do(name, monkeypatch):
    policy, images = replace(POLICIES["flip"], layers=2, operations=(name,), magnitude=7.0), photographs()
    expected = run(images, policy)
    monkeypatch.setattr("vitrail.data.augment.apply.LARGE", 1)
    assert (run(images, policy).int() - expected.int()).abs().max() <= 1


def test_an_error_in_a_thread_is_an_error(three_threads, monkeypatch):
    monkeypatch.setattr("vitrail.data.augment.apply.draw_layers", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(photographs(), NONE)
    assert torch.get_num_threads() == 3


def test_every_policy_takes_any_channels_sizes_and_types():
    """Each number of channels as bytes and as floats, in turns."""
    kinds = itertools.cycle(itertools.product((1, 3, 5), (False, True)))
    for name, (channels, floats) in zip(POLICIES, kinds):
        images = photographs(12, channels=channels)
        images = images / 255 if floats else images
        before = images.clone()
        made = run(images, POLICIES[name], size=(24, 20), cropped=False)
        assert made.shape == (12, channels, 24, 20), name
        assert made.dtype == images.dtype, name
        assert 0 <= made.min() and made.max() <= (1 if floats else 255), name
        assert made.float().std() > 0, name
        assert torch.equal(images, before), name


def test_the_layout_in_memory_changes_nothing():
    images = photographs()
    for given in (images, images / 255):
        strided = given.to(memory_format=torch.channels_last)
        assert torch.equal(run(strided, POLICIES["deit"]), run(given, POLICIES["deit"]))
        assert torch.equal(run(given[::2], POLICIES["deit"]), run(given[::2].contiguous(), POLICIES["deit"]))


def test_floats_are_augmented_as_their_levels():
    images = photographs()
    policy = replace(NONE, flip=0.5, layers=1, operations=("rotate", "colour", "sharpness", "solarise", "equalise"))
    whole, floats = run(images, policy).float(), run(images / 255, policy) * 255
    assert (whole - floats).abs().max() < 0.51


def test_nothing_is_the_picture():
    images = photographs()
    assert torch.equal(run(images, NONE), images)
    assert torch.equal(run(images, replace(NONE, flip=1.0)), images.flip(-1))
    assert torch.equal(run(images, NONE, cropped=False), images)


@pytest.mark.parametrize("large", [1, 2**14])
@pytest.mark.parametrize("rule", ["area", "height"])
def test_the_crop_of_an_array_is_pillows_and_reads_nothing_beside_it(rule, large, monkeypatch):
    monkeypatch.setattr("vitrail.data.augment.apply.LARGE", large)
    policy = replace(NONE, crop="inception", crop_rule=rule)
    images, size = photographs(), (72, 80)
    made = run(images, policy, size=size, cropped=False)
    for row in range(COUNT):
        left, top, wide, tall = crop_box(policy, 0, 0, row, 0, *SIZE, aspect=80 / 72)
        picture = Image.fromarray(images[row].permute(1, 2, 0).numpy()).crop((left, top, left + wide, top + tall))
        part = np.asarray(picture.resize((80, 72), Image.Resampling.BILINEAR))
        assert np.abs(made[row].numpy().astype(int) - part.transpose(2, 0, 1)).max() <= 1


def test_turning_a_part_uncovers_grey_beyond_the_part():
    policy = Augment(crop_area=(0.2, 0.3), flip=0.0, layers=1, operations=("translate_x",), magnitude=10.0)
    made = run(photographs(), policy, cropped=False)
    values = draw_layers(policy, ids_of(), 0)[0].values
    width = int(0.45 * SIZE[1])
    for row in range(COUNT):
        uncovered = made[row, ..., -width:] if values[row] > 0 else made[row, ..., :width]
        assert (uncovered == 128).all()


@pytest.mark.parametrize(("mode", "numpy_mode"), [("reflect", "reflect"), ("zero", "constant")])
@pytest.mark.parametrize("cropped", [True, False])
def test_a_shift_is_over_the_padded_picture(mode, numpy_mode, cropped):
    policy = Augment(crop="pad", pad_mode=mode, flip=0.0, pad=0.1)
    images = photographs(size=(40, 40))
    made = run(images, policy, size=(40, 40), cropped=cropped).numpy()
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (4, 4), (4, 4)), mode=numpy_mode)
    for row, (right, down) in enumerate(draw_shifts(policy, ids_of(), 0, (40, 40)).tolist()):
        expected = padded[row, :, 4 - down : 44 - down, 4 - right : 44 - right]
        assert np.array_equal(made[row], expected)


def test_a_picture_that_shrinks_is_averaged():
    images = photographs(4, size=(64, 96))
    made = run(images, NONE, size=(16, 24), cropped=False)
    expected = images.float().unflatten(2, (16, 4)).unflatten(4, (24, 4)).mean((3, 5))
    assert (made - expected).abs().max() < 0.51


def test_erasing_fills_its_boxes_and_nothing_else():
    policy = replace(NONE, erase=1.0, erase_fill="constant", fill=7)
    images = photographs()
    rows, boxes, _ = draw_erasing(policy, ids_of(), 0, SIZE)
    made, expected = run(images, policy), images.clone()
    for row, (left, top, wide, tall) in zip(rows, boxes.tolist()):
        expected[row, :, top : top + tall, left : left + wide] = 7
    assert len(rows) > COUNT - 5
    assert torch.equal(made, expected)


def test_noise_is_normal_and_only_in_its_boxes():
    policy = replace(NONE, erase=0.5)
    images = photographs() / 255
    rows, boxes, states = draw_erasing(policy, ids_of(), 0, SIZE)
    made, changed = run(images, policy), torch.zeros(COUNT, 1, *SIZE, dtype=torch.bool)
    for row, (left, top, wide, tall), state in zip(rows, boxes.tolist(), states):
        changed[row, :, top : top + tall, left : left + wide] = True
        noise = box_muller(state, 3 * tall * wide).reshape(tall, wide, 3).transpose(2, 0, 1)
        expected = ((NOISE_MEAN + NOISE_DEVIATION * noise) / 255).clip(0, 1)
        assert np.allclose(made[row, :, top : top + tall, left : left + wide], expected, atol=1e-4)
    assert torch.allclose(made[~changed.expand_as(made)], images[~changed.expand_as(made)], atol=1e-6)


def box_muller(state, count):
    """The first words of the generator in this state, each one's halves as two uniforms."""
    with np.errstate(over="ignore"):
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        word = state + steps
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        word ^= word >> np.uint64(31)
    high, low = (word >> np.uint64(32)).astype(float), (word & np.uint64(2**32 - 1)).astype(float)
    return np.sqrt(-2 * np.log((high + 0.5) / 2**32)) * np.cos(2 * np.pi * low / 2**32)


def test_noise_is_made_of_the_words_of_randomness():
    state = keys(0, "noise", 0, 5, 0)
    assert np.allclose(
        box_muller(np.uint64(state), 1)[0], normal(torch.tensor(state.view(np.int64)), torch.tensor(0)), atol=1e-5
    )
    first = int(words(0, "noise", 0, 5, 0, count=1)[0])
    high, low = first >> 32, first & (2**32 - 1)
    expected = np.sqrt(-2 * np.log((high + 0.5) / 2**32)) * np.cos(2 * np.pi * low / 2**32)
    assert np.isclose(box_muller(np.uint64(state), 1)[0], expected)
    drawn = normal(torch.tensor(state.view(np.int64)), torch.arange(20_000))
    assert abs(drawn.mean()) < 0.03
    assert abs(drawn.std() - 1) < 0.03
