"""Each operation alone against Pillow's, on fifty pictures; the resampling against numpy's padding and Pillow's resize."""

from __future__ import annotations

import colorsys
import itertools
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from tests.data.augment.operate import operate
from vitrail.data.augment import operations
from vitrail.data.augment.geometry import box, flip, resample, rotation, shift, visible
from vitrail.data.augment.operations import (
    GEOMETRY,
    LOOKING,
    PASSES,
    TABLES,
    cut_boxes,
    inside,
    look_up,
    put,
    split_rows,
)

HEIGHT, WIDTH = 54, 75
AFFINE, BILINEAR = Image.Transform.AFFINE, Image.Resampling.BILINEAR


@cache
def pictures():
    """(50, 54, 75, 5) uint8: parts of two photographs, smooth and grainy fields, poor contrast, two levels, one level."""
    from sklearn.datasets import load_sample_images

    rng, sources = np.random.default_rng(0), load_sample_images().images
    made = []
    for number in range(25):
        source = sources[number % 2]
        step = 1 + number % 3
        top, left = rng.integers(0, 427 - step * HEIGHT), rng.integers(0, 640 - step * WIDTH)
        made.append(source[top : top + step * HEIGHT : step, left : left + step * WIDTH : step][..., [0, 1, 2, 1, 0]])
    down, across = np.mgrid[:HEIGHT, :WIDTH]
    for number in range(25):
        waves = [np.sin(down / rng.uniform(3, 40) + across / rng.uniform(3, 40) + rng.uniform(0, 6)) for _ in range(5)]
        field = 128 + np.stack(waves, -1) * rng.uniform(2, 140) + rng.normal(0, rng.uniform(0, 40), (HEIGHT, WIDTH, 5))
        made.append((field > 128) * 200.0 if number == 23 else np.full_like(field, 77) if number == 24 else field)
    return np.stack([np.clip(each, 0, 255).astype(np.uint8) for each in made])


def affine(image, *matrix):
    fill = 128 if image.mode == "L" else (128, 128, 128)
    return image.transform(image.size, AFFINE, matrix, BILINEAR, fillcolor=fill)


def rotate(image, degrees):
    return image.rotate(degrees, BILINEAR, fillcolor=128 if image.mode == "L" else (128, 128, 128))


def solarise_add(image, addition):
    table = [min(level + int(addition), 255) if level < 128 else level for level in range(256)]
    return image.point(table * len(image.getbands()))


def turn_hues(image, turn):
    """By the standard library, in exact HSV: Pillow's own has 8 bits for a hue."""
    if image.mode != "RGB":
        return image
    made = []
    for pixel in np.asarray(image).reshape(-1, 3) / 255:
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel.tolist())
        made.append(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value))
    return np.rint(np.array(made) * 255).astype(np.uint8).reshape(image.height, image.width, 3)


# name -> (Pillow's, the lowest and the highest value)
PILLOW = {
    "brightness": (lambda image, value: ImageEnhance.Brightness(image).enhance(value), 0.1, 1.9),
    "contrast": (lambda image, value: ImageEnhance.Contrast(image).enhance(value), 0.1, 1.9),
    "colour": (lambda image, value: ImageEnhance.Color(image).enhance(value), 0.1, 1.9),
    "hue": (turn_hues, -0.5, 0.5),
    "sharpness": (lambda image, value: ImageEnhance.Sharpness(image).enhance(value), 0.1, 1.9),
    "posterise": (lambda image, value: ImageOps.posterize(image, int(value)), 1, 8.99),
    "solarise": (lambda image, value: ImageOps.solarize(image, value), 0, 256),
    "solarise_add": (solarise_add, 0, 110),
    "invert": (lambda image, value: ImageOps.invert(image), 0, 1),
    "auto_contrast": (lambda image, value: ImageOps.autocontrast(image), 0, 1),
    "equalise": (lambda image, value: ImageOps.equalize(image), 0, 1),
    "grey": (lambda image, value: ImageOps.grayscale(image).convert(image.mode), 0, 1),
    "blur": (lambda image, value: image.filter(ImageFilter.GaussianBlur(value)), 0.1, 3.0),
    "rotate": (rotate, -60, 60),
    "shear_x": (lambda image, value: affine(image, 1, value, 0, 0, 1, 0), -0.6, 0.6),
    "shear_y": (lambda image, value: affine(image, 1, 0, 0, value, 1, 0), -0.6, 0.6),
    "translate_x": (lambda image, value: affine(image, 1, 0, value * WIDTH, 0, 1, 0), -0.6, 0.6),
    "translate_y": (lambda image, value: affine(image, 1, 0, 0, 0, 1, value * HEIGHT), -0.6, 0.6),
}
# elsewhere Pillow cuts off what is here rounded: one level, where two are allowed
EXACT = ("brightness", "posterise", "solarise", "solarise_add", "invert", "equalise")
WHOLE = ("posterise", "solarise", "solarise_add")


