"""Detections written as COCO's results, and what reads them."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import replace

import numpy as np
import pytest

from vitrail.errors import DataError
from vitrail.images.rle import Rle
from vitrail.tasks.detection.answer import FoundBoxes, read_results, write_results

CATEGORIES = {"cat": 17, "chien": 18, "été": 90}


@pytest.fixture
def images() -> list[FoundBoxes]:
    generator = np.random.default_rng(0)
    found = []
    for number, count in enumerate((5, 0, 40)):
        corners = generator.uniform(0, 500, (count, 2))
        boxes = np.concatenate([corners, corners + generator.uniform(0, 90, (count, 2))], 1).astype(np.float32)
        labels = generator.choice(list(CATEGORIES), count).tolist()
        found.append(FoundBoxes(f"shots/{number} é.jpg", boxes, generator.random(count).astype(np.float32), labels))
    return found


def test_boxes_scores_and_names_come_back_to_the_bit(images, tmp_path):
    write_results(tmp_path / "boxes.json", images, CATEGORIES)
    again = read_results(tmp_path / "boxes.json")
    assert list(again) == [1, 3]  # nothing was found in the second
    for number, found in again.items():
        given = images[number - 1]
        assert (found.file_name, list(found.labels)) == (given.file_name, list(given.labels))
        np.testing.assert_array_equal(found.boxes, given.boxes)
        np.testing.assert_array_equal(found.scores, given.scores)


def test_pycocotools_loads_the_file_as_it_is(images, tmp_path):
    from pycocotools.coco import COCO

    ids = {image.file_name: 100 * number + 42 for number, image in enumerate(images)}
    write_results(tmp_path / "boxes.json", images, CATEGORIES, ids)
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "images": [{"id": number} for number in ids.values()],
            "categories": [{"id": number, "name": name} for name, number in CATEGORIES.items()],
            "annotations": [],
        }
        coco.createIndex()
        loaded = coco.loadRes(str(tmp_path / "boxes.json"))
    for image in images:
        entries = loaded.loadAnns(loaded.getAnnIds(imgIds=[ids[image.file_name]]))
        assert [entry["category_id"] for entry in entries] == [CATEGORIES[label] for label in image.labels]
        assert [entry["score"] for entry in entries] == image.scores.tolist()
        sides = np.array([entry["bbox"] for entry in entries]).reshape(-1, 4)
        np.testing.assert_array_equal(sides[:, :2] + sides[:, 2:], image.boxes[:, 2:])


def test_no_detections_are_a_list_without_entries(images, tmp_path):
    write_results(tmp_path / "none.json", images[1:2], CATEGORIES)
    assert json.loads((tmp_path / "none.json").read_text()) == []
    assert read_results(tmp_path / "none.json") == {}


def test_masks_come_back_to_the_bit_and_only_where_there_are_any(images, tmp_path):
    generator = np.random.default_rng(1)
    masks = [Rle.of_patch(generator.random((30, 40)) < 0.5, (3, 2), (60, 80)) for _ in range(5)]
    write_results(tmp_path / "masks.json", [replace(images[0], masks=masks), *images[1:]], CATEGORIES)
    again = read_results(tmp_path / "masks.json")
    assert again[1].masks is not None and again[3].masks is None
    assert [mask.to_coco() for mask in again[1].masks] == [mask.to_coco() for mask in masks]
    with pytest.raises(ValueError, match="shorter"):
        write_results(tmp_path / "masks.json", [replace(images[0], masks=masks[:4])], CATEGORIES)


GOOD = {"image_id": 1, "file_name": "a", "category_id": 1, "category_name": "b", "bbox": [1, 2, 3, 4], "score": 0.5}


MASKED = {**GOOD, "segmentation": {"size": [2, 4], "counts": "35"}}


def test_a_file_that_holds_no_detections_is_refused_with_the_entry(tmp_path):
    for content, words in (
        ("[", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"images": []}', "holds no list of detections"),
        (json.dumps([GOOD, {**GOOD, "bbox": [1, 2, 3]}]), "entry 1 .* is no detection"),
        (json.dumps([{**GOOD, "bbox": [1, 2, -3, 4]}]), "negative sides"),
        (json.dumps([{**GOOD, "score": float("nan")}]), "not finite"),
        (json.dumps([{**GOOD, "category_name": None}]), "name that is no text"),
        (json.dumps([{name: value for name, value in GOOD.items() if name != "file_name"}]), "KeyError 'file_name'"),
        (json.dumps([[1, 2]]), "entry 0"),
        (json.dumps([MASKED, GOOD]), r"entry 1 .* of the size None, and of \(2, 4\) before"),
        (json.dumps([MASKED, {**GOOD, "segmentation": {"size": [4, 2], "counts": "35"}}]), r"the size \(4, 2\)"),
        (json.dumps([{**GOOD, "segmentation": {"size": [2, 4], "counts": "34"}}]), "runs of 7 pixels"),
        (json.dumps([{**GOOD, "segmentation": {"size": [2, 4, 1], "counts": "35"}}]), "too many values"),
        (
            json.dumps([{**GOOD, "segmentation": {"size": [99999, 99999], "counts": [99999**2]}}]),
            "more than 64,000,000",
        ),
        (json.dumps([{**GOOD, "segmentation": [[1, 1, 2, 1, 2, 2]]}]), "no run lengths"),
    ):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(DataError, match=words):
            read_results(tmp_path / "bad.json")


def test_a_file_that_is_not_there_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_results(tmp_path / "none.json")
