"""Results are tables: rows, data frames of pandas and polars, and HTML in a notebook."""

from __future__ import annotations

import math
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from tests.looked_at import NAMES, picture, shaken
from vitrail.errors import ConfigError
from vitrail.inference.results import list_rows
from vitrail.reports.transfer import Cell, Transfer
from vitrail.rows import Rows, Scores, show_rows
from vitrail.tasks import Classifier
from vitrail.training.train import Result
from vitrail.verbs.probe.protocols import Probe

HOSTILE = "<script>alert(1)</script>"


class Elements(HTMLParser):
    """The elements of a piece of HTML, and its words; elements that are not closed as they were opened are an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.words = ""
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.names.append(tag)
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture(scope="module")
def model() -> Classifier:
    return shaken(names=(*NAMES[:2], HOSTILE, *NAMES[3:]))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of four pictures each, and a broken file."""
    folder = tmp_path_factory.mktemp("photos")
    for name in NAMES[:2]:
        (folder / name).mkdir()
        for number in range(4):
            picture(30, 40, seed=number).save(folder / name / f"{number}.png")
    (folder / "ant" / "broken.png").touch()
    return folder


def silent(line: str) -> None: ...


def read(model: Classifier, photos: Path, verb: Any = vitrail.predict) -> Any:
    return verb(model, photos, quiet=True, log=silent)


def frames(rows: Rows) -> list[list[dict[str, Any]]]:
    """The rows as a data frame of each library gives them back; a missing value is None."""
    first = rows.to_pandas().to_dict("records")
    plain = [{name: None if value != value else value for name, value in row.items()} for row in first]
    return [plain, rows.to_polars().to_dicts()]


def test_predictions_of_files_are_a_table_with_a_row_for_each_of_them(model, photos):
    results = read(model, photos)
    assert repr(results).startswith("<Results: 0 of 9 images read;")
    first, second = frames(results)
    again = read(model, photos)
    expected = list(list_rows(again.pairs(), again.failed))
    assert first == second == expected == results.to_rows()
    assert [row["error"] for row in expected].count("") == 8
    assert list(expected[0])[:3] == ["path", "label", "score"]


def test_a_table_of_results_that_were_taken_in_part_is_refused(model, photos):
    results = read(model, photos)
    next(results)
    with pytest.raises(ConfigError, match=r"1 of 9 images were taken .*\n.*call the function again"):
        results.to_pandas()


def test_features_are_a_column_that_stacks_to_a_matrix(model, photos):
    results = read(model, photos, vitrail.embed)
    expected = np.stack([features for _, features in read(model, photos, vitrail.embed)])  # (N, D)
    for frame in (results.to_pandas(), results.to_polars().to_pandas()):
        assert np.array_equal(np.stack(list(frame["features"].dropna())), expected)
    assert results.to_pandas()["error"].str.len().gt(0).sum() == 1


def test_predictions_in_memory_are_a_list_and_the_same_table(model, photos):
    pictures = [photos / "ant" / "0.png", picture(30, 40, seed=1)]
    answers = model.predict(pictures, top=2)
    first, second = frames(answers)
    assert first == second == [{"path": answer.key, **answer.row()} for answer in answers]
    assert [row["path"] for row in first] == [str(pictures[0]), ""]
    assert answers == list(answers) and answers[-1] is list(answers)[1]
    assert frames(model.predict([])) == [[], []]


def test_an_evaluation_is_a_table_of_its_figures_with_intervals(model, photos):
    evaluated = vitrail.evaluate(model, photos, max_bad=1.0, quiet=True, log=silent)
    figures = evaluated.figures
    first, second = frames(evaluated)
    assert first == second
    assert first[0] == {
        "metric": "top1",
        "value": figures["top1"],
        "low": figures["top1_low"],
        "high": figures["top1_high"],
    }
    assert {row["metric"] for row in first} == figures.keys() - {"top1_low", "top1_high"}
    assert evaluated.to_dict() == {"split": "train", **figures}
    assert repr(evaluated).startswith(f"EvaluationResult(split=train, top1={figures['top1']:.4f}, ")
    assert f"{figures['top1_low']:.4f} to {figures['top1_high']:.4f}" in Elements(evaluated._repr_html_()).words


def test_lists_of_models_settings_and_data_are_tables(photos):
    models = vitrail.list_models()
    settings = vitrail.list_settings()
    for rows, column, names in ((models, "model", models), (settings, "key", settings)):
        for frame in frames(rows):
            assert [row[column] for row in frame] == list(names)
    assert vitrail.list_models(size=96)["vit-s14"].row()["tokens"] is None  # 96 pixels are no multiple of 14
    counts = [{"split": "train", "class": "ant", "images": 5}, {"split": "train", "class": "bee", "images": 4}]
    found = vitrail.check_data(photos)
    assert frames(found) == [counts, counts]
    assert repr(found) == found.to_text()


