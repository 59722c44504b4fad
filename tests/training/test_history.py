"""The course of a training as a table and as a figure; results that are read twice say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vitrail
from tests.looked_at import picture
from vitrail.errors import ConfigError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> vitrail.training.train.Result:
    out = tmp_path_factory.mktemp("history") / "run"
    small = ("model.changes.depth=1", "save.log_every=1", "compute.tune=false")
    return vitrail.train("digits", steps=4, batch=16, out=out, set=small, quiet=True)


def test_the_history_has_a_row_for_each_line_of_the_metrics_and_its_timing(run):
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    history = run.history
    assert [row["step"] for row in history] == [line["step"] for line in lines]
    assert all(row[name] == value for row, line in zip(history, lines) for name, value in line.items() if name != "crc")
    assert all("images_per_second" in row for row in history if "loss" in row)
    frame = history.to_pandas()
    assert {"step", "epoch", "loss", "lr", "val_top1", "val_nll"} <= set(frame.columns)
    assert frame["val_top1"].notna().sum() == sum("val_top1" in line for line in lines)
    assert "<table" in history._repr_html_()


@pytest.mark.slow
def test_the_figure_has_a_line_for_each_figure(run, tmp_path):
    figure = run.plot()
    left, right = ({line.get_label() for line in axes.get_lines()} for axes in figure.axes)
    assert left == {"loss", "val_nll"}
    assert "val_top1" in right
    figure.savefig(tmp_path / "history.png")
    assert (tmp_path / "history.png").stat().st_size > 10_000


def test_results_that_are_read_twice_say_so(run, tmp_path):
    for number in range(3):
        picture(8, 8, number).save(tmp_path / f"{number}.png")
    results = vitrail.predict(run.folder, tmp_path, quiet=True)
    first = next(results)
    assert [first.key, *(answer.key for answer in results)] == [str(tmp_path / f"{number}.png") for number in range(3)]
    with pytest.raises(ConfigError, match=r"were read to the end, and are not kept\n  hint: keep them"):
        list(results)
    assert Path(run.report).exists()


@pytest.mark.slow
def test_predictions_list_the_evaluated_images(tmp_path):
    run = vitrail.train("digits", out=tmp_path / "run", steps=8, batch=16, quiet=True, set=["model.changes.depth=1"])
    rows = run.predictions
    assert len(rows) == run.figures["images"]
    assert run.split == "val"
    assert vitrail.train("digits", out=run.folder, steps=8, batch=16, quiet=True, set=["model.changes.depth=1"]) == run
    assert rows[0].keys() == {"path", "true", "label", "score"}
    right = sum(row["true"] == row["label"] for row in rows)
    assert right / len(rows) == pytest.approx(run.figures["top1"])
    result = vitrail.evaluate(run.folder, "digits", quiet=True, log=lambda line: None, out=tmp_path / "out")
    assert [row["label"] for row in result.predictions] == [row["label"] for row in rows]
    assert [row["score"] for row in result.predictions] == pytest.approx([row["score"] for row in rows], rel=1e-5)
    assert (tmp_path / "out/predictions.csv").read_text() == (run.folder / "predictions.csv").read_text()
