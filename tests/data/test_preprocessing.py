"""The declared geometry against Pillow used directly, and normalisation against arithmetic."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data import preprocessing
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import ConfigError
from vitrail.images.decode import BadImage, decode


def noise(height: int, width: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(height * width).integers(0, 256, (height, width, channels)).astype(np.uint8)


def timms_transform(image: Image.Image) -> np.ndarray:
    """expected.json of the golden logits, word for word: shorter side 248, longer side int(248 * long / short), ..."""
    width, height = image.size
    short, long = min(width, height), max(width, height)
    longer = int(248 * long / short)
    wide, high = (248, longer) if width <= height else (longer, 248)
    image = image.resize((wide, high), Image.Resampling.BICUBIC)
    left, top = round((wide - 224) / 2), round((high - 224) / 2)
    return np.asarray(image.crop((left, top, left + 224, top + 224))).transpose(2, 0, 1)


def test_timms_transform_to_the_pixel():
    for size in ((375, 500), (500, 375), (248, 331), (248, 333), (100, 100), (30, 700), (249, 248)):
        array = noise(*size)
        picture = Preprocessing.timm(224).picture(array)
        assert picture.shape == (3, 224, 224)
        assert picture.dtype == np.uint8
        assert picture.flags.c_contiguous
        np.testing.assert_array_equal(picture, timms_transform(Image.fromarray(array)), err_msg=str(size))


def test_timms_transform_of_real_photographs(real_data):
    paths = sorted((real_data / "imagenet_val" / "images").iterdir())[30:60]
    for path in paths:
        picture = Preprocessing.timm(224).picture(decode(path.read_bytes()))
        np.testing.assert_array_equal(picture, timms_transform(Image.open(path).convert("RGB")))


def test_timms_numbers():
    assert Preprocessing.timm(224).resize_to == 248
    assert Preprocessing.timm(384, crop_fraction=1.0).resize_to == 384
    assert Preprocessing.timm(224, crop_fraction=0.875).resize_to == 256
    assert Preprocessing.timm(224).resized(375, 500) == (248, 330)


@pytest.mark.parametrize(("rounding", "width"), [("floor", 330), ("round", 331)])
def test_the_longer_side_is_rounded_as_declared(rounding, width):
    declared = Preprocessing(size=(224, 224), resize="short", resize_to=248, rounding=rounding)
    assert declared.resized(375, 500) == (248, width)  # 330.67


@pytest.mark.parametrize(("rounding", "left"), [("even", 2), ("floor", 1)])
def test_the_corner_of_the_crop_is_rounded_as_declared(rounding, left):
    array = noise(4, 7)
    declared = Preprocessing(size=(4, 4), resize="none", crop_rounding=rounding)  # (7 - 4) / 2 = 1.5
    np.testing.assert_array_equal(declared.picture(array), array[:, left : left + 4].transpose(2, 0, 1))


def test_the_papers_preprocessing_squashes():
    array = noise(30, 50)
    picture = Preprocessing.paper((16, 24)).picture(array)
    squashed = Image.fromarray(array).resize((24, 16), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(picture, np.asarray(squashed).transpose(2, 0, 1))


def test_squashing_allows_a_size_larger_than_the_crop():
    array = noise(30, 50)
    declared = Preprocessing(size=(16, 24), resize="squash", resize_to=20)
    squashed = Image.fromarray(array).resize((30, 20), Image.Resampling.BICUBIC).crop((3, 2, 27, 18))
    np.testing.assert_array_equal(declared.picture(array), np.asarray(squashed).transpose(2, 0, 1))
    assert declared.at((32, 48)).resized(9, 9) == (40, 60)


def test_a_size_that_is_not_square_is_covered():
    declared = Preprocessing(size=(50, 25), resize="short", resize_to=30)  # covers 60 x 30
    for size, resized in (
        ((100, 100), (60, 60)),
        ((100, 40), (75, 30)),
        ((120, 60), (60, 30)),
        ((50, 100), (60, 120)),
    ):
        assert declared.resized(*size) == resized
        assert declared.picture(noise(*size)).shape == (3, 50, 25)


def test_a_picture_smaller_than_the_crop_gets_a_black_border():
    array = noise(2, 3)
    picture = Preprocessing(size=(4, 5), resize="none").picture(array)
    np.testing.assert_array_equal(picture[:, 1:3, 1:4], array.transpose(2, 0, 1))
    assert picture.astype(int).sum() == array.astype(int).sum()


def gradient(height: int, width: int) -> np.ndarray:
    """Smooth: red falls downwards, green across; so bilinear and bicubic agree, but for a flat blue."""
    down, across = np.mgrid[:height, :width]
    return np.stack([(down + 0.5) / height, (across + 0.5) / width, 0 * down + 0.5], 2).astype(np.float32)


SEEN = {
    "short": Preprocessing.timm(64),
    "short, not square": Preprocessing.timm((48, 80)),
    "short, all of the shorter side": Preprocessing.timm(64, crop_fraction=1.0),
    "squash": Preprocessing.paper((48, 64)),
    "squash to a larger one": Preprocessing(size=(48, 64), resize="squash", resize_to=60),
    "none": Preprocessing(size=(48, 64), resize="none", crop_rounding="floor"),
}


SIZES = ((375, 500), (501, 376), (64, 64), (65, 83), (40, 50), (30, 900), (777, 111), (96, 64))


def test_the_frame_is_the_part_of_the_picture_that_the_input_shows():
    for (mode, declared), (height, width) in itertools.product(SEEN.items(), SIZES):
        case = (mode, height, width)
        top, left, bottom, right = declared.visible_box(height, width)
        picture = declared.picture(gradient(height, width))  # (3, h, w)
        rows = top + (np.arange(declared.size[0]) + 0.5) * (bottom - top) / declared.size[0]
        columns = left + (np.arange(declared.size[1]) + 0.5) * (right - left) / declared.size[1]
        down, across = np.meshgrid(rows / height, columns / width, indexing="ij")
        there = (down > 0) & (down < 1) & (across > 0) & (across < 1)
        # a filter cannot look past the picture's edge; beside it the ramp is flatter by half of what a pixel covers
        inner = 0.5 / min(height, width, *declared.resized(height, width))
        assert np.abs(picture[0] - down)[there].max() < inner, case
        assert np.abs(picture[1] - across)[there].max() < inner, case
        assert not picture[:, ~there].any(), case


def test_cropping_to_what_is_seen_and_resizing_gives_nearly_the_input():
    for (mode, declared), (height, width) in itertools.product(
        SEEN.items(), ((375, 500), (501, 376), (130, 4000), (2000, 200))
    ):
        case, picture = (mode, height, width), gradient(height, width)
        top, left, bottom, right = (round(edge) for edge in declared.visible_box(height, width))
        assert 0 <= top < bottom <= height and 0 <= left < right <= width, case
        shown = np.ascontiguousarray(picture[top:bottom, left:right])
        squashed = Preprocessing(size=declared.size, resize="squash").picture(shown)
        near = 1.5 / min(height, width, *declared.size)
        assert np.abs(declared.picture(picture) - squashed).max() < near, case


def test_the_frame_of_a_photograph_equals_hand_computed_numbers():
    assert Preprocessing.timm(224).visible_box(248, 330) == (12, 53, 236, 277)
    assert Preprocessing.timm(224).visible_box(496, 660) == (24, 106, 472, 554)
    assert Preprocessing.paper(224).visible_box(375, 500) == (0, 0, 375, 500)
    # around a small picture that is left as it is the model sees beyond
    assert Preprocessing(size=(4, 5), resize="none").visible_box(2, 3) == (-1, -1, 3, 4)


def test_a_strip_computed_at_the_crop_alone_shows_what_is_seen(monkeypatch):
    before = Preprocessing.timm(64).visible_box(30, 900)
    monkeypatch.setattr(preprocessing, "WHOLE_PIXELS", 0)
    assert Preprocessing.timm(64).visible_box(30, 900) == before
    green = Preprocessing.timm(64).picture(gradient(30, 900))[1]
    assert np.abs(green.mean() - (before[1] + before[3]) / 2 / 900) < 1e-3


def test_the_thinnest_strip_is_a_picture():
    for size in ((1, 1), (1, 2000), (2000, 1), (1, 60_000)):
        picture = Preprocessing.timm(224).picture(np.full((*size, 3), 77, np.uint8))
        assert picture.shape == (3, 224, 224) and (picture == 77).all(), size


def test_a_strip_computed_at_the_crop_alone_equals_the_whole_one(monkeypatch):
    array = noise(90, 500)
    whole = Preprocessing.timm(224).picture(array).astype(int)
    monkeypatch.setattr(preprocessing, "WHOLE_PIXELS", 0)
    assert np.abs(Preprocessing.timm(224).picture(array) - whole).max() <= 1


def test_five_channels_are_resized_one_by_one():
    array = noise(30, 40, channels=5)
    picture = Preprocessing.paper(16, channels=5).picture(array)
    for channel in range(5):
        alone = Image.fromarray(array[..., channel]).resize((16, 16), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(picture[channel], np.asarray(alone))


def test_grey_has_one_channel_with_and_without_its_axis():
    array = noise(8, 8, channels=1)
    declared = Preprocessing(size=(8, 8), resize="none", mean=(0.5,), std=(0.5,))
    np.testing.assert_array_equal(declared.picture(array), array.transpose(2, 0, 1))
    np.testing.assert_array_equal(declared.picture(array[..., 0]), array.transpose(2, 0, 1))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_floats_give_what_bytes_give(channels):
    array = noise(30, 40, channels=channels)
    declared = Preprocessing.timm(16, mean=(0.5,) * channels, std=(0.5,) * channels)
    floats = declared.picture(array.astype(np.float32) / 255)
    assert floats.dtype == np.float32
    assert 0 <= floats.min() <= floats.max() <= 1
    assert np.abs(floats * 255 - declared.picture(array)).max() < 2  # Pillow rounds between the two passes


def test_a_pillow_image_of_any_mode_is_taken():
    image = Image.fromarray(noise(20, 20)).quantize(16)
    direct = Preprocessing.paper(8).picture(np.asarray(image.convert("RGB")))
    np.testing.assert_array_equal(Preprocessing.paper(8).picture(image), direct)


@pytest.mark.parametrize("array", [np.zeros((4, 4, 2), np.uint8), np.zeros((4, 4, 3), np.int64), np.zeros(4, np.uint8)])
def test_another_shape_or_type_is_a_bad_image(array):
    with pytest.raises(BadImage, match="an array of"):
        Preprocessing.paper(4).picture(array)


def test_normalising_is_arithmetic():
    declared = Preprocessing(size=(2, 2), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    picture = noise(2, 2).transpose(2, 0, 1)[None]
    mean, std = (np.array(each, np.float32).reshape(3, 1, 1) for each in (declared.mean, declared.std))
    expected = (picture.astype(np.float32) / 255 - mean) / std
    as_bytes = declared.normalise(torch.from_numpy(picture.copy()))
    assert as_bytes.dtype == torch.float32
    np.testing.assert_allclose(as_bytes, expected, rtol=1e-6, atol=1e-7)
    floats = torch.from_numpy(picture.astype(np.float32) / 255)
    before = floats.clone()
    np.testing.assert_allclose(declared.normalise(floats), expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(floats, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_restoring_undoes_normalising_and_ends_at_black_and_white(dtype):
    declared = Preprocessing(size=(2, 2), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    picture = torch.from_numpy(noise(2, 2).transpose(2, 0, 1)[None] / np.float32(255))
    restored = declared.denormalise(declared.normalise(picture).to(dtype))
    assert restored.dtype == torch.float32
    assert (restored - picture).abs().max() <= (1e-6 if dtype == torch.float32 else 0.01)
    beyond = torch.tensor([-9.0, 9.0]).to(dtype).expand(1, 3, 2, 2)
    assert torch.equal(declared.denormalise(beyond), (beyond > 0).float())


def test_it_survives_json():
    declared = Preprocessing.timm((192, 224), crop_fraction=0.875, interpolation="lanczos", mean=(0.4, 0.5, 0.6))
    assert Preprocessing.from_dict(json.loads(json.dumps(declared.to_dict()))) == declared


WRONG = [
    ({"size": [4, 4], "intrepolation": "box"}, "'interpolation'"),
    ({"mean": [0.5]}, "has no 'size'"),
    ({"size": [4, 4], "interpolation": "bicubik"}, "'bicubic'"),
    ({"size": [4, 4], "resize": "crop"}, "resize is 'crop'"),
    ({"size": [4, 4], "rounding": "ceil"}, "rounding is 'ceil'"),
    ({"size": [4, 4], "crop_rounding": "odd"}, "crop_rounding is 'odd'"),
    ({"size": [4]}, "size is"),
    ({"size": [0, 4]}, "size is"),
    ({"size": [4, 4], "resize": "short"}, "resize_to is None"),
    ({"size": [4, 4], "resize": "short", "resize_to": 3}, "below the 4 pixels"),
    ({"size": [4, 4], "resize": "squash", "resize_to": 3}, "below the 4 pixels"),
    ({"size": [4, 4], "mean": [0.5]}, "one mean and one positive std"),
    ({"size": [4, 4], "std": [0.5, 0.5, 0.0]}, "one mean and one positive std"),
]


def test_invalid_options_are_refused_with_the_right_name():
    for values, words in WRONG:
        with pytest.raises(ConfigError, match=words):
            Preprocessing.from_dict(values)


def test_stated_preprocessing_replaces_the_assumed_one():
    assumed = Preprocessing.timm(224)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    stated = assumed.override(mean=mean, std=std, resize=256)
    assert (stated.mean, stated.std, stated.resize, stated.resize_to) == (mean, std, "short", 256)
    assert stated.resized(375, 500) == (256, 341)
    assert assumed.override() == assumed
    assert assumed.override(mean=[0]).mean == (0, 0, 0)
    squashed = assumed.override(resize="squash")
    assert (squashed.resized(375, 500), squashed.resize_to) == ((224, 224), None)
    image = torch.full((1, 3, 224, 224), 255, dtype=torch.uint8)
    wanted = [(1 - m) / s for m, s in zip(mean, std)]
    np.testing.assert_allclose(stated.normalise(image)[0, :, 0, 0].numpy(), wanted, rtol=1e-6)


def test_a_statement_that_cannot_be_is_refused():
    for told, words in (
        ({"mean": [0.1, 0.2]}, "one mean and one positive std"),
        ({"mean": [0.1] * 5, "std": [1] * 5}, "for 3 channels"),
        ({"std": [0]}, "positive"),
        ({"resize": 100}, "below the 224 pixels"),
        ({"resize": "sqash"}, "did you mean 'squash'"),
    ):
        with pytest.raises(ConfigError, match=words):
            Preprocessing.timm(224).override(**told)
