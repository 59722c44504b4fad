"""Outlines of masks: the same mask is made of them again, but for its holes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.slow import few_or_nightly
from vitrail.images.rle import Rle, polygon_area, trace_outlines


def rle(*rows: str) -> Rle:
    mask = np.array([[letter == "#" for letter in row] for row in rows])
    return Rle.of_patch(mask, (0, 0), mask.shape)


def test_corners_are_listed_clockwise_without_points_on_straight_sides():
    assert trace_outlines(rle("....", ".##.", ".##.")) == [[1, 1, 3, 1, 3, 3, 1, 3]]
    assert trace_outlines(rle("#.", "##")) == [[0, 0, 1, 0, 1, 1, 2, 1, 2, 2, 0, 2]]
    assert trace_outlines(rle("...", ".#.")) == [[1, 1, 2, 1, 2, 2, 1, 2]]
    assert trace_outlines(rle("...")) == []


def test_parts_are_listed_from_the_largest_and_pixels_that_touch_at_a_corner_are_one():
    first, second = trace_outlines(rle("#..##", "...##", "#...."))[:2]
    assert (polygon_area(first), polygon_area(second)) == (4, 1)
    assert trace_outlines(rle("#.", ".#")) == [[0, 0, 1, 0, 1, 1, 2, 1, 2, 2, 1, 2, 1, 1, 0, 1]]
    assert trace_outlines(rle(".#", "#.")) == [[1, 0, 2, 0, 2, 1, 1, 1, 1, 2, 0, 2, 0, 1, 1, 1]]


def test_the_boundaries_of_holes_are_left_out():
    assert trace_outlines(rle("###", "#.#", "###")) == [[0, 0, 3, 0, 3, 3, 0, 3]]
    ring = rle(".#.", "#.#", ".#.")
    (outline,) = trace_outlines(ring)
    assert polygon_area(outline) == 5 and ring.area == 4
    assert (
        len(trace_outlines(rle("#####", "#...#", "#.#.#", "#...#", "#####"))) == 2
    )  # a part inside of a hole is a part


def blobs(generator: np.random.Generator) -> np.ndarray:
    """A mask of smooth blobs, or of noise, often up to the border of the picture."""
    from scipy.ndimage import gaussian_filter

    noise = generator.random(generator.integers(1, 40, 2))
    if generator.random() < 0.6:
        noise = gaussian_filter(noise, generator.uniform(0.5, 4))
    return noise > np.quantile(noise, generator.choice([0.0, 0.1, 0.3, 0.5, 0.9, 1.0]))


@pytest.mark.parametrize("masks", few_or_nightly(400, 20_000))
def test_polygons_of_outlines_are_the_mask_with_its_holes_filled(masks):
    from scipy.ndimage import binary_fill_holes, label

    generator = np.random.default_rng(0)
    whole = 0
    for _ in range(masks):
        mask = blobs(generator)
        outlines = trace_outlines(Rle.of_patch(mask, (0, 0), mask.shape))
        assert len(outlines) == label(mask, np.ones((3, 3)))[1]
        filled = binary_fill_holes(mask)
        if outlines:
            np.testing.assert_array_equal(Rle.of_polygons(outlines, mask.shape).to_mask(), filled)
        areas = [polygon_area(outline) for outline in outlines]
        assert areas == sorted(areas, reverse=True)
        assert (sum(areas) > mask.sum()) == bool((filled & ~mask).any())
        whole += bool(outlines) and np.array_equal(filled, mask)
    assert whole > masks / 4


def test_outlines_of_real_objects_are_the_objects(real_data):
    content = json.loads((real_data / "coco_mini" / "instances.json").read_text())
    sizes = {image["id"]: (image["height"], image["width"]) for image in content["images"]}
    without_holes = 0
    for annotation in content["annotations"]:
        mask = Rle.of_coco(annotation["segmentation"], sizes[annotation["image_id"]])
        outlines = trace_outlines(mask)
        if sum(map(polygon_area, outlines)) == mask.area:
            assert Rle.of_polygons(outlines, mask.size).to_text() == mask.to_text()
            without_holes += 1
    assert without_holes >= 80
