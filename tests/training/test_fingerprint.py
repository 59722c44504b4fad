"""A run is bound to its data, its teacher and its versions: each change is refused by name, or named where it does no harm."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.each_row import each_row
from vitrail import stamps, train
from vitrail.errors import DataError
from vitrail.files import read_checksummed
from vitrail.runs.checkpoint import list_checkpoints, step_of
from vitrail.training import fingerprint
from vitrail.verbs.data import shard_data

TINY = (
    "model.name=vit-ti16",
    "model.changes={width: 16, depth: 1, heads: 2, mlp_width: 32, patch_size: [8, 8]}",
    "model.size=[16, 16]",
    "data.batch=8",
    "data.validation=0.001",
    "save.log_every=1",
)
Change = Callable[[Path], Any]


def train_in(folder: Path, data: object, steps: int, **more: Any) -> None:
    settings = (*TINY[2 * ("init" in more) :], *more.pop("settings", ()))  # weights decide the network
    train(data, steps=steps, settings=settings, out=folder, quiet=True, **more)


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write_classes(root: Path) -> Path:
    """Class folders of bitmaps, whose length does not depend on their pixels."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 2), ("test", 2)):
        for name in ("cat", "dog"):
            for number in range(count):
                save(root / split / name / f"{number}.bmp", draw.integers(0, 256, (16, 16, 3), dtype=np.uint8))
    return root


def write_manifest(root: Path) -> Path:
    draw = np.random.default_rng(0)
    rows = [("path", "label"), *((f"{number}.png", "ab"[number % 2]) for number in range(20))]
    for name, _ in rows[1:]:
        save(root / name, draw.integers(0, 256, (16, 16, 3), dtype=np.uint8))
    write_rows(root / "labels.csv", rows)
    return root / "labels.csv"


def write_rows(path: Path, rows: list[tuple[str, ...]]) -> None:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(rows)


def read_rows(path: Path) -> list[tuple[str, ...]]:
    with open(path, newline="") as file:
        return [tuple(row) for row in csv.reader(file)]


def write_boxes(root: Path) -> Path:
    """A COCO file of 16 pictures with one box each."""
    draw = np.random.default_rng(0)
    images, annotations = [], []
    for number in range(16):
        save(root / f"{number}.png", draw.integers(0, 256, (16, 16, 3), dtype=np.uint8))
        images.append({"id": number, "file_name": f"{number}.png", "width": 16, "height": 16})
        box = {"bbox": [2, 3, 8, 9], "area": 72, "iscrowd": 0}
        annotations.append({"id": number, "image_id": number, "category_id": 1 + number % 2, **box})
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    text = json.dumps({"images": images, "annotations": annotations, "categories": categories})
    (root / "boxes.json").write_text(text)
    return root / "boxes.json"


def write_masks(root: Path) -> Path:
    """16 pictures, and masks of two classes as bitmaps."""
    draw = np.random.default_rng(0)
    for number in range(16):
        save(root / "images" / f"{number}.png", draw.integers(0, 256, (16, 16, 3), dtype=np.uint8))
        save(root / "masks" / f"{number}.bmp", draw.integers(0, 2, (16, 16), dtype=np.uint8))
    return root


def invert(path: Path) -> None:
    """Other pixels in a file, of a bitmap of the same length, written a second later."""
    status = path.stat()
    with Image.open(path) as image:
        pixels = 255 - np.asarray(image)
    save(path, pixels)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))


def invert_all(root: Path) -> None:
    for path in root.rglob("train/*/*.bmp"):
        invert(path)


def append_byte(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"\0")


def rename_class(root: Path) -> None:
    for split in ("train", "val", "test"):
        (root / split / "dog").rename(root / split / "wolf")


def touch(path: Path) -> None:
    os.utime(path, ns=(0, 0))


def touch_all(root: Path) -> None:
    for path in root.rglob("*.bmp"):
        touch(path)


