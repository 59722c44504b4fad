"""`data check`: a set with one of every fault and a sound one, near copies, images to remove, and pictures of annotation."""

from __future__ import annotations

import csv
import json
from io import BytesIO
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.each_row import each_row
from vitrail.cli import run
from vitrail.data.sources.open import open_data
from vitrail.errors import ConfigError, DataError
from vitrail.tasks.dense.drawing import class_colours
from vitrail.verbs.data.findings import SIMILAR, check, find_near_copies, make_thumbnail


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


@pytest.mark.slow
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


def test_a_single_class_and_similar_class_names_give_warnings(tmp_path):
    write(tmp_path, "one/ant/1.png", "one/ant/2.png", "odd/Ferry/1.png", "odd/ferry/2.png", "odd/ bee/3.png")
    assert check(tmp_path / "one").warnings == ("there is only one class, 'ant'; a classifier needs two or more",)
    (tmp_path / "odd" / ("x" * 70)).mkdir()
    write(tmp_path / "odd" / ("x" * 70), "1.png")
    twins, spaces, long = check(tmp_path / "odd").warnings
    assert twins.startswith("the classes 'Ferry', 'ferry' differ only in case")
    assert spaces == "1 class names begin or end with a space, e.g. ' bee'"
    assert long.startswith("1 class names have more than 64 characters")


def test_data_that_training_refuses_exit_with_code_3(tmp_path, capsys):
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
def test_images_with_little_contrast_are_not_compared(picture) -> None:
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


@pytest.mark.slow
@each_row("task, code", [(None, 0), ("classify", 0), ("segment", 3), ("detect", 3)])
def test_the_check_refuses_what_the_training_refuses(tmp_path, task, code) -> None:
    data = write_splits(tmp_path / "data")
    (data / "val" / "bee" / "d.png").unlink()
    asked = [] if task is None else ["--task", task]
    small = ["--size", "32", "--batch", "4", "--set", "compute.tune=false"]
    assert run(["data", "check", str(data), *asked]) == code
    assert run(["train", str(data), "--dry-run", "--steps", "1", "--workers", "0", "--quiet", *small, *asked]) == code


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


def test_data_without_annotations_to_draw_are_refused(tmp_path, capsys):
    labelled = np.zeros((2, 8, 8, 3), np.uint8), np.array([0, 1])
    with pytest.raises(DataError, match=r"no boxes and no masks.*\n.*leave --out out"):
        vitrail.check_data(labelled, out=tmp_path / "out")
    with pytest.raises(ConfigError, match="samples is 0"):
        vitrail.check_data(labelled, out=tmp_path / "none", samples=0)
    data = write_boxes(tmp_path / "data", 1)
    assert run(["data", "check", str(data), "--out", str(tmp_path / "out"), "--samples", "1"]) == 0
    assert "cat" in capsys.readouterr().out and (tmp_path / "out" / "train" / "0.jpg").exists()


def write_segments(root):
    """Two pictures of 800 x 600 pixels with a cat of 80 x 60 pixels, one of 12 x 16, a small crowd, and sky above."""
    segments = [
        (1, 1, 0, 100, 300, 80, 60),
        (2, 1, 0, 400, 400, 12, 16),
        (3, 1, 1, 600, 400, 9, 9),
        (4, 2, 0, 0, 0, 800, 60),
    ]
    images, annotations = [], []
    for number in range(2):
        Image.new("RGB", (800, 600), (number, 9, 9)).save(root / f"{number}.png")
        ids = np.zeros((600, 800, 3), np.uint8)
        for own, _, _, left, top, width, height in segments:
            ids[top : top + height, left : left + width, 0] = own
        (root / "panoptic").mkdir(exist_ok=True)
        Image.fromarray(ids).save(root / "panoptic" / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 800, "height": 600})
        info = [
            {"id": own, "category_id": category, "iscrowd": crowd, "bbox": box, "area": box[2] * box[3]}
            for own, category, crowd, *box in segments
        ]
        annotations.append({"image_id": number, "file_name": f"{number}.png", "segments_info": info})
    categories = [{"id": 1, "name": "cat", "isthing": 1}, {"id": 2, "name": "sky", "isthing": 0}]
    tree = {"images": images, "annotations": annotations, "categories": categories}
    (root / "panoptic.json").write_text(json.dumps(tree))
    return root


@pytest.mark.parametrize("task", ["instances", "panoptic"])
def test_objects_that_are_small_at_the_size_of_the_input_are_counted(task, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # where inputs are larger
    result = vitrail.check_data(write_segments(tmp_path), task=task)
    small = "2 of 4 objects in train are smaller than 8 px at 384 x 288, the size of the model's input (first: 0.png)"
    if task == "instances":
        assert result.notes == (small,) and result.counts == {"train": {"cat": 6}}
        return
    void = 1 - (80 * 60 + 12 * 16 + 81 + 800 * 60) / (800 * 600)
    assert result.notes == (f"6 segments of things and 2 of stuff in train; {void:.1%} of the pixels are void", small)
    assert result.counts == {"train": {"cat": 6, "sky": 2}} and result.counted == "segments"
    assert not result.refused and "notes: 2\n  6 segments of things" in result.to_text()
