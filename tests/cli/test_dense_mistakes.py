"""What a person gets wrong with boxes and masks: each mistake leaves with its exit code and a remedy, before any training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.sources.layouts import coco, save_images, voc, write, write_coco, write_masks, write_voc, write_yolo
from tests.each_row import each_row
from tests.tasks.dense_models import create
from vitrail.cli import run
from vitrail.weights.native import save_model

NAMES = ("cat", "dog")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same images in four layouts, beside a model of each task."""
    folder = tmp_path_factory.mktemp("dense")
    write_coco(folder / "coco")
    write_voc(folder / "voc")
    write_yolo(folder / "yolo")
    write_masks(folder / "masks", {0: 0, 1: 1, 2: 255})
    (folder / "masks" / "classes.txt").write_text("ground\nsky\n")
    for label in NAMES:
        save_images(folder / "photos" / label)
    save_model(folder / "detector", create("detection", classes=NAMES))
    save_model(folder / "segmenter", create("segmentation", classes=("ground", "sky")))
    return folder


def change_coco(change: Callable[[dict], None]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        content = coco()
        change(content)
        write(folder / "coco" / "annotations" / "instances.json", content)

    return spoil


def set_boxes(content: dict, boxes: list[list[float]]) -> None:
    content["annotations"] = [
        {"id": number, "image_id": 100, "category_id": 3, "bbox": box} for number, box in enumerate(boxes)
    ]


def nothing(folder: Path) -> None: ...


def rewrite_yolo(line: str) -> Callable[[Path], None]:
    return lambda folder: write(folder / "yolo" / "labels" / "train" / "a.txt", line)


def colour_masks(folder: Path) -> None:
    shutil.rmtree(folder / "masks")
    write_masks(folder / "masks", {0: 10, 1: 200}, mode="RGB")
    (folder / "masks" / "palette.csv").write_text("index,name,red,green,blue\n0,ground,10,10,10\n1,sky,9,9,9\n")


def jpeg_mask(folder: Path) -> None:
    Image.new("L", (60, 40)).save(folder / "masks" / "masks" / "train" / "a_mask.jpg")
    (folder / "masks" / "masks" / "train" / "a_mask.png").unlink()


def small_masks(folder: Path) -> None:
    for path in (folder / "masks" / "masks").rglob("*.png"):
        Image.fromarray(np.zeros((5, 6), np.uint8)).save(path)


def rename_class(folder: Path) -> None:
    for name in "ac":
        write(folder / "voc" / "Annotations" / f"{name}.xml", voc(name).replace(">cat<", ">lynx<"))


def rename_masks(folder: Path) -> None:
    for path in list((folder / "masks" / "masks").rglob("*.png")):
        path.rename(path.with_name("other-" + path.name))


CORNERS = [[20.0, 10, 50, 35], [30, 5, 59, 39], [25, 12, 44, 30]]  # of an image of 40 x 60
FRACTIONS = [[0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.2, 0.1]]
TRAIN = " --steps 1 --model vit-ti16 --size 32 --out run --quiet"
Mistake = tuple[str, Callable[[Path], None], int, str]
MISTAKES: dict[str, Mistake] = {
    "boxes for a segmenter": ("train coco --task segment" + TRAIN, nothing, 3, "--task detect"),
    "masks for a detector": ("train masks --task detect" + TRAIN, nothing, 3, "--task segment"),
    "class folders for a detector": ("train photos --task detect" + TRAIN, nothing, 3, "--task classify"),
    "a task that does not exist": ("train coco --task detekt" + TRAIN, nothing, 2, "detect"),
    "masks for an evaluated detector": ("evaluate detector masks --quiet", nothing, 3, "pixels"),
    "boxes for an evaluated segmenter": ("evaluate segmenter coco --quiet", nothing, 3, "without outlines"),
    "classes of images for an evaluated detector": ("evaluate detector photos --quiet", nothing, 3, "boxes"),
    "a class that the model does not know": ("evaluate detector voc --quiet", rename_class, 3, "lynx"),
    "corners in COCO's boxes": (
        "train coco" + TRAIN,
        change_coco(lambda content: set_boxes(content, CORNERS)),
        3,
        "their numbers are left, top, right, bottom",
    ),
    "fractions in COCO's boxes": (
        "train coco" + TRAIN,
        change_coco(lambda content: set_boxes(content, FRACTIONS)),
        3,
        "multiply them by the image's width and height",
    ),
    "three numbers in COCO's boxes": (
        "train coco" + TRAIN,
        change_coco(lambda content: set_boxes(content, [[1, 2, 3]])),
        3,
        "give bbox: [left, top, width, height]",
    ),
    "annotations of another folder": (
        "train coco" + TRAIN,
        change_coco(
            lambda content: [entry.update(file_name="x/" + entry["file_name"][::-1]) for entry in content["images"]]
        ),
        3,
        "are not found",
    ),
    "a category without a name": (
        "train coco" + TRAIN,
        change_coco(lambda content: content["categories"].pop()),
        3,
        "which instances.json does not name",
    ),
    "two files for one split": (
        "train coco" + TRAIN,
        lambda folder: write(folder / "coco" / "annotations" / "instances_again.json", json.dumps(coco())),
        3,
        "give the file that is meant",
    ),
    "pixels in YOLO's boxes": ("train yolo" + TRAIN, rewrite_yolo("0 30 20 10 10"), 3, "divide by the image's width"),
    "corners in YOLO's boxes": (
        "train yolo" + TRAIN,
        rewrite_yolo("0 0.6 0.6 0.9 0.9\n0 0.7 0.1 0.95 0.8\n0 0.1 0.5 0.4 0.99\n"),
        3,
        "centre x, centre y",
    ),
    "a number without a name in YOLO's boxes": ("train yolo" + TRAIN, rewrite_yolo("7 0.5 0.5 0.1 0.1"), 3, "YAML"),
    "a torn file of VOC": (
        "train voc" + TRAIN,
        lambda folder: write(folder / "voc" / "Annotations" / "a.xml", voc("a")[:-40]),
        3,
        "a.xml is no valid XML",
    ),
    "masks of unknown colours": ("train masks" + TRAIN, colour_masks, 3, "add them to the table"),
    "a mask in JPEG": ("train masks" + TRAIN, jpeg_mask, 3, "1 of 3 masks cannot be read"),
    "masks of another size": ("train masks" + TRAIN, small_masks, 3, "the mask is for 6 x 5 pixels"),
    "masks of other names": ("train masks" + TRAIN, rename_masks, 3, "give masks the names of their images"),
    "fewer names than values": (
        "train masks" + TRAIN,
        lambda folder: (folder / "masks" / "classes.txt").write_text("ground\n"),
        3,
        "add their names to classes.txt",
    ),
    "mixed images": ("train coco --set augment.mixup=0.2" + TRAIN, nothing, 2, "mixup"),
    "dropped patches": ("train masks --set model.changes={patch_dropout: 0.5}" + TRAIN, nothing, 2, "patch_dropout"),
    "a head for classes": ("train coco --set model.head={levles: [8]}" + TRAIN, nothing, 2, "levels"),
    "a file of results of another task": ("predict segmenter photos --out answers.json", nothing, 2, ".jsonl"),
}


QUICK = (
    "boxes for a segmenter",
    "classes of images for an evaluated detector",
    "corners in COCO's boxes",
    "fractions in COCO's boxes",
    "corners in YOLO's boxes",
    "masks of unknown colours",
)


@each_row("name", MISTAKES, quick=QUICK)
def test_a_mistake_has_its_exit_code_and_its_remedy(name, good, tmp_path, monkeypatch, capsys):
    command, spoil, code, words = MISTAKES[name]
    for folder in good.iterdir():
        if folder.name in command.split():
            shutil.copytree(folder, tmp_path / folder.name)
    spoil(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = run(split_words(command))
    said = capsys.readouterr()
    assert found == code, said.err
    assert "error: " in said.err and "hint: " in said.err
    assert words in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


def split_words(command: str) -> list[str]:
    """The words of a command, in which a setting in braces is one word."""
    words, depth = [""], 0
    for letter in command:
        depth += (letter == "{") - (letter == "}")
        if letter == " " and not depth:
            words.append("")
        else:
            words[-1] += letter
    return words