def swap(one: Path, other: Path) -> None:
    """Two files in each other's place, each with its own time of change."""
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def edit(path: Path, before: str, after: str, count: int = -1) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, count))


def exchange_labels(path: Path) -> None:
    edit(path, "0.png,a", "0.png,b", 1)
    edit(path, "1.png,b", "1.png,a", 1)


def reverse_rows(path: Path) -> None:
    head, *rows = read_rows(path)
    write_rows(path, [head, *reversed(rows)])


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> dict[str, tuple[Path, Path]]:
    """For each kind of data a run of one step, and the data."""
    made = {}
    for kind, write in {
        "classes": write_classes,
        "manifest": write_manifest,
        "boxes": write_boxes,
        "masks": write_masks,
    }.items():
        place = tmp_path_factory.mktemp(kind)
        data = write(place / "data")
        train_in(place / "run", data, 1)
        made[kind] = place, data.relative_to(place)
    return made


def copy(begun: tuple[Path, Path], to: Path) -> tuple[Path, Path]:
    """The run and its data, with the times of files."""
    place, data = begun
    shutil.copytree(place, to, dirs_exist_ok=True)
    return to / "run", to / data


REFUSED: list[tuple[str, Change, str]] = [
    ("classes", lambda root: (root / "train/cat/0.bmp").rename(root / "train/dog/x.bmp"), "1 removed; 1 added, e.g."),
    ("classes", lambda root: swap(root / "train/cat/0.bmp", root / "train/dog/0.bmp"), "2 changed, e.g."),
    ("classes", invert_all, "train images: 16 changed, e.g. 'train/cat/0.bmp'"),
    ("classes", lambda root: (root / "train/cat/0.bmp").unlink(), "1 removed"),
    (
        "classes",
        lambda root: shutil.copy(root / "train/cat/0.bmp", root / "train/cat/new.bmp"),
        "e.g. 'train/cat/new.bmp'",
    ),
    (
        "classes",
        lambda root: shutil.copytree(root / "train/cat", root / "train/bird"),
        r"classes: 2 \(cat, dog\) then, 3",
    ),
    (
        "classes",
        rename_class,
        r"2 \(cat, dog\) then, 2 \(cat, wolf\) now",
    ),
    ("classes", lambda root: invert(root / "train/dog/3.bmp"), r"images: 1 changed, e.g. 'train/dog/3.bmp'"),
    ("classes", lambda root: append_byte(root / "train/dog/3.bmp"), r"images: 1 changed, e.g. 'train/dog/3.bmp'"),
    (
        "classes",
        lambda root: (root / "val/cat/0.bmp").rename(root / "train/cat/v.bmp"),
        "1 added(?s:.*)val images: 1 removed",
    ),
    ("manifest", exchange_labels, "train targets: 2 changed, e.g. '0.png'"),
    ("manifest", reverse_rows, "train images: in another order"),
    ("manifest", lambda path: edit(path, ",a", ",z"), r"classes: 2 \(a, b\) then, 2 \(b, z\) now"),
    ("manifest", lambda path: edit(path, "0.png,a", "0.png,c", 1), "targets: 1 changed, e.g. '0.png'"),
    ("boxes", lambda path: edit(path, '"bbox": [2, 3', '"bbox": [2, 4', 1), "targets: 1 changed, e.g. '0.png'"),
    ("boxes", lambda path: edit(path, '"category_id": 1', '"category_id": 2', 1), "targets: 1 changed, e.g. '0.png'"),
    ("boxes", lambda path: edit(path, '"iscrowd": 0', '"iscrowd": 1', 1), "targets: 1 changed, e.g. '0.png'"),
    ("boxes", lambda path: edit(path, '"dog"', '"wolf"', 1), "now"),
    ("boxes", lambda path: invert(path.with_name("3.png")), "images: 1 changed, e.g. '3.png'"),
    (
        "masks",
        lambda root: swap(root / "masks/3.bmp", root / "masks/4.bmp"),
        "train targets: 2 changed, e.g. 'masks/3.bmp'",
    ),
]


