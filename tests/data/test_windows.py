"""Pictures in overlapping windows: where these lie, and what they show."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from PIL import Image

from vitrail.data.preprocessing import Preprocessing
from vitrail.data.windows import Windows, place_windows
from vitrail.errors import ConfigError

FIT = Preprocessing(size=(24, 32), resize="fit")


def test_windows_are_spread_evenly_overlap_by_a_quarter_and_end_with_the_picture():
    for side, extent in itertools.product((16, 24, 37), range(1, 480, 7)):
        starts = np.array(place_windows(extent, side))
        steps = np.diff(starts)
        assert starts[0] == 0
        assert starts[-1] == max(extent - side, 0)
        assert np.ptp(steps) <= 1 if len(steps) else extent <= side
        assert (steps <= 0.75 * side + 0.5).all()
        assert len(starts) <= 2 + max(extent - side, 0) / (0.75 * side)


def test_every_pixel_shows_the_place_of_the_picture_that_its_box_says():
    """Two channels of the picture are its coordinates, the third is one, so borders around the picture are recognised."""
    declared = (FIT, Preprocessing(size=(24, 32)), Preprocessing.timm((24, 32)))
    for preprocessing, zoom, size in itertools.product(declared, (1, 1.5, 3), ((90, 61), (20, 80), (7, 9))):
        height, width = size
        y, x = np.mgrid[:height, :width] + 0.5
        picture = np.stack([x / width, y / height, np.ones_like(x)], -1).astype(np.float32)
        windows = Windows(preprocessing, zoom)
        shown, boxes = windows.picture(picture), windows.boxes(*size)
        assert shown.shape == (len(boxes), 3, 24, 32)
        assert np.array_equal(shown[0], preprocessing.picture(picture))
        top, left, bottom, right = preprocessing.visible_box(*size)
        assert np.array_equal(boxes[0], [left, top, right, bottom])
        for pixels, (left, top, right, bottom) in zip(shown, boxes):
            expected_x = left + (np.arange(32) + 0.5) * (right - left) / 32
            expected_y = top + (np.arange(24) + 0.5) * (bottom - top) / 24
            # away from the border, where a cubic filter keeps no straight line
            margin = 2.5 * max((right - left) / 32, (bottom - top) / 24, 1)
            columns = (expected_x > margin) & (expected_x < width - margin)
            rows = (expected_y > margin) & (expected_y < height - margin)
            inside = pixels[:, rows][:, :, columns]
            assert np.abs(inside[0] * width - expected_x[columns]).max(initial=0) < 0.1
            assert np.abs(inside[1] * height - expected_y[rows, None]).max(initial=0) < 0.1
            assert np.abs(inside[2] - 1).max(initial=0) < 1e-3


def test_windows_show_the_picture_zoom_times_as_large_and_all_of_it():
    boxes = Windows(FIT, 2.0).boxes(48, 64)
    assert np.allclose(boxes[1:, 2:] - boxes[1:, :2], [32, 24])
    assert boxes[1:, :2].min() == 0
    assert np.allclose(boxes[1:, 2:].max(0), [64, 48])
    assert len(boxes) == 1 + 3 * 3


def test_a_narrow_picture_has_one_row_of_windows_with_a_border_as_the_whole_has():
    windows = Windows(FIT, 2.0)
    picture = Image.new("RGB", (200, 40), "white")  # 64 x 13 pixels of the input
    shown = windows.picture(picture)
    assert len(shown) == 1 + 3
    assert (shown[1:, :, :12] > 250).all()
    assert (shown[1:, :, 14:] == 128).all()


def test_a_zoom_that_cannot_be_meant_is_refused_with_those_that_can():
    for zoom in (0.99, 0, -2, float("nan"), float("inf"), 24):
        with pytest.raises(ConfigError, match=r"zoom is [\w.-]+\n.*from 1, which shows whole pictures, to 23\.5"):
            Windows(FIT, zoom)
    assert len(Windows(FIT, 23.5).boxes(240, 320)) == 1 + 31**2


def test_pictures_that_are_not_scaled_are_not_enlarged_either():
    with pytest.raises(ConfigError, match="does not scale pictures"):
        Windows(Preprocessing(size=(24, 32), resize="none"), 2)
