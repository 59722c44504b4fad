"""Objects as other tools write them: each export is read as it is, or named; nothing is filled in."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.sources.foreign_objects import (
    BOX,
    HEIGHT,
    SQUARE,
    WIDTH,
    coco,
    cvat,
    label_studio,
    label_studio_brush,
    labelme,
    labelme_mask,
    save_picture,
    save_pictures,
    voc,
    write,
    yolo,
)
from tests.each_row import each_row
from vitrail.data.sources.annotations import Objects
from vitrail.data.sources.layout_warnings import find_layout_warnings
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import list_splits
from vitrail.errors import DataError

Make = Callable[[Path], Any]
CAFE = {form: unicodedata.normalize(form, "café.png") for form in ("NFC", "NFD")}
ABC, MANY = ("a.png", "b.png", "c.png"), tuple(f"{number:03}.png" for number in range(150))


def describe(root: Path, task: str | None = None) -> dict[str, Any]:
    """What is read: of each split its images and their boxes, or the pixels of each class, and the notes."""
    opened = open_data(root, validation=0, task=task)
    read: dict[str, Any] = {
        "classes": opened.classes,
        "layout": opened.layout,
        "notes": " | ".join(find_layout_warnings(opened)),
    }
    for split, source in list_splits(opened).items():
        if isinstance(source.targets, Objects):
            read[split] = {key: source.targets.of(row).boxes.round(2).tolist() for row, key in enumerate(source.keys)}
            read["crowds"] = int(source.targets.crowd.sum())
        else:
            levels = [np.unique(source.targets.of(row), return_counts=True) for row in range(len(source))]
            read[split] = {key: dict(zip(*map(np.ndarray.tolist, level))) for key, level in zip(source.keys, levels)}
    return read


def expect(root: Path, expected: dict[str, Any], task: str | None = None) -> None:
    read = describe(root, task)
    for name, value in expected.items():
        if name in ("notes", "layout"):
            assert all(word in read[name] for word in ([value] if isinstance(value, str) else value)), read[name]
        elif isinstance(value, int) and name != "crowds":
            assert len(read[name]) == value, read[name]
        else:
            assert read[name] == value, read[name]


def one(box: tuple[float, ...] = BOX, name: str = "a.png") -> dict[str, Any]:
    return {name: [list(box)]}


TRIANGLE = np.tril(np.ones((10, 10), bool))
CIRCLE = [[20, 20], [30, 20]]


def circle_pixels() -> int:
    rows, columns = np.mgrid[:HEIGHT, :WIDTH] + 0.5
    return int(((rows - 20) ** 2 + (columns - 20) ** 2 <= 100).sum())


def with_picture(folder: Path, file: str, content: Any) -> None:
    save_picture(folder / "a.png")
    write(folder / file, content)


def picture_and(file: str, content: Any) -> Make:
    """Writes the picture a.png and a file beside it."""
    return lambda root: with_picture(root, file, content)


SHAPES: dict[str, tuple[Make, dict[int, int]]] = {
    "labelme's circle": (
        picture_and("a.json", labelme("a.png", [{"shape_type": "circle", "points": CIRCLE}])),
        {1: circle_pixels()},
    ),
    "labelme's mask": (
        picture_and(
            "a.json",
            labelme("a.png", [{"shape_type": "mask", "points": [[5, 5], [14, 14]], "mask": labelme_mask(TRIANGLE)}]),
        ),
        {1: 55},
    ),
    "X-AnyLabeling's turned box": (
        picture_and(
            "a.json", labelme("a.png", [{"shape_type": "rotation", "points": [[20, 10], [30, 20], [20, 30], [10, 20]]}])
        ),
        {1: 200},
    ),
    "CVAT's brush": (
        picture_and(
            "annotations.xml", cvat('<mask label="cat" rle="0,1,2,1,1,2,1,1" left="3" top="4" width="3" height="3"/>')
        ),
        {1: 5},
    ),
    "CVAT's ellipse": (
        picture_and("annotations.xml", cvat('<ellipse label="cat" cx="20" cy="20" rx="10" ry="10"/>')),
        {1: circle_pixels()},
    ),
    "CVAT's turned box": (
        picture_and(
            "annotations.xml",
            cvat(
                '<box label="cat" xtl="10" ytl="15" xbr="30" ybr="25" rotation="90"/><points label="cat" points="1,2"/>'
            ),
        ),
        {1: 200},
    ),
    "Label Studio's ellipse": (
        picture_and(
            "export.json",
            [
                label_studio(
                    {
                        "x": 2000 / WIDTH,
                        "y": 2000 / HEIGHT,
                        "radiusX": 1000 / WIDTH,
                        "radiusY": 1000 / HEIGHT,
                        "rotation": 0,
                        "ellipselabels": ["cat"],
                    },
                    "ellipselabels",
                )
            ],
        ),
        {1: circle_pixels()},
    ),
    "Label Studio's brush": (
        picture_and(
            "export.json",
            [
                label_studio(
                    {
                        "format": "rle",
                        "rle": label_studio_brush(np.pad(TRIANGLE, ((5, HEIGHT - 15), (7, WIDTH - 17)))),
                        "brushlabels": ["cat"],
                    },
                    "brushlabels",
                )
            ],
        ),
        {1: 55},
    ),
    "a polygon of COCO as pairs, and one of two points": (
        picture_and(
            "a.json",
            coco(
                ABC[:1],
                annotations=[
                    {"id": 1, "image_id": 0, "category_id": 1, "bbox": [10, 10, 20, 20], "segmentation": SQUARE},
                    {
                        "id": 2,
                        "image_id": 0,
                        "category_id": 1,
                        "bbox": [40, 10, 10, 10],
                        "segmentation": [[40, 10, 50, 20]],
                    },
                ],
            ),
        ),
        {1: 400, 255: 100},
    ),
    "Roboflow's polygon in VOC": (
        picture_and(
            "a.xml",
            voc(
                inside="<polygon><x1>10</x1><y1>10</y1><x2>30</x2><y2>10</y2><x3>30</x3><y3>20</y3><x4>10</x4><y4>20</y4></polygon>"
            ),
        ),
        {1: 200},
    ),
    "a COCO object of a box alone": (
        lambda root: (
            save_pictures(root, ("a.png", "b.png")),
            write(
                root / "a.json",
                coco(("a.png", "b.png"), each={"segmentation": None})
                | {
                    "annotations": [
                        coco(("a.png",), each={"segmentation": None})["annotations"][0],
                        coco(ABC[:2])["annotations"][1],
                    ]
                },
            ),
        ),
        {255: 400},
    ),
    "a box among polygons of YOLO": (
        lambda root: (
            save_picture(root / "images" / "a.png"),
            write(
                root / "labels" / "a.txt", yolo() + f"0 {40 / WIDTH} 0 {50 / WIDTH} 0 {50 / WIDTH} .25 {40 / WIDTH} .25"
            ),
            write(root / "classes.txt", "cat"),
        ),
        {1: 120, 255: 400},
    ),
}


@each_row("name", SHAPES)
def test_shapes_are_painted_as_they_were_drawn(name, tmp_path):
    make, pixels = SHAPES[name]
    make(tmp_path)
    (levels,) = [read for key, read in describe(tmp_path, "segmentation")["train"].items() if key.endswith("a.png")]
    assert {level: count for level, count in levels.items() if level} == pixels


def write_cvat_yolo(root: Path) -> None:
    """CVAT's "YOLO 1.1": paths of another folder, and names in a file of their own."""
    save_pictures(root / "obj_train_data", ABC)
    for name in ABC:
        write(root / "obj_train_data" / f"{name[0]}.txt", yolo(1))
    write(root / "obj.names", "dog\ncat\n")
    write(root / "obj.data", "classes = 2\ntrain = data/train.txt\nnames = data/obj.names\nbackup = backup/\n")
    write(root / "train.txt", "data/obj_train_data/a.png\ndata/obj_train_data/b.png\n")


