"""`vitrail evaluate --fit-unknown` and ``--ood``, and a model that has been fitted in all that is done with a model."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.reports.reading import Page
from tests.tasks.dense_models import create
from tests.weights.kinds import a_model
from vitrail.cli import run
from vitrail.errors import CheckpointError, ConfigError
from vitrail.weights.native import save_model

CLASSES = ("ant", "bee")


def write(folder: Path, count: int, *, seed: int, colour: int = 0) -> None:
    """Noise around grey, or around a ``colour`` that no training image has."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(seed)
    for number in range(count):
        pixels = draw.integers(0, 90, (16, 16, 3), dtype=np.uint8) + np.array([60 + colour, 60, 60], np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for place, name in enumerate(CLASSES):
        write(folder / "own" / "train" / name, 20, seed=place)
        write(folder / "own" / "val" / name, 15, seed=2 + place)
    write(folder / "others", 12, seed=9, colour=100)
    (folder / "others" / "broken.png").write_bytes(b"\x89PNG no picture")
    return folder


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory) -> Path:
    return save_model(tmp_path_factory.mktemp("plain") / "model", a_model(classes=CLASSES), metrics={"top1": 0.5})


@pytest.fixture(scope="module")
def fitted(data, plain, tmp_path_factory) -> Path:
    """A model folder; the fixture asserts what fitting says."""
    path, lines = tmp_path_factory.mktemp("fitted") / "model", []
    save_model(path, vitrail.load(plain), metrics={"top1": 0.5})
    result = vitrail.evaluate(path, data / "own", fit_unknown="10%", quiet=True, log=lines.append)
    assert "distance to 40 of 40 training images" in lines[-2] and "10 % of images like the 30" in lines[-2]
    assert result.figures["unlike"] == 2 / 30 and lines[-1] == f"stored in {path}"
    return path


def silent(verb, *given, **more):
    return verb(*given, quiet=True, log=lambda line: None, **more)


def test_the_model_keeps_it_beside_all_that_it_had(plain, fitted, data):
    was, now = (json.loads((path / "config.json").read_text()) for path in (plain, fitted))
    assert now.pop("false_alarms") == 0.1 and "false_alarms" not in was
    assert {name for name in was if was[name] != now[name]} == {"sha256", "vitrail_sha256"}
    one, other = vitrail.load(plain), vitrail.load(fitted)
    images = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert one(images).shape == (3, 2) and torch.equal(other(images)[:, :2], one(images))


def test_a_file_keeps_it_and_other_layouts_are_told_how(plain, data, tmp_path):
    path = save_model(tmp_path / "model.safetensors", vitrail.load(plain))
    silent(vitrail.evaluate, path, data / "own", fit_unknown=0.1)
    assert vitrail.load(path).false_alarms == 0.1
    assert run(["convert", str(plain), str(tmp_path / "timm.safetensors"), "--to", "timm"]) == 0
    with pytest.raises(CheckpointError, match="cannot store a threshold"):
        silent(vitrail.evaluate, tmp_path / "timm.safetensors", data / "own", fit_unknown=0.1)


def test_other_images_are_told_from_own_ones_in_figures_and_report(fitted, data, tmp_path):
    result = silent(vitrail.evaluate, fitted, data / "own", ood=data / "others", max_bad="50%", out=tmp_path / "out")
    own, others = (silent(vitrail.predict, fitted, data / name) for name in ("own/val", "others"))
    own, others = ([answer.unlikeness for answer in each] for each in (own, others))
    pairs = [float(high > low) for high in others for low in own]
    assert result.figures["ood_auroc"] == pytest.approx(np.mean(pairs), abs=1e-9)
    assert result.figures["ood_auroc"] > 0.9
    assert result.figures["ood_unlike"] == np.mean(np.array(others) > 1)
    assert (result.figures["ood_images"], len(others)) == (12, 12)
    assert json.loads((tmp_path / "out" / "figures.json").read_text())["ood_auroc"] == result.figures["ood_auroc"]
    assert "AUROC of other images" in Page((tmp_path / "out" / "report.html").read_text("utf-8")).said


def test_the_split_of_a_table_of_other_images_is_named(fitted, data, tmp_path):
    table, said = tmp_path / "others.csv", []
    rows = [f"{data / 'others' / f'{number}.png'},{'test' if number < 2 else 'val'}" for number in range(5)]
    table.write_text("\n".join(["path,split", *rows]))
    result = vitrail.evaluate(fitted, data / "own", ood=table, quiet=True, log=said.append)
    assert result.figures["ood_images"] == 2
    assert sum("2 compared, 3 of val left out, as the data have the split test" in line for line in said) == 1


