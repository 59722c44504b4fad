"""What a person is shown: lit where the model looked, nothing clipped, nothing that the numbers do not say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image

from tests.analysis.drawn import is_paper, noise
from vitrail import files
from vitrail.analysis.palette import LUMA, map_colours
from vitrail.analysis.render import (
    FRAME,
    draw_scale_bar,
    find_light_range,
    overlay,
    save_png,
    scale_levels,
    to_rgb,
    to_thumbnail,
    to_uint8,
)
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import ConfigError, DiskError


def heat_of(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(3, 2, shape)


def luma(picture: np.ndarray) -> np.ndarray:
    return picture @ LUMA.astype(np.float64)


# the overlay


def test_the_overlay_is_light_where_the_attention_is_and_dark_elsewhere():
    grey, attention = np.full((40, 60), 128, np.uint8), np.zeros((4, 6))
    attention[0, 5] = 0.01
    lit = overlay(grey, attention).astype(int)
    assert lit.shape == (40, 60, 3)
    assert lit[0, -1].sum() > 3 * 128
    assert (lit[20:, :30] == round(128 * 0.22)).all()


@pytest.mark.parametrize("attention", [np.zeros((1, 1)), np.full((2, 3), 0.5), np.full((2, 2), np.nan)])
def test_attention_without_contrast_lights_nothing(attention):
    picture = np.full((10, 12, 5), 200, np.uint8)
    assert (overlay(picture, attention) == 44).all()


@pytest.mark.parametrize("grey", [0, 60, 128, 255])
@pytest.mark.parametrize("shape", [(14, 14), (7, 7), (32, 20), (1, 9)])
def test_a_flat_picture_is_brightest_where_the_heat_is_largest_and_darkest_where_it_is_least(grey, shape):
    heat = heat_of(*shape)
    centres = luma(overlay(np.full((shape[0] * 9, shape[1] * 9), grey, np.uint8), heat))[4::9, 4::9]
    assert centres.argmax() == heat.argmax()
    assert centres[np.unravel_index(heat.argmin(), shape)] == centres.min()
    order = centres.flatten()[heat.flatten().argsort()]
    assert (np.diff(order) >= -1).all() and order[-1] > order[0] + 70


def test_more_heat_makes_any_colour_lighter():
    picture = noise(6, 500, 3)
    picture[0, :3] = [[0, 0, 0], [255, 255, 255], [255, 176, 46]]
    lit = [luma(overlay(picture, np.full((1, 1), heat), range=(0, 20))) for heat in range(21)]
    assert (np.diff(np.stack(lit), axis=0) > 0).all()


def test_colours_fade_where_the_model_does_not_look():
    unlit, lit = overlay(np.full((4, 8, 3), [40, 200, 40], np.uint8), np.array([[0.0, 1.0]]))[2, [0, -1]].astype(int)
    assert (unlit[1] - unlit[2]) / unlit[1] < 0.45 < (lit[1] - lit[2]) / lit[1]


def test_the_strongest_place_of_a_dark_picture_is_amber_and_of_a_bright_one_bright():
    heat = np.array([[1.0, 0.0]])
    dark, bright = (overlay(np.full((20, 40, 3), grey, np.uint8), heat)[10, [0, -1]].astype(int) for grey in (0, 255))
    assert (np.diff(dark[0]) < -30).all() and luma(dark[0]) > 100 and luma(dark[1]) == 0
    assert luma(bright[0]) > 220 and luma(bright[1]) < 60
    assert bright[0, 0] > bright[0, 2] + 30


def test_a_map_is_enlarged_as_pillow_enlarges_bilinearly():
    picture, heat = noise(50, 77, 3), heat_of(7, 5).astype(np.float32)
    enlarged = np.asarray(Image.fromarray(heat).resize((77, 50), Image.Resampling.BILINEAR))
    scale = (float(heat.min()), float(heat.max()))
    direct, through = (overlay(picture, each, range=scale).astype(int) for each in (heat, enlarged))
    assert np.abs(direct - through).max() <= 1


def test_a_map_finer_than_the_picture_is_averaged_as_pillow_does():
    picture, heat = noise(5, 9), heat_of(16, 30).astype(np.float32)
    reduced = np.asarray(Image.fromarray(heat).resize((9, 5), Image.Resampling.BILINEAR))
    direct, through = (overlay(picture, each, range=(-9, 15)).astype(int) for each in (heat, reduced))
    assert np.abs(direct - through).max() <= 1


def test_inside_the_box_a_picture_is_lit_as_if_it_were_alone():
    picture, heat = noise(60, 90, 3), heat_of(4, 4)
    lit = overlay(picture, heat, box=(10, 20, 50, 80))
    np.testing.assert_array_equal(lit[10:50, 20:80], overlay(picture[10:50, 20:80], heat))


def test_outside_of_the_box_it_is_grey_and_darker_behind_a_thin_frame():
    picture = noise(60, 90, 3)
    lit = overlay(picture, heat_of(4, 4), box=(10, 20, 50, 80))
    frame = (lit == FRAME).all(-1)
    around = np.zeros((60, 90), bool)
    around[9:51, 19:81] = True
    around[10:50, 20:80] = False
    assert frame[around].all()
    outside = np.ones((60, 90), bool)
    outside[9:51, 19:81] = False
    assert (lit[outside] == lit[outside][:, :1]).all()
    assert (lit[outside, 0] <= 0.2 * luma(picture[outside]) + 1).all()


def test_there_is_no_frame_on_a_side_that_was_seen_to_its_end():
    grey = np.full((40, 90), 90, np.uint8)
    assert not (overlay(grey, heat_of(4, 4), box=(0, 0, 40, 90)) == FRAME).all(-1).any()
    frame = (overlay(grey, heat_of(4, 4), box=(0.0, 25.0, 40.0, 65.0)) == FRAME).all(-1)
    assert np.flatnonzero(frame.all(0)).tolist() == [24, 65] and frame.sum() == 80


def test_a_frame_grows_with_the_picture():
    def lines(height: int) -> int:
        lit = overlay(np.zeros((height, 4 * height), np.uint8), np.ones((1, 1)), box=(0, height, height, 2 * height))
        return int((lit[0] == FRAME).all(-1).sum())

    assert [lines(height) for height in (3, 300, 720)] == [2, 2, 6]


def test_a_box_beyond_the_picture_shows_the_part_of_the_map_that_lies_on_it():
    picture, heat = noise(20, 30, 3), heat_of(4, 4)
    padded = np.zeros((40, 40, 3), np.uint8)
    padded[10:30, 5:35] = picture
    box = Preprocessing(size=(40, 40), resize="none").visible_box(20, 30)
    assert box == (-10, -5, 30, 35)
    np.testing.assert_array_equal(overlay(picture, heat, box=box), overlay(padded, heat)[10:30, 5:35])


def test_a_range_makes_maps_comparable_and_the_default_is_the_maps_own():
    grey, heat = np.full((30, 30), 128, np.uint8), heat_of(3, 3)
    own = overlay(grey, heat)
    np.testing.assert_array_equal(own, overlay(grey, 40 * heat - 7))
    np.testing.assert_array_equal(own, overlay(grey, heat, range=(heat.min(), heat.max())))
    weaker = overlay(grey, heat, range=(heat.min(), 2 * heat.max()))
    assert (luma(weaker) <= luma(own)).all() and luma(weaker).max() < luma(own).max()
    assert (overlay(grey, heat, range=(100, 200)) == round(128 * 0.22)).all()


def test_uniform_heat_treats_all_places_alike():
    picture = noise(24, 36, 3)
    whole = overlay(picture, np.full((5, 3), 0.4), range=(0, 1))
    np.testing.assert_array_equal(whole, overlay(picture, np.full((1, 1), 0.4), range=(0, 1)))
    turned = overlay(picture[::-1, ::-1], np.full((5, 3), 0.4), range=(0, 1))
    np.testing.assert_array_equal(whole, turned[::-1, ::-1])


@pytest.mark.parametrize("absent", [np.nan, np.inf, -np.inf])
def test_a_cell_without_a_number_counts_as_not_looked_at(absent):
    picture, hole = noise(24, 36, 3), heat_of(4, 4)
    hole[2, 3] = absent
    there = np.isfinite(hole)
    np.testing.assert_array_equal(overlay(picture, hole), overlay(picture, np.where(there, hole, hole[there].min())))


def test_pictures_of_any_number_of_channels_are_lit():
    grey, heat = noise(20, 30), heat_of(2, 3)
    lit = overlay(grey, heat)
    for same in (grey[..., None], np.stack([grey, noise(20, 30)], 2), np.stack([grey] * 3 + [noise(30, 20).T] * 2, 2)):
        np.testing.assert_array_equal(overlay(same, heat), lit)


@pytest.mark.parametrize("size", [(1, 1), (3, 4000), (4000, 3), (375, 500)])
@pytest.mark.parametrize("shape", [(14, 14), (7, 7), (1, 1), (32, 20)])
def test_any_picture_keeps_its_size_with_any_map(size, shape):
    picture = noise(*size, 3)
    before = picture.copy()
    for box in (None, Preprocessing.timm(224).visible_box(*size)):
        lit = overlay(picture, heat_of(*shape), box=box)
        assert lit.shape == (*size, 3) and lit.dtype == np.uint8
    np.testing.assert_array_equal(picture, before)


def test_a_picture_is_the_same_whole_and_in_strips(monkeypatch):
    picture, heat = noise(61, 47, 3), heat_of(5, 4)
    whole = overlay(picture, heat, box=(3.5, 2.25, 50, 40))
    monkeypatch.setattr("vitrail.analysis.render.STRIP", 100)
    np.testing.assert_array_equal(overlay(picture, heat, box=(3.5, 2.25, 50, 40)), whole)


@pytest.mark.parametrize(
    ("picture", "heat", "how", "words"),
    [
        (np.zeros((4, 4, 3), np.float32), np.zeros((2, 2)), {}, "type float32"),
        (np.zeros(4, np.uint8), np.zeros((2, 2)), {}, "type uint8"),
        (np.zeros((0, 4), np.uint8), np.zeros((2, 2)), {}, "type uint8"),
        (np.zeros((4, 4), np.uint8), np.zeros(4), {}, "a map of shape"),
        (np.zeros((4, 4), np.uint8), np.zeros((0, 4)), {}, "a map of shape"),
        (np.zeros((4, 4), np.uint8), np.zeros((2, 2)), {"box": (0, 0, 0, 4)}, "an empty box"),
        (np.zeros((4, 4), np.uint8), np.zeros((2, 2)), {"box": (0, 0, 4, math.nan)}, "an empty box"),
        (np.zeros((4, 4), np.uint8), np.zeros((2, 2)), {"range": (1, 1)}, "a scale from 1 to 1"),
    ],
)
def test_what_cannot_be_shown_is_refused(picture, heat, how, words):
    with pytest.raises(ConfigError, match=words):
        overlay(picture, heat, **how)


# maps alone


def test_levels_are_shares_of_the_range():
    values = np.array([[-1.0, 0.0, np.nan], [1.0, 3.0, np.inf]])
    np.testing.assert_array_equal(scale_levels(values), [[0, 0.25, np.nan], [0.5, 1, np.nan]])
    np.testing.assert_array_equal(scale_levels(values, (0, 2)), [[0, 0, np.nan], [0.5, 1, np.nan]])
    np.testing.assert_array_equal(scale_levels(np.full((2, 2), 7)), np.zeros((2, 2)))
    assert np.isnan(scale_levels(np.full((2, 2), np.nan))).all()


@pytest.mark.parametrize(
    ("heat", "ends"),
    [
        (np.arange(1.0, 102.0), (1, 98)),
        (np.arange(101.0), (0, 97.03)),
        (np.r_[np.zeros(900), np.arange(1.0, 102.0)], (0, 98)),
        (np.r_[-5.0, np.arange(1.0, 102.0)], (0, 98)),
        (np.r_[np.nan, np.inf, -np.inf, np.arange(1.0, 102.0)], (1, 98)),
    ],
)
def test_light_runs_from_the_least_or_nothing_to_what_97_of_100_places_above_zero_have(heat, ends):
    assert find_light_range(heat[None]) == pytest.approx(ends)


@pytest.mark.parametrize(
    ("numbers", "ends"), [([], (0, 1)), ([np.nan], (0, 1)), ([-2, 0], (0, 1)), ([3, 3], (0, 3)), ([-2, 0, 4], (0, 4))]
)
def test_light_has_a_range_where_a_map_has_little_to_tell(numbers, ends):
    assert find_light_range(np.array([numbers], np.float32)) == ends


def test_a_few_sinks_do_not_darken_the_rest():
    heat = np.full((14, 14), 0.001)
    heat[[0, 0, -1, -1], [0, -1, 0, -1]], heat[7, 7:10] = 1.0, 0.1
    grey = np.full((140, 140), 128, np.uint8)
    own, told_apart = (luma(overlay(grey, heat, range=ends))[75, 85] for ends in (None, find_light_range(heat)))
    assert own < 60 and told_apart > 130


def test_the_scale_bar_runs_from_low_to_high_with_its_numbers_at_the_ends():
    bar = draw_scale_bar(-1, 0.12345, label="cosine similarity", width=300)
    assert bar.shape[1:] == (300, 3)
    np.testing.assert_array_equal(bar[0], map_colours(np.linspace(0, 1, 300)))
    written = ~is_paper(bar[20:]).all(0)
    for start, stop in ((0, 20), (100, 200), (270, 300)):
        assert written[start:stop].any()
    assert not written[20:60].any() and not written[240:260].any()


def test_a_label_too_long_for_the_scale_bar_is_shortened_between_the_numbers():
    bar = draw_scale_bar(-1, 1, label="a long name " * 20, width=200)
    blank = is_paper(bar[20:]).all(0)
    assert blank[16:24].any() and blank[-24:-16].any()
    assert draw_scale_bar(1234567, 7654321, label="name", width=40).shape[1] == 40


# files and the small verbs


def test_a_saved_picture_is_read_back_and_replaces_the_old_one_whole(tmp_path, monkeypatch):
    path, picture = tmp_path / "heads.png", noise(9, 7, 3)
    save_png(path, picture)
    save_png(path, picture)
    with Image.open(path) as image:
        assert image.format == "PNG"
        np.testing.assert_array_equal(np.asarray(image), picture)

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_bytes", fails)
    before = path.read_bytes()
    with pytest.raises(DiskError, match="the disk is full"):
        save_png(path, noise(3, 3, 3))
    assert path.read_bytes() == before and [each.name for each in tmp_path.iterdir()] == ["heads.png"]


def test_a_place_that_cannot_be_written_is_a_disk_error(tmp_path):
    with pytest.raises(DiskError, match=r"heads\.png"):
        save_png(tmp_path / "missing" / "heads.png", noise(3, 3))


def test_floats_become_the_nearest_of_256_levels_and_bytes_stay():
    floats = np.array([[-0.1, 0.0, 0.4 / 255], [0.6 / 255, 1.0, 1.1]], np.float32)
    shown = to_uint8(floats)
    assert shown.dtype == np.uint8 and shown.tolist() == [[0, 0, 0], [1, 255, 255]]
    assert to_uint8(shown) is shown


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_an_input_of_a_model_becomes_a_picture_for_a_person(channels):
    planes = noise(channels, 4, 6)
    shown = to_thumbnail(planes)
    assert shown.shape == (4, 6, 3) and shown.flags.c_contiguous
    np.testing.assert_array_equal(shown[..., 1], planes[1 if channels > 2 else 0])
    np.testing.assert_array_equal(shown, to_rgb(planes.transpose(1, 2, 0)))
    std, mean = np.float32(0.225), np.float32(0.406)
    normalised = (planes.astype(np.float32) / 255 - mean) / std
    floats = to_thumbnail(normalised * std + mean)
    assert floats.dtype == np.uint8
    np.testing.assert_array_equal(floats, shown)


def test_a_map_may_reach_beyond_what_was_seen():
    """Its last row and column lie half outside of the box: the light is that of the map cut off there."""
    heat, grey = np.arange(12.0).reshape(3, 4), np.full((40, 60, 3), 128, np.uint8)
    whole = overlay(np.full((48, 80, 3), 128, np.uint8), heat)
    cut = overlay(grey, heat, reach=(48 / 40, 80 / 60))
    np.testing.assert_array_equal(cut, whole[:40, :60])