def write_voc(root: Path, lists: dict[str, str], annotations: str = "Annotations", images: str = "JPEGImages") -> None:
    save_pictures(root / images, ABC)
    for name in ABC:
        write(root / annotations / f"{name[0]}.xml", voc())
    for name, text in lists.items():
        write(root / "ImageSets" / "Main" / name, text)


def write_coco_2017(root: Path) -> None:
    for split, names in (("train", ABC[:2]), ("val", ABC[2:])):
        save_pictures(root / f"{split}2017", names)
        for kind in ("instances", "person_keypoints"):
            write(root / "annotations" / f"{kind}_{split}2017.json", coco(names))
        write(
            root / "annotations" / f"captions_{split}2017.json", {"images": [], "annotations": [{"caption": "a cat"}]}
        )


def write_roboflow(root: Path, write_one: Callable[[Path, str], None]) -> None:
    for folder, names in (("train", ABC[:2]), ("valid", ABC[2:])):
        for name in names:
            write_one(root / folder, name)


def write_roboflow_yolo(root: Path, description: str = "train: ../train/images\nval: ../valid/images\n") -> None:
    def write_one(folder: Path, name: str) -> None:
        save_picture(folder / "images" / name)
        write(folder / "labels" / f"{name[0]}.txt", yolo() + "\n")

    write_roboflow(root, write_one)
    write(root / "data.yaml", description + "nc: 1\nnames: ['cat']\n")


