"""Shapes that tools draw: exact boxes, and pixels in the direction in which they were turned."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vitrail.data.sources.objects import Box
from vitrail.images.rle import Rle

SIZE = (60, 80)  # height, width


def test_a_patch_is_a_mask_at_its_place_and_is_cut_at_the_edges():
    generator = np.random.default_rng(0)
    for corner in ((3, 5), (-2, -3), (75, 50), (0, 0), (90, 90)):
        patch = generator.random((12, 9)) < 0.6
        whole = np.zeros((100, 120), bool)  # with a border around the picture
        whole[corner[1] + 10 :, corner[0] + 10 :][:12, :9] = patch[: 90 - corner[1], : 110 - corner[0]]
        found = Rle.of_patch(patch, corner, SIZE)
        assert (found.counts[1:] > 0).all()
        np.testing.assert_array_equal(found.to_mask(), whole[10:70, 10:90])


def test_shapes_are_turned_clockwise():
    for shape in (
        Box.of_rectangle("a", (10, 20, 50, 24), 45, SIZE),
        Box.of_ellipse("a", (30, 22), (20, 2), 45, SIZE),
    ):
        assert shape.outline is not None
        mask = shape.outline.to_mask()
        assert mask[32, 40] and mask[12, 20] and not mask[12, 40] and not mask[32, 20]


def test_boxes_of_turned_shapes_are_exact():
    ellipse = Box.of_ellipse("a", (30, 30), (20, 10), 30)
    wide = math.hypot(20 * math.cos(math.pi / 6), 10 * math.sin(math.pi / 6))
    np.testing.assert_allclose(ellipse.box[::2], (30 - wide, 30 + wide))
    angles = np.linspace(0, 2 * np.pi, 10_001)
    x = 20 * np.cos(angles) * math.cos(math.pi / 6) - 10 * np.sin(angles) * math.sin(math.pi / 6)
    np.testing.assert_allclose(x.max(), wide, rtol=1e-6)
    rectangle = Box.of_rectangle("a", (10, 10, 30, 20), 90)
    np.testing.assert_allclose(rectangle.box, (15, 5, 25, 25))
    assert Box.of_patch("a", np.pad(np.ones((2, 3), bool), 4), (10, 20)).box == (14, 24, 17, 26)


def test_shapes_without_a_meaning_are_refused():
    for act, words in (
        (lambda: Box.of_polygon("a", [(1, 1), (2, 2)]), "a polygon of 2 points"),
        (lambda: Box.of_rectangle("a", (1, 1, 9, 9), math.inf), "turned by inf degrees"),
        (lambda: Box.of_ellipse("a", (1, 1), (math.nan, 1)), "an ellipse in the box"),
        (lambda: Box.of_ellipse("a", (1e308, 1), (1e308, 1), 0, SIZE), "an ellipse in the box"),
        (lambda: Rle.of_patch(np.ones((3, 3), bool), (10**308, 0), SIZE), "more than 100,000 pixels from the picture"),
        (lambda: Box.of_patch("a", np.zeros((3, 3), bool), (0, 0)), "a mask without pixels"),
    ):
        with pytest.raises(ValueError, match=words):
            act()
