"""`vitrail transfer --vtab`: the tasks of a folder, the images that they are trained on, and the command from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.looked_at import QUIET, shaken
from vitrail.cli import run
from vitrail.data.sources.contents import Arrays, Strings
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.vtab import TASKS
from vitrail.verbs.transfer import transfer
from vitrail.verbs.transfer.data_sets import VTAB_RECIPE, Tuning, choose_settings, draw_training, find_tasks, open_task
from vitrail.weights.native import save_model

PARTS = {"train": 6, "val": 2, "test": 5}  # images of each class


def silent(line: str) -> None: ...


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and three tasks of two groups, of two classes each; svhn has no val."""
    folder, draw = tmp_path_factory.mktemp("vtab"), np.random.default_rng(0)
    save_model(folder / "model", shaken())
    for task in ("pets", "svhn", "clevr-count"):
        for split, count in PARTS.items():
            for tint, name in enumerate(("ant", "bee")):
                images = folder / "root" / task / split / name
                if (task, split) != ("svhn", "val"):
                    images.mkdir(parents=True)
                    for row in range(count):
                        shown = draw.integers(0, 140, (20, 30, 3), dtype=np.uint8)
                        shown[..., tint] += 70
                        Image.fromarray(shown).save(images / f"{row}.png")
    (folder / "root" / "README.md").write_text("a file is no task")
    return folder


def ask(place: Path, out: Path, *roots: Path, **how: Any) -> Any:
    usual = {"k": 3, "quiet": True, "max_bad": 1, "tune": False, "cache": False, "log": silent}
    usual |= {"protocols": ["knn"], "vtab": True}
    return transfer(place / "model", list(roots or [place / "root"]), out, **{**usual, **how})


def source(name: str, images: int) -> Source:
    keys = Strings(f"{name}{row}" for row in range(images))
    contents = Arrays(np.zeros((images, 1, 1, 1), np.uint8), keys)
    return Source(contents=contents, targets=np.arange(images) % 2, classes=("a", "b"))


SIZES = {
    # train, val: drawn of each
    (5000, 900): (800, 200),
    (800, 200): (800, 200),
    (5000, None): (1000, 0),
    (5000, 0): (1000, 0),
    (5000, 150): (850, 150),
    (500, 900): (500, 500),
    (500, 100): (500, 100),
}


def test_a_task_is_trained_on_1000_images_200_of_them_from_val() -> None:
    for (train, val), expected in SIZES.items():
        drawn = draw_training(source("train", train), None if val is None else source("val", val))
        keys = list(drawn.keys)
        assert len(set(keys)) == len(keys) == len(drawn.targets)
        assert tuple(sum(key.startswith(part) for key in keys) for part in ("train", "val")) == expected, (train, val)


def test_the_images_are_the_same_every_time_at_random_and_keep_their_labels() -> None:
    first, again = (draw_training(source("train", 5000), source("val", 900)) for _ in range(2))
    assert list(first.keys) == list(again.keys)
    rows = [int(key.removeprefix("train")) for key in first.keys if key.startswith("train")]
    assert max(rows) > 4900, "not the first ones"
    assert [row % 2 for row in rows] == first.targets[:800].tolist()
    assert first.targets.sum() not in (0, 500, 1000), "not drawn by class"


def test_a_task_is_evaluated_on_its_test_images_alone(place: Path) -> None:
    splits = open_task(str(place / "root" / "pets"), channels=3)
    assert splits.train is not None
    assert splits.test is not None
    assert (len(splits.train), splits.val, len(splits.test)) == (16, None, 10)
    assert {str(key).split("/")[0] for key in splits.train.keys} == {"train", "val"}
    assert {str(key).split("/")[0] for key in splits.test.keys} == {"test"}


def test_a_task_without_test_images_is_refused(place: Path, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "pets").symlink_to(place / "root" / "pets" / "train")
    with pytest.raises(DataError, match="no split test"):
        open_task(str(tmp_path / "root" / "pets"), channels=3)
    found = ask(place, tmp_path / "out", tmp_path / "root")
    assert (found.code, list(found.failures)) == (3, ["pets"])


def test_folders_are_tasks_in_the_order_of_the_benchmark_and_files_are_ignored(place: Path) -> None:
    assert list(find_tasks(place / "root")) == ["pets", "svhn", "clevr-count"]


