"""What `data check` finds in a set with one of every fault, and that it finds none in a sound one."""

from __future__ import annotations

import json
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from vitrail.data.sources.check import check


def picture(seed, size=(10, 12)):
    array = np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)
    buffer = BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def faulty(tmp_path):
    files = {f"train/ant/{number}.png": picture(number) for number in range(12)}
    files |= {f"train/bee/{number}.png": picture(100 + number, (40, 50)) for number in range(3)}
    files |= {f"val/ant/{number}.png": picture(200 + number) for number in range(2)}
    files["train/ant/again.png"] = picture(3)  # a duplicate
    files["train/bee/ant.png"] = picture(4)  # a duplicate with another label
    files["val/ant/leak.png"] = picture(5)  # also in train
    files["train/ant/broken.png"] = picture(50)[:-30]
    files["train/ant/empty.png"] = b""
    files["val/ant/empty.png"] = b""
    files["val/ant/note.txt"] = b"not an image"
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "train/wasp").mkdir()
    return tmp_path


def test_every_fault_is_found_once(faulty):
    found = check(faulty)
    assert found.layout == "class folders in train, val; 1 other file not used (.txt 1)"
    assert found.classes == ("ant", "bee", "wasp")
    assert found.counts == {"train": {"ant": 15, "bee": 4, "wasp": 0}, "val": {"ant": 4, "bee": 0, "wasp": 0}}
    assert found.images == 23
    assert [name for name, _ in found.bad] == ["train/ant/broken.png", "train/ant/empty.png", "val/ant/empty.png"]
    assert dict(found.bad)["val/ant/empty.png"] == "the file is empty"
    assert set(found.duplicates) == {
        ("train/ant/3.png", "train/ant/again.png"),
        ("train/ant/4.png", "train/bee/ant.png"),
    }
    assert found.leaks == (("train/ant/5.png", "val/ant/leak.png"),)
    assert found.conflicts == (("train/ant/4.png", "train/bee/ant.png"),)
    assert found.few == ("bee", "wasp")
    assert found.sizes == {"1-31": 17, "32-63": 3}
    assert (found.smallest, found.largest) == ((10, 12), (40, 50))
    assert not found.sound


def test_the_text_says_all_of_it(faulty):
    text = check(faulty).to_text()
    for words in [
        "images   23", "ant      15    4", "bad images: 3", "val/ant/empty.png: the file is empty",
        "duplicates within a split: 2", "train/ant/3.png = train/ant/again.png", "images in more than one split: 1",
        "equal images with different labels: 1", "classes with fewer than 10 training images: 2",
        "from 12 x 10 to 50 x 40",
    ]:  # fmt: skip
        assert words in text, words


def test_the_dict_is_json(faulty):
    found = json.loads(json.dumps(check(faulty).to_dict()))
    assert found["images"] == 23
    assert found["sound"] is False
    assert found["leaks"] == [["train/ant/5.png", "val/ant/leak.png"]]


def test_long_lists_are_cut_in_the_text_alone(tmp_path):
    for number in range(30):
        (tmp_path / f"{number:02}.png").write_bytes(b"")
    found = check(tmp_path)
    assert len(found.bad) == 30
    assert found.counts == {"train": {"": 30}}
    assert "... and 10 more" in found.to_text()
    assert "unlabelled     30" in found.to_text()


def test_a_sound_set_is_called_sound():
    found = check("digits")
    assert found.sound
    assert found.images == 1797
    assert found.sizes == {"1-31": 1797}
    assert found.to_text().endswith("no problems found")


def test_progress_is_told_after_each_image(faulty):
    told = []
    check(faulty, progress=lambda done, total: told.append((done, total)))
    assert told == [(number, 23) for number in range(1, 24)]


def test_every_size_has_its_step(tmp_path):
    for side in (31, 32, 223, 224, 5000):
        Image.new("L", (side, side + 1)).save(tmp_path / f"{side}.png")
    assert check(tmp_path).sizes == {"1-31": 1, "32-63": 1, "128-223": 1, "224-383": 1, "4096-": 1}


def test_real_photographs_are_sound(real_data):
    found = check(real_data / "hymenoptera")
    assert found.images == 398
    assert found.counts["val"] == {"ants": 70, "bees": 83}
    assert (found.bad, found.leaks) == ((), ())