def values_of(name):
    low, high = PILLOW[name][1:]
    values = np.random.default_rng(len(name)).uniform(low, high, len(pictures()))
    return np.floor(values) if name in WHOLE else values


def blended(planes, other, factor):
    """Pillow's blend of every plane (C, H, W) with another one."""
    second = Image.fromarray(other)
    return np.stack([np.asarray(Image.blend(second, Image.fromarray(plane), factor)) for plane in planes])


def by_pillow(name, picture, value):
    """One picture (H, W, C) through Pillow: whole where it has a mode, else plane by plane, grey being the mean."""
    operation, channels = PILLOW[name][0], picture.shape[2]
    if channels == 3:
        return np.asarray(operation(Image.fromarray(picture), value)).transpose(2, 0, 1)
    planes = [np.ascontiguousarray(plane) for plane in picture.transpose(2, 0, 1)]
    grey = np.rint(picture.mean(2)).astype(np.uint8)
    if name == "grey":
        return np.stack([grey] * channels)
    if name == "colour":
        return blended(planes, grey, value)
    if name == "contrast":
        return blended(planes, np.full_like(grey, int(picture.mean() + 0.5)), value)
    return np.stack([np.asarray(operation(Image.fromarray(plane), value)) for plane in planes])


def tensor(pictures):
    return torch.from_numpy(np.ascontiguousarray(pictures.transpose(0, 3, 1, 2)))


def test_every_operation_is_compared():
    assert PILLOW.keys() == GEOMETRY.keys() | TABLES.keys() | PASSES.keys()


@pytest.mark.slow
def test_every_operation_alone_equals_pillows_and_leaves_what_it_was_given():
    wrong = []
    for name, channels in itertools.product(PILLOW, (1, 3, 5)):
        given, values = pictures()[..., :channels], values_of(name)
        if name == "hue":  # by the standard library, one pixel after another, none of which changes its neighbours
            given = given[:, ::3, ::3]
        images = tensor(given)
        made = operate(images, name, values).numpy().astype(int)
        theirs = np.stack([by_pillow(name, picture, float(value)) for picture, value in zip(given, values)])
        assert made.shape == theirs.shape
        if np.abs(made - theirs).max() > (0 if name in EXACT else 1) or not np.array_equal(images, tensor(given)):
            wrong.append((name, channels))
    assert not wrong


def test_a_turn_of_hues_is_pillows_up_to_its_eight_bits_of_hsv():
    given, steps = pictures()[:25, ..., :3], np.arange(-120, 130, 10)
    made = operate(tensor(given), "hue", steps / 256).numpy().astype(int)  # its hue wraps around at 256
    for picture, step, ours in zip(given, steps.tolist(), made):
        hsv = np.array(Image.fromarray(picture).convert("HSV"))
        hsv[..., 0] += np.uint8(step % 256)
        theirs = np.asarray(Image.fromarray(hsv, "HSV").convert("RGB"))
        assert np.abs(ours - theirs.transpose(2, 0, 1)).max() <= 8
        assert np.abs(ours - theirs.transpose(2, 0, 1)).mean() < 2


def test_hues_turn_through_the_whole_circle_and_greys_stay():
    colours = torch.tensor([[255, 0, 0], [0, 255, 0], [200, 50, 50], [90, 90, 90], [0, 0, 0]], dtype=torch.uint8)
    images = colours[:, :, None, None].expand(-1, -1, 1, 2).contiguous()
    third, half, whole = (operate(images, "hue", np.full(5, turn))[..., 0, 0].tolist() for turn in (1 / 3, 0.5, 1))
    assert third == [[0, 255, 0], [0, 0, 255], [50, 200, 50], [90, 90, 90], [0, 0, 0]]
    assert half == [[0, 255, 255], [255, 0, 255], [50, 200, 200], [90, 90, 90], [0, 0, 0]]
    assert whole == colours.tolist()