@pytest.mark.parametrize(
    ("name", "words"),
    [("oxford_flowers102", "did you mean 'flowers102'"), ("clevr_count", "clevr-count"), (None, "has no folders")],
)
def test_a_folder_that_is_no_task_is_refused_with_the_nearest_one(
    name: str | None, words: str, place: Path, tmp_path: Path
) -> None:
    (tmp_path / "root" / (name or ".hidden")).mkdir(parents=True)
    with pytest.raises(ConfigError, match=words):
        ask(place, tmp_path / "out", tmp_path / "root")
    assert not (tmp_path / "out").exists()


def test_one_folder_is_taken(place: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="takes one folder, and 2"):
        ask(place, tmp_path / "out", place / "root", tmp_path)
    with pytest.raises(ConfigError, match="is not a folder"):
        ask(place, tmp_path / "out", place / "root" / "README.md")


def test_finished_tasks_are_kept_with_their_notes(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    found = ask(place, tmp_path, log=lines.append)
    note = "svhn: 12 training images (VTAB-1k has 1,000), 2 classes (VTAB-1k has 10)"
    assert note in found.notes
    assert f"warning  {note}" in lines
    assert found.rows["svhn"]["knn"].figures["train_images"] == 12
    assert found.rows["pets"]["knn"].figures["train_images"] == 16
    monkeypatch.setattr("vitrail.verbs.transfer.data_sets.open_task", None)
    again = ask(place, tmp_path)
    assert (again.rows, again.notes) == (found.rows, found.notes)
    with pytest.raises(ConfigError, match="other settings"):
        ask(place, tmp_path, place / "root" / "pets", vtab=False)


def test_fine_tuning_is_that_of_the_paper_without_what_would_change_the_label() -> None:
    tuning = Tuning(recipe=VTAB_RECIPE)
    runs = {
        name: tuning.run(Path("model"), "data", QUIET, seed=1, of_data=choose_settings(task))
        for name, task in TASKS.items()
    }
    for each in runs.values():
        assert (each.schedule.steps, each.optim.lr, each.data.batch, each.model.size) == (2_500, 0.01, 512, (384, 384))
        assert each.augment.crop == "squash"
    figures = {name: (each.augment.flip, each.augment.crop_area[0]) for name, each in runs.items()}
    scaled = pytest.approx((384 / 448) ** 2)
    assert figures["pets"] == (0.5, scaled)
    assert figures["dsprites-ori"] == (0, scaled)
    assert figures["clevr-count"] == (0.5, 1.0)
    assert figures["dsprites-loc"] == (0, 1.0)
    own = Tuning(recipe=VTAB_RECIPE, settings=("augment.flip=0.25",))
    assert (
        own.run(Path("model"), "data", QUIET, seed=0, of_data=choose_settings(TASKS["dsprites-loc"])).augment.flip
        == 0.25
    )


@pytest.mark.slow
def test_the_command_gives_the_means_and_deviations_of_its_trainings(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["transfer", str(place / "model"), str(place / "root"), "--vtab", "--out", str(tmp_path), "--seeds", "2"]
    short = [
        "--protocols",
        "finetune",
        "--steps",
        "6",
        "--crop",
        "16",
        "--set",
        "data.batch=4",
        "--set",
        "optim.lr=0.1",
    ]
    assert run([*command, *short, "--quiet", "--json"]) == 0
    said = capsys.readouterr()
    assert f"report: {tmp_path / 'report.html'}" in said.err.splitlines()

    runs = {}
    for task in ("pets", "svhn", "clevr-count"):
        folders = sorted((tmp_path / "finetune").glob(f"{task}-*-seed?"))
        runs[task] = [json.loads((each / "status.json").read_text())["figures"]["top1"] for each in folders]
        assert len(runs[task]) == 2
        settings = (folders[0] / "config.yaml").read_text()
        assert "recipe: paper-finetune/vtab" in settings
        assert "resize: squash" in settings
    natural = [fmean(pair) for pair in zip(runs["pets"], runs["svhn"])]
    every = [fmean(three) for three in zip(*runs.values())]
    means = json.loads((tmp_path / "transfer.json").read_text())["means"]
    by_hand = {"natural": natural, "structured": runs["clevr-count"], "mean": every}
    for name, figures in by_hand.items():
        found = means[name]["finetune"]
        assert (found["accuracy"], found["accuracy_std"]) == pytest.approx((fmean(figures), stdev(figures)))
    assert json.loads(said.out)["mean_finetune"] == pytest.approx(fmean(every), abs=1e-6)
    assert "2 of the 19 tasks" not in (tmp_path / "report.html").read_text()
    assert "3 of the 19 tasks" in (tmp_path / "report.html").read_text()
