"""Random damage to annotation files of every format: what is read is right or named, and never a fault of the program.

Text files that are cut within a number, between two lines or within a polygon are valid files of other objects; such cuts are
not drawn.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.data.sources.foreign_objects import (
    SQUARE,
    coco,
    cvat,
    label_studio,
    labelme,
    panoptic,
    save_ids,
    save_pictures,
    voc,
    write,
    yolo,
)
from tests.each_row import each_row
from tests.slow import few_or_nightly
from vitrail.data.sources.annotations import Objects
from vitrail.data.sources.layout_warnings import find_layout_warnings
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import list_splits
from vitrail.errors import DataError
from vitrail.images.masks import IGNORED

NAMES = ("a.png", "b.png", "c.png")
WRONG = ("x", "", [], {}, None, True)  # values of another type
NOT_FINITE = (float("nan"), float("inf"), -float("inf"), 10**400)
Mutate = Callable[[str, random.Random], str]


def list_fields(value: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Every field of a JSON document, with the object that holds it."""
    if isinstance(value, dict):
        yield from ((value, key) for key in value)
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from list_fields(child)


def list_numbers(value: Any) -> Iterator[tuple[Any, Any]]:
    """The place of every number of a JSON document."""
    for key, child in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(child, int | float):
            yield value, key
        yield from list_numbers(child)


def mutate_json(text: str, draw: random.Random) -> str:
    tree = json.loads(text)
    holder, key = draw.choice(list(list_fields(tree)))
    match draw.choice(("rename", "remove", "retype", "retype", "double", "not finite", "cut")):
        case "rename":
            holder[f"{key}_x"] = holder.pop(key)
        case "remove":
            del holder[key]
        case "retype":
            holder[key] = str(holder[key]) if draw.random() < 0.2 else copy.deepcopy(draw.choice(WRONG))
        case "double":
            ids = [entry for entry, name in list_fields(tree) if name == "id"]
            if ids:
                draw.choice(ids)["id"] = draw.choice(ids)["id"]
        case "not finite":
            place, index = draw.choice(list(list_numbers(tree)))
            place[index] = draw.choice(NOT_FINITE)
        case "cut":
            return text[: draw.randrange(len(text))]
    return json.dumps(tree)


def mutate_xml(text: str, draw: random.Random) -> str:
    tree = ElementTree.fromstring(text)
    parent, element = draw.choice([(parent, child) for parent in tree.iter() for child in parent])
    number = draw.choice(("x", "", "nan", "inf", "1e999", "9" * 400))
    attribute = draw.choice(sorted(element.attrib)) if element.attrib else None
    match draw.choice(("rename", "remove", "value", "value", "double", "cut")):
        case "rename" if attribute and draw.random() < 0.7:
            element.set(f"{attribute}_x", element.attrib.pop(attribute))
        case "rename":
            element.tag += "_x"
        case "remove" if attribute:
            del element.attrib[attribute]
        case "remove" if element.tag not in ("object", "image"):  # fewer of these are another valid file
            parent.remove(element)
        case "value" if attribute:
            element.set(attribute, number)
        case "value" if not len(element):
            element.text = number
        case "double":
            parent.append(copy.deepcopy(element))
        case "cut":
            return text[: draw.randrange(len(text))]
    return ElementTree.tostring(tree, encoding="unicode")


def mutate_words(text: str, draw: random.Random) -> str:
    """Of lines of numbers."""
    lines = [line.split() for line in text.splitlines()]
    words = draw.choice(lines)
    place = draw.randrange(len(words))
    match draw.choice(("remove", "value", "double", "cut")):
        case "remove":
            del words[place]
        case "value":
            words[place] = draw.choice(("x", "nan", "inf", "1e999", "9" * 400, "-3", "7", "0,5"))
        case "double":
            words.insert(place, words[place])
        case "cut":
            del words[draw.randrange(1, 5) :]
    return "\n".join(map(" ".join, lines))


def mutate_yaml(text: str, draw: random.Random) -> str:
    lines = text.splitlines()
    place = draw.randrange(len(lines))
    key, _, value = lines[place].partition(":")
    match draw.choice(("rename", "remove", "value", "double", "cut")):
        case "rename":
            lines[place] = f"{key}_x:{value}"
        case "remove":
            del lines[place]
        case "value":
            lines[place] = f"{key}: {draw.choice(('x', '', '[]', '{}', '~', 'true', '.nan', '9' * 50, '[1, [2]]'))}"
        case "double":
            lines.append(lines[place])
        case "cut":
            return text[: draw.randrange(len(text))]
    return "\n".join(lines)


class Case(NamedTuple):
    """A data set, the file of it that is damaged, and how."""

    make: Callable[[Path], None]
    file: str
    mutate: Mutate


def make_coco(root: Path) -> None:
    save_pictures(root / "images", NAMES)
    tree = coco(NAMES, each={"iscrowd": 0, "area": 400.0}, info={}, licenses=[])
    tree["categories"].append({"id": 2, "name": "dog", "supercategory": "animal"})
    tree["annotations"][1]["category_id"] = 2
    write(root / "annotations" / "instances.json", tree)


