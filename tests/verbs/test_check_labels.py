"""`data check --model` on labels that were exchanged: what it says, its page, and the table with the suggested labels."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.verbs.test_check import write_boxes
from vitrail.cli import run
from vitrail.data.sources.open import open_data
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.label_errors import Suspect
from vitrail.tables import import_pyarrow

WRONG = {"train/dark/3.png": "bright", "val/bright/2.png": "dark"}  # and what they show


def quiet(line: str) -> None:
    """Takes the log."""


@pytest.fixture
def model():
    torch.manual_seed(0)
    return vitrail.create_model("vit-ti16", image_size=32, width=24, depth=1, heads=2, classes=["a", "b"])


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Dark and bright noise, ten in train and five in val of each, with two labels exchanged; and three grey ones."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 10), ("val", 5)):
        for number, name in ((number, name) for number in range(count) for name in ("dark", "bright")):
            path = tmp_path / "photos" / split / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            shown = WRONG.get(f"{split}/{name}/{number}.png", name)
            levels = generator.integers(0, 90, (32, 32, 3)) + (160 if shown == "bright" else 0)
            Image.fromarray(levels.astype(np.uint8)).save(path)
    for number in range(3):
        path = tmp_path / "photos" / "train" / "<b>grey" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(generator.integers(90, 150, (32, 32, 3)).astype(np.uint8)).save(path)
    return tmp_path / "photos"


def test_exchanged_labels_are_said_and_are_no_reason_to_refuse(photos, model) -> None:
    found = vitrail.check_data(photos, model=model, log=quiet)
    assert {suspect.path: suspect.suggested for suspect in found.suspects} == WRONG
    assert {suspect.path: suspect.split for suspect in found.suspects} == {name: name.split("/")[0] for name in WRONG}
    assert sorted(found.confused) == [("bright", "dark", 1), ("dark", "bright", 1)]
    assert found.notes == ("labels not examined, of classes with fewer than 5 different images: <b>grey 3",)
    assert not found.refused and found.sound == (not found.near)
    told = json.loads(json.dumps(found.to_dict()))
    assert told["suspects"][0].keys() == {field.name for field in fields(Suspect)}
    assert sorted(told["confused"]) == [["bright", "dark", 1], ["dark", "bright", 1]]
    lines = found.to_text().splitlines()
    place = lines.index("labels that may be wrong; look at each image: 2")
    assert lines[place + 1].startswith(f"  {found.suspects[0].path}: {found.suspects[0].given} 0.")
    assert not vitrail.check_data(photos, log=quiet).suspects


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_the_table_trains_with_the_suggested_labels(photos, model, kind, tmp_path) -> None:
    if kind == "parquet":
        import_pyarrow()
    table, said = tmp_path / "lists" / f"fixed.{kind}", []
    vitrail.check_data(photos, model=model, relabel=table, log=said.append)
    assert said[-1] == f"written  {table}: 33 images, 2 with another label; look at these"
    splits, original = open_data(table, validation=0), open_data(photos, validation=0)
    changed = set()
    for now, before in ((splits.train, original.train), (splits.val, original.val)):
        assert len(now) == len(before)
        given = {str(photos / key): before.classes[label] for key, label in zip(before.keys, before.targets)}
        labels = {key: now.classes[label] for key, label in zip(now.keys, now.targets)}
        changed |= {(str(Path(key).relative_to(photos)), labels[key]) for key in labels if labels[key] != given[key]}
    assert changed == {*WRONG.items()}
    if kind == "csv":
        with open(table, newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["probability"]]
        assert {row["path"]: row["given"] for row in rows} == {str(photos / name): name.split("/")[1] for name in WRONG}
        small = {"width": 24, "depth": 1, "heads": 2}
        settings = [f"model.changes={small}", "compute.tune=false", "compute.compile=false"]
        done = vitrail.train(
            table, model="vit-ti16", steps=2, batch=4, size=32, workers=0, out=tmp_path / "run", settings=settings
        )
        assert done.load().classes == ("<b>grey", "bright", "dark")


def test_paths_in_the_folder_of_the_table_are_relative(photos, model) -> None:
    vitrail.check_data(photos / "train", model=model, relabel=photos / "fixed.csv", log=quiet)
    moved = photos.rename(photos.with_name("moved"))
    with open(moved / "fixed.csv", newline="") as file:
        assert next(csv.DictReader(file))["path"].startswith("train/")
    assert len(open_data(moved / "fixed.csv", validation=0).train) == 23


def test_a_check_without_a_model_needs_no_torch(photos) -> None:
    code = f"import sys, vitrail; vitrail.check_data({str(photos)!r}); sys.exit('torch' in sys.modules)"
    assert not subprocess.run([sys.executable, "-c", code], check=False).returncode


def test_the_page_has_every_suspect_with_its_picture(photos, model, tmp_path, monkeypatch) -> None:
    said = []
    found = vitrail.check_data(photos, model=model, out=tmp_path / "look", log=said.append)
    page = (tmp_path / "look" / "labels.html").read_text()
    assert said[-1] == f"written  {tmp_path / 'look' / 'labels.html'}: 2 images to look at, of 2"
    assert all(suspect.path in page for suspect in found.suspects) and page.count('<img src="data:image/') == 2
    assert "&lt;b&gt;grey" in page and "<b>grey" not in page
    monkeypatch.setattr("vitrail.verbs.data.labels.MOST", 1)
    vitrail.check_data(photos, model=model, out=tmp_path / "look", log=said.append)
    page = (tmp_path / "look" / "labels.html").read_text()
    assert page.count('<img src="data:image/') == 1 and "1 image is left out" in page


def test_other_data_say_that_their_labels_were_not_examined(tmp_path, model) -> None:
    note = "labels not examined: that takes images with one class each"
    boxes = write_boxes(tmp_path / "boxes")
    found = vitrail.check_data(boxes, model=model, out=tmp_path / "look", log=quiet)
    assert note in found.notes and (tmp_path / "look" / "train" / "0.jpg").exists()
    arrays = np.zeros((4, 32, 32, 3), np.uint8), np.eye(2, dtype=np.float32)[[0, 1, 0, 1]]
    assert note in vitrail.check_data(arrays, model=model, log=quiet).notes
    for data in (boxes, arrays):
        with pytest.raises(DataError, match=r"one class each.*\n.*leave --relabel out"):
            vitrail.check_data(data, model=model, relabel=tmp_path / "fixed.csv", log=quiet)


def test_a_table_that_could_not_be_read_back_is_refused(photos, model, tmp_path, capsys) -> None:
    assert run(["data", "check", str(photos), "--relabel", str(tmp_path / "fixed.csv")]) == 2
    assert "add --model MODEL" in capsys.readouterr().err
    arrays = np.zeros((4, 32, 32, 3), np.uint8), np.array([0, 1, 0, 1])
    with pytest.raises(DataError, match="no files of their own"):
        vitrail.check_data(arrays, model=model, relabel=tmp_path / "fixed.csv", log=quiet)
    table = tmp_path / "labels.csv"
    table.write_text("path,label\n" + "".join(f"photos/train/dark/{n}.png,a{n % 2}\n" for n in range(4)))
    with pytest.raises(ConfigError, match="is the table that is checked"):
        vitrail.check_data(table, model=model, relabel=table, log=quiet)
    (photos / "train" / "dark").rename(photos / "train" / "-dark")
    with pytest.raises(DataError, match=r"'-dark' would be read from fixed\.csv as another one"):
        vitrail.check_data(photos / "train", model=model, relabel=tmp_path / "fixed.csv", log=quiet)
    vitrail.check_data(photos / "train", model=model, relabel=tmp_path / "fixed.jsonl", log=quiet)
    assert "-dark" in open_data(tmp_path / "fixed.jsonl").classes
