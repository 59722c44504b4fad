"""Cross-validation: folds, their trainings, and what a model knows of the fold that it was not trained on."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.training.stopping import stopped_after
from tests.training.test_goals import assert_same_run
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Splits, divide_folds
from vitrail.errors import ConfigError, DataError
from vitrail.files import read_checksummed
from vitrail.tables import import_pyarrow

SET = ("model.changes.depth=1", "save.evaluations=1", "compute.tune=false", "compute.threads=1")


def draw_data(images: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images of three classes of very different sizes."""
    generator = np.random.default_rng(seed)
    labels = np.minimum(np.arange(images) * 10 // images, 2)
    pictures = generator.integers(0, 60, (images, 16, 16, 3), dtype=np.uint8)
    return pictures + (80 * labels[:, None, None, None]).astype(np.uint8), labels


def write_folders(root: Path, splits: dict[str, int]) -> None:
    """Images of two classes, so many of each in a split, no two of them equal."""
    for split, count in splits.items():
        for place, name in enumerate("ab"):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                colour = (100 * place + number, 40 * len(split), 5)
                Image.new("RGB", (16, 16), colour).save(root / split / name / f"{number}.png")


def train(data: Any, out: Any, *settings: str, **how: Any) -> vitrail.Result:
    return vitrail.train(data, out=out, batch=8, steps=4, quiet=True, set=[*SET, *settings], **how)


def test_folds_divide_all_images_and_each_class_evenly():
    splits = open_data({"train": draw_data(41), "val": draw_data(12, seed=1), "test": draw_data(9, seed=2)})
    folds = [divide_folds(splits, (place, 5)) for place in range(5)]
    held = [fold.val for fold in folds]
    assert sorted(key for part in held for key in part.keys) == sorted([*splits.train.keys, *splits.val.keys])
    counts = np.stack([part.counts() for part in held])  # (5, K)
    assert (np.ptp(counts, axis=0) <= 1).all() and np.ptp(counts.sum(1)) <= 1
    for fold in folds:
        assert not {*fold.train.keys} & {*fold.val.keys} and len(fold.train) + len(fold.val) == 53
        assert fold.test is splits.test and fold.held_out
    whole = divide_folds(splits, None)
    assert len(whole.train) == 53 and whole.val is None


def test_equal_images_stay_in_one_fold():
    pictures, labels = draw_data(30)
    splits = open_data((np.concatenate([pictures, pictures]), np.concatenate([labels, labels])), validation=0)
    for place in range(3):
        held = {int(key.partition("#")[2]) for key in divide_folds(splits, (place, 3)).val.keys}
        assert {(key + 30) % 60 for key in held} == held


def test_a_run_states_what_models_reach_on_images_that_they_have_not_seen(tmp_path, capsys):
    data = {"train": draw_data(40), "test": draw_data(10, seed=2)}
    run = train(data, tmp_path / "run", folds=4)
    found = read_checksummed(run.folder / "folds.json")
    assert found is not None and [fold["images"] for fold in found["folds"]] == [10] * 4
    assert found["all"]["images"] == 40 and found["all"]["top1"] == pytest.approx(
        np.mean([fold["top1"] for fold in found["folds"]])
    )
    with open(run.folder / "out_of_fold.csv", newline="") as file:
        answers = list(csv.DictReader(file))
    assert len({row["path"] for row in answers}) == 40
    assert np.mean([row["true"] == row["label"] for row in answers]) == pytest.approx(found["all"]["top1"])
    said = f"Of 4 folds: top1 {found['all']['top1']:.4f}"
    assert all(said in (run.folder / name).read_text() for name in ("report.html", "card.md"))
    assert run.split == "test" and run.figures["images"] == 10
    assert run.load().provenance["split"]["fold"] == "all"
    of_fold = vitrail.evaluate(run.folder / "folds/2", data, split="val", log=print)
    assert of_fold.figures["top1"] == found["folds"][2]["top1"] and of_fold.keys == tuple(
        row["path"] for row in answers[20:30]
    )
    assert "warning" not in capsys.readouterr().out


def test_a_stopped_cross_validation_goes_on(tmp_path):
    data = draw_data(24)
    whole = train(data, tmp_path / "whole", folds=2)
    with stopped_after(3):
        train(data, tmp_path / "parts", folds=2)
    resumed = train(data, tmp_path / "parts", folds=2)
    assert (resumed.folder / "out_of_fold.csv").read_bytes() == (whole.folder / "out_of_fold.csv").read_bytes()
    assert_same_run(whole, resumed)


def test_one_fold_alone_is_that_of_the_cross_validation(tmp_path):
    data = draw_data(24)
    whole = train(data, tmp_path / "whole", folds=2)
    alone = train(data, tmp_path / "alone", "data.fold=1/2")
    found = read_checksummed(whole.folder / "folds.json")
    assert found is not None and alone.figures["top1"] == found["folds"][1]["top1"]
    probed = vitrail.probe(alone.folder, data, "knn", k=3, cache=False, quiet=True)
    assert probed.to_dict()["split"] == "val"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"folds": 1}, "folds is 1"),
        ({"folds": 3, "tune_lr": True}, "tune_lr"),
        ({"folds": 3, "patience": 2}, "save.patience"),
        ({"folds": 3, "set": ["data.fold=0/3"]}, "data.fold=0/3"),
        ({"set": ["data.fold=3/3"]}, "data.fold is '3/3'"),
        ({"set": ["data.fold=0/1"]}, "data.fold is '0/1'"),
    ],
)
def test_what_has_no_meaning_is_refused(how, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        vitrail.train(draw_data(24), out=tmp_path / "run", steps=1, quiet=True, **how)
    assert not (tmp_path / "run").exists()


def test_more_folds_than_images_are_refused():
    splits: Splits = open_data(draw_data(12), validation=0)
    with pytest.raises(DataError, match="fold 12 of 20 of 12 images"):
        divide_folds(splits, (12, 20))


def test_images_that_cannot_be_read_do_not_end_the_cross_validation(tmp_path):
    write_folders(tmp_path / "data", {"train": 12})
    (tmp_path / "data/train/a/0.png").write_bytes(b"\x89PNG no picture")
    run = train(tmp_path / "data", tmp_path / "run", "data.max_bad=0.2", folds=2)
    found = read_checksummed(run.folder / "folds.json")
    assert found is not None and found["all"]["images"] == 23
    (tmp_path / "others/a").mkdir(parents=True)
    Image.new("RGB", (16, 16)).save(tmp_path / "others/a/0.png")
    lines: list[str] = []
    one = vitrail.evaluate(run.folder / "folds/0", tmp_path / "others", quiet=True, log=lines.append)  # is not divided
    assert one.figures["images"] == 1 and not any("warning" in line for line in lines)


def test_a_model_of_all_folds_says_that_it_has_seen_the_images(tmp_path, monkeypatch):
    write_folders(tmp_path / "data", {"train": 8, "val": 8})
    run = train(tmp_path / "data", tmp_path / "run", folds=2)
    monkeypatch.chdir(tmp_path)
    shutil.copytree("data", "elsewhere/copy")
    for path in ("data", tmp_path / "data", "elsewhere/copy"):
        lines: list[str] = []
        vitrail.evaluate(run.folder, path, quiet=True, log=lines.append)
        assert any("was trained on images of val" in line for line in lines), path
    with pytest.raises(ConfigError, match="took no part in the training, and val did"):
        vitrail.evaluate(run.folder, "elsewhere/copy", fit_unknown="20%", quiet=True)


def test_data_of_the_training_are_known_by_their_images_in_any_folder_and_not_by_their_path(tmp_path, monkeypatch):
    for place, colour in (("mine", 0), ("theirs", 9)):
        for name in "ab":
            (tmp_path / place / "data" / name).mkdir(parents=True)
            for number in range(10):
                image = Image.new("RGB", (16, 16), (ord(name), number, colour))
                image.save(tmp_path / place / "data" / name / f"{number}.png")
    monkeypatch.chdir(tmp_path / "mine")
    runs = [train("data", "run", "data.validation=0.3").folder.absolute()]
    runs.append(train("data", "fold", "data.fold=0/2").folder.absolute())
    shutil.copytree("data", tmp_path / "theirs/copy")
    vitrail.shard_data("data", tmp_path / "theirs/shards", quiet=True)
    held = [evaluated(run, "data")[0] for run in runs]
    assert [len(keys) for keys in held] == [6, 10]
    monkeypatch.chdir(tmp_path / "theirs")  # where "data" are others, with the same names
    for run, expected in zip(runs, held):
        assert evaluated(run, "copy")[0] == evaluated(run, "shards")[0] == expected
        (keys, lines), theirs = evaluated(run, "data"), evaluated(run, "data", split="train")
        assert len(keys) == len(theirs[0]) == 20 and not any("warning" in line for line in lines)
        assert any("other contents" in line for line in lines)
        assert any("trained on images of train" in line for line in evaluated(run, "copy", split="train")[1])


def test_a_record_of_training_images_in_another_form_is_not_used(tmp_path):
    data = draw_data(12)
    model = train(data, tmp_path / "run", "data.validation=0.3").load()
    held = evaluated(model, data)[0]
    for record in ({"no hash": "1"}, {"f" * 40: "1"}, {"0": [1]}, [1], 3):
        model.provenance["split"]["trained_on"] = record
        assert evaluated(model, data)[0] >= held
    model.provenance["split"] = "x"
    assert evaluated(model, data)[0] >= held


def evaluated(run: Any, data: Any, **how: Any) -> tuple[set[str], list[str]]:
    """The images that a model is evaluated on, and the log."""
    lines: list[str] = []
    return set(vitrail.evaluate(run, data, quiet=True, log=lines.append, **how).keys), lines


class Items:
    """A Dataset as torch's are."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        return self.items[row]


def test_folders_apart_and_another_run_are_refused_before_anything_is_trained(tmp_path):
    for name in ("one", "other"):
        write_folders(tmp_path / name, {"train": 4})
    apart = {"train": str(tmp_path / "one/train"), "val": str(tmp_path / "other/train")}
    write_folders(tmp_path / "both", {"train": 4, "val": 4})
    vitrail.shard_data(tmp_path / "both", tmp_path / "shards", quiet=True)
    tables = import_pyarrow()
    (tmp_path / "parquet").mkdir()
    for split in ("train", "val"):
        rows = [path for path in (tmp_path / "both" / split).rglob("*.png")]
        columns = {"image": [path.read_bytes() for path in rows], "label": [path.parent.name for path in rows]}
        tables.parquet.write_table(tables.table(columns), tmp_path / f"parquet/{split}.parquet")
    datasets = {split: [(image, int(label)) for image, label in zip(*draw_data(8))] for split in ("train", "val")}
    remedies = {"a folder with train/ and val/": apart, "one Parquet file": tmp_path / "parquet"}
    remedies |= {
        "all shards into one folder": tmp_path / "shards",
        "ConcatDataset": {n: Items(d) for n, d in datasets.items()},
    }
    for remedy, data in remedies.items():
        with pytest.raises(DataError, match="in different folders, files or Datasets") as refused:
            train(data, tmp_path / "run", folds=2)
        assert remedy in str(refused.value.remedy)
    train(tmp_path / "one", tmp_path / "plain")
    with pytest.raises(ConfigError, match="other settings"):
        train(tmp_path / "one", tmp_path / "plain", folds=2)
    assert not (tmp_path / "plain/folds").exists()
    with pytest.raises(ConfigError, match="callbacks are given with folds"):
        train(tmp_path / "one", tmp_path / "run", folds=2, callbacks=[vitrail.Callback()])


def test_numbers_of_two_splits_are_divided_together(tmp_path):
    write_folders(tmp_path / "data", {"train": 4, "val": 4})
    files = sorted(path.relative_to(tmp_path) for path in (tmp_path / "data").rglob("*.png"))
    rows = [f"{path.as_posix()},{row},{path.parts[1]}" for row, path in enumerate(files)]
    (tmp_path / "table.csv").write_text("\n".join(["path,label,split", *rows]))
    run = train(tmp_path / "table.csv", tmp_path / "run", folds=2, task="regress")
    found = read_checksummed(run.folder / "folds.json")
    assert found is not None and found["all"]["images"] == 16
    with open(run.folder / "out_of_fold.csv", newline="") as file:
        assert sorted(float(row["true_label"]) for row in csv.DictReader(file)) == list(range(16))