def test_floats_are_the_same_levels_unrounded():
    for name in PILLOW:
        given, values = tensor(pictures()[..., :3]), values_of(name)
        levels = given.float()
        floats = operate(levels, name, values)
        assert floats.dtype == torch.float32, name
        assert (floats - operate(given, name, values)).abs().max() < (3.5 if name == "blur" else 0.51), name
        assert torch.equal(levels, given.float()), f"{name} changed what it was given"


def test_the_smallest_pictures_have_operations_too():
    for name, size in itertools.product(
        ("sharpness", "blur", "equalise", "rotate", "contrast"), ((1, 1), (1, 4), (2, 3), (3, 3))
    ):
        given = pictures()[:25, : size[0], : size[1], :3]
        made = operate(tensor(given), name, values_of(name)[:25]).numpy().astype(int)
        theirs = np.stack([by_pillow(name, picture, float(value)) for picture, value in zip(given, values_of(name))])
        assert np.abs(made - theirs).max() <= 2, (name, size)


def test_a_table_that_does_not_look_needs_no_picture():
    for name in TABLES.keys() - set(LOOKING):
        values = torch.from_numpy(values_of(name)[:3]).float()
        first, other = (TABLES[name](tensor(some[..., :3]), values) for some in (pictures()[:3], pictures()[3:6]))
        assert torch.equal(first, other), name


@pytest.mark.parametrize("long", [1, operations.LONG])
def test_looking_up_takes_the_table_of_the_picture_and_the_channel(long, monkeypatch):
    monkeypatch.setattr(operations, "LONG", long)
    tables = torch.randint(0, 256, (4, 2, 256), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = tensor(pictures()[:4, ..., :2])
    made = look_up(images, tables)
    for picture in range(4):
        for channel in range(2):
            assert torch.equal(made[picture, channel], tables[picture, channel][images[picture, channel].long()])


@pytest.mark.parametrize("count", [1, 7])
def test_working_in_parts_changes_nothing(monkeypatch, count):
    images = tensor(pictures()[..., :3])
    rows, values = torch.tensor([9, 2, 30, 31, 8]), torch.arange(5.0)
    monkeypatch.setattr(operations, "CHUNK", count * images[0].numel())
    some = list(split_rows(images, rows, values))
    assert [len(each[0]) for each in some] == ([1] * 5 if count == 1 else [5])
    for together, whole in zip(zip(*some), (rows, images[rows], values)):
        assert torch.equal(torch.cat(together), whole)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("width", [8, 7])
def test_putting_rows_is_assigning_them(dtype, width):
    images = torch.arange(5 * 3 * width).view(5, 1, 3, width).to(dtype)
    expected, rows, new = images.clone(), torch.tensor([3, 0]), torch.full((2, 1, 3, width), 99).to(dtype)
    expected[rows] = new
    put(images, rows, new)
    assert torch.equal(images, expected)


def test_a_box_holds_the_pixels_it_says():
    boxes = torch.tensor([[2, 1, 3, 2], [-1, -2, 3, 4], [0, 0, 0, 5]])
    expected = torch.zeros(3, 1, 6, 7, dtype=torch.bool)
    expected[0, 0, 1:3, 2:5] = True
    expected[1, 0, :2, :2] = True
    assert torch.equal(inside(boxes, 6, 7), expected)


def test_a_cut_out_reaches_the_same_way_to_all_sides():
    boxes = cut_boxes(np.array([0.25, 0.0]), np.array([[0.5, 0.0], [0.9, 0.9]]), 40, 80)
    assert boxes.tolist() == [[30, -10, 20, 20], [72, 36, 0, 0]]


def read(images, matrices, size=(HEIGHT, WIDTH), **how):
    return resample(images, torch.from_numpy(matrices), size=size, **how)


@pytest.mark.parametrize("mode", ["reflect", "constant"])
@pytest.mark.parametrize("move", [(4, -4), (-3, 2), (0, 4), (0, 0)])
def test_a_shift_is_a_slice_of_the_padded_picture(mode, move):
    right, down = move
    images = tensor(pictures()[:6, ..., :3])
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (4, 4), (4, 4)), mode=mode)
    expected = padded[:, :, 4 - down : 4 - down + HEIGHT, 4 - right : 4 - right + WIDTH]
    made = read(images, shift(np.array([move] * 6)), border="reflect" if mode == "reflect" else "zero")
    assert np.array_equal(made.numpy(), expected)


