"""`vitrail transfer`: one table of protocols and data sets, what is done is kept, and what fails stops nothing else."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.looked_at import shaken
from tests.models.tiny import TINY
from vitrail.cli import run
from vitrail.errors import ConfigError, DiskError, Interrupted
from vitrail.evaluation.evaluate import evaluate_model
from vitrail.inference.features import Features
from vitrail.inference.options import InferenceOptions
from vitrail.reports.transfer import Cell, Transfer, markdown, page
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.verbs.probe import probe
from vitrail.verbs.probe.protocols import compute_features, open_to_probe
from vitrail.verbs.transfer import transfer
from vitrail.verbs.transfer.data_sets import ALL
from vitrail.weights import load
from vitrail.weights.native import save_model

QUIET = {"quiet": True, "max_bad": 1, "tune": False, "cache": False}
STEPS = {"steps": 2, "set": ["data.batch=8", "compute.threads=1"]}


def silent(line: str) -> None: ...


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, arrays of one channel that name a test set, pictures of other shapes, and data with nothing to learn."""
    folder, draw = tmp_path_factory.mktemp("transfer"), np.random.default_rng(0)
    model = create_classifier(TINY["vit"], classes=[f"class {count}" for count in range(7)])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(0))
    save_model(folder / "model", model)
    targets = np.arange(40) % 2
    pixels = (draw.integers(0, 60, (40, 20, 30, 1)) + 150 * targets[:, None, None, None]).astype(np.uint8)
    halves = {"train": slice(30), "test": slice(30, None)}
    images, labels = ({f"{split}_{kind}": each[rows] for split, rows in halves.items()} for kind, each in
                      (("images", pixels), ("labels", targets)))  # fmt: skip
    np.savez(folder / "grey.npz", **images, **labels)
    for tint, name in enumerate(("ant", "bee")):
        (folder / "photos" / name).mkdir(parents=True)
        for count in range(10):
            shown = draw.integers(0, 90, (40 + count, 50, 3), dtype=np.uint8)
            shown[..., tint] += 120
            Image.fromarray(shown).save(folder / "photos" / name / f"{count}.png")
    (folder / "hollow" / "ant").mkdir(parents=True)
    (folder / "hollow" / "bee").mkdir()
    return folder


def ask(place: Path, out: Path, *data: str, **how: Any) -> Transfer:
    named = [str(place / each) for each in data]
    usual = {"k": 3, "shots": (1, 5), "log": silent, **STEPS, **QUIET}
    return transfer(place / "model", named, out, **{**usual, **how})


@pytest.fixture(scope="module")
def done(place: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Transfer]:
    out = tmp_path_factory.mktemp("out")
    return out, ask(place, out, "grey.npz", "photos")


def test_every_data_set_has_every_protocol_and_the_mean_counts_each_the_same(done: tuple[Path, Transfer]) -> None:
    _, found = done
    assert (list(found.rows), found.protocols, found.code) == (["grey.npz", "photos"], ALL, 0)
    for each in ALL:
        first, second = (cells[each].accuracy for cells in found.rows.values())
        assert found.mean(each) == pytest.approx((first + second) / 2)
    assert [row[0] for row in found.table()] == ["grey.npz", "photos", "mean"]


def test_the_figures_are_those_of_probe(done: tuple[Path, Transfer], place: Path) -> None:
    for protocol in ("knn", "linear", "fewshot"):
        alone = probe(place / "model", place / "grey.npz", protocol, k=3, shots=(1, 5), log=silent, **QUIET)
        assert done[1].rows["grey.npz"][protocol].figures == alone.figures


def test_fine_tuning_is_evaluated_on_the_images_of_the_probes(done: tuple[Path, Transfer], place: Path) -> None:
    out, found = done
    (folder,) = (out / "finetune").glob("photos-*-seed0")
    splits = open_to_probe(place / "photos", shaken())
    assert splits.val is not None
    figures = evaluate_model(load(folder, log=silent), splits.val, InferenceOptions(batch=4), split="val").figures
    cell = found.rows["photos"]["finetune"].figures
    assert (cell["accuracy"], cell["accuracy_low"]) == (figures["top1"], figures["top1_low"])
    assert (cell["images"], cell["train_images"]) == (
        len(splits.val),
        found.rows["photos"]["knn"].figures["train_images"],
    )
    assert "recipe: finetune" in (folder / "config.yaml").read_text()