def make_voc(root: Path) -> None:
    save_pictures(root / "JPEGImages", NAMES)
    for name in NAMES:
        write(root / "Annotations" / f"{name[0]}.xml", voc(inside="<pose>Left</pose><difficult>0</difficult>"))


def make_yolo(root: Path) -> None:
    for split, names in (("train", NAMES[:2]), ("val", NAMES[2:])):
        save_pictures(root / "images" / split, names)
        for name in names:
            polygon = " ".join(f"{x / 64} {y / 48}" for x, y in SQUARE)
            write(root / "labels" / split / f"{name[0]}.txt", yolo() + f"1 {polygon}\n")
    write(root / "data.yaml", "train: images/train\nval: images/val\nnc: 2\nnames: [cat, dog]\n")


def make_cvat(root: Path) -> None:
    save_pictures(root / "images", NAMES)
    shapes = (
        '<box label="cat" source="manual" occluded="0" xtl="10" ytl="10" xbr="30" ybr="30" z_order="0"/>'
        '<polygon label="dog" occluded="0" points="40,10;50,10;50,20;40,20"/>'
        '<ellipse label="dog" cx="20" cy="40" rx="5" ry="5"/><mask label="cat" rle="0,4" left="1" top="1" width="2" height="2"/>'
    )
    write(root / "annotations.xml", cvat(shapes, NAMES))


def make_labelme(root: Path) -> None:
    save_pictures(root, NAMES)
    shapes = [
        {"shape_type": "polygon", "points": SQUARE},
        {"label": "dog", "shape_type": "rectangle", "points": [[40, 5], [50, 15]]},
        {"label": "dog", "shape_type": "circle", "points": [[10, 40], [14, 40]]},
    ]
    for name in NAMES:
        write(root / f"{name[0]}.json", labelme(name, shapes, version="5.4.1", imageData=None))


def make_label_studio(root: Path) -> None:
    save_pictures(root / "images", NAMES)
    rectangle = {"x": 10, "y": 10, "width": 20, "height": 20, "rotation": 0, "rectanglelabels": ["cat"]}
    polygon = {"points": [[10, 10], [30, 10], [30, 30]], "closed": True, "polygonlabels": ["dog"]}
    tasks = [label_studio(rectangle, "rectanglelabels", name) for name in NAMES]
    tasks[1]["annotations"][0]["result"].append(
        {**tasks[0]["annotations"][0]["result"][0], "id": "r2", "type": "polygonlabels", "value": polygon}
    )
    write(root / "project.json", tasks)


def make_panoptic(root: Path) -> None:
    save_pictures(root / "images", NAMES)
    tree = panoptic(NAMES)
    for name in NAMES:
        save_ids(root / "panoptic" / name, tree["annotations"][0]["segments_info"])
    write(root / "panoptic.json", tree)


CASES = {
    "COCO": Case(make_coco, "annotations/instances.json", mutate_json),
    "COCO panoptic": Case(make_panoptic, "panoptic.json", mutate_json),
    "VOC": Case(make_voc, "Annotations/b.xml", mutate_xml),
    "YOLO's lines": Case(make_yolo, "labels/train/b.txt", mutate_words),
    "YOLO's YAML": Case(make_yolo, "data.yaml", mutate_yaml),
    "CVAT": Case(make_cvat, "annotations.xml", mutate_xml),
    "labelme": Case(make_labelme, "b.json", mutate_json),
    "Label Studio": Case(make_label_studio, "project.json", mutate_json),
}


class Reading(NamedTuple):
    """What is read, without the names of the classes, which a file may change as it likes; and all that is said of it."""

    content: Any
    words: set[str]


def read(root: Path, task: str | None) -> Reading:
    opened = open_data(root, validation=0, task=task, max_bad=1.0)
    content = {}
    for split, source in list_splits(opened).items():
        for row, key in enumerate(source.keys):
            if not source.labelled:
                continue
            target = source.targets.of(row) if not isinstance(source.targets, np.ndarray) else source.targets[row]
            if isinstance(target, Objects):
                content[split, key] = sorted(target.boxes.tolist())
            else:  # pixels of the background, without a class, and of all others
                content[split, key] = [int(np.isin(target, each).sum()) for each in ((0,), (IGNORED,))]
    return Reading(content, {opened.layout, *find_layout_warnings(opened)})


@pytest.mark.slow
@pytest.mark.parametrize("count", few_or_nightly(12, 200))
@each_row("name", CASES)
def test_damaged_annotations_are_read_rightly_or_named(name, count, tmp_path):
    make, file, mutate = CASES[name]
    make(tmp_path)
    text = (tmp_path / file).read_text()
    for task in (None, "segmentation") if name != "VOC" else (None,):
        whole = read(tmp_path, task)
        for number in range(count):
            damaged = mutate(text, random.Random(f"{name} {task} {number}"))
            (tmp_path / file).write_text(damaged)
            try:
                found = read(tmp_path, task)
            except DataError:
                continue
            silent = found.content != whole.content and found.words <= whole.words
            assert not silent, f"{task} {number}: {damaged!r}\n{found}"
        (tmp_path / file).write_text(text)
