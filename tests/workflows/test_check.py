"""What `data check` finds in a set with one of every fault, and that it finds none in a sound one."""

from __future__ import annotations

import json
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from vitrail.cli import run
from vitrail.data.sources.open import open_data
from vitrail.verbs.data.findings import check


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
    assert found.layout.startswith("class folders in train, val; 1 other file not used (.txt 1)")
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


def test_every_size_has_its_step(tmp_path):
    for side in (31, 32, 223, 224, 5000):
        Image.new("L", (side, side + 1)).save(tmp_path / f"{side}.png")
    assert check(tmp_path).sizes == {"1-31": 1, "32-63": 1, "128-223": 1, "224-383": 1, "4096-": 1}


def test_real_photographs_are_sound(real_data):
    found = check(real_data / "hymenoptera")
    assert found.images == 398
    assert found.counts["val"] == {"ants": 70, "bees": 83}
    assert (found.bad, found.leaks) == ((), ())


def write(folder, *names):
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(picture(number, (10 + number, 30)))


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["all/ant/1.png", "all/bee/2.png"], "all"),
        (["fruit/apple/1.png", "fruit/pear/2.png", "milk/oat/3.png"], "*/*"),
        (["train/fruit/apple/1.png", "train/milk/oat/2.png", "val/fruit/apple/3.png", "val/milk/oat/4.png"], "*/*/*"),
    ],
)
def test_nested_class_folders_are_warned_of_with_what_reads_them(tmp_path, names, pattern):
    write(tmp_path, *names)
    (warning,) = check(tmp_path).warnings
    assert f"give '{tmp_path}/{pattern}'" in warning
    rightly = open_data(f"{tmp_path}/{pattern}", validation=0)
    assert not check(f"{tmp_path}/{pattern}").warnings
    assert set(rightly.classes) == {"all": {"ant", "bee"}}.get(pattern, {"fruit/apple", "fruit/pear", "milk/oat"} & {
        name.removeprefix("train/").removeprefix("val/").rpartition("/")[0] for name in names
    })  # fmt: skip


def test_one_class_and_names_that_are_hard_to_tell_apart_are_warned_of(tmp_path):
    write(tmp_path, "one/ant/1.png", "one/ant/2.png", "odd/Ferry/1.png", "odd/ferry/2.png", "odd/ bee/3.png")
    assert check(tmp_path / "one").warnings == ("there is only one class, 'ant'; a classifier needs two or more",)
    (tmp_path / "odd" / ("x" * 70)).mkdir()
    write(tmp_path / "odd" / ("x" * 70), "1.png")
    twins, spaces, long = check(tmp_path / "odd").warnings
    assert twins.startswith("the classes 'Ferry', 'ferry' differ only in case")
    assert spaces == "1 class names begin or end with a space, e.g. ' bee'"
    assert long.startswith("1 class names have more than 64 characters")


def test_what_training_refuses_is_said_with_exit_code_3(tmp_path, capsys):
    write(
        tmp_path,
        *(f"photos/{number}.png" for number in range(3)),
        *(f"good/{n}/{i}.png" for n in "ab" for i in range(12)),
    )
    assert run(["data", "check", str(tmp_path / "photos")]) == 3
    said = capsys.readouterr()
    assert "widths 30 to 30, heights 10 to 12" in said.out
    assert "`vitrail train` refuses these data: the data have no labels" in said.err
    assert run(["data", "check", str(tmp_path / "good")]) == 0
    (tmp_path / "good" / "a" / "0.png").write_bytes(b"")
    assert run(["data", "check", str(tmp_path / "good")]) == 3
    assert "1 of 24 images are bad, more than 1%" in capsys.readouterr().err
