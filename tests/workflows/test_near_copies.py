"""`data check`: images of one split that look like one of another, the list of images to remove, and what `train` refuses."""

from __future__ import annotations

import csv
from io import BytesIO
from itertools import product
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import vitrail
from tests.each_row import each_row
from vitrail.cli import run
from vitrail.verbs.data.findings import SIMILAR, check, find_near_copies, make_thumbnail


def draw(seed: int, size: tuple[int, int] = (96, 80)) -> Image.Image:
    """A picture (width, height) of smooth random shades."""
    shades = np.random.default_rng(seed).integers(0, 256, (6, 5, 3)).astype(np.uint8)
    return Image.fromarray(shades).resize(size, Image.Resampling.BICUBIC)


def recompress(image: Image.Image, quality: int = 20) -> Image.Image:
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(buffer)


EDITS = [
    lambda image: image.resize((48, 40)),
    lambda image: image.resize((300, 250)),
    recompress,
    lambda image: image.point(lambda level: int(level * 0.7 + 20)),
    lambda image: image.convert("L").convert("RGB"),
    lambda image: image.crop((1, 1, 95, 79)),
]


def test_edited_copies_are_found_and_other_pictures_are_not() -> None:
    pictures = [draw(seed) for seed in range(30)] + [edit(draw(seed)) for seed, edit in enumerate(EDITS)]
    groups = np.array([0] * 30 + [1] * len(EDITS))
    thumbnails = [make_thumbnail(picture) for picture in pictures]
    assert find_near_copies(thumbnails, groups) == [(seed, 30 + seed) for seed in range(len(EDITS))]
    assert find_near_copies(thumbnails, np.zeros_like(groups)) == []  # within a split they do no harm to its metrics


@each_row(
    "picture",
    [draw(0, (31, 200)), Image.new("RGB", (96, 80), (9, 99, 199)), np.zeros((96, 80, 5), np.uint8)],
)
def test_what_shows_too_little_is_not_compared(picture) -> None:
    assert make_thumbnail(picture) is None


def write_splits(root: Path) -> Path:
    """Twelve images of two classes in train, of which two return edited in val, one unchanged, and one is broken."""
    for number in range(12):
        path = root / "train" / ("ant" if number % 2 else "bee") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(number).save(path)
    for name, image in {"ant/a.jpg": draw(1), "bee/b.png": draw(2).resize((64, 64)), "bee/c.png": draw(4)}.items():
        path = root / "val" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    (root / "val" / "bee" / "d.png").write_bytes(b"")
    return root


def test_near_copies_are_listed_and_written_to_the_list(tmp_path, capsys) -> None:
    data, listed = write_splits(tmp_path / "data"), tmp_path / "remove.csv"
    found = check(data)
    assert found.near == (("train/ant/1.png", "val/ant/a.jpg"), ("train/bee/2.png", "val/bee/b.png"))
    assert found.leaks == (("train/bee/4.png", "val/bee/c.png"),)
    assert not found.sound
    run(["data", "check", str(data), "--fix-list", str(listed)])
    assert "images that look like one of another split: 2" in capsys.readouterr().out
    with open(listed, newline="") as file:
        rows = {row["path"]: row["reason"] for row in csv.DictReader(file)}
    assert rows == {
        "val/bee/d.png": "bad: the file is empty",
        "train/bee/4.png": "also in another split: val/bee/c.png",
        "train/ant/1.png": "looks like one of another split: val/ant/a.jpg",
        "train/bee/2.png": "looks like one of another split: val/bee/b.png",
    }
    for name in rows:
        (data / name).unlink()
    assert check(data).sound  # though all classes are small


def test_features_of_a_model_find_more_copies(tmp_path) -> None:
    data = write_splits(tmp_path / "data")
    model = vitrail.create_model("vit-ti16", image_size=32, width=24, depth=1, heads=2, classes=["ant", "bee"])
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    found = vitrail.check_data(data, model=model, log=lambda line: None)
    features = {
        str(Path(path).relative_to(data)): values for path, values in vitrail.embed(model, str(data), quiet=True)
    }
    sides = [sorted(name for name in features if name.startswith(split)) for split in ("train", "val")]
    cosine = torch.nn.functional.cosine_similarity
    expected = {
        (one, other)
        for one, other in product(*sides)
        if cosine(*(torch.from_numpy(features[name]) for name in (one, other)), dim=0) >= SIMILAR
    } - set(found.leaks)
    assert set(found.near) - set(check(data).near) == expected - set(check(data).near) and expected


def test_few_images_are_no_problem_by_themselves(tmp_path) -> None:
    for number in range(4):
        path = tmp_path / ("ant" if number % 2 else "bee") / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        draw(number).save(path)
    found = check(tmp_path)
    assert found.few == ("ant", "bee")
    assert found.sound and found.to_text().endswith("no problems found")


@each_row("task, code", [(None, 0), ("classify", 0), ("segment", 3), ("detect", 3)])
def test_the_check_refuses_what_the_training_refuses(tmp_path, task, code) -> None:
    data = write_splits(tmp_path / "data")
    (data / "val" / "bee" / "d.png").unlink()
    asked = [] if task is None else ["--task", task]
    assert run(["data", "check", str(data), *asked]) == code
    assert run(["train", str(data), "--dry-run", "--steps", "1", "--workers", "0", "--quiet", *asked]) == code


def test_the_limit_of_pixels_is_that_of_the_training(tmp_path) -> None:
    data = write_splits(tmp_path / "data")
    (data / "val" / "bee" / "d.png").unlink()
    assert not check(data).bad
    assert len(check(data, max_pixels=96 * 80 - 1).bad) == 14  # all but the one of 64 x 64


def test_a_single_class_is_refused_alike(tmp_path) -> None:
    (tmp_path / "ant").mkdir()
    for number in range(12):
        draw(number).save(tmp_path / "ant" / f"{number}.png")
    assert check(tmp_path).refused == "the data have 1 class: ant"
    assert run(["train", str(tmp_path), "--dry-run", "--steps", "1", "--quiet"]) == 3


def test_data_without_training_images_are_refused_alike(tmp_path) -> None:
    data = write_splits(tmp_path / "data")
    for path in (data / "train").rglob("*.png"):
        path.unlink()
    (data / "val").rename(data / "test")
    for folder in ("ant", "bee"):
        (data / "train" / folder).rmdir()
    (data / "train").rmdir()
    found = vitrail.check_data(data)
    assert found.refused == "the data hold no training images"
    assert run(["train", str(data), "--steps", "1", "--out", str(tmp_path / "run")]) == 3
