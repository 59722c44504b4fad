"""Objects with masks: how they are drawn, tables, JSON, and files that are read back as what was found."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.sources.yolo import describe_yaml, read_yolo
from vitrail.images.rle import Rle, trace_outlines
from vitrail.tasks.answer import Answers
from vitrail.tasks.detection.answer import read_results
from vitrail.tasks.instances.answer import FORMATS, Instances

NAMES = ("cat", "dog", "tree")
SIZE = (100, 200)
GREY = Image.new("RGB", SIZE[::-1], (128, 128, 128))


def block(left: int, top: int, right: int, bottom: int) -> np.ndarray:
    mask = np.zeros(SIZE, bool)
    mask[top:bottom, left:right] = True
    return mask


def instances(*masks: np.ndarray, labels: tuple[str, ...] = NAMES, **more) -> Instances:
    outlined = tuple(Rle.of_patch(mask, (0, 0), SIZE) for mask in masks)
    return Instances(
        boxes=np.array([mask.box for mask in outlined], np.float32).reshape(-1, 4),
        scores=np.linspace(0.9, 0.5, len(masks), dtype=np.float32),
        labels=labels[: len(masks)],
        size=SIZE,
        classes=NAMES,
        masks=outlined,
        **more,
    )


def read_coco(root: Path) -> tuple[dict, list[Instances]]:
    """The annotations of real photographs, and an answer for each that found all objects but the crowds."""
    content = json.loads((root / "coco_mini" / "instances.json").read_text())
    names = {category["id"]: category["name"] for category in content["categories"]}
    answers = []
    for image in content["images"]:
        size = image["height"], image["width"]
        own = [each for each in content["annotations"] if each["image_id"] == image["id"] and not each["iscrowd"]]
        masks = tuple(Rle.of_coco(each["segmentation"], size) for each in own)
        boxes = np.array([mask.box for mask in masks], np.float32).reshape(-1, 4)
        scores = np.linspace(0.99, 0.3, len(masks), dtype=np.float32)
        labels = tuple(names[each["category_id"]] for each in own)
        key = image["file_name"]
        given = {"size": size, "classes": tuple(names.values()), "key": key}
        answers.append(Instances(boxes=boxes, scores=scores, labels=labels, masks=masks, **given))
    return content, answers


def write(kind: str, out: Path, answers: list[Instances], classes=NAMES) -> list[str]:
    files = FORMATS[kind](out, classes)
    for answer in answers:
        files.write(Path(answer.key).stem, answer.key, answer)
    files.write("broken", "broken.jpg", None)
    files.close()
    return files.notes


def test_a_table_and_json_have_the_area_and_json_the_mask_of_each_object():
    found = instances(block(2, 3, 12, 8), block(0, 0, 1, 1), key="a.png")
    row = {"path": "a.png", "label": "cat", "score": 0.9, "x0": 2.0, "y0": 3.0, "x1": 12.0, "y1": 8.0, "area": 50}
    assert Answers([found]).to_rows()[0] == row
    columns = ("label", "score", "x0", "y0", "x1", "y1", "area")
    assert instances().rows() == [dict.fromkeys(columns)]
    sent = json.loads(json.dumps(found.to_json()))
    assert (sent["height"], sent["width"]) == SIZE
    first = sent["objects"][0]
    assert list(first) == ["label", "score", "box", "area", "mask"] and first["area"] == 50
    assert (Rle.of_coco(first["mask"], SIZE).to_mask() == block(2, 3, 12, 8)).all()
    assert instances().to_json()["objects"] == []


def test_masks_are_arrays_of_the_picture():
    masks = instances(block(2, 3, 12, 8), block(0, 0, 1, 1)).to_masks()
    assert masks.dtype == bool and masks.sum((1, 2)).tolist() == [50, 1] and masks[0, 3, 2]
    assert instances().to_masks().shape == (0, *SIZE)
    with pytest.raises(AssertionError, match="another size"):
        Instances(
            boxes=np.zeros((1, 4)),
            scores=np.zeros(1),
            labels=("cat",),
            size=(9, 9),
            masks=(Rle.of_counts([4], (2, 2)),),
        )


def test_a_mask_is_filled_and_outlined_on_its_own_pixels_at_any_size_of_the_picture():
    answer = instances(block(40, 40, 120, 90))
    colour = np.array(answer.colours["cat"])
    drawn = np.asarray(answer.draw(GREY)).astype(int)
    assert np.abs(drawn[50:80, 50:110] - (128 + 0.4 * (colour - 128))).max() <= 1
    is_line = (drawn == colour).all(-1)[41:]  # below the caption
    rows, columns = (np.flatnonzero(is_line.any(axis)) for axis in (1, 0))
    assert (rows[-1] + 41, columns[0], columns[-1]) == (89, 40, 119)
    assert (drawn[91:] == 128).all() and (drawn[45:, :39] == 128).all() and (drawn[45:, 121:] == 128).all()
    large = np.asarray(answer.draw_over(GREY.resize((600, 200))))
    assert (large[150, 120] == colour).all() and (large[150, 359] == colour).all()
    assert (large[150, 117] == 128).all() and (large[150, 362] == 128).all()
    assert answer.draw_over(GREY.resize((20, 10))).size == (20, 10)
    assert np.asarray(GREY).max() == 128


def test_the_smaller_mask_lies_on_the_larger_and_of_two_equal_ones_the_more_certain():
    whole, part = block(0, 0, 200, 100), block(80, 40, 120, 80)
    for masks, labels in (((whole, part), ("cat", "dog")), ((part, whole), ("dog", "cat"))):
        answer = instances(*masks, labels=labels)
        assert (np.asarray(answer.draw(GREY))[60, 80] == answer.colours["dog"]).all()
    answer = instances(whole, whole)
    assert (np.asarray(answer.draw(GREY))[50, 0] == answer.colours["cat"]).all()


def test_an_object_without_pixels_has_a_caption_and_a_row():
    answer = instances(block(0, 0, 0, 0))
    assert (np.asarray(answer.draw(GREY)) == answer.colours["cat"]).all(-1).any()
    assert answer.rows()[0]["area"] == 0


def test_masks_in_coco_results_come_back_to_the_bit_and_pycocotools_finds_every_object(real_data, tmp_path):
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    content, answers = read_coco(real_data)
    ids = {image["id"]: number for number, image in enumerate(content["images"], 1)}
    numbers = {category["id"]: number for number, category in enumerate(content["categories"], 1)}
    assert not write("coco", tmp_path / "masks.json", answers, answers[0].classes)
    again = read_results(tmp_path / "masks.json")
    for number, answer in enumerate(answers, 1):
        if answer.labels:
            assert [mask.to_text() for mask in again[number].masks or ()] == [mask.to_text() for mask in answer.masks]
            np.testing.assert_array_equal(again[number].boxes, answer.boxes)
    with contextlib.redirect_stdout(io.StringIO()):
        true = COCO()
        true.dataset = {
            "images": [{**image, "id": ids[image["id"]]} for image in content["images"]],
            "categories": [{**each, "id": numbers[each["id"]]} for each in content["categories"]],
            "annotations": [
                {**each, "image_id": ids[each["image_id"]], "category_id": numbers[each["category_id"]]}
                for each in content["annotations"]
            ],
        }
        true.createIndex()
        evaluated = COCOeval(true, true.loadRes(str(tmp_path / "masks.json")), "segm")
        evaluated.evaluate()
        evaluated.accumulate()
        evaluated.summarize()
    assert evaluated.stats[:3].tolist() == pytest.approx([1, 1, 1])


def test_outlines_in_yolo_files_are_read_back_as_the_largest_parts(real_data, tmp_path):
    _, answers = read_coco(real_data)
    (tmp_path / "images").mkdir()
    for answer in answers:
        Image.new("L", answer.size[::-1]).save(tmp_path / "images" / f"{Path(answer.key).stem}.png")
    classes = answers[0].classes
    write("yolo", tmp_path / "labels", answers, classes)
    assert (tmp_path / "labels" / "classes.txt").read_text().split("\n")[:-1] == list(classes)
    (tmp_path / "data.yaml").write_text(json.dumps({"train": "images", "names": classes}))
    split = read_yolo(describe_yaml(tmp_path / "data.yaml"), outlines=True)[1]["train"]
    read = {Path(key).stem: split.labels.values.of(row) for row, key in enumerate(split.contents.keys)}
    compared = 0
    for answer in answers:
        objects = read[Path(answer.key).stem]
        texts = [Rle.of_polygons(trace_outlines(mask)[:1], answer.size).to_text() for mask in answer.masks]
        assert [outline.decode() for outline in objects.outlines] == texts
        assert [split.labels.names[label] for label in objects.labels] == list(answer.labels)
        compared += sum(text == mask.to_text() for text, mask in zip(texts, answer.masks))
    assert compared > 60  # objects of one part without holes, which are the same mask


def test_what_yolos_lines_cannot_hold_is_counted(tmp_path):
    parts = block(2, 3, 12, 8) | block(30, 3, 32, 8) | block(50, 3, 52, 8)
    ring = block(60, 40, 90, 70) & ~block(70, 50, 80, 60)
    found = instances(parts, ring, block(0, 0, 0, 0), key="a.png")
    (note,) = write("yolo", tmp_path, [found])
    assert note == (
        "2 smaller parts of 1 object left out, the holes of 1 object filled, 1 object without pixels left out: "
        "a line has one outline"
    )
    lines = (tmp_path / "a.txt").read_text().splitlines()
    assert lines[0] == "0 0.010000 0.030000 0.060000 0.030000 0.060000 0.080000 0.010000 0.080000"
    assert [line.split()[0] for line in lines] == ["0", "1"] and not (tmp_path / "broken.txt").exists()
    assert write("yolo", tmp_path, [instances(block(2, 3, 12, 8), key="a.png"), instances(key="b.png")]) == []
    assert (tmp_path / "b.txt").read_text() == ""


def test_maps_have_the_numbers_of_objects_with_the_most_certain_on_top(tmp_path):
    first, second, below = block(2, 3, 12, 8), block(10, 5, 20, 30), block(4, 4, 6, 6)
    (note,) = write("ids", tmp_path, [instances(first, second, below, key="a.png"), instances(key="b.png")])
    assert note.startswith("1 object wholly covered")
    image = Image.open(tmp_path / "a.png")
    ids = np.asarray(image)
    assert image.mode == "I;16" and ids.dtype == np.uint16
    np.testing.assert_array_equal(ids, np.where(first, 1, np.where(second, 2, 0)))
    assert not np.asarray(Image.open(tmp_path / "b.png")).any() and not (tmp_path / "broken.png").exists()
    with open(tmp_path / "objects.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["path", "id", "label", "score", "area", "x0", "y0", "x1", "y1"]
    assert [(row["path"], row["id"], row["label"], row["area"]) for row in rows] == [
        ("a.png", "1", "cat", "50"),
        ("a.png", "2", "dog", "250"),
        ("a.png", "3", "tree", "4"),
    ]
    assert (rows[1]["x0"], rows[1]["y1"]) == ("10.0", "30.0")
