"""`vitrail data check --out`: pictures whose boxes and masks lie where training sees them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.cli import run
from vitrail.errors import ConfigError, DataError
from vitrail.tasks.dense.drawing import class_colours


def write_boxes(root: Path, count: int = 5) -> Path:
    """COCO's JSON of grey pictures of 200 x 100 pixels with a cat at (20, 30, 80, 90) each, one ignored."""
    images, objects = [], []
    (root / "images").mkdir(parents=True)
    (root / "annotations").mkdir()
    for number in range(count):
        Image.new("RGB", (200, 100), (120, 120, 120)).save(root / "images" / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 200, "height": 100})
        place = {"id": number, "image_id": number, "category_id": 7, "iscrowd": number % 2}
        objects.append({**place, "bbox": [20, 30, 60, 60], "area": 3600})
    categories = [{"id": 7, "name": "cat"}]
    document = {"images": images, "annotations": objects, "categories": categories}
    (root / "annotations" / "instances_train.json").write_text(json.dumps(document))
    return root


def test_boxes_are_drawn_where_training_sees_them(tmp_path):
    said = []
    data, out = write_boxes(tmp_path / "data"), tmp_path / "out"
    result = vitrail.check_data(data, out=out, samples=3, log=said.append)
    assert result.counts["train"] == {"cat": 5}
    assert sorted(path.name for path in (out / "train").iterdir()) == ["0.jpg", "2.jpg", "4.jpg"]
    assert said[-1].startswith(f"drawn    {out / 'train'}: 3 pictures of 5; look whether")
    with Image.open(out / "train" / "0.jpg") as image:
        drawn = np.asarray(image).astype(int)
    times = drawn.shape[1] / 200
    assert times == 6  # enlarged: 1,280 pixels at most
    colour = class_colours(["cat"])["cat"]
    for x, y in ((50, 89.5), (79.5, 60), (20.5, 60)):  # within the lower, the right and the left side
        assert abs(drawn[int(y * times), int(x * times)] - colour).max() < 40, (x, y)
    assert abs(drawn[int(60 * times), int(50 * times)] - 120).max() < 10


def test_masks_are_tinted_and_bad_pictures_are_left_out(tmp_path):
    for kind in ("images", "masks"):
        (tmp_path / "data" / kind).mkdir(parents=True)
    for number, wide in enumerate((40, 40, 30)):  # the last mask has another size than its picture
        mask = np.zeros((20, wide), np.uint8)
        mask[:, 20:] = 1
        Image.new("RGB", (40, 20), (120, 120, 120)).save(tmp_path / "data" / "images" / f"{number}.png")
        Image.fromarray(mask).save(tmp_path / "data" / "masks" / f"{number}.png")
    (tmp_path / "data" / "classes.txt").write_text("background\nroad\n")
    result = vitrail.check_data(tmp_path / "data", out=tmp_path / "out", log=lambda line: None)
    assert [key for key, _ in result.bad] == ["images/2.png"]
    assert sorted(path.name for path in (tmp_path / "out" / "train").iterdir()) == ["0.jpg", "1.jpg"]
    with Image.open(tmp_path / "out" / "train" / "0.jpg") as image:
        drawn = np.asarray(image).astype(int)
    assert abs(drawn[:, : drawn.shape[1] // 3] - 120).max() < 10
    assert abs(drawn[-5:, -5:] - 120).max() > 30


def test_pictures_of_16_bits_are_drawn_with_their_range(tmp_path):
    for kind in ("images", "masks"):
        (tmp_path / "data" / kind).mkdir(parents=True)
    for number in range(2):
        levels = np.zeros((20, 40), np.uint16)
        levels[:, 20:] = 3000  # of 65,535
        Image.fromarray(levels).save(tmp_path / "data" / "images" / f"{number}.png")
        Image.fromarray((levels > 0).astype(np.uint8)).save(tmp_path / "data" / "masks" / f"{number}.png")
    vitrail.check_data(tmp_path / "data", out=tmp_path / "out", log=lambda line: None)
    with Image.open(tmp_path / "out" / "train" / "0.jpg") as image:
        drawn = np.asarray(image).astype(int)
    third = drawn.shape[1] // 3
    assert drawn[:, -third:].mean() - drawn[:, :third].mean() > 100  # black and white, each tinted


def test_what_has_nothing_to_draw_is_refused(tmp_path, capsys):
    labelled = np.zeros((2, 8, 8, 3), np.uint8), np.array([0, 1])
    with pytest.raises(DataError, match=r"no boxes and no masks.*\n.*leave --out out"):
        vitrail.check_data(labelled, out=tmp_path / "out")
    with pytest.raises(ConfigError, match="samples is 0"):
        vitrail.check_data(labelled, out=tmp_path / "none", samples=0)
    data = write_boxes(tmp_path / "data", 1)
    assert run(["data", "check", str(data), "--out", str(tmp_path / "out"), "--samples", "1"]) == 0
    assert "cat" in capsys.readouterr().out and (tmp_path / "out" / "train" / "0.jpg").exists()