@each_row("kind, change, words", REFUSED, quick=[REFUSED[row] for row in (0, 3, 6, 7, 10, 12, 14)])
def test_a_change_of_the_data_is_refused_with_count_and_example(begun, kind, change, words, tmp_path) -> None:
    run, data = copy(begun[kind], tmp_path)
    change(data)
    before = (run / "metrics.jsonl").read_bytes(), (run / "report.html").read_bytes()
    for steps in (1, 2):  # the run is finished after one
        with pytest.raises(DataError, match=f"are not those with which the run(?s:.*){words}") as refused:
            train_in(run, data, steps)
        assert not re.search("targets: .*(removed|added|order)", str(refused.value)), "their images are named"
    assert before == ((run / "metrics.jsonl").read_bytes(), (run / "report.html").read_bytes())


def log_of(run: Path) -> str:
    """The log without what it says of a model that has learned nothing in two steps."""
    lines = (run / "log.txt").read_text().splitlines()
    return "\n".join(line for line in lines if "better than the answer" not in line)


def test_copied_files_with_other_times_are_compared_by_their_content(begun, tmp_path, capsys) -> None:
    run, data = copy(begun["classes"], tmp_path)
    touch_all(data)
    train_in(run, data, 1)
    train_in(run, data, 2)
    assert "resuming at step 1 of 2" in log_of(run)
    assert "warning" not in log_of(run)


@pytest.mark.slow
def test_a_training_on_shards_has_the_bits_of_one_on_their_folder_and_resumes_from_either(tmp_path) -> None:
    folder = write_classes(tmp_path / "folder")
    shards = tmp_path / "shards"
    shard_data(folder, shards, images=5, quiet=True)
    for name, begun, data in (
        ("one", folder, folder),
        ("two", shards, shards),
        ("a", folder, shards),
        ("b", shards, folder),
    ):
        for steps, source in ((2, begun), (3, data)):
            train_in(tmp_path / name, source, steps)
        for file in ("metrics.jsonl", "model/model.safetensors"):
            assert (tmp_path / name / file).read_bytes() == (tmp_path / "one" / file).read_bytes(), (name, file)
        moved = "of 16 images of train only the length was compared" in log_of(tmp_path / name)
        assert moved == (begun is not data), name
    (folder / "train/dog/3.bmp").write_bytes((folder / "train/dog/3.bmp").read_bytes() + b"\0")
    shard_data(folder, tmp_path / "others", images=5, quiet=True)
    with pytest.raises(DataError, match=r"train images: 1 changed, e\.g\. 'train/dog/3\.bmp'"):
        train_in(tmp_path / "b", tmp_path / "others", 4)


def test_files_whose_content_was_not_recorded_are_counted(tmp_path, monkeypatch) -> None:
    data, run = write_classes(tmp_path / "data"), tmp_path / "run"
    monkeypatch.setattr(stamps, "HASHED", 5)
    train_in(run, data, 1)
    touch_all(data)
    train_in(run, data, 1)  # finished
    train_in(run, data, 2)
    assert "of 11 images of train only the length was compared" in log_of(run)
    invert_all(data)
    with pytest.raises(DataError, match="train images: 5 changed"):
        train_in(run, data, 3)


def test_another_test_split_is_named_while_a_run_resumes_and_refused_once_it_is_finished(begun, tmp_path) -> None:
    run, data = copy(begun["classes"], tmp_path)
    invert(data / "test/cat/1.bmp")
    with pytest.raises(DataError, match=r"test images: 1 changed, e\.g\. 'test/cat/1.bmp'"):
        train_in(run, data, 1)
    train_in(run, data, 2)
    assert "warning  test images: 1 changed, e.g. 'test/cat/1.bmp'" in log_of(run)
    train_in(run, data, 2)  # its report is of this test split


