"""Panoptic answers: how they are drawn, tables, JSON, what they are as other answers, and files that are read back equal."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.sources.annotations import OutlinedObjects
from vitrail.data.sources.open import open_data
from vitrail.errors import ConfigError
from vitrail.images.rle import Rle
from vitrail.tasks.answer import Answers
from vitrail.tasks.panoptic.answer import FORMATS, Panoptic, Segment

SIZE = (100, 200)
CLASSES, THINGS = ("cat", "dog", "sky", "grass"), (True, True, False, False)
GREY = Image.new("RGB", SIZE[::-1], (128, 128, 128))
LABELS = ("sky", "cat", "cat")


def segments(**more) -> Panoptic:
    """Sky above, one cat in it and one below, and nothing below that."""
    ids = np.zeros(SIZE, np.int32)
    ids[:60], ids[20:40, 30:80], ids[60:90, 120:180] = 1, 2, 3
    rows = [(0, 0, 200, 60), (30, 20, 80, 40), (120, 60, 180, 90)]
    found = [
        Segment(label, label == "cat", 0.9 - 0.1 * row, int((ids == row + 1).sum()), rows[row])
        for row, label in enumerate(LABELS)
    ]
    return Panoptic(ids, tuple(found), CLASSES, THINGS, **more)


def nothing(**more) -> Panoptic:
    return Panoptic(np.zeros(SIZE, np.int32), (), CLASSES, THINGS, **more)


def read_ids(content: bytes | Path) -> np.ndarray:
    levels = np.asarray(Image.open(io.BytesIO(content) if isinstance(content, bytes) else content)).astype(int)
    return levels[..., 0] + 256 * levels[..., 1] + 65536 * levels[..., 2]


def test_tables_and_json_have_every_segment_and_the_ids():
    found = segments(key="a.png")
    assert found.row() == {"segments": 3, "labels": "cat 2, sky 1"}
    row = {"path": "a.png", "id": 2, "label": "cat", "thing": True, "score": 0.8, "area": 1000}
    assert Answers([found]).to_rows()[1] == {**row, "x0": 30, "y0": 20, "x1": 80, "y1": 40}
    (empty,) = nothing().rows()
    assert list(empty) == list(found.rows()[0]) and set(empty.values()) == {None}
    sent = json.loads(json.dumps(found.to_json()))
    assert (sent["height"], sent["width"]) == SIZE and sent["map"]["size"] == [*SIZE]
    assert sent["segments"][2] == {
        **{"id": 3, "label": "cat", "thing": True, "score": pytest.approx(0.7), "area": 1800},
        "box": [120, 60, 180, 90],
    }
    np.testing.assert_array_equal(read_ids(base64.b64decode(sent["map"]["png"])), found.ids)
    assert nothing().to_json()["segments"] == []
    assert "sky" in found.show() and "55.0%" in found.show() and "no segments" in nothing().show()


def test_ids_above_255_fill_further_colours():
    ids = np.arange(70_000, dtype=np.int32).reshape(100, 700)
    np.testing.assert_array_equal(read_ids(Panoptic(ids, (), CLASSES, THINGS).to_png()), ids)


def test_as_a_segmentation_void_has_no_class_and_no_share():
    found = segments(key="a.png").to_segmentation()
    expected = np.full(SIZE, 255)
    expected[:60], expected[20:40, 30:80], expected[60:90, 120:180] = 2, 0, 0
    np.testing.assert_array_equal(found.map, expected)
    assert found.map.dtype == np.uint8 and found.key == "a.png"
    assert found.shares == {"sky": 0.55, "cat": 0.14}
    assert (np.asarray(found.draw(GREY))[95:] == 128).all()
    assert (np.asarray(Image.open(io.BytesIO(found.to_png()))) == expected).all()
    assert nothing().to_segmentation().shares == {}
    many = tuple(map(str, range(256)))
    with pytest.raises(ConfigError, match="256 classes"):
        Panoptic(np.zeros(SIZE, np.int32), (), many, (True,) * 256).to_segmentation()


def test_as_instances_it_has_the_things_alone():
    found = segments(key="a.png").to_instances()
    assert found.labels == ("cat", "cat") and found.key == "a.png" and found.classes == CLASSES
    assert found.scores.tolist() == pytest.approx([0.8, 0.7])
    np.testing.assert_array_equal(found.to_masks(), np.stack([segments().ids == 2, segments().ids == 3]))
    np.testing.assert_array_equal(found.boxes, [mask.box for mask in found.masks])
    holed = segments()
    holed.ids[25:35, 40:70] = 1  # sky within the box of a cat
    np.testing.assert_array_equal(holed.to_instances().to_masks()[0], holed.ids == 2)
    assert len(nothing().to_instances()) == 0


def test_stuff_is_tinted_and_things_are_filled_and_outlined_at_any_size():
    found = segments()
    cat, sky = (np.array(found.colours[name]) for name in ("cat", "sky"))
    drawn = np.asarray(found.draw(GREY)).astype(int)
    assert np.abs(drawn[50:55, 5:25] - (128 + 0.45 * (sky - 128))).max() <= 1
    assert np.abs(drawn[30, 60] - (128 + 0.4 * (cat - 128))).max() <= 1
    assert (drawn[39, 70] == cat).all() and (drawn[89, 150] == cat).all()
    assert (drawn[95:] == 128).all() and (drawn[65:90, :100] == 128).all()
    large = np.asarray(found.draw_over(GREY.resize((600, 300))))
    assert (large[119, 210] == cat).all() and (large[290] == 128).all()
    assert (np.asarray(nothing().draw(GREY)) == 128).all() and np.asarray(GREY).min() == 128


def test_annotated_segments_are_painted_in_their_order():
    found = segments()
    masks = [Rle.of_patch(found.ids == k, (0, 0), SIZE) for k in (1, 2, 3)]
    outlines = [mask.to_text().encode() for mask in masks]
    boxes, areas = [mask.box for mask in masks], [mask.area for mask in masks]
    objects = OutlinedObjects.of_image(boxes, [2, 0, 0], areas=areas, size=SIZE, outlines=outlines)
    again = Panoptic.of_objects(objects, CLASSES, THINGS)
    np.testing.assert_array_equal(again.ids, found.ids)
    assert again.segments == tuple(each._replace(score=1.0) for each in found.segments)
    assert again.labels.tolist() == [2, 0, 0]


def write(out: Path, answers) -> dict:
    files = FORMATS["coco"](out, CLASSES)
    for answer in answers:
        key = "broken.jpg" if answer is None else answer.key
        files.write(Path(key).stem, key, answer)
    files.close()
    return json.loads((out / "panoptic.json").read_text())


def test_files_are_those_of_coco_and_an_image_that_cannot_be_read_keeps_its_number(tmp_path):
    content = write(tmp_path, [segments(key="a.jpg"), None, nothing(key="b.jpg")])
    assert content["categories"] == [
        {"id": 1, "name": "cat", "isthing": 1},
        {"id": 2, "name": "dog", "isthing": 1},
        {"id": 3, "name": "sky", "isthing": 0},
        {"id": 4, "name": "grass", "isthing": 0},
    ]
    assert content["images"][1] == {"id": 3, "file_name": "b.jpg", "height": 100, "width": 200}
    first, second = content["annotations"]
    assert (first["image_id"], first["file_name"], second["image_id"]) == (1, "a.png", 3)
    assert first["segments_info"][1] == {
        **{"id": 2, "category_id": 1, "area": 1000, "bbox": [30, 20, 50, 20], "iscrowd": 0, "score": pytest.approx(0.8)}
    }
    # as panopticapi reads them: the ids of a PNG are those of its segments, with their areas
    for entry, answer in ((first, segments()), (second, nothing())):
        ids = read_ids(tmp_path / entry["file_name"])
        np.testing.assert_array_equal(ids, answer.ids)
        areas = {number: int((ids == number).sum()) for number in np.unique(ids[ids > 0]).tolist()}
        assert areas == {each["id"]: each["area"] for each in entry["segments_info"]}


def test_without_an_answer_all_classes_count_as_things(tmp_path):
    content = write(tmp_path, [None])
    assert content["images"] == content["annotations"] == []
    assert [each["isthing"] for each in content["categories"]] == [1, 1, 1, 1]


def test_written_files_are_read_back_as_the_same_masks(tmp_path):
    answers = [segments(key="a.png"), segments(key="b.png")]
    (tmp_path / "images").mkdir()
    for answer in answers:
        GREY.save(tmp_path / "images" / answer.key)
    write(tmp_path, answers)
    source = open_data(tmp_path / "panoptic.json", task="instances", validation=0).train
    assert len(source) == 2 and source.targets.crowd.sum() == 0
    for row in range(2):
        objects = source.targets.of(row)
        found = {source.classes[label]: [] for label in range(len(source.classes))}
        for label, mask in zip(objects.labels.tolist(), objects.masks()):
            found[source.classes[label]].append(mask.to_text())
        assert found["cat"] == [mask.to_text() for mask in answers[row].to_instances().masks]
