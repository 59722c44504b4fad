"""Equal images with different labels: not trained on, named in the log, and kept by runs that began without the question."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.looked_at import write_pictures

HOW: dict[str, Any] = {"steps": 2, "batch": 8, "size": 16, "init": "none", "quiet": True}
SET = ("model.changes.depth=1", "compute.tune=false", "data.workers=0")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of twelve images each; 8 and 9 of both are equal, and 10 and 11 of ants are equal to one another."""
    folder = write_pictures(tmp_path / "photos", ("ants", "bees"), [(20, 20)] * 12)
    for number in ("08", "09"):
        (folder / f"bees/{number}.png").write_bytes((folder / f"ants/{number}.png").read_bytes())
    (folder / "ants/11.png").write_bytes((folder / "ants/10.png").read_bytes())
    return folder


def train(photos: Path, out: Path, *settings: str, **more: Any) -> tuple[str, int]:
    """The log, and the number of training images of a run."""
    run = vitrail.train(photos, out=out, set=[*SET, *settings], **{**HOW, **more})
    log = (run.folder / "log.txt").read_text()
    return log, int(re.findall(r"class folders: (\d+) train", log)[-1])


def test_equal_images_with_other_labels_are_left_out_and_named(photos, tmp_path):
    log, images = train(photos, tmp_path / "run", "data.validation=0.1")
    assert images == 24 - 2 - 4  # held out: one of ten distinct ones of each class
    assert re.search(
        r"4 training images equal to others with another label, such as ants/0\d.png and bees/0\d.png: left out", log
    )
    kept, images = train(photos, tmp_path / "kept", "data.validation=0.1", "data.conflicts=keep")
    assert images == 24 - 2
    assert "kept, so that no model can learn them" in kept


def test_a_run_goes_on_with_the_images_that_it_began_with(photos, tmp_path):
    _, images = train(photos, tmp_path / "run", "data.validation=0.1")
    assert train(photos, tmp_path / "run", "data.validation=0.1", steps=4)[1] == images
    config = tmp_path / "run/config.yaml"
    assert "conflicts: drop" in config.read_text()


def test_a_run_of_a_version_that_did_not_look_keeps_them(photos, tmp_path):
    train(photos, tmp_path / "run", "data.validation=0.1", "data.conflicts=keep")
    config = tmp_path / "run/config.yaml"
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines[1:-1] if "conflicts" not in line))
    log, images = train(photos, tmp_path / "run", "data.validation=0.1", steps=4)
    assert images == 22
    assert "at step 2" in log or "step 4" in log
    assert "conflicts: keep" in config.read_text()


def test_broken_files_are_bad_images_and_sets_of_nothing_else_are_kept(tmp_path, photos):
    for name in ("ants", "bees"):
        (photos / name / "12.png").write_bytes(b"no image")
    log, _ = train(photos, tmp_path / "run", "data.validation=0.1", "data.max_bad=0.2")
    assert "4 training images equal" in log
    assert (tmp_path / "run/bad_images.csv").read_text().count("12.png") >= 1
    for name in ("ants", "bees"):
        for path in (photos / name).iterdir():
            path.write_bytes((photos / "ants/10.png").read_bytes())
    assert train(photos, tmp_path / "equal", "data.validation=0.1")[1] == 26


def test_images_of_one_length_and_with_the_same_ends_are_compared_as_a_whole(tmp_path):
    for name, middle in (("ants", b"\x00"), ("bees", b"\xff")):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for number in range(6):
            Image.fromarray(np.full((200, 200, 3), number, np.uint8)).save(folder / f"{number}.bmp")
            content = bytearray((folder / f"{number}.bmp").read_bytes())
            content[60_000:60_100] = middle * 100  # far from both ends
            (folder / f"{number}.bmp").write_bytes(content)
    log, images = train(tmp_path / "photos", tmp_path / "run")
    assert "another label" not in log
    assert images == 10
