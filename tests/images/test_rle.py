"""Masks as run lengths: every form equals pycocotools', byte for byte."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.slow import few_or_nightly
from vitrail.images.rle import Rle, mask_ious, split_ids, unite

SIZE = (37, 53)


@pytest.fixture(scope="module")
def coco():
    return pytest.importorskip("pycocotools.mask")


def theirs(rle: Rle) -> dict:
    return {"size": list(rle.size), "counts": rle.to_text().encode()}


def random_mask(generator: np.random.Generator) -> np.ndarray:
    height, width = generator.integers(1, 40, 2)
    mask = generator.random((height, width)) < generator.choice([0, 0.02, 0.5, 0.98, 1])
    block = generator.random() < 0.5
    return np.kron(mask, np.ones((9, 7), bool)) if block else mask  # long runs have numbers of several characters


def random_polygon(generator: np.random.Generator) -> list[float]:
    """On integers, halves or anywhere; inside, across the border or outside of the picture."""
    points = generator.normal(generator.uniform(-20, 70), generator.choice([2, 15, 60]), (generator.integers(3, 9), 2))
    grid = generator.choice([0, 1, 2])
    points = np.round(points * grid) / grid if grid else points
    return np.repeat(points, generator.integers(1, 3), axis=0).ravel().tolist()  # some with every corner twice


@pytest.mark.parametrize("masks", few_or_nightly(200, 20_000))
def test_masks_and_their_text_are_pycocotools_both_ways(coco, masks):
    generator = np.random.default_rng(0)
    for _ in range(masks):
        mask = random_mask(generator)
        expected = coco.encode(np.asfortranarray(mask, np.uint8))
        rle = Rle.of_coco(expected, mask.shape)
        np.testing.assert_array_equal(rle.to_mask(), mask)
        assert theirs(rle) == expected
        x, y, width, height = coco.toBbox(expected)
        assert rle.box == (x, y, x + width, y + height)
        assert rle.area == coco.area(expected)
        assert Rle.of_coco(rle.to_coco(), mask.shape).counts.tolist() == rle.counts.tolist()
        patch, corner = rle.to_patch()
        assert patch.shape == (height, width)
        np.testing.assert_array_equal(Rle.of_patch(patch, corner, mask.shape).to_mask(), mask)


@pytest.mark.parametrize("polygons", few_or_nightly(600, 100_000))
def test_polygons_are_rasterised_as_pycocotools_does(coco, polygons):
    generator = np.random.default_rng(1)
    filled = 0
    for _ in range(polygons):
        polygon = random_polygon(generator)
        (expected,) = coco.frPyObjects([polygon], *SIZE)
        rle = Rle.of_polygons([polygon], SIZE)
        assert theirs(rle) == expected, polygon
        filled += len(rle.counts) > 1
    assert 0.4 * polygons < filled < 0.95 * polygons  # some lie outside


@pytest.mark.parametrize("objects", few_or_nightly(150, 20_000))
def test_several_polygons_of_an_object_are_their_union(coco, objects):
    generator = np.random.default_rng(2)
    for _ in range(objects):
        polygons = [random_polygon(generator) for _ in range(generator.integers(1, 5))]
        expected = coco.merge(coco.frPyObjects(polygons, *SIZE))
        assert theirs(Rle.of_coco(polygons, SIZE)) == expected


def test_all_polygons_of_real_photographs_are_equal(coco, real_data):
    content = json.loads((real_data / "coco_mini" / "instances.json").read_text())
    sizes = {image["id"]: (image["height"], image["width"]) for image in content["images"]}
    forms = {"polygons": 0, "runs": 0}
    for annotation in content["annotations"]:
        size, found = sizes[annotation["image_id"]], annotation["segmentation"]
        if isinstance(found, list):
            expected = coco.merge(coco.frPyObjects(found, *size))
        else:
            expected = coco.frPyObjects(found, *size)
        assert theirs(Rle.of_coco(found, size)) == expected
        forms["polygons" if isinstance(found, list) else "runs"] += 1
    assert forms == {"polygons": 89, "runs": 1}


@pytest.mark.parametrize("sets", few_or_nightly(60, 5000))
def test_overlaps_of_masks_are_pycocotools_to_the_bit(coco, sets):
    generator = np.random.default_rng(3)
    overlapping = 0
    for _ in range(sets):
        polygons = [[random_polygon(generator)] for _ in range(generator.integers(0, 12))]
        masks = [Rle.of_polygons(polygon, SIZE) for polygon in polygons]  # some of them empty
        masks += [Rle.of_patch(generator.random(SIZE) < 0.3, (0, 0), SIZE)]
        found, true = masks[::2], masks[1::2]
        crowd = generator.random(len(true)) < 0.3
        ours = mask_ious(found, true, crowd)
        assert ours.shape == (len(found), len(true))
        if ours.size:
            np.testing.assert_array_equal(
                ours, coco.iou([*map(theirs, found)], [*map(theirs, true)], crowd.astype("u1"))
            )
        overlapping += np.count_nonzero(ours[:, ~crowd])
    assert overlapping > sets


def test_a_found_mask_in_a_crowd_has_an_overlap_of_one():
    half, whole = Rle.of_counts([0, 4, 4], (2, 4)), Rle.of_counts([0, 8], (2, 4))
    assert mask_ious([half], [whole, whole, half], np.array([False, True, True])).tolist() == [[0.5, 1, 1]]
    empty = Rle.of_counts([8], (2, 4))
    assert mask_ious([empty, half], [empty], np.array([False])).tolist() == [[0], [0]]
    assert mask_ious([], [whole], np.array([False])).shape == (0, 1)


def test_empty_runs_in_uncompressed_lengths_are_joined():
    rle = Rle.of_counts([2, 0, 1, 3, 0, 2, 0, 0], (2, 4))
    assert rle.counts.tolist() == [3, 5]
    np.testing.assert_array_equal(rle.to_mask(), [[0, 0, 1, 1], [0, 1, 1, 1]])
    assert Rle.of_counts([0, 8], (2, 4)).counts.tolist() == [0, 8]
    assert unite([rle, Rle.of_counts([0, 3, 5], (2, 4))]).counts.tolist() == [0, 8]


REFUSED = [
    ([], "without a polygon"),
    ([[1, 1, 5, 5]], "a polygon of 2 points"),
    ([[1, 1, 5, 5, 9]], "flat list x, y"),
    ([[[1, 1], [5, 5], [9, 1]]], r"shape \(3, 2\)"),
    ([1, 1, 5, 5, 9, 1], r"shape \(\)"),
    ([[1, 1, 5, float("nan"), 9, 1]], "coordinate nan"),
    ([[1, 1, 5, 1e9, 9, 1]], "coordinate 1000000000.0"),
    ([["a", 1, 5, 5, 9, 1]], "flat list of numbers"),
    ({"size": [2, 4], "counts": [3, 4]}, "runs of 7 pixels in all, and the picture has 2 x 4"),
    ({"size": [2, 4], "counts": [3, -1, 6]}, "a run of -1 pixels"),
    ({"size": [2, 4], "counts": [3.5, 4.5]}, "whole numbers"),
    ({"size": [2, 4], "counts": []}, "runs of 0 pixels"),
    ({"size": [4, 2], "counts": [3, 5]}, r"size \[4, 2\] in a picture of \[2, 4\]"),
    ({"size": [2, 4], "counts": "3~"}, "a character '~'"),
    ({"size": [2, 4], "counts": "3é"}, "a character"),
    ({"size": [2, 4], "counts": "3P"}, "end within a number"),
    ({"size": [2, 4], "counts": "P" * 12 + "0"}, "above"),
    ({"size": [2, 4], "counts": "3O6"}, "a run of -1 pixels"),
    ({"size": [2, 4], "counts": ""}, "runs of 0 pixels"),
    ({"counts": [3, 5]}, "list of polygons or run lengths"),
    (None, "not None"),
]


def test_invalid_masks_are_refused_with_the_value():
    for segmentation, words in REFUSED:
        with pytest.raises(ValueError, match=words):
            Rle.of_coco(segmentation, (2, 4))


def test_the_masks_of_a_map_of_ids_are_the_pixels_of_each_value():
    generator = np.random.default_rng(0)
    for size in ((1, 1), (1, 9), (9, 1), (17, 23)):
        for dtype in (np.uint8, np.dtype(">u2"), np.uint32):
            ids = generator.integers(0, 4, size).astype(dtype) * np.array(60, dtype)
            masks = split_ids(ids)
            assert [*masks] == sorted(set(ids.ravel().tolist()) - {0})
            for value, mask in masks.items():
                np.testing.assert_array_equal(mask.to_mask(), ids == value)
                assert mask.to_text() == Rle.of_patch(ids == value, (0, 0), size).to_text()
                assert mask.area == (ids == value).sum()
    assert split_ids(np.zeros((3, 4), np.uint8)) == {}


def test_noise_is_no_map_of_ids(monkeypatch):
    noise = np.arange(100, dtype=np.uint16).reshape(10, 10)
    monkeypatch.setattr("vitrail.images.rle.IDS", 99)
    with pytest.raises(ValueError, match="100 different values, over the limit of 99"):
        split_ids(noise)
    monkeypatch.setattr("vitrail.images.rle.RUNS", 99)
    with pytest.raises(ValueError, match="100 runs of equal values, over the limit of 99"):
        split_ids(noise)


@pytest.mark.parametrize(
    "box", [(3, 4, 20, 30), (0, 0, 53, 37), (-5, -2, 7, 90), (10, 0, 12, 37), (8, 5, 8, 9), (60, 2, 70, 5)]
)
def test_a_box_is_the_mask_of_its_pixels(box):
    left, top, right, bottom = box
    mask = np.zeros(SIZE, bool)
    mask[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)] = True
    found = Rle.of_box(box, SIZE)
    assert np.array_equal(found.to_mask(), mask)
    assert found.counts.tolist() == Rle.of_patch(mask, (0, 0), SIZE).counts.tolist()
