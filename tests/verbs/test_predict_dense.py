"""Predictions of detectors and segmenters as files: every format has every image, and is read back as what was predicted."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.tasks.dense_models import VIT, create, create_queries
from vitrail.data.sources.open import open_data
from vitrail.errors import ConfigError, DataError
from vitrail.tasks.dense.drawing import class_colours
from vitrail.tasks.detection.answer import YoloFiles, read_results
from vitrail.tasks.user_images import open_image

CLASSES = ("background", "cat", "dog")


def silent(line: str) -> None: ...


@pytest.fixture(scope="module")
def detector():
    return create("detection", classes=CLASSES, most=5, threshold=0.0)


@pytest.fixture(scope="module")
def segmenter():
    return create("segmentation", classes=CLASSES)


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """A data set's folder ``images`` with three pictures of unlike sizes, one in a folder below, and one that is broken."""
    folder = tmp_path_factory.mktemp("data") / "images"
    (folder / "more").mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name, size in {"a.png": (40, 60), "b.png": (50, 30), "more/a.png": (64, 64)}.items():
        Image.fromarray(draw.integers(0, 255, (4, 4, 3), np.uint8)).resize(size[::-1], 2).save(folder / name)
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    return folder


def predict(model, inputs, out=None, **more):
    return vitrail.predict(model, inputs, out=out, quiet=True, log=silent, **more)


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("task", ["classification", "detection", "segmentation", "instances", "panoptic"])
def test_targets_of_another_task_are_not_read(task, images, tmp_path):
    """A table with classes of images for a dense model, and one with boxes for a classifier."""
    if task == "classification":
        model, columns = vitrail.create_model(VIT, classes=CLASSES), "path,label,x0,y0,x1,y1"
        values = ",cat,1,2,20,30"
    else:
        model, columns, values = (create_queries if task == "panoptic" else create)(task), "path,label", ",cat"
    names = [str(images / name) for name in ("a.png", "b.png")]
    (tmp_path / "table.csv").write_text("\n".join([columns, *(f"{name}{values}" for name in names)]))
    given, expected = (
        predict(model, inputs, tmp_path / f"{number}.csv")
        for number, inputs in enumerate([tmp_path / "table.csv", names])
    )
    assert rows(given) == rows(expected)
    both = (tmp_path / "table.csv", names)
    features = [[row for _, row in vitrail.embed(model, inputs, quiet=True, log=silent)] for inputs in both]
    assert np.array_equal(*features)


def test_a_table_has_a_row_for_each_object_and_one_for_each_image_without(detector, images, tmp_path):
    table = rows(predict(detector, images, tmp_path / "boxes.csv"))
    assert list(table[0]) == ["path", "label", "score", "x0", "y0", "x1", "y1", "error"]
    paths = [row["path"] for row in table]
    assert {path: paths.count(path) for path in paths} == {
        **dict.fromkeys((str(images / name) for name in ("a.png", "b.png", "more/a.png")), 5),
        str(images / "broken.jpg"): 1,
    }
    assert [bool(row["error"]) for row in table].count(True) == 1
    assert all(
        0 <= float(row["x1"]) <= 60 and float(row["y1"]) <= 40 for row in table if row["path"].endswith("s/a.png")
    )
    none = rows(predict(detector, images, tmp_path / "none.csv", threshold=1.0))
    assert len(none) == 4 and all(not row["label"] for row in none)


def test_coco_results_have_every_object_and_count_images_in_their_order(detector, images, tmp_path):
    out = predict(detector, images, tmp_path / "boxes.json")
    found = read_results(out)
    answers = list(predict(detector, images))
    assert list(found) == [1, 2, 4]  # the third could not be read
    for given, answer in zip(found.values(), answers, strict=True):
        assert given.file_name == answer.key and given.labels == answer.labels
        np.testing.assert_array_equal(given.boxes, answer.boxes)
    entry = json.loads(out.read_text())[0]
    assert entry["category_id"] == 1 + CLASSES.index(entry["category_name"])


def test_coco_results_load_in_pycocotools(detector, images, tmp_path):
    coco = pytest.importorskip("pycocotools.coco").COCO()
    coco.dataset = {"images": [{"id": number} for number in range(1, 5)], "categories": [], "annotations": []}
    coco.createIndex()
    loaded = coco.loadRes(str(predict(detector, images, tmp_path / "boxes.json")))
    assert len(loaded.anns) == 15


