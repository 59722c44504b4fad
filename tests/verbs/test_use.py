"""From data to answers: every kind of data trains, is evaluated the same however it is read, and answers in every table."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import vitrail
from vitrail.cli import run
from vitrail.config.compose import compose_run
from vitrail.config.parse import flatten, plain
from vitrail.data.sources.open import open_data
from vitrail.errors import CheckpointError, ConfigError, DataError, DiskError
from vitrail.inference.results import list_rows
from vitrail.tables import open_table, write_features
from vitrail.training.train import Result

TINY = ("model.name=vit-ti16", "model.changes={width: 16, depth: 2, heads: 2, mlp_width: 32, patch_size: [4, 4]}")
QUIET = {"quiet": True, "tune": False}


def silent(line: str) -> None: ...


def train(data: object, out: Path, *settings: str, steps: int = 3, **more: object) -> Result:
    return vitrail.train(data, out=out, steps=steps, settings=(*TINY, *settings), quiet=True, batch=8, **more)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of 24 small pictures of many sizes, one of them broken."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    draw = np.random.default_rng(0)
    for tint, name in enumerate(("ant", "bee")):
        (folder / name).mkdir(parents=True)
        for count in range(24):
            height, width = draw.integers(70, 100, 2)
            pixels = draw.integers(0, 128, (height, width, 3), dtype=np.uint8)
            pixels[..., tint] += 120
            Image.fromarray(pixels).save(folder / name / f"{count:02}.png")
    (folder / "ant" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    return folder


@pytest.fixture(scope="module")
def trained(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    out = tmp_path_factory.mktemp("run") / "photos"
    return train(photos, out, "data.max_bad=0.1", steps=6, size=(32, 24))


def test_a_run_leaves_all_that_was_promised(trained: Result) -> None:
    for name in ("config.yaml", "metrics.jsonl", "log.txt", "status.json", "bad_images.csv", "card.md", "report.html"):
        assert (trained.folder / name).stat().st_size > 0, name
    assert "broken.jpg" in (trained.folder / "bad_images.csv").read_text()
    assert json.loads((trained.folder / "status.json").read_text())["state"] == "finished"
    config = json.loads((trained.folder / "model" / "config.json").read_text())
    assert config["classes"] == ["ant", "bee"]
    assert config["preprocessing"]["size"] == [32, 24]
    assert config["provenance"]["split"]["held_out"]


def test_figures_do_not_depend_on_batch_or_workers(trained: Result, photos: Path) -> None:
    how = {**QUIET, "max_bad": 1, "log": silent}
    figures = [
        vitrail.evaluate(trained.folder, photos, batch=batch, workers=workers, **how).figures
        for batch, workers in ((1, 0), (5, 1), (64, 0))
    ]
    rounded = [{name: round(value, 6) for name, value in each.items()} for each in figures]
    assert rounded[0] == rounded[1] == rounded[2]
    assert rounded[0] == {name: round(value, 6) for name, value in trained.figures.items()}


def test_the_held_out_part_is_the_one_of_the_training(trained: Result, photos: Path) -> None:
    lines: list[str] = []
    found = vitrail.evaluate(trained.folder, photos, max_bad=1, log=lines.append, **QUIET)
    held = json.loads((trained.folder / "split.json").read_text())["held_out"]
    assert set(found.keys) == {key for key in held if "broken" not in key}
    assert not any("warning" in line for line in lines)


def test_only_the_weights_of_a_stated_sha256_are_evaluated(trained: Result, photos: Path) -> None:
    files = sorted((trained.folder / "model").iterdir())
    listing = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    sha256 = hashlib.sha256(listing.encode()).hexdigest()  # (cd model; sha256sum * | sha256sum)
    evaluated = vitrail.evaluate(trained.folder, photos, sha256=sha256.upper(), max_bad="10%", log=silent, quiet=True)
    assert evaluated.figures["images"] > 0
    with pytest.raises(CheckpointError, match=f"another SHA-256[\\s\\S]*found {sha256}"):
        vitrail.evaluate(trained.folder, photos, sha256="0" * 64, log=silent, quiet=True)
    with pytest.raises(ConfigError, match="a model in memory"):
        vitrail.evaluate(trained.load(), photos, sha256=sha256, log=silent, quiet=True)


def test_bad_images_are_excluded_reported_and_listed(trained: Result, photos: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    for name in ("ant", "bee"):
        (tmp_path / "data" / "test" / name).mkdir(parents=True)
        (tmp_path / "data" / "test" / name / "good.png").write_bytes((photos / name / "07.png").read_bytes())
    (tmp_path / "data" / "test" / "bee" / "bad.png").touch()
    listed = tmp_path / "bad.csv"
    found = vitrail.evaluate(trained.folder, tmp_path / "data", bad_list=listed, max_bad=1, log=lines.append, **QUIET)
    assert found.figures["images"] == 2
    assert lines[-1] == f"warning  the figures leave out 1 image that could not be read; see {listed}"
    assert "bee/bad.png,the file is empty" in listed.read_text()


def test_other_data_than_those_of_the_training_are_evaluated_whole(trained: Result, tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        (tmp_path / "more" / name).mkdir(parents=True)
        for count in range(10):
            Image.new("RGB", (40, 40), (count, 99, 7)).save(tmp_path / "more" / name / f"{count}.png")
    lines: list[str] = []
    found = vitrail.evaluate(trained.folder, tmp_path / "more", log=lines.append, **QUIET)
    assert found.figures["images"] == 20 and not any("warning" in line for line in lines)


def test_data_that_changed_since_the_training_are_named_as_such(trained: Result, photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos/ant/more.png").write_bytes((photos / "bee/07.png").read_bytes())
    lines: list[str] = []
    model = vitrail.load(trained.folder, log=silent)
    model.provenance["data"] = str(tmp_path / "photos")
    found = vitrail.evaluate(model, tmp_path / "photos", max_bad="10%", log=lines.append, **QUIET)
    assert found.figures["images"] < 10 and any("the data changed since the training" in line for line in lines)


def test_stated_preprocessing_holds_in_training_and_in_use(photos: Path, tmp_path: Path) -> None:
    stated = "model.preprocessing={mean: [0.2, 0.4, 0.6], std: [0.3]}"
    run = train(photos, tmp_path / "run", "data.max_bad=0.1", stated, size=32)
    kept = vitrail.load(run.folder, log=silent).preprocessing
    assert (kept.mean, kept.std) == ((0.2, 0.4, 0.6), (0.3, 0.3, 0.3))
    before, after = (
        next(vitrail.predict(run.folder, photos, log=silent, **stated, **QUIET)).score
        for stated in ({}, {"crop": (32, 32), "mean": [0.5], "std": [0.5]})
    )
    model = vitrail.load(run.folder, preprocessing={"mean": [0.5], "std": [0.5]}, log=silent)
    assert after == pytest.approx(model.predict(Image.open(photos / "ant" / "00.png"))[0].score, abs=1e-5)
    assert before != pytest.approx(after, abs=1e-5)


def test_a_temperature_is_fitted_stored_and_lowers_the_nll(trained: Result, photos: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(trained.folder, tmp_path / "run")  # which is given a temperature
    how = {**QUIET, "max_bad": 1, "log": silent}
    before = vitrail.evaluate(folder, photos, **how)
    after = vitrail.evaluate(folder, photos, calibrate=True, **how)
    assert after.figures["nll"] <= before.figures["nll"] + 1e-9
    assert vitrail.load(folder, log=silent).temperature == pytest.approx(after.metric.temperature)


def test_a_temperature_that_makes_the_calibration_error_larger_is_not_kept(
    trained: Result, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(trained.folder, tmp_path / "run")
    fitted: list[float] = []
    monkeypatch.setattr("vitrail.evaluation.calibration.fit_temperature", lambda *given, **how: fitted[-1])
    errors, kept, warned = [], [], []
    for temperature in (10.0, 0.1):  # answers of even scores first, which are right for a model that guesses
        fitted.append(temperature)
        lines: list[str] = []
        evaluated = vitrail.evaluate(folder, photos, calibrate=True, log=lines.append, max_bad=1, **QUIET)
        errors.append(evaluated.figures["ece"])
        kept.append(vitrail.load(folder, log=silent).temperature)
        warned.append(any("the calibration error rose" in line for line in lines))
    assert (warned, kept) == ([False, True], [10.0, 10.0])
    assert errors[1] == errors[0]


def test_predictions_are_those_of_the_model_in_every_table(trained: Result, photos: Path, tmp_path: Path) -> None:
    how = {**QUIET, "top": 2, "batch": 7, "log": silent}
    answers = list(vitrail.predict(trained.folder, photos, **how))
    assert len(answers) == 48
    model = vitrail.load(trained.folder, log=silent)
    picture = Image.open(photos / "bee" / "07.png")
    ours = next(each for each in answers if each.key.endswith("bee/07.png"))
    theirs = model.predict(picture, top=2)[0]
    assert ours.label == theirs.label
    assert ours.score == pytest.approx(theirs.score, abs=1e-5)
    for kind in ("csv", "jsonl", "parquet"):
        with open_table(tmp_path / f"table.{kind}") as write:
            results = vitrail.predict(trained.folder, photos, **how)
            for row in list_rows(results.pairs(), results.failed):
                write(row)
    with open(tmp_path / "table.csv") as file:
        listed = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "table.jsonl").read_text().splitlines()]
    import pyarrow.parquet

    stored = pyarrow.parquet.read_table(tmp_path / "table.parquet").to_pylist()
    assert (
        [row["label"] or None for row in listed] == [row["label"] for row in lines] == [row["label"] for row in stored]
    )
    assert list(lines[0]) == ["path", "label", "score", "label_2", "score_2", "error"]
    # of the 49 images one is broken, and its row is where it stands
    paths = [row["path"] for row in lines]
    assert paths == sorted(paths) and len(paths) == 49
    for rows in (listed, lines, stored):
        (broken,) = (row for row in rows if row["error"])
        assert broken["path"].endswith("broken.jpg") and not broken["label"] and not broken["score"]


def test_paths_on_standard_input(trained: Result, photos: Path, monkeypatch, capsys) -> None:
    paths = [str(photos / "bee" / name) for name in ("07.png", "03.png")]
    for inputs in (["-"], []):
        monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(paths)))
        assert run(["predict", str(trained.folder), *inputs, "--top", "1", "--quiet"]) == 0
        assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == ["path", *paths]


def test_a_table_that_fails_halfway_leaves_nothing_under_its_name(tmp_path: Path) -> None:
    def interrupted() -> None:
        with open_table(tmp_path / "half.csv") as write:
            write({"a": 1})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_features_and_their_paths_are_replaced_together_or_not_at_all(tmp_path: Path, monkeypatch) -> None:
    def fill(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_features(tmp_path / "f.npy", iter([("a", np.zeros(2))]))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == {"f.npy", "f.npy.txt"}
    for place in ("numpy.save", "vitrail.files.write_bytes", "os.rename"):
        monkeypatch.setattr(place, fill)
        with pytest.raises(DiskError, match="the disk is full"):
            write_features(tmp_path / "f.npy", iter([("b", np.ones(2)), ("c", np.ones(2))]))
        monkeypatch.undo()
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_features_are_what_the_head_reads(trained: Result, photos: Path, tmp_path: Path) -> None:
    write_features(tmp_path / "f.npy", vitrail.embed(trained.folder, photos / "bee", log=silent, **QUIET))
    features = np.load(tmp_path / "f.npy")
    assert features.shape == (24, 16)
    model = vitrail.load(trained.folder, log=silent)
    first = (tmp_path / "f.npy.txt").read_text().splitlines()[0]
    with torch.inference_mode():
        images = model.preprocess(Image.open(photos / "bee" / Path(first).name))
        expected = model.pool(model.forward_features(images))[0].numpy()
    np.testing.assert_allclose(features[0], expected, atol=1e-5)


@pytest.mark.parametrize(("channels", "kind"), [(1, np.uint8), (5, np.float32)])
def test_arrays_of_any_channel_count_train_and_are_evaluated(tmp_path: Path, channels: int, kind: type) -> None:
    draw = np.random.default_rng(1)
    images = (
        draw.random((40, 12, 16, channels)) if kind is np.float32 else draw.integers(0, 256, (40, 12, 16, channels))
    )
    labels = np.arange(40) % 3
    result = train((images.astype(kind), labels), tmp_path / "run")
    assert result.load().config.in_channels == channels
    assert vitrail.evaluate(result.load(), (images.astype(kind), labels), log=silent, **QUIET).figures["images"] == 6


def test_several_labels_an_image(photos: Path, tmp_path: Path) -> None:
    names = sorted(str(path) for path in photos.rglob("*.png"))
    lines = [f"{name},{'insect;' if place % 3 else ''}{Path(name).parent.name}" for place, name in enumerate(names)]
    (tmp_path / "labels.csv").write_text("path,label\n" + "\n".join(lines) + "\n")
    result = train(tmp_path / "labels.csv", tmp_path / "run", size=32)
    assert result.load().multi_label
    assert {"map", "f1_micro", "f1_macro"} <= result.figures.keys()


class Pictures:
    """A torch-style dataset of a user."""

    classes = ("dark", "light")

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.new("RGB", (20, 20), (200 if index % 2 else 20,) * 3), index % 2


def test_a_users_dataset_and_transform(tmp_path: Path) -> None:
    def transform(image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(image.resize((8, 8)))).permute(2, 0, 1)

    result = train(Pictures(), tmp_path / "run", size=8, transform=transform, workers=0)
    assert result.load().classes == ("dark", "light")


def test_small_grey_files_train_a_model_of_one_channel(tmp_path: Path) -> None:
    for shade, name in ((20, "dark"), (200, "light")):
        (tmp_path / "grey" / name).mkdir(parents=True)
        for count in range(10):
            Image.new("L", (8, 8), shade + count).save(tmp_path / "grey" / name / f"{count}.png")
    run = train(tmp_path / "grey", tmp_path / "run", "data.channels=1")
    assert run.load().config.in_channels == 1
    assert vitrail.evaluate(run.folder, tmp_path / "grey", log=silent, **QUIET).figures["images"] > 0


def test_the_network_that_was_chosen_stands_in_the_settings(tmp_path: Path) -> None:
    digits = open_data("digits")
    few = replace(digits, train=digits.train.subset(np.arange(60)))
    run = vitrail.train(few, out=tmp_path / "run", steps=1, batch=8, quiet=True)
    kept = yaml.safe_load((run.folder / "config.yaml").read_text())["model"]
    assert (kept["name"], kept["changes"]["width"], kept["changes"]["patch_size"]) == ("vit-ti16", 64, [2, 2])


def test_the_settings_of_a_run_are_all_in_its_config_with_those_that_were_chosen(trained: Result) -> None:
    kept = flatten(yaml.safe_load((trained.folder / "config.yaml").read_text()))
    known = flatten(plain(compose_run(flags={"data": {"source": "photos"}})[0]))
    free = ("model.changes", "model.preprocessing", "objective.changes", "optim.rates")
    assert {name for name in kept if not name.startswith(free)} == {name for name in known if not name.startswith(free)}
    chosen = (
        "model.size",
        "data.workers",
        "data.micro_batch",
        "compute.device",
        "compute.precision",
        "compute.threads",
    )
    assert [name for name in chosen if kept[name] is None] == []


def test_weights_are_fine_tuned_at_another_resolution_from_a_zero_head(
    trained: Result, tmp_path: Path, photos: Path
) -> None:
    result = vitrail.train(photos, init=trained.folder, size=48, steps=2, batch=8, out=tmp_path / "run", quiet=True,
                           settings=["data.max_bad=0.1"])  # fmt: skip
    model = result.load()
    assert model.config.image_size == (48, 48)
    assert model.config.width == 16
    assert "finetune" in (result.folder / "config.yaml").read_text()


@pytest.mark.parametrize(("channels", "kind"), [(1, np.uint8), pytest.param(5, np.float32, marks=pytest.mark.slow)])
def test_weights_for_colour_are_fine_tuned_on_images_of_any_channel_count(
    trained: Result, tmp_path: Path, channels: int, kind: type
) -> None:
    images = np.random.default_rng(1).random((40, 32, 32, channels)) * (1 if kind is np.float32 else 255)
    data = (images.astype(kind), np.arange(40) % 2)
    result = vitrail.train(data, init=trained.folder, steps=2, batch=8, out=tmp_path / "run", quiet=True)
    model, start = result.load(), vitrail.load(trained.folder, log=silent)
    assert model.config.in_channels == model.preprocessing.channels == channels
    before, after = (each.backbone.get_parameter("patch_embed.proj.weight").sum(1) for each in (start, model))
    assert (after - before).abs().max() < 0.05, "two steps from the start's sum over its channels"
    assert (
        f"channels {channels}; the first layer of the weights, which has 3, is adapted"
        in (result.folder / "log.txt").read_text()
    )
    assert vitrail.evaluate(model, data, log=silent, **QUIET).figures["images"] > 0


def test_only_the_head_moves_when_the_rest_is_frozen(trained: Result, tmp_path: Path, photos: Path) -> None:
    result = vitrail.train(photos, init=trained.folder, head_only=True, steps=3, batch=8, out=tmp_path / "run", quiet=True,
                           settings=["data.max_bad=0.1"])  # fmt: skip
    before, after = (
        vitrail.load(folder, log=silent).backbone.state_dict() for folder in (trained.folder, result.folder)
    )
    moved = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert moved
    assert all(name.startswith("head") for name in moved)


def test_a_refused_request_leaves_no_new_folder_and_an_old_one_as_it_was(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "notes.txt").write_text("mine")
    for name in ("new", "old"):
        with pytest.raises(DataError, match="does not exist"):
            train(tmp_path / "nosuch", tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]
    assert (tmp_path / "old" / "notes.txt").read_text() == "mine"
    with pytest.raises(DataError, match="images are bad"):
        train(photos, tmp_path / "bad", "data.max_bad=0")
    assert "broken.jpg" in (tmp_path / "bad" / "bad_images.csv").read_text()  # the message names this file


def test_too_many_bad_images_stop_the_run_by_name(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"broken\.jpg"):
        train(photos, tmp_path / "run", "data.on_bad=stop", size=32, steps=12)


def test_fp16_without_a_gpu_raises(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bf16"):
        train("digits", tmp_path / "run", precision="fp16")
