"""`vitrail export` as a person runs it, from a run to answers of the file that it writes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.models.conftest import shaken
from tests.slow import few_or_nightly
from vitrail import load
from vitrail.cli import run
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.verbs.export import export
from vitrail.verbs.export.files import Exported
from vitrail.weights.native import save_model

SMALL = {"image_size": 8, "patch_size": 2, "width": 16, "depth": 1, "heads": 2, "mlp_width": 32, "in_channels": 1}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of the digits that was trained on none."""
    folder = tmp_path_factory.mktemp("exports")
    model = shaken(create_classifier("vit-ti16", classes=tuple("0123456789"), **SMALL))
    save_model(folder / "digits" / "model", model)
    Image.new("L", (9, 12), 77).save(folder / "grey.png")
    return folder


@pytest.fixture(autouse=True)
def short_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.verbs.export.parity.SECONDS", 0.01)


@pytest.mark.slow
def test_what_is_written_is_compared_on_the_data_and_said(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    assert run(["export", "digits", "--to", "program", "--check", "digits", "--images", "40", "--quiet"]) == 0
    said = capsys.readouterr()
    rows = dict(line.split(maxsplit=1) for line in said.out.splitlines())
    assert rows["compared"] == "40 real images, batches of 1,3,8, sizes 8x8,12x12,10x14"
    assert (rows["agreement"], rows["written"]) == ("100.00 %", "digits.pt2")
    assert "Warning" not in said.err
    kept = {"vitrail": "", "parity": ""}
    torch.export.load(place / "digits.pt2", extra_files=kept)
    assert json.loads(kept["vitrail"])["classes"] == list("0123456789")
    assert json.loads(kept["parity"])["images"] == 40


@pytest.mark.slow
def test_the_file_answers_every_verb_as_the_model_does(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    assert run(["export", "digits", "--quiet", "--json"]) == 0
    said = capsys.readouterr()
    assert "Warning" not in said.err
    told = json.loads(said.out)
    assert (told["path"], told["to"], told["int8"], told["dynamic"]) == ("digits.onnx", "onnx", False, True)
    assert told["bytes"] == (place / "digits.onnx").stat().st_size
    evaluated, tables, features = [], [], []
    for model in ("digits", "digits.onnx"):
        assert run(["evaluate", model, "digits", "--json", "--quiet"]) == 0
        evaluated.append(json.loads(capsys.readouterr().out.splitlines()[-1])["top1"])
        assert run(["predict", model, "grey.png", "--top", "1", "--quiet"]) == 0
        tables.append(capsys.readouterr().out.splitlines()[1].split(",")[:2])
        assert run(["embed", model, "grey.png", "--out", "features.csv", "--quiet"]) == 0
        features.append([float(cell) for cell in (place / "features.csv").read_text().splitlines()[1].split(",")[1:]])
    assert evaluated[0] == evaluated[1]
    assert tables[0] == tables[1]
    assert features[0] == pytest.approx(features[1], abs=1e-4)


@pytest.mark.slow
def test_an_int8_graph_of_pictures_is_compared_from_whole_pictures_on(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    given = ["--pictures", "--int8", "--check", "digits", "--images", "40", "--quiet", "--json"]
    assert run(["export", "digits", *given]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["path"] == "digits-pictures-int8.onnx"
    assert (told["pictures"], told["dynamic"], told["sizes"]) == (True, True, "8x8,12x12,10x14")
    assert told["top1_after"] == pytest.approx(told["top1_before"], abs=0.1)
    assert told["difference"] < 0.2
    assert run(["predict", told["path"], "grey.png"]) == 4
    assert "export it without --pictures" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("images", few_or_nightly(60, 300))
def test_int8_of_the_real_model_loses_at_most_two_points(images, tmp_path, real_data):
    lost = {60: 2 / 60, 300: 0.02}[images]  # roundings of another processor change up to two answers of 60
    folder, weights = real_data / "imagenet_val", real_data / "vit_tiny_patch16_224.safetensors"

    def exported(**how: Any) -> Exported:
        data = {"check": folder / "labels.csv", "classes": folder / "classes.txt", "images": images}
        return export(weights, tmp_path / "ti.onnx", quiet=True, log=lambda line: None, **data, **how)

    right = {60: 49, 300: 218}[images] / images
    if images == 300:
        exact = exported().figures
        assert (exact["top1_before"], exact["top1_after"]) == (right, right)
        assert exact["difference"] < 1e-5
    done = exported(int8=True, tolerance=lost + 1e-6)
    assert done.figures["top1_before"] == right
    assert done.figures["top1_after"] >= right - lost - 1e-6
    assert done.figures["agreement"] > 0.93
    assert done.bytes < weights.stat().st_size / 3
    with open(folder / "labels.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[:20]
    model = load(tmp_path / "ti.onnx")
    found = model.predict([Image.open(folder / row["path"]) for row in rows])
    assert sum(each.label == row["label"] for each, row in zip(found, rows)) >= 10