def test_explanations_transfers_and_runs_are_tables_too(model, photos, tmp_path):
    file = photos / "ant" / "0.png"
    explained = vitrail.explain(model, file, out=tmp_path, quiet=True, log=silent)
    assert [row["overlay"] for row in explained.to_polars().to_dicts()] == ["0.attention.png"]
    (explanation,) = vitrail.explain(model, file, out=tmp_path, quiet=True, log=silent)
    assert "img" in Elements(explanation._repr_html_()).names
    assert len(repr(explanation)) < 1000  # without the numbers of its maps
    cells = {"knn": Cell({"accuracy": 0.5, "images": 8}), "linear": Cell(error=HOSTILE, code=3)}
    transfer = Transfer("model", ("knn", "linear"), {"digits": cells})
    for frame in frames(transfer):
        assert [(row["protocol"], row["accuracy"], row["error"]) for row in frame] == [
            ("knn", 0.5, ""),
            ("linear", None, HOSTILE),
        ]
    assert transfer.to_dict()["results"]["digits"] == {
        "knn": {"accuracy": 0.5, "images": 8},
        "linear": {"error": HOSTILE},
    }
    assert "script" not in Elements(transfer._repr_html_()).names
    run = Result(tmp_path, tmp_path / "report.html", {"top1": 0.5, "top1_low": 0.4, "top1_high": 0.6})
    assert frames(run) == [[{"metric": "top1", "value": 0.5, "low": 0.4, "high": 0.6}]] * 2
    probe = Probe("knn", "val", (), (), np.ones((1, 2), bool), {"accuracy": 1.0})
    assert probe.to_dict() == {"protocol": "knn", "split": "val", "accuracy": 1.0}


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_without_the_package_the_error_says_how_to_install_it(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=f"needs {package}\n  hint: pip install {package}$"):
        getattr(vitrail.list_settings("optim"), f"to_{package}")()


def test_a_notebook_shows_predictions_with_pictures_and_bars_and_no_markup_of_a_name(model, photos):
    file, pixels = photos / "ant" / "0.png", np.zeros((20, 30, 3), np.uint8)
    shown = Elements(model.predict([file, pixels, torch.zeros(3, 20, 20)], top=7)._repr_html_())
    assert shown.names.count("img") == 3 and "script" not in shown.names
    assert HOSTILE in shown.words and "<b>gnu</b>" in shown.words
    single = Elements(model.predict(file)[0]._repr_html_())
    assert single.names.count("img") == 1 and str(file) in single.words
    answers = model.predict(np.zeros((30, 8, 8, 3), np.uint8))
    assert "the first 20 of 30 answers" in Elements(answers._repr_html_()).words
    answers.reverse()  # pictures stay with their answers; those of the first 20 were kept
    assert Elements(answers._repr_html_()).names.count("img") == 10


def test_a_picture_that_cannot_be_drawn_leaves_its_answer(photos):
    five = vitrail.create_model("vit-ti16", image_size=32, in_channels=5, classes=2, depth=1)
    shown = Elements(five.predict(np.zeros((20, 20, 5), np.uint8))._repr_html_())
    assert "img" not in shown.names and "50.0%" in shown.words


def test_a_model_is_a_few_lines_that_name_what_counts(model):
    named = vitrail.create_model("vit-ti16", image_size=(32, 48), classes=1000)
    text = repr(named).splitlines()
    assert text == [
        "Classifier",
        "  model          vit-ti16",
        "  image size     32 x 48 pixels, 3 channels",
        "  classes        1,000: 0, 1, 2, 3, 4, ... and 995 more",
        f"  parameters     {sum(each.numel() for each in named.parameters()):,}, float32, on cpu",
        "  preprocessing  squash 32x48, bilinear, mean 0.5, std 0.5",
    ]
    assert "(blocks): ModuleList(" in repr(named.backbone)
    named.provenance = {"data": "photos", "recipe": "finetune", "init": None}
    assert repr(named).endswith("  from           data photos, recipe finetune")
    named.provenance = {"weights": "model.npz", "layout": "google", "date": "2026-11-22"}
    assert repr(named).endswith("  from           weights model.npz, layout google")
    shown = Elements(model._repr_html_())
    assert "script" not in shown.names and HOSTILE in shown.words and "a ViT with 3 blocks" in shown.words


def test_names_and_values_of_a_table_are_escaped_and_long_tables_are_cut():
    shown = Elements(show_rows([{HOSTILE: HOSTILE, "n": number} for number in range(30)]))
    assert set(shown.names) <= {"table", "thead", "tbody", "tr", "th", "td", "p"}
    assert shown.names.count("tr") == 21 and "the first 20 of 30 rows" in shown.words


def test_scores_that_are_not_finite_are_shown_as_such():
    class Bad(Scores):
        def to_dict(self) -> dict[str, Any]:
            return {"data": HOSTILE, "accuracy": math.nan}

    assert repr(Bad()) == f"Bad(data={HOSTILE}, accuracy=nan)"
    assert "script" not in Elements(Bad()._repr_html_()).names