def write_roboflow_coco(root: Path) -> None:
    for folder, names in (("train", ABC[:2]), ("valid", ABC[2:])):
        save_pictures(root / folder, names)
        write(root / folder / "_annotations.coco.json", coco(names))


def write_roboflow_voc(root: Path) -> None:
    def write_one(folder: Path, name: str) -> None:
        save_picture(folder / name)
        write(folder / f"{name[0]}.xml", voc())

    write_roboflow(root, write_one)


def write_label_studio_yolo(root: Path, names: bool = True) -> None:
    save_pictures(root / "images", ABC)
    for name in ABC:
        write(root / "labels" / f"{name[0]}.txt", yolo(1))
    write(root / "notes.json", {"categories": [{"id": 0, "name": "dog"}, {"id": 1, "name": "cat"}], "info": {}})
    if names:
        write(root / "classes.txt", "dog\ncat")


def write_label_studio(root: Path) -> None:
    save_pictures(root / "images", ABC[:2])
    value = {
        "x": 1000 / WIDTH,
        "y": 1000 / HEIGHT,
        "width": 2000 / WIDTH,
        "height": 2000 / HEIGHT,
        "rectanglelabels": ["cat"],
    }
    keypoint = label_studio({"x": 1, "y": 1, "width": 1, "keypointlabels": ["cat"]}, "keypointlabels", "b.png")
    write(root / "project.json", [label_studio(value, "rectanglelabels"), keypoint])


def write_label_studio_min(root: Path) -> None:
    save_pictures(root / "images", ABC[:1])
    region = {"x": 1000 / WIDTH, "y": 1000 / HEIGHT, "width": 2000 / WIDTH, "height": 2000 / HEIGHT, "rotation": 0}
    region |= {"rectanglelabels": ["cat"], "original_width": WIDTH, "original_height": HEIGHT}
    write(
        root / "project.json", [{"image": "/data/upload/1/0a1b2c3d-a.png", "id": 1, "label": [region], "annotator": 1}]
    )