def test_it_does_not_disturb_calibration_restriction_corruptions_and_metrics(plain, fitted, data, tmp_path):
    both = [vitrail.load(path) for path in (plain, fitted)]
    assert silent(vitrail.explain, both[1], data / "own/val/ant/0.png", out=tmp_path / "one") is not None
    for more in ({"restrict": True}, {"corruptions": True, "metrics": ["mean"]}, {"calibrate": True}):
        if "metrics" in more:
            more["metrics"] = {"mean_probability": lambda p, targets: p.mean()}
        one, other = (silent(vitrail.evaluate, model, data / "own", **more).figures for model in both)
        assert {name: value for name, value in other.items() if not name.startswith("unlike")} == one, more
    assert both[0].temperature == both[1].temperature != 1


def test_tables_have_the_two_columns_and_a_line_counts(plain, fitted, data, tmp_path, capsys):
    table = tmp_path / "table.csv"
    assert run(["predict", str(fitted), str(data / "others"), "--out", str(table), "--quiet"]) == 0
    said = capsys.readouterr().err
    rows = list(csv.reader(table.read_text().splitlines()))
    assert rows[0][-3:] == ["unknown", "unlikeness", "error"]
    unlike = sum(row[-3] == "True" for row in rows)
    assert unlike > 6 and f"unlike   {unlike} of 12 images are unlike the training images" in said
    assert [row[-3:-1] for row in rows if row[0].endswith("broken.png")] == [["", ""]]
    silent(vitrail.predict, fitted, data / "others", parts=tmp_path / "parts", format="jsonl")
    (part,) = (tmp_path / "parts").glob("*.jsonl")
    parts = list(map(json.loads, part.read_text().splitlines()))
    assert [row["unknown"] for row in parts] == [{"True": True, "False": False}.get(row[-3]) for row in rows[1:]]
    assert "unknown" not in silent(vitrail.predict, plain, data / "others").to_rows()[0]


def test_parts_in_parquet_have_a_boolean(fitted, data, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    silent(vitrail.predict, fitted, data / "others", parts=tmp_path / "parts")
    (path,) = (tmp_path / "parts").glob("*.parquet")
    assert str(parquet.read_schema(path).field("unknown").type) == "bool"


def test_an_exported_graph_says_the_same(fitted, data, tmp_path):
    assert run(["export", str(fitted), "--out", str(tmp_path / "model.onnx"), "--quiet"]) == 0
    one, other = (
        silent(vitrail.predict, path, data / "others").to_rows() for path in (fitted, tmp_path / "model.onnx")
    )
    assert [row["unknown"] for row in one] == [row["unknown"] for row in other]
    np.testing.assert_allclose(*([row["unlikeness"] or 0 for row in rows] for rows in (one, other)), rtol=1e-3)
    figures = silent(vitrail.evaluate, tmp_path / "model.onnx", data / "own", ood=data / "others", max_bad=0.5).figures
    assert figures["ood_auroc"] > 0.9
    with pytest.raises(ConfigError, match="cannot learn which images"):
        silent(vitrail.evaluate, tmp_path / "model.onnx", data / "own", fit_unknown=0.1)


def test_a_training_and_a_layout_without_a_place_for_it_leave_it_out_and_say_so(fitted, data, tmp_path, capsys):
    given = ["--steps", "2", "--batch", "4", "--out", str(tmp_path / "run")]
    assert run(["train", str(data / "own"), "--init", str(fitted), *given]) == 0
    assert "is not taken over" in capsys.readouterr().err
    assert vitrail.load(tmp_path / "run").false_alarms is None
    assert run(["convert", str(fitted), str(tmp_path / "timm"), "--to", "timm"]) == 0
    assert "left out" in capsys.readouterr().err
    assert run(["convert", str(fitted), str(tmp_path / "native"), "--to", "native"]) == 0
    assert [vitrail.load(tmp_path / name).false_alarms for name in ("timm", "native")] == [None, 0.1]


def test_what_cannot_be_fitted_or_evaluated_says_what_to_do(plain, data):
    for model, more, what in (
        (plain, {"ood": data / "others"}, "cannot say which images"),
        (plain, {"fit_unknown": 1.5}, "the share of false alarms is 1.5"),
        (plain, {"fit_unknown": "5%", "split": "train"}, "the split is train"),
        (plain, {"fit_unknown": "1%"}, "too few"),
        (create("segmentation"), {"fit_unknown": "5%"}, "a model of the task segmentation"),
    ):
        with pytest.raises(ConfigError, match=what):
            silent(vitrail.evaluate, model, data / "own", **more)


def test_logits_are_adjusted_and_unlikeness_is_not(fitted, data):
    model = vitrail.load(fitted)
    model.provenance["class_images"] = [90, 10]
    plain, adjusted = (
        vitrail.evaluate(model, data / "own", logit_adjust=tau, quiet=True, log=lambda line: None) for tau in (0, 1)
    )
    assert plain.figures["unlike"] == adjusted.figures["unlike"] == 2 / 30
    assert plain.figures["nll"] != adjusted.figures["nll"]


def test_a_threshold_is_not_fitted_to_several_views(plain, data):
    with pytest.raises(ConfigError, match="fit_unknown is set with tta=flip"):
        vitrail.evaluate(plain, data / "own", fit_unknown="10%", tta="flip", quiet=True)