def test_the_report_of_a_finished_run_is_given_without_its_data(begun, tmp_path, capfd) -> None:
    run, data = copy(begun["classes"], tmp_path)
    shutil.rmtree(data)
    assert train(data, steps=1, settings=TINY, out=run).report.exists()
    assert "warning  the data are not compared with those of this finished run" in capfd.readouterr().err


def test_arrays_are_compared_by_their_content(tmp_path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)
    labels = np.arange(20) % 2
    train_in(tmp_path / "run", (images, labels), 1)
    other = images.copy()
    other[7, 3, 2, 1] ^= 1
    exchanged = labels.copy()
    exchanged[[2, 3]] = labels[[3, 2]]
    for data, words in (
        ((other, labels), "train images: 1 changed"),
        ((images, exchanged), "train targets: 2 changed"),
    ):
        with pytest.raises(DataError, match=words):
            train_in(tmp_path / "run", data, 2)
    train_in(tmp_path / "run", (images, labels), 2)


@pytest.mark.slow
def test_another_teacher_is_refused_and_other_initial_weights_are_named(begun, tmp_path) -> None:
    data = begun["classes"][0] / begun["classes"][1]
    for name in ("teacher", "start"):
        train_in(tmp_path / name, data, 1)
    taught = {"teacher": str(tmp_path / "teacher")}
    train_in(tmp_path / "run", data, 1, init=str(tmp_path / "start"), **taught)
    shutil.rmtree(tmp_path / "start")
    train_in(tmp_path / "start", data, 1, seed=7)
    train_in(tmp_path / "run", data, 2, init=str(tmp_path / "start"), **taught)
    assert "warning  init: other weights than then" in log_of(tmp_path / "run")
    shutil.rmtree(tmp_path / "teacher")
    train_in(tmp_path / "teacher", data, 1, seed=7)
    with pytest.raises(DataError, match="teacher: other weights than then"):
        train_in(tmp_path / "run", data, 3, init=str(tmp_path / "start"), **taught)


def test_another_version_and_another_micro_batch_are_named(begun, tmp_path, monkeypatch) -> None:
    run, data = copy(begun["classes"], tmp_path)
    monkeypatch.setattr(
        fingerprint, "versions", lambda: {**read_checksummed(run / "split.json")["versions"], "torch": "99.0"}
    )
    train_in(run, data, 2, settings=["data.micro_batch=4"])
    assert "torch 99.0 in place of " in log_of(run)
    assert "warning  micro-batches of 4 images in place of 8: the run may differ in the last bits" in log_of(run)


def test_damaged_stamps_are_written_again_and_what_is_left_is_compared(begun, tmp_path) -> None:
    run, data = copy(begun["manifest"], tmp_path)
    before = (run / "stamps.npz").read_bytes()
    (run / "stamps.npz").write_bytes(before[:-1])
    train_in(run, data, 2)
    assert "stamps.npz was damaged; names, classes and targets are compared, contents of images are not" in log_of(run)
    assert (run / "stamps.npz").read_bytes() == before
    (run / "stamps.npz").write_bytes(before[:-1])
    exchange_labels(data)
    with pytest.raises(DataError, match="train: other images, classes or targets"):
        train_in(run, data, 3)


def test_a_run_of_an_earlier_version_resumes_and_is_bound_from_then_on(begun, tmp_path) -> None:
    run, data = copy(begun["classes"], tmp_path)
    (run / "stamps.npz").unlink()
    record = read_checksummed(run / "split.json")
    old = {"seed": record["seed"], "images": {"train": record["images"]["train"]}, "held_out": []}
    (run / "split.json").write_text(json.dumps(old))
    train_in(run, data, 2)
    assert "warning" not in log_of(run)
    invert_all(data)
    with pytest.raises(DataError, match="16 changed"):
        train_in(run, data, 3)
    assert step_of(list_checkpoints(run / "checkpoints")[-1]) == 2