THREE, SPLIT = {"train": 3}, {"train": 2, "val": 1}
LAYOUTS: dict[str, tuple[Make, dict[str, Any]]] = {
    "Roboflow: YOLO": (write_roboflow_yolo, SPLIT | {"classes": ("cat",), "notes": ""}),
    "Roboflow: COCO": (write_roboflow_coco, SPLIT | {"notes": ""}),
    "Roboflow: Pascal VOC": (write_roboflow_voc, SPLIT | {"notes": ""}),
    "Kaggle: VOC in images/ and annotations/": (
        lambda root: write_voc(root, {}, "annotations", "images"),
        THREE | {"notes": ""},
    ),
    "labelme: JSON": (
        picture_and("a.json", labelme("a.png", [{"points": SQUARE}, {"shape_type": "line", "points": SQUARE[:2]}])),
        {"train": one(), "notes": "shapes without area (line), left out: 1"},
    ),
    "X-AnyLabeling: JSON": (
        picture_and("a.json", labelme("a.png", [{"shape_type": "rectangle", "points": SQUARE, "difficult": False}])),
        {"train": one(), "notes": ""},
    ),
    "CVAT: COCO 1.0": (
        lambda root: (
            save_pictures(root / "images" / "default", ABC),
            write(
                root / "annotations" / "instances_default.json",
                coco(ABC, each={"attributes": {"occluded": False, "rotation": 0.0}}),
            ),
        ),
        THREE | {"notes": ""},
    ),
    "VOC in folders of splits": (
        lambda root: write_voc(root, {}, "Annotations/train", "images/train"),
        THREE | {"layout": "VOC objects"},
    ),
    "labelImg: Pascal VOC": (lambda root: write_voc(root, {}, "", ""), THREE),
    "an archive of a folder": (lambda root: write_voc(root / "VOC2007", {}), THREE),
    "VOC's train.txt and trainval.txt": (
        lambda root: write_voc(root, {"train.txt": "a\n", "trainval.txt": "a\nb\n"}),
        {"train": 1, "val": 1, "notes": "images in no list, left out: 1 (JPEGImages/c.png)"},
    ),
    "VOC: devkit of 2007 and 2012": (
        lambda root: write_voc(root, {"trainval.txt": "a\nb\n", "test.txt": "c 1\n", "cat_train.txt": "a -1\n"}),
        {"train": 2, "test": 1, "notes": ""},
    ),
    "CVAT: Pascal VOC 1.1": (
        lambda root: write_voc(root, {"default.txt": "a\nb\n"}),
        {"train": 2, "notes": "images in no list, left out: 1"},
    ),
    "COCO: its own folder": (
        write_coco_2017,
        SPLIT | {"layout": "not used: captions_train2017.json, captions_val2017.json, person_keypoints_train2017.json"},
    ),
    "CVAT: YOLO 1.1": (
        write_cvat_yolo,
        {"train": 2, "classes": ("dog", "cat"), "notes": "images in no list, left out: 1 (obj_train_data/c.png)"},
    ),
    "CVAT: CVAT for images 1.1": (
        lambda root: with_picture(
            root / "images", "../annotations.xml", cvat('<box label="cat" xtl="10" ytl="10" xbr="30" ybr="30"/>')
        ),
        {"train": one(name="images/a.png"), "notes": ""},
    ),
    "labelImg: YOLO": (
        lambda root: (
            save_pictures(root, ABC),
            [write(root / f"{name[0]}.txt", yolo()) for name in ABC],
            write(root / "classes.txt", "cat\n"),
        ),
        THREE | {"classes": ("cat",)},
    ),
    "YOLO without names": (
        lambda root: write_label_studio_yolo(root, names=False),
        THREE | {"classes": ("1",), "notes": "named after their numbers: put the names into classes.txt"},
    ),
    "YOLO's paths of another machine": (
        lambda root: write_roboflow_yolo(
            root, "path: /content/datasets/x\ntrain: /content/datasets/x/train/images\nval: valid\\images\ntest: ''\n"
        ),
        SPLIT,
    ),
    "YOLO's empty test split": (
        lambda root: write_roboflow_yolo(root, "train: train/images\nval: valid/images\ntest:\n"),
        SPLIT | {"notes": ""},
    ),
    "Label Studio: YOLO": (write_label_studio_yolo, THREE | {"classes": ("dog", "cat")}),
    "Label Studio: COCO": (
        lambda root: (
            save_pictures(root / "images", ABC),
            write(root / "result.json", coco([f"images\\{name}" for name in ABC])),
        ),
        THREE | {"notes": ""},
    ),
    "Label Studio: JSON": (
        write_label_studio,
        {
            "train": {"images/a.png": [list(BOX)], "images/b.png": []},
            "notes": "results without area (keypointlabels), not used: 1",
        },
    ),
    "Label Studio: JSON-MIN": (write_label_studio_min, {"train": one(name="images/a.png")}),
}


def test_every_export_of_the_table_in_the_pages_is_opened_by_a_test():
    page = (Path(__file__).parents[3] / "docs" / "dense.md").read_text()
    table = page.split("## Exports of annotation tools")[1].split("\n### ")[0]
    rows = re.findall(r"(?m)^\| ([^|]+) \| ([^|]+) \| .*\|$", table)
    named = {f"{tool.strip()}: {export.strip()}" for tool, export in rows} - {"tool: export"}
    assert named == {name for name in LAYOUTS | READINGS if ": " in name}


@each_row("name", LAYOUTS)
def test_exports_open_as_they_are(name, tmp_path):
    make, expected = LAYOUTS[name]
    make(tmp_path)
    expect(tmp_path, expected)


def group(number: int | None) -> Make:
    shapes = [
        {"points": [[10, 10], [20, 10], [20, 30]], "group_id": number},
        {"points": [[25, 10], [30, 20], [30, 30]], "group_id": number},
    ]
    return picture_and("a.json", labelme("a.png", shapes))


def pose(line: str, shape: str) -> Make:
    return lambda root: (
        save_picture(root / "images" / "a.png"),
        write(root / "labels" / "a.txt", yolo().strip() + line),
        write(root / "d.yaml", f"train: images\nkpt_shape: {shape}\nnames: [cat]\n"),
    )


def label_in(places: dict[str, str]) -> Make:
    """Writes a file of labelme at each place, for the image that it names relative to it."""

    def make(root: Path) -> None:
        for place, image in places.items():
            save_picture((root / place).parent / image)
            write(root / place, labelme(image, [{"points": SQUARE}]))

    return make


def cvat_subsets(root: Path) -> None:
    images = "".join(
        f'<image id="{name}" name="{name}.png" subset="{name}"><box label="cat" xtl="1" ytl="1" xbr="9" ybr="9"/></image>'
        for name in ("default", "eval", "val_2017")
    )
    save_pictures(root / "images", ("default.png", "eval.png", "val_2017.png"))
    write(root / "annotations.xml", f"<annotations>{images}</annotations>")


