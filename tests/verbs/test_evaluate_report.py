"""The page of `vitrail evaluate --out`: the figures of the call and what the data allow, whatever the model and the labels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.reports.reading import Page
from tests.tasks.dense_models import create
from tests.weights.kinds import a_model
from vitrail.cli import run
from vitrail.errors import DiskError
from vitrail.weights.native import save_model

CLASSES = ("ant", "bee", "cat")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two images each of three classes, and one of the first that is broken."""
    draw = np.random.default_rng(0)
    for name in CLASSES:
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(2):
            pixels = draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    (tmp_path / "photos" / "ant" / "broken.png").write_bytes(b"\x89PNG no picture")
    return tmp_path / "photos"


def read(folder: Path) -> tuple[Page, dict]:
    return Page((folder / "report.html").read_text("utf-8")), json.loads((folder / "figures.json").read_text())


def evaluate(model, data, out, **more):
    result = vitrail.evaluate(model, data, out=out, quiet=True, log=lambda line: None, **more)
    page, figures = read(out)
    assert figures == result.to_dict()
    return page


def test_the_page_of_a_classifier_has_the_figures_and_what_was_left_out(photos, tmp_path, capsys):
    saved, out = save_model(tmp_path / "model", a_model(classes=CLASSES)), tmp_path / "evaluated"
    asked = ["--out", str(out), "--max-bad", "50%", "--corruptions", "--quiet"]
    assert run(["evaluate", str(saved), str(photos), *asked]) == 0
    assert f"report: {out / 'report.html'}" in capsys.readouterr().out
    page, figures = read(out)
    assert page.sections == ["confusion", "classes", "mistakes", "calibration", "corruptions", "run-details"]
    assert f"{figures['top1']:.1%}".replace("%", " %") in page.said
    assert f"mean of all corruptions {figures['corrupted_top1'] * 100:.3g}" in page.said
    assert "The figures leave out 1 image that could not be read." in page.said
    written = {"report.html", "figures.json", "predictions.csv", "plots"}  # the card stays the run's
    assert {path.name for path in out.iterdir()} == written


def test_labels_of_another_kind_have_a_page_too(photos, tmp_path):
    table = photos / "real.csv"
    table.write_text(
        "path,label\n" + "".join(f"{name}/{number}.png,ant;bee\n" for name in CLASSES for number in (0, 1))
    )
    page = evaluate(a_model(classes=CLASSES), table, tmp_path / "evaluated")
    assert page.sections == ["run-details"]
    assert "ReaL accuracy" in page.said and "vitrail.evaluate" in page.said


@pytest.mark.parametrize("task", ["detection", "segmentation", "instances"])
def test_the_page_of_a_dense_model_shows_pictures(task, tmp_path):
    model = create(task, classes=("background", "cat"))
    height, width = model.preprocessing.size
    for folder in ("images", "masks"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    for name in ("a", "b"):
        Image.new("RGB", (width, height), "grey").save(tmp_path / f"data/images/{name}.png")
        mask = np.zeros((height, width), np.uint8)
        mask[4:12, 4:12] = 1
        Image.fromarray(mask).save(tmp_path / f"data/masks/{name}.png")
    (tmp_path / "data" / "classes.txt").write_text("background\ncat\n")
    data = tmp_path / "data"
    if task != "segmentation":
        (data / "masks").rename(tmp_path / "masks")
        images = [{"id": n, "file_name": f"{n}.png", "height": height, "width": width} for n in "ab"]
        square = {"bbox": [4, 4, 8, 8], "area": 64, "iscrowd": 0, "segmentation": [[4, 4, 12, 4, 12, 12, 4, 12]]}
        objects = [{"id": n, "image_id": n, "category_id": 1, **square} for n in "ab"]
        names = [{"id": 0, "name": "background"}, {"id": 1, "name": "cat"}]
        text = json.dumps({"images": images, "annotations": objects, "categories": names})
        (data / "annotations.json").write_text(text)
        data = data / "annotations.json"
    page = evaluate(model, data, tmp_path / "evaluated")
    assert "worst-pictures" in page.sections and "classes" in page.sections and page.all("img")


def test_a_folder_that_cannot_be_made_is_refused_before_the_model_runs(photos, tmp_path):
    (tmp_path / "file").write_text("")
    model = a_model(classes=CLASSES)
    model.forward = lambda images: pytest.fail("the model ran")
    with pytest.raises(DiskError, match="file"):
        evaluate(model, photos, tmp_path / "file" / "evaluated", max_bad=0.5)