def test_yolo_files_are_read_back_as_the_same_boxes(detector, images, tmp_path):
    labels = predict(detector, images, images.parent / "labels")
    assert (labels / "classes.txt").read_text().split() == list(CLASSES)
    index = rows(labels / "index.csv")
    assert {row["path"]: row["file"] for row in index} == {
        str(images / "a.png"): "a.txt",
        str(images / "b.png"): "b.txt",
        str(images / "broken.jpg"): "",
        str(images / "more/a.png"): "a-2.txt",
    }
    (images.parent / "data.yaml").write_text(json.dumps({"train": "images", "names": CLASSES}))
    source = open_data(images.parent, validation=0).train
    answers = {answer.key: answer for answer in predict(detector, images)}
    for name in ("a.png", "b.png"):
        (place,) = (row for row, key in enumerate(source.keys) if key == f"images/{name}")
        answer = answers[str(images / name)]
        np.testing.assert_allclose(source.targets.of(place).boxes, answer.boxes, atol=1e-3)
        assert [CLASSES[label] for label in source.targets.of(place).labels] == list(answer.labels)


def test_what_a_format_cannot_hold_is_said_at_the_end(detector, images, tmp_path, monkeypatch):
    class Lossy(YoloFiles):
        def close(self) -> None:
            super().close()
            self.notes.append("2 parts left out")

    said: list[str] = []
    monkeypatch.setattr(type(detector), "formats", {"yolo": Lossy})
    vitrail.predict(detector, images, out=tmp_path / "labels", quiet=True, log=said.append)
    assert "note     2 parts left out" in said


def test_masks_are_read_back_as_the_same_maps(segmenter, images, tmp_path):
    masks = predict(segmenter, [images / "a.png", images / "b.png"], tmp_path / "masks")
    (tmp_path / "images").symlink_to(images)
    source = open_data(tmp_path, validation=0).train
    assert source.classes == CLASSES
    for answer in predict(segmenter, [images / "a.png", images / "b.png"]):
        (place,) = (row for row, key in enumerate(source.keys) if key == f"images/{Path(answer.key).name}")
        np.testing.assert_array_equal(source.targets.of(place), answer.map)
        drawn = Image.open(masks / Path(answer.key).name).convert("RGB")
        assert drawn.getpixel((0, 0)) == class_colours(CLASSES)[CLASSES[answer.map[0, 0]]]
    shares = [float(row["share"]) for row in rows(masks / "index.csv") if row["file"] == "a.png"]
    assert sum(shares) == pytest.approx(1, abs=1e-5) or 255 in np.asarray(Image.open(masks / "a.png"))


def test_a_named_image_that_is_broken_is_an_error_after_the_others_are_written(segmenter, images, tmp_path):
    with pytest.raises(DataError, match="1 of the files that were named"):
        predict(segmenter, [images / "a.png", images / "broken.jpg"], tmp_path / "masks")
    assert (tmp_path / "masks" / "a.png").exists()
    assert [bool(row["error"]) for row in rows(tmp_path / "masks" / "index.csv")][-1]


def test_answers_never_replace_the_images(segmenter, images):
    before = (images / "a.png").read_bytes()
    with pytest.raises(ConfigError, match=r"images that the answers would replace, such as a\.png"):
        predict(segmenter, images, images)
    assert (images / "a.png").read_bytes() == before


@pytest.mark.parametrize("task", ["detector", "segmenter"])
def test_overlays_have_the_size_of_their_pictures(request, images, tmp_path, task):
    answers = list(predict(request.getfixturevalue(task), images, overlay=tmp_path))
    drawn = {path.name: open_image(path) for path in tmp_path.glob("*.jpg")}
    sizes = {name: image.size for name, image in drawn.items()}
    assert sizes == {"a.drawn.jpg": (60, 40), "b.drawn.jpg": (30, 50), "a-2.drawn.jpg": (64, 64)}
    apart = np.asarray(drawn["a.drawn.jpg"], int) - np.asarray(answers[0].draw(), int)
    assert np.abs(apart).mean() < 8  # what JPEG does to it


def test_options_that_a_task_does_not_have_are_refused(detector, segmenter, images, tmp_path):
    classifier = vitrail.create_model("vit-ti16", image_size=32, classes=CLASSES, depth=1)
    with pytest.raises(ConfigError, match="have no objects with a score"):
        predict(classifier, images, threshold=0.5)
    with pytest.raises(ConfigError, match="do not lie in the picture"):
        predict(classifier, images, overlay=tmp_path)
    with pytest.raises(ConfigError, match="no format 'masks' for the task detection"):
        predict(detector, images, tmp_path / "out", format="masks")
    with pytest.raises(ConfigError, match="from 0 to 1"):
        predict(detector, images, threshold=30)
    with pytest.raises(ConfigError, match="unknown table format 'json'"):
        predict(segmenter, images, tmp_path / "out.json")