def numbered_names(root: Path) -> None:
    for name in ("cat 0", "cat 1"):
        save_picture(root / "JPEGImages" / f"{name}.png")
        write(root / "Annotations" / f"{name}.xml", voc())
    write(root / "ImageSets" / "Main" / "train.txt", "cat 0\n")
    write(root / "ImageSets" / "Main" / "val.txt", "cat 1\n")


READINGS: dict[str, tuple[Make, dict[str, Any]]] = {
    "labelme's files in folders of splits below another": (
        label_in(
            {f"json/{split}/a.json": f"../../images/{split}/a.png" for split in ("train", "val")}
            | {"json/b.json": "b.png"}
        ),
        {"train": 2, "val": {"images/val/a.png": [list(BOX)]}},
    ),
    "labelme's images in folders of splits, with one folder of files": (
        label_in({"json/a.json": "../train/a.png", "json/b.json": "../val/b.png"}),
        {"train": {"train/a.png": [list(BOX)]}, "val": {"val/b.png": [list(BOX)]}},
    ),
    "labelme's files behind a link": (
        lambda root: (label_in({".real/a.json": "a.png"})(root), (root / "labels").symlink_to(root / ".real")),
        {"train": one(name="labels/a.png")},
    ),
    "labelme's files and hidden copies": (
        label_in({"a.json": "a.png", ".ipynb_checkpoints/a.json": "../a.png"}),
        {"train": one(), "notes": ""},
    ),
    "CVAT's subsets of any name": (
        cvat_subsets,
        {"train": 2, "val": 1, "notes": "images of the subset 'eval', used for training: 1 (eval.png)"},
    ),
    "VOC's names that end with a number": (numbered_names, {"train": 1, "val": 1}),
    "VOC's names in another Unicode form": (
        lambda root: (save_picture(root / CAFE["NFD"]), write((root / CAFE["NFC"]).with_suffix(".xml"), voc())),
        {"train": one(name=CAFE["NFD"])},
    ),
    "YOLO's names in another Unicode form": (
        lambda root: (
            save_picture(root / "images" / CAFE["NFD"]),
            write((root / "labels" / CAFE["NFC"]).with_suffix(".txt"), yolo()),
            write(root / "d.yaml", "train: images\nnames: [cat]\n"),
        ),
        {"train": one(name=f"images/{CAFE['NFD']}")},
    ),
    "areas of COCO that are no numbers": (
        picture_and("a.json", coco(ABC[:1], each={"area": "400"})),
        {"train": one(), "notes": "areas that are no positive numbers, taken from the boxes: 1 (a.png)"},
    ),
    "Label Studio's names in another Unicode form": (
        lambda root: (
            save_picture(root / CAFE["NFD"]),
            write(
                root / "x.json",
                [
                    label_studio(
                        {"x": 0, "y": 0, "width": 50, "height": 50, "rectanglelabels": ["cat"]},
                        "rectanglelabels",
                        CAFE["NFC"],
                    )
                ],
            ),
        ),
        {"train": 1},
    ),
    "labelme's group is one object": (group(1), {"train": one()}),
    "shapes without a group are several": (group(None), {"train": {"a.png": [[10, 10, 20, 30], [25, 10, 30, 30]]}}),
    "labelme's image of another machine": (
        picture_and("a.json", labelme("C:\\Users\\me\\a.png", [{"points": SQUARE}])),
        {"train": one()},
    ),
    "labelme's files in a folder of their own": (
        lambda root: (
            save_picture(root / "images" / "a.png"),
            write(root / "json" / "a.json", labelme("..\\images\\a.png", [{"points": SQUARE}])),
        ),
        {"train": one(name="images/a.png"), "notes": ""},
    ),
    "labelme's label that is a number": (
        picture_and("a.json", labelme("a.png", [{"points": SQUARE, "label": 3}, {"points": SQUARE, "label": "3"}])),
        {"classes": ("3",)},
    ),
    "CVAT's turned box in COCO": (
        picture_and(
            "a.json",
            coco(ABC[:1], each={"bbox": [10, 15, 20, 10], "segmentation": [], "attributes": {"rotation": 90.0}}),
        ),
        {"train": one((15, 10, 25, 30))},
    ),
    "iscrowd as text": (picture_and("a.json", coco(ABC[:1], each={"iscrowd": "0"})), {"crowds": 0}),
    "iscrowd as true": (
        picture_and("a.json", coco(ABC[:1], each={"iscrowd": True})),
        {"crowds": 1},
    ),
    "COCO's ids as text and numbers": (
        picture_and("a.json", coco(ABC[:1], each={"image_id": "0", "category_id": 1.0})),
        {"train": one()},
    ),
    "CVAT's turned ellipse": (
        picture_and("annotations.xml", cvat('<ellipse label="cat" cx="20" cy="20" rx="10" ry="5" rotation="90"/>')),
        {"train": one((15, 10, 25, 30))},
    ),
    "Label Studio's rectangle, turned about its corner": (
        picture_and(
            "export.json",
            [
                label_studio(
                    {
                        "x": 2000 / WIDTH,
                        "y": 1000 / HEIGHT,
                        "width": 2000 / WIDTH,
                        "height": 1000 / HEIGHT,
                        "rotation": 90,
                    }
                    | {"rectanglelabels": ["cat"]},
                    "rectanglelabels",
                )
            ],
        ),
        {"train": one((10, 10, 20, 30))},
    ),
    "Label Studio's labels in a region of their own": (
        picture_and(
            "export.json",
            [
                label_studio(
                    {"points": [[x * 100 / WIDTH, y * 100 / HEIGHT] for x, y in SQUARE], "labels": ["cat"]}, "labels"
                ),
            ],
        ),
        {"train": one()},
    ),
    "COCO's paths of a server": (
        lambda root: with_picture(root / "images", "../a.json", coco(["../data/upload/1/a.png"])),
        {"train": one(name="images/a.png"), "notes": "images of a.json are found by their names, without folders"},
    ),
    "COCO without a box": (
        picture_and("a.json", coco(ABC[:1], each={"bbox": None, "segmentation": SQUARE})),
        {"train": one()},
    ),
    "COCO's polygon without a list around it": (
        picture_and("a.json", coco(ABC[:1], each={"bbox": [], "segmentation": [10, 10, 30, 10, 30, 30, 10, 30]})),
        {"train": one()},
    ),
    "labelme's mask with its last pixels": (
        picture_and(
            "a.json",
            labelme("a.png", [{"shape_type": "mask", "points": [[5, 5], [14, 14]], "mask": labelme_mask(TRIANGLE)}]),
        ),
        {"train": one((5, 5, 15, 15))},
    ),
    "a square photograph that EXIF turns by 90": (
        lambda root: (
            save_picture(root / "a.jpg", orientation=6, size=(40, 40)),
            write(root / "a.json", coco(("a.jpg",), image={"width": 40, "height": 40})),
        ),
        {"train": one(name="a.jpg"), "notes": "photographs turned by EXIF"},
    ),
    "COCO without a size": (
        picture_and("a.json", coco(ABC[:1], image={"width": None, "height": None})),
        {"train": one()},
    ),
    "COCO's keypoints": (
        picture_and("a.json", coco(ABC[:1], each={"keypoints": [1, 2, 2], "num_keypoints": 1})),
        {"train": one(), "notes": "keypoints, not used: 1 (a.png)"},
    ),
    "a field that COCO does not have": (
        picture_and("a.json", coco(ABC[:1], each={"bbox_head": [1, 2, 3, 4]})),
        {"train": one(), "notes": "fields 'bbox_head', not used: 1 (a.png)"},
    ),
    "COCO's images that are listed twice": (
        picture_and("a.json", coco(("a.png", "a.png"))),
        {
            "train": {"a.png": [list(BOX)] * 2},
            "notes": "images that are listed several times, whose objects are joined: 1",
        },
    ),
    "COCO's names in another Unicode form": (
        lambda root: (
            save_picture(root / CAFE["NFD"]),
            write(root / "a.json", coco([CAFE["NFC"]])),
        ),
        {"train": one(name=CAFE["NFD"])},
    ),
    "roLabelImg: XML": (
        picture_and(
            "a.xml",
            "<annotation><object><name>cat</name><robndbox><cx>20</cx><cy>20</cy><w>20</w><h>10</h><angle>1.5707963</angle>"
            "</robndbox></object></annotation>",
        ),
        {"train": one((15, 10, 25, 30))},
    ),
    "ultralytics: YOLO pose": (
        pose(" .1 .1 2 .2 .2 1", "[2, 3]"),
        {"train": one(name="images/a.png"), "notes": "keypoints, not used: 1"},
    ),
    "keypoints of YOLO in pairs": (pose(" .1 .1 .2 .2 .3 .3", "[3, 2]"), {"train": one(name="images/a.png")}),
    "a box of YOLO without its keypoints": (pose("", "[3, 2]"), {"train": one(name="images/a.png"), "notes": ""}),
    "a line of YOLO in UTF-16": (
        lambda root: (
            with_picture(root, "a.txt", yolo().encode("utf-16")),
            write(root / "classes.txt", b"\xef\xbb\xbfcat\r\n\r\n"),
        ),
        {"train": one(), "classes": ("cat",)},
    ),
    "a key that YOLO does not have": (
        lambda root: write_roboflow_yolo(root, "train: train/images\nvall: valid/images\n"),
        {"train": 2, "notes": "data.yaml: the key 'vall' is not used"},
    ),
    "names that YAML takes for others": (
        lambda root: (
            save_picture(root / "images" / "a.png"),
            write(root / "labels" / "a.txt", yolo(2)),
            write(root / "d.yaml", "train: images\nnames: {0: on, 1: off, 2: 1e3, 3: ~}\n"),
        ),
        {"classes": ("on", "off", "1e3", "~")},
    ),
    "a photograph that EXIF turns by 180": (
        lambda root: (save_picture(root / "a.jpg", orientation=3), write(root / "a.xml", voc())),
        {"train": one(name="a.jpg"), "notes": ("photographs turned by EXIF", "1 (a.jpg)")},
    ),
    "a photograph that EXIF mirrors": (
        lambda root: (save_picture(root / "a.jpg", orientation=2), write(root / "a.json", coco(("a.jpg",)))),
        {"notes": "photographs turned by EXIF"},
    ),
    "a photograph that EXIF turns by 90, in YOLO's format": (
        lambda root: (
            save_picture(root / "a.jpg", orientation=6, size=(HEIGHT, WIDTH)),
            write(root / "a.txt", yolo()),
            write(root / "classes.txt", "cat"),
        ),
        {"train": one(name="a.jpg"), "notes": "photographs turned by EXIF"},
    ),
    "a photograph whose size tells": (
        lambda root: (
            save_picture(root / "a.jpg", orientation=6, size=(HEIGHT, WIDTH)),
            write(root / "a.json", coco(("a.jpg",))),
        ),
        {"notes": ""},
    ),
}