def test_a_flip_is_exact():
    images = tensor(pictures()[:6, ..., :3])
    flipped = np.array([True, False] * 3)
    made = read(images, flip(flipped, WIDTH))
    assert torch.equal(made[0::2], images[0::2].flip(-1))
    assert torch.equal(made[1::2], images[1::2])


def test_an_enlarged_part_equals_pillows_resize():
    boxes = np.array([[3, 5, 40, 30], [0, 0, 75, 54], [50, 20, 25, 34]] * 4)
    given = pictures()[:12, ..., :3]
    made = read(tensor(given), box(boxes, 60, 80), (60, 80)).numpy().astype(int)
    for picture, (left, top, wide, tall), ours in zip(given, boxes.tolist(), made):
        part = (left, top, left + wide, top + tall)
        theirs = np.asarray(Image.fromarray(picture).resize((80, 60), BILINEAR, box=part))
        inner = np.abs(ours - theirs.transpose(2, 0, 1))[:, 2:-2, 2:-2]  # Pillow does not look beyond the part's edge
        assert inner.max() <= 1


def test_a_picture_that_halves_is_the_mean_of_its_pixels():
    images = 255 * torch.rand(3, 2, 64, 48, generator=torch.Generator().manual_seed(0))
    matrices = box(np.array([[0, 0, 48, 64]] * 3), 32, 24)
    expected = images.unflatten(2, (32, 2)).unflatten(4, (24, 2)).mean((3, 5))
    assert torch.allclose(read(images, matrices, (32, 24), step=2), expected, atol=1e-3)


def test_averaging_first_moves_nothing():
    down, across = torch.meshgrid(torch.arange(96.0) + 0.5, torch.arange(100.0) + 0.5, indexing="ij")
    ramp = (down + across).expand(1, 1, -1, -1)
    matrices = box(np.array([[20, 10, 64, 48]]), 12, 16) @ rotation(np.array([10.0]), 12, 16)
    plain, averaged = (read(ramp, matrices, (12, 16), step=step) for step in (1, 4))
    assert torch.allclose(plain, averaged, atol=1e-3)


def test_two_matrices_are_one_after_the_other():
    first, second = rotation(np.array([20.0]), 30, 40), rotation(np.array([-50.0]), 30, 40)
    assert np.allclose(first @ second, rotation(np.array([-30.0]), 30, 40))
    corner = box(np.array([[10, 4, 20, 15]]), 30, 40) @ flip(np.array([True]), 40) @ [40.0, 0.0, 1.0]
    assert corner.tolist() == [[10.0, 4.0, 1.0]]


def test_what_is_visible_is_what_lies_within_the_frame():
    rng = np.random.default_rng(0)
    matrices = np.concatenate(
        [
            rotation(rng.uniform(-180, 180, 20), 30, 40),
            shift(np.array([[5, -3], [0, 0], [40, 0], [0, 31]])),
            flip(np.array([True]), 40),
            GEOMETRY["translate_y"](np.array([0.5 / 30]), 30, 40),  # a row of places on the frame's very edge
        ]
    )
    frames = np.concatenate([np.tile([3.0, 2.0, 35.0, 28.0], (20, 1)), np.tile([0.0, 0.0, 40.0, 30.0], (6, 1))])
    x, y = np.meshgrid(np.arange(40) + 0.5, np.arange(30) + 0.5)
    places = matrices[:, :2] @ np.stack([x.ravel(), y.ravel(), np.ones(x.size)])  # (B, 2, 1200)
    expected = ((places >= frames[:, :2, None]) & (places < frames[:, 2:, None])).all(1).reshape(-1, 30, 40)
    first, last = visible(matrices, frames, (30, 40)).numpy()[..., None].transpose(1, 0, 2, 3)
    assert np.array_equal((np.arange(40) >= first) & (np.arange(40) < last), expected)
