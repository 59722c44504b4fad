"""The scale reads by lightness alone, and equal steps of a number look equally far apart."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.analysis.palette import ABSENT, DARK, INK, LIGHT, PAPER, SCALE, map_colours


def linear(colour: np.ndarray) -> np.ndarray:
    """sRGB (..., 3) from 0 to 255 as light, IEC 61966-2-1."""
    share = colour.astype(np.float64) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def luminance(colour: np.ndarray) -> np.ndarray:
    return linear(colour) @ [0.2126, 0.7152, 0.0722]


def lab(colour: np.ndarray) -> np.ndarray:
    """sRGB (n, 3) in CIELAB, white D65."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    share = linear(colour) @ to_xyz.T / to_xyz.sum(1)
    x, y, z = np.where(share > (6 / 29) ** 3, np.cbrt(share), share * (29 / 6) ** 2 / 3 + 4 / 29).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=1)


def test_every_level_of_256_is_lighter_than_the_one_before():
    painted = map_colours(np.linspace(0, 1, 256))
    assert painted.shape == (256, 3) and painted.dtype == np.uint8
    assert (np.diff(luminance(painted)) > 0).all()
    assert luminance(painted[0]) < 0.01 and luminance(painted[-1]) > 0.8


def test_equal_steps_look_about_equally_far_apart():
    steps = np.linalg.norm(np.diff(lab(map_colours(np.linspace(0, 1, 33))), axis=0), axis=1)
    assert steps.max() < 1.5 * steps.min()


def test_who_does_not_see_red_or_green_can_tell_the_steps_by_the_blue_and_the_lightness():
    lightness, _, blue = lab(map_colours(np.linspace(0, 1, 33))).T
    assert np.hypot(np.diff(lightness), np.diff(blue)).min() > 2


def test_a_level_is_between_its_neighbours_of_the_table_and_beyond_the_ends_there_is_nothing():
    np.testing.assert_array_equal(map_colours(np.linspace(0, 1, len(SCALE))), SCALE)
    np.testing.assert_array_equal(map_colours(np.array([-3, 7, -np.inf, np.inf])), SCALE[[0, -1, 0, -1]])
    middle = map_colours(np.array([0.5 / (len(SCALE) - 1)]))[0]
    assert np.abs(middle - (SCALE[0].astype(float) + SCALE[1]) / 2).max() <= 0.5


def test_no_number_is_a_grey_that_no_number_has():
    np.testing.assert_array_equal(map_colours(np.array([[np.nan, 0.0]]))[0, 0], ABSENT)
    distance = np.abs(map_colours(np.linspace(0, 1, 256)).astype(int) - ABSENT).sum(1)
    assert distance.min() > 60


def test_the_scale_ends_apart_from_the_paper():
    assert np.linalg.norm(lab(np.stack([PAPER, SCALE[-1]]))[0] - lab(np.stack([PAPER, SCALE[-1]]))[1]) > 15


@pytest.mark.parametrize("names", [LIGHT, DARK], ids=["light", "dark"])
def test_type_can_be_read_on_its_ground(names):
    light = {name: luminance(np.frombuffer(bytes.fromhex(value[1:]), np.uint8)) for name, value in names.items()}
    for ground in ("paper", "card"):
        for ink, least in (("ink", 7.0), ("muted", 4.5)):
            high, low = sorted((light[ground], light[ink]), reverse=True)
            assert (high + 0.05) / (low + 0.05) > least  # WCAG 2.1, contrast
    assert INK.tolist() == [0x1C, 0x22, 0x30]