@each_row("name", READINGS)
def test_objects_are_read_as_they_are_meant(name, tmp_path):
    make, expected = READINGS[name]
    make(tmp_path)
    expect(tmp_path, expected)


def many_coco(root: Path, changes: dict[str, Any]) -> None:
    tree = coco(MANY)
    tree["annotations"][5] |= changes
    save_pictures(root, MANY)
    write(root / "a.json", tree)


def many_files(root: Path, spoil: Callable[[str], Any], make: Callable[[str], Any], suffix: str) -> None:
    save_pictures(root, MANY)
    for name in MANY:
        write((root / name).with_suffix(suffix), make(name) if name != MANY[5] else spoil(name))
    write(root / "classes.txt", "cat")


FAULTS: dict[str, tuple[Make, str]] = {
    "COCO's unknown category": (
        lambda root: many_coco(root, {"category_id": 9}),
        "1 (005.png, annotation 505: the category '9', which a.json does not name)",
    ),
    "COCO's segmentation that is a number": (
        lambda root: many_coco(root, {"bbox": None, "segmentation": 5, "category_id": 1}),
        "1 (005.png, annotation 505: segmentation is 5, not polygons or run lengths)",
    ),
    "VOC's corner in words": (
        lambda root: many_files(root, lambda name: voc(("one", 1, 9, 9)), lambda name: voc(), ".xml"),
        "1 (005.png, object 1: xmin is 'one', not a number)",
    ),
    "a JSON file of labelme that is cut off": (
        lambda root: many_files(
            root, lambda name: '{"shapes": [', lambda name: labelme(name, [{"points": SQUARE}]), ".json"
        ),
        "1 (005.json: it is no valid JSON",
    ),
    "YOLO's class without a name": (
        lambda root: many_files(root, lambda name: yolo(7), lambda name: yolo(), ".txt"),
        "1 (005.txt, the line '7 0.3125 0.4166",
    ),
}


