"""Batches with a class for every pixel: maps and boxes stay where the pixels of their pictures are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.augment.crops import crop_box
from vitrail.data.augment.policy import Augment
from vitrail.data.loader import eval_batches, train_batches
from vitrail.data.prepare import crop_beyond
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.annotations import LabelMaps, Objects
from vitrail.data.sources.contents import Arrays, Files, Strings
from vitrail.data.sources.source import Source
from vitrail.images.masks import IGNORED
from vitrail.images.pixel_format import crop_map

SIZE = (48, 64)
JITTER = Augment(crop="jitter", crop_scale=(0.4, 2.5), flip=0.0, fill=99)


def picture_of_places(height: int, width: int) -> np.ndarray:
    """Red and green are the place of a pixel, from 0 to 250 across the picture."""
    y, x = np.mgrid[:height, :width] + 0.5
    return np.stack([250 * x / width, 250 * y / height, np.zeros((height, width))], -1).round().astype(np.uint8)


def map_of_places(height: int, width: int) -> np.ndarray:
    """Class 0 to 5: which of 2 x 3 equal parts of the picture a pixel lies in."""
    y, x = np.mgrid[:height, :width]
    return (3 * (2 * y // height) + 3 * x // width).astype(np.uint8)


def collate(maps):
    return tuple(torch.from_numpy(levels) for levels in maps)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    names = []
    for number, size in enumerate([(90, 120), (160, 100), (40, 200), (61, 47)]):
        names.append(f"{number}.png")
        Image.fromarray(picture_of_places(*size)).save(tmp_path / names[-1])
        Image.fromarray(map_of_places(*size)).save(tmp_path / f"mask-{number}.png")
    maps = LabelMaps(
        Files(str(tmp_path), Strings([f"mask-{name}" for name in names])),
        *np.tile(np.arange(6, dtype=np.uint8), (2, 1)),
    )
    return Source(contents=Files(str(tmp_path), Strings(names)), targets=maps, classes=tuple("abcdef"))


def all_batches(source: Source, policy: Augment, **options):
    how = {"size": SIZE, "batch": 4, "seed": 3, "start": 0, "stop": 5, "collate": collate}
    return list(train_batches(source, policy=policy, **{**how, **options}))


def test_a_map_shows_the_class_of_the_pixel_beside_it_and_nothing_beyond_the_picture(source):
    beyond = 0
    for batch in all_batches(source, JITTER):
        for pixels, levels, frame, full in zip(batch.images, batch.targets, batch.frames.crops, batch.frames.pictures):
            assert levels.shape == SIZE
            left, top, right, bottom = frame
            x = left + (np.arange(SIZE[1]) + 0.5) * (right - left) / SIZE[1]
            y = top + (np.arange(SIZE[0])[:, None] + 0.5) * (bottom - top) / SIZE[0]
            inside = (x >= 0) & (x < full[1]) & (y >= 0) & (y < full[0])
            expected = 3 * np.floor(2 * np.floor(y) / full[0]) + np.floor(3 * np.floor(x) / full[1])
            np.testing.assert_array_equal(levels, np.where(inside, expected, IGNORED))
            beyond += (~inside).sum()
            # colours say where a pixel comes from, but for those at the border, and Pillow's filter reaches over some pixels
            reach = 3 * max((right - left) / SIZE[1], (bottom - top) / SIZE[0], 1)
            deep = (x > reach) & (x < full[1] - reach) & (y > reach) & (y < full[0] - reach)
            for channel, places in ((0, x / full[1]), (1, y / full[0])):
                off = np.abs(pixels[channel].numpy() - 250 * places)[deep]
                assert off.max(initial=0) < 2.5
            margin = max((right - left) / SIZE[1], (bottom - top) / SIZE[0])
            far = (x < -margin) | (x > full[1] + margin) | (y < -margin) | (y > full[0] + margin)
            assert (pixels.numpy()[:, far] == 99).all()
    assert beyond > 1000


def test_batches_with_maps_are_the_same_with_a_worker(source):
    alone, shared = all_batches(source, JITTER), all_batches(source, JITTER, workers=1)
    for one, other in zip(alone, shared, strict=True):
        assert torch.equal(one.images, other.images)
        assert all(map(torch.equal, one.targets, other.targets))
        np.testing.assert_array_equal(one.frames.crops, other.frames.crops)


def test_crops_with_one_class_are_drawn_again(source):
    close = Augment(crop="jitter", crop_scale=(4.0, 5.0), flip=0.0)

    def share_of_one_class(policy: Augment) -> float:
        maps = [levels.numpy() for batch in all_batches(source, policy) for levels in batch.targets]
        counts = np.array([np.bincount(levels.ravel(), minlength=256)[:IGNORED] for levels in maps])
        return float((counts.max(1) > 0.75 * counts.sum(1)).mean())

    assert share_of_one_class(close) > 0.2
    assert share_of_one_class(replace(close, crop_major=0.75)) == 0


def test_a_picture_whose_mask_has_another_size_is_bad(source, tmp_path):
    Image.fromarray(map_of_places(30, 30)).save(tmp_path / "mask-2.png")
    reasons = {}
    batches = list(
        eval_batches(
            source,
            Preprocessing.paper(32),
            batch=4,
            collate=collate,
            bad=lambda key, reason: reasons.update({key: reason}),
        )
    )
    assert reasons == {"2.png": "the mask is for 30 x 30 pixels, the upright image has 200 x 40"}
    assert [tuple(levels.shape) for batch in batches for levels in batch.targets] == [(90, 120), (160, 100), (61, 47)]


def test_jittered_boxes_contain_the_picture_at_a_factor_of_one_and_lie_in_it_or_around_it():
    whole = Augment(crop="jitter", crop_scale=(1.0, 1.0))
    for height, width, aspect in ((90, 120, 1.0), (100, 50, 2.0), (64, 48, 4 / 3)):
        left, top, wide, tall = crop_box(whole, 0, 0, 0, 0, height, width, aspect=aspect)
        assert wide / tall == pytest.approx(aspect, rel=0.02)
        assert left <= 0 and top <= 0 and left + wide >= width and top + tall >= height
        assert wide == width or tall == height
    boxes = np.array([crop_box(JITTER, 0, 0, sample, 0, 90, 120) for sample in range(500)])
    scale = 120 / boxes[:, 2]
    assert 0.4 <= scale.min() < 0.45 and 2.3 < scale.max() <= 2.51
    assert np.log(scale).mean() == pytest.approx(0, abs=0.05)  # as often larger as smaller
    for first, sides, length in ((boxes[:, 0], boxes[:, 2], 120), (boxes[:, 1], boxes[:, 3], 90)):
        larger = sides > length
        assert (first[larger] <= 0).all() and (first + sides)[larger].min() >= length
        assert (first[~larger] >= 0).all() and ((first + sides)[~larger] <= length).all()


def test_arrays_are_jittered_as_files_are():
    """The crop of arrays is part of the resampling on the device."""
    from vitrail.data.augment.apply import augment

    picture = picture_of_places(60, 60)
    images = torch.from_numpy(np.stack([picture] * 40)).permute(0, 3, 1, 2)
    ids = np.array([[0, sample, 0] for sample in range(40)])
    made, matrices = augment(images, ids, JITTER, size=(60, 60), seed=3, cropped=False)
    for sample, (pixels, matrix) in enumerate(zip(made, matrices)):
        left, top, wide, tall = box = crop_box(JITTER, 3, 0, sample, 0, 60, 60)
        np.testing.assert_allclose(matrix[:2], [[wide / 60, 0, left], [0, tall / 60, top]])
        inside = crop_map(np.zeros((60, 60), np.uint8), box, (60, 60), LabelMaps.pixel_format) == 0
        assert (pixels.numpy()[:, ~inside] == 99).all()
        expected = 250 * (left + (np.arange(60) + 0.5) * wide / 60) / 60
        seen = inside & (expected > 10) & (expected < 240)
        assert np.abs(pixels[0].numpy() - expected)[seen].max(initial=0) < 6


def test_floats_and_channels_beyond_the_picture():
    image = np.full((10, 10, 5), 0.25, np.float32)
    made = crop_beyond(image, (-10.0, 0.0, 10.0, 20.0), (20, 20), 5, 51)
    assert made.shape == (5, 20, 20) and made.dtype == np.float32
    np.testing.assert_allclose(made[:, :10, 10:], 0.25)
    np.testing.assert_allclose(made[:, 10:], 0.2)
    np.testing.assert_allclose(made[:, :, :10], 0.2)
    nothing = crop_beyond(image, (20.0, 20.0, 30.0, 30.0), (4, 4), 5, 51)
    np.testing.assert_allclose(nothing, 0.2)


@pytest.mark.parametrize(("height", "width", "scaled"), [(50, 100, (32, 64)), (100, 50, (48, 24)), (12, 16, (48, 64))])
def test_fit_scales_the_whole_picture_into_the_size_with_a_border_of_the_mean(height, width, scaled):
    fit = Preprocessing(size=SIZE, resize="fit", mean=(0.4, 0.5, 0.6), interpolation="bilinear")
    assert fit.resized(height, width) == scaled
    picture = fit.picture(Image.fromarray(picture_of_places(height, width)))
    assert picture.shape == (3, *SIZE)
    border = np.ones(SIZE, bool)
    border[: scaled[0], : scaled[1]] = False
    assert (picture[:, border] == np.array([[102], [128], [153]])).all()
    top, left, bottom, right = fit.visible_box(height, width)
    assert (top, left) == (0, 0) and bottom >= height - 1e-9 and right >= width - 1e-9
    x = (np.arange(scaled[1]) + 0.5) * right / SIZE[1] / width  # where the box says that the columns come from
    assert np.abs(picture[0, scaled[0] // 2, : scaled[1]] - 250 * x)[2:-2].max() < 6


def test_fit_has_a_border_of_the_mean_for_any_channels():
    fit = Preprocessing(size=(8, 8), resize="fit", mean=(0.1, 0.2, 0.3, 0.4, 0.5), std=(1.0,) * 5)
    for image, scale in ((np.zeros((4, 8, 5), np.uint8), 255), (np.zeros((4, 8, 5), np.float32), 1)):
        picture = fit.picture(image)
        assert picture.shape == (5, 8, 8)
        np.testing.assert_allclose(picture[:, 6, 3] / scale, [0.1, 0.2, 0.3, 0.4, 0.5], atol=3e-3)


def test_boxes_travel_with_their_images(source):
    objects = Objects.join([Objects.of_image([[0, 0, number, 5]], [number]) for number in range(1, 5)])
    arrays = Source(
        contents=Arrays(np.zeros((4, 8, 8, 3), np.uint8), Strings("abcd")), targets=objects, classes=("x",) * 5
    )
    (batch, *_) = all_batches(arrays, JITTER, size=(8, 8), collate=lambda rows: torch.from_numpy(rows.labels))
    assert batch.targets.tolist() == [1 + "abcd".index(key) for key in batch.keys]