def test_the_table_is_written_three_times(done: tuple[Path, Transfer]) -> None:
    out, found = done
    with open(out / "transfer.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["data"] for row in rows] == ["grey.npz", "photos", "mean"]
    assert float(rows[0]["knn"]) == pytest.approx(found.rows["grey.npz"]["knn"].accuracy, abs=1e-6)
    assert float(rows[0]["knn_low"]) <= float(rows[0]["knn"]) <= float(rows[0]["knn_high"])
    assert float(rows[2]["finetune"]) == pytest.approx(found.mean("finetune"), abs=1e-6)
    assert (out / "transfer.md").read_text().startswith("| data | knn | linear | fewshot | finetune |\n| --- | ---: |")
    assert "grey.npz" in (out / "report.html").read_text()


def test_a_second_time_nothing_is_computed(
    done: tuple[Path, Transfer], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("compute_features", "train", "open_to_probe"):
        monkeypatch.setattr(f"vitrail.verbs.transfer.data_sets.{name}", None)
    out, found = done
    assert ask(place, out, "grey.npz", "photos").rows == found.rows
    fewer = ask(place, out, "photos", protocols=["linear"])
    assert fewer.rows == {"photos": {"linear": found.rows["photos"]["linear"]}}


def test_features_are_computed_once_for_all_protocols(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def watched(*given: Any, **how: Any) -> list[Features]:
        calls.append("here")
        return compute_features(*given, **how)

    monkeypatch.setattr("vitrail.verbs.transfer.data_sets.compute_features", watched)
    ask(place, tmp_path, "photos", protocols=["knn", "linear", "fewshot"])
    assert len(calls) == 1


@pytest.mark.slow
def test_a_stopped_transfer_resumes_where_it_was(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*given: Any, **how: Any) -> None:
        raise Interrupted("stopped")

    with monkeypatch.context() as patch:
        patch.setattr("vitrail.verbs.transfer.data_sets.train", stopped)
        with pytest.raises(Interrupted):
            ask(place, tmp_path, "photos", protocols=["knn", "finetune"])
    assert len(list((tmp_path / "cells").iterdir())) == 1
    monkeypatch.setattr("vitrail.verbs.transfer.data_sets.compute_features", None)
    assert ask(place, tmp_path, "photos", protocols=["knn", "finetune"]).code == 0


def test_a_folder_of_other_settings_or_of_another_model_is_refused(
    done: tuple[Path, Transfer], place: Path, tmp_path: Path
) -> None:
    others: list[dict[str, Any]] = [
        {"k": 4},
        {"shots": (1,)},
        {"steps": 3},
        {"crop": (16, 16)},
    ]
    for change in others:
        with pytest.raises(ConfigError, match="another --out"):
            ask(place, done[0], "photos", **change)
    save_model(tmp_path / "model", shaken())
    with pytest.raises(ConfigError, match="weights"):
        transfer(tmp_path / "model", [str(place / "photos")], done[0], k=3, shots=(1, 5), log=silent, **STEPS, **QUIET)


def test_a_data_set_that_fails_is_named_and_the_others_go_on(place: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    found = ask(place, tmp_path, "hollow", "photos", protocols=["knn", "linear"], log=lines.append)
    assert found.code == 3
    assert list(found.failures) == ["hollow"], "named once, whatever the protocols"
    assert sum("failed" in line for line in lines) == 1
    assert found.rows["photos"]["knn"].accuracy > 0
    assert np.isnan(found.mean("knn"))
    reason = found.failures["hollow"].error.splitlines()[0]
    assert f"hollow: {reason}" in (tmp_path / "report.html").read_text()
    assert f"- hollow: {reason}" in (tmp_path / "transfer.md").read_text()
    assert not list((tmp_path / "cells").glob("hollow*")), "a failure is tried again"


def test_a_protocol_that_fails_leaves_the_others_of_its_data_set(place: Path, tmp_path: Path) -> None:
    found = ask(place, tmp_path, "photos", protocols=["knn", "linear"], k=1000)
    assert (list(found.failures), found.code) == (["photos, knn"], 2)
    assert found.rows["photos"]["linear"].accuracy > 0


@pytest.mark.slow
def test_several_seeds_have_one_mean_and_the_interval_of_both(place: Path, tmp_path: Path) -> None:
    found = ask(place, tmp_path, "grey.npz", protocols=["finetune"], seeds=2)
    folders = sorted((tmp_path / "finetune").iterdir())
    reports = [json.loads((each / "status.json").read_text())["figures"]["top1"] for each in folders]
    figures = found.rows["grey.npz"]["finetune"].figures
    assert figures["accuracy"] == pytest.approx(np.mean(reports))
    assert figures["accuracy_low"] <= figures["accuracy"] <= figures["accuracy_high"]


def test_a_full_disk_ends_it(place: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError):
        ask(place, tmp_path / "file" / "out", "photos")


def test_invalid_options_are_refused_before_a_folder_is_made(place: Path, tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"protocols": ["knn", "tuned"]}, "there is no protocol 'tuned'"),
        ({"protocols": ["knn", "knn"]}, "name it once"),
        ({"protocols": []}, "choose some"),
        ({"set": ["optim.lrr=1"]}, "did you mean 'lr'"),
        ({"shots": (0,)}, "1,5,10,25"),
    ]
    for how, words in wrong:
        with pytest.raises(ConfigError, match=words):
            ask(place, tmp_path / "out", "photos", **how)
        assert not (tmp_path / "out").exists(), how


def test_data_sets_of_one_name_are_told_apart(place: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "photos").symlink_to(place / "photos")
    draw = [str(tmp_path / name / "photos") for name in ("first", "second")]
    found = transfer(place / "model", [*draw, draw[0]], tmp_path / "out", protocols=["knn"], k=3, log=silent, **QUIET)
    assert list(found.rows) == draw


def test_untrusted_names_are_escaped_on_the_page_and_in_the_table() -> None:
    cells = {"knn": Cell({"accuracy": 0.5}), "linear": Cell(error="it is <b>bad</b>\n  hint: this", code=3)}
    found = Transfer("m", ("knn", "linear"), {"<i>a|b</i>": cells})
    assert "<i>" not in page(found)
    assert "<b>bad" not in page(found)
    assert r"a\|b" in markdown(found)


def test_the_command_prints_the_table_names_failures_and_leaves_with_their_code(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    command = ["transfer", "model", "photos", "hollow", "--out", str(tmp_path), "--protocols", "knn,linear", "--k", "3"]
    assert run([*command, "--no-cache", "--quiet", "--json"]) == 3
    said = capsys.readouterr()
    lines = said.err.splitlines()
    end = lines.index(f"report: {tmp_path / 'report.html'}")
    assert [row.split()[0] for row in lines[end - 4 : end]] == ["data", "photos", "hollow", "mean"]
    told = json.loads(said.out)
    assert (told["data_sets"], told["failed"], told["mean_knn"]) == (2, 1, None)
    assert "error: hollow: " in said.err
    assert "Traceback" not in said.err