@pytest.mark.slow
@each_row("name", FAULTS)
def test_one_faulty_object_of_many_is_left_out_and_named(name, tmp_path):
    make, words = FAULTS[name]
    make(tmp_path)
    notes = open_data(tmp_path, validation=0).notes
    assert f"objects that cannot be read, left out: {words}" in "\n".join(notes), notes
    with pytest.raises(DataError, match=r"of 1[45].* objects cannot be read, more than 0 %; the first: 005"):
        open_data(tmp_path, max_bad=0.0)


def refusal(root: Path, task: str | None = None) -> str:
    with pytest.raises(DataError) as error:
        open_data(root, task=task)
    return str(error.value)


def test_data_without_a_label_file_are_refused_with_those_that_lie_elsewhere(tmp_path):
    save_pictures(tmp_path / "images", ABC)
    for name in ABC:
        write(tmp_path / "images" / f"{name[0]}.txt", yolo())
    write(tmp_path / "d.yaml", "train: images\nnames: [cat]\n")
    assert "none of the 3 images of the split train" in refusal(tmp_path)
    assert "3 text files lie beside the images, e.g. a.txt" in refusal(tmp_path)
    (tmp_path / "d.yaml").unlink()
    assert "3 text files lie beside the images, e.g. a.txt" in refusal(tmp_path)


def test_a_test_split_without_label_files_is_not_used(tmp_path):
    write_roboflow_yolo(tmp_path, "train: train/images\nval: valid/images\ntest: test/images\n")
    save_pictures(tmp_path / "test" / "images", ("d.png",))
    opened = open_data(tmp_path)
    assert opened.test is None and "test has no labels and is not used" in opened.layout


def test_folders_that_are_one_on_this_machine_are_not_two_splits(tmp_path):
    write_roboflow_yolo(tmp_path, "train: /content/a/images\nval: /content/b/images\n")
    save_pictures(tmp_path / "images", ABC)
    assert "the only folder of that name is" in refusal(tmp_path)


@each_row(
    "text, words",
    [
        ("train: train/images\nval: valid/images\nvalid: valid/images\n", "several keys for the split val"),
        ("path: [a, b]\ntrain: train/images\n", "several folders under 'path'"),
        ("train: ''\n", "names no images"),
        ("test: test/images\n", "none of the 1 images of the split test"),
        ("train: empty.txt\n", "empty.txt lists no images"),
        ("train: root.txt\n", "root.txt has the line '/', which names no image"),
        (f"path: {'x' * 300}\ntrain: nowhere\n", "nowhere, which does not exist"),
        ("train: long.txt\n", "none of the 1 images of the split train"),
        ("train: [train/images, [1]]\n", "where paths should be"),
        ("train: train/images\nkpt_shape: 5\n", "kpt_shape: 5"),
    ],
)
def test_descriptions_of_yolo_that_contradict_themselves_are_refused(text, words, tmp_path):
    write_roboflow_yolo(tmp_path, text)
    save_picture(tmp_path / "test" / "images" / "d.png")
    for name, line in {"empty": "", "root": "/", "long": "x" * 5000}.items():
        write(tmp_path / f"{name}.txt", f"{line}\n")
    assert words in refusal(tmp_path)


def test_annotations_without_objects_are_refused(tmp_path):
    with_picture(tmp_path, "a.json", coco(ABC[:1], annotations=[]))
    assert "no training image has an object" in refusal(tmp_path)


def test_annotation_files_of_other_kinds_are_named(tmp_path):
    save_pictures(tmp_path, ABC)
    write(tmp_path / "a.xml", "<scene><cat/></scene>")
    (tmp_path / "exported").mkdir()
    write(tmp_path / "exported" / "data.yml", "path: elsewhere")
    message = refusal(tmp_path)
    assert "1 .xml (a.xml begins with '<scene><cat/></scene>': VOC's begin with <annotation>" in message
    assert "1 .yml (exported/data.yml begins with 'path: elsewhere': YOLO's have names" in message


def test_rectangles_alone_are_no_outlines_and_are_painted_among_others(tmp_path):
    rectangle = {"shape_type": "rectangle", "points": [[10, 10], [30, 30]]}
    with_picture(tmp_path, "a.json", labelme("a.png", [rectangle]))
    assert "the data have boxes without outlines" in refusal(tmp_path, "segmentation")
    with_picture(tmp_path, "a.json", labelme("a.png", [rectangle, {"points": [[40, 0], [50, 0], [50, 10], [40, 10]]}]))
    expect(
        tmp_path,
        {
            "train": {"a.png": {0: WIDTH * HEIGHT - 500, 1: 500}},
            "notes": "rectangles among other shapes, painted as they were drawn: 1",
        },
        "segmentation",
    )


def test_a_brush_mask_of_other_bits_is_named(tmp_path):
    packed = label_studio_brush(np.ones((HEIGHT, WIDTH), bool))
    packed[4] |= 8 << 3  # 16 bits a value
    region = label_studio({"format": "rle", "rle": packed, "brushlabels": ["cat"]}, "brushlabels")
    with_picture(tmp_path, "x.json", [region])
    with pytest.raises(DataError, match="values of 16 bits, not 8"):
        open_data(tmp_path)


def test_categories_of_one_id_are_refused(tmp_path):
    with_picture(tmp_path, "a.json", coco(ABC[:1], categories=[{"id": 1, "name": "cat"}, {"id": "1", "name": "dog"}]))
    assert "gives the categories 'cat' and 'dog' the same id 1" in refusal(tmp_path)
