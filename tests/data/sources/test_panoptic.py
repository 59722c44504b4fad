"""COCO's panoptic files: things as objects, and every id that only the JSON or only the PNG has by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.sources.foreign_objects import (
    HEIGHT,
    SEGMENTS,
    WIDTH,
    coco,
    panoptic,
    save_ids,
    save_pictures,
    write,
)
from tests.each_row import each_row
from vitrail.data.sources.annotations import LABEL_BITS, UNCOUNTED, Objects, PanopticObjects
from vitrail.data.sources.labels import RawSplit
from vitrail.data.sources.open import find_data, open_data
from vitrail.data.sources.source import Source
from vitrail.errors import DataError
from vitrail.images.rle import Rle

NAMES = ("a.png", "b.png")
BOXES = [[10, 10, 30, 30], [40, 5, 50, 35]]  # of the things in each picture
STUFF = "segments of stuff, left out: 4 (a.png, b.png)"
SIZE = HEIGHT, WIDTH


def make(root: Path, tree: dict[str, Any] | None = None, name: str = "panoptic") -> Path:
    save_pictures(root / "images", NAMES)
    for each in NAMES:
        save_ids(root / name / each, panoptic(NAMES)["annotations"][0]["segments_info"])
    write(root / f"{name}.json", tree or panoptic(NAMES))
    return root


def read(root: Path, *, outlines: bool = True) -> RawSplit:
    """The training split of the objects at a path."""
    found = find_data(root)
    assert found.objects is not None
    return found.objects(outlines=outlines)[1]["train"]


def objects_of(split: RawSplit) -> Objects:
    assert split.labels is not None and isinstance(split.labels.values, Objects)
    return split.labels.values


def change_segments(**changes: Any) -> dict[str, Any]:
    """The tree with changes in the segments of its first picture."""
    tree = panoptic(NAMES)
    first = tree["annotations"][0]
    first["segments_info"] = [{**each, **changes} for each in first["segments_info"]]
    return tree


@pytest.mark.parametrize("outlines", [True, False])
@pytest.mark.parametrize("name", ["panoptic", "panoptic_train2017"])
def test_things_are_objects_with_their_pixels_and_groups_are_crowds(name, outlines, tmp_path):
    make(tmp_path, name=name)
    for place in (tmp_path, tmp_path / f"{name}.json"):
        split = read(place, outlines=outlines)
        objects = objects_of(split)
        assert split.labels.names == ("cat", "dog") and split.notes == (STUFF,)
        assert objects.boxes.tolist() == BOXES * 2 and objects.labels.tolist() == [0, 1] * 2
        assert objects.crowd.tolist() == [False, True] * 2 and objects.areas.tolist() == [400, 300] * 2
        for box, outline in zip(objects.boxes.astype(int), objects.outlines):
            expected = np.zeros(SIZE, bool)
            expected[box[1] : box[3], box[0] : box[2]] = outlines
            found = Rle.of_text(outline, SIZE).to_mask() if outline else np.zeros(SIZE, bool)
            np.testing.assert_array_equal(found, expected)


def test_boxes_alone_are_read_without_the_pngs(tmp_path):
    shutil.rmtree(make(tmp_path) / "panoptic")
    assert open_data(tmp_path, validation=0).train.targets.boxes.tolist() == BOXES * 2
    split = read(tmp_path)
    assert objects_of(split).boxes.tolist() == BOXES * 2 and set(objects_of(split).outlines) == {b""}
    assert "annotation number 0, its pixels; boxes are used as stated: the file 'a.png' is not found" in split.notes[-1]
    assert split.faulty[:2] == (2, 4)


def test_a_segment_without_a_box_has_that_of_its_pixels(tmp_path):
    make(tmp_path, change_segments(bbox=None, area=None))
    objects = objects_of(read(tmp_path, outlines=False))
    assert objects.boxes.tolist() == BOXES * 2 and objects.areas.tolist() == [400, 300] * 2
    assert not any(objects.outlines)


def test_instances_beside_a_panoptic_file_are_read_and_this_is_said(tmp_path):
    make(tmp_path)
    write(tmp_path / "instances.json", coco(NAMES))
    opened = open_data(tmp_path, validation=0)
    assert opened.layout == "COCO objects (instances.json; not used: panoptic.json)" and opened.classes == ("cat",)


def test_cocos_own_folder_is_read(tmp_path):
    save_pictures(tmp_path / "train2017", NAMES)
    write(tmp_path / "annotations" / "panoptic_train2017.json", panoptic(NAMES))
    for place in ("annotations/panoptic_train2017", "panoptic_train2017"):
        for name in NAMES:
            save_ids(tmp_path / place / name, panoptic(NAMES)["annotations"][0]["segments_info"])
        split = read(tmp_path)
        assert len(set(objects_of(split).outlines)) == 2 and not split.faulty.count
        shutil.rmtree(tmp_path / place)


def test_without_the_word_isthing_all_segments_are_objects(tmp_path):
    tree = panoptic(NAMES)
    tree["categories"] = [{"id": each["id"], "name": each["name"]} for each in tree["categories"]]
    split = read(make(tmp_path, tree))
    assert split.labels.names == ("cat", "dog", "sky", "grass") and len(objects_of(split).boxes) == 8
    tree["categories"][2]["isthing"] = "no"
    with pytest.raises(DataError, match="isthing of the category 8 is no"):
        read(make(tmp_path, tree))


def paint(path: Path, *changes: tuple[int, int, int, int, int]) -> None:
    """Saves the map of `SEGMENTS` with further boxes (id, left, top, width, height) over it."""
    segments = [(number, *box) for number, _, _, *box in SEGMENTS]
    save_ids(path, [{"id": number, "bbox": box} for number, *box in (*segments, *changes)])


# what is wrong, by what is said of it: how the data are changed, and what is left of the objects of the first picture
FAULTS = {
    "an id of a thing that is not in the PNG": (
        lambda root: paint(root / "panoptic" / "a.png", (0, 40, 5, 10, 30)),
        "a.png, segment 70000: no pixel of a.png has this id",
        1,
    ),
    "an id of stuff that is not in the PNG": (
        lambda root: paint(root / "panoptic" / "a.png", (0, 0, 0, 64, 4)),
        "segments of stuff whose ids are not in the PNG: 1 (a.png: 5)",
        2,
    ),
    "ids that are not in the JSON": (
        lambda root: paint(root / "panoptic" / "a.png", (99, 0, 5, 2, 2), (98, 4, 5, 2, 2)),
        "a.png, a.png: pixels with the ids 98, 99, which are not in segments_info",
        2,
    ),
    "an id that two segments have": (
        lambda root: write(root / "panoptic.json", change_segments(id=7)),
        "a.png, segment 7: another segment has the same id",
        1,
    ),
    "an id of no pixels": (
        lambda root: write(root / "panoptic.json", change_segments(id=0)),
        "a.png, segment 0: the id is 0, not a whole number from 1",
        0,
    ),
    "a PNG of another size": (
        lambda root: Image.new("RGB", (9, 8)).save(root / "panoptic" / "a.png"),
        "a.png, its pixels in a.png; boxes are used as stated: it has 9 x 8 pixels, the upright image 64 x 48",
        2,
    ),
    "a PNG of the size of its picture and another than that of its annotation": (
        lambda root: write(root / "panoptic.json", panoptic(NAMES, images=coco(NAMES, image={"width": 99})["images"])),
        "it has 64 x 48 pixels, its annotation 99 x 48",
        2,
    ),
    "a PNG that is a JPEG": (
        lambda root: Image.new("RGB", (WIDTH, HEIGHT)).save(root / "panoptic" / "a.png", format="JPEG"),
        "stored in JPEG, which does not keep values exactly",
        2,
    ),
    "a category without a name": (
        lambda root: write(root / "panoptic.json", change_segments(category_id=5)),
        "a.png, segment 7: the category '5', which is not named",
        0,
    ),
    "a box that is not that of the pixels": (
        lambda root: write(root / "panoptic.json", change_segments(bbox=[1, 1, 20, 20])),
        "boxes that are not those of the pixels of their segments: 2 (a.png)",
        2,
    ),
    "an image without an annotation": (
        lambda root: write(root / "panoptic.json", panoptic(NAMES, annotations=panoptic(NAMES)["annotations"][1:])),
        "images without an annotation in panoptic.json, left out: 1 (a.png)",
        2,
    ),
    "an image with two annotations": (
        lambda root: write(root / "panoptic.json", panoptic(NAMES, annotations=panoptic(NAMES)["annotations"] * 2)),
        "annotation number 2: another annotation has the same image",
        2,
    ),
    "an image that is not listed": (
        lambda root: write(root / "panoptic.json", panoptic(NAMES, images=coco(NAMES)["images"][:1])),
        "an annotation of the image '1', which panoptic.json does not list",
        2,
    ),
    "a field that the format does not have": (
        lambda root: write(root / "panoptic.json", change_segments(colour=1)),
        "fields 'colour', not used: 4 (a.png)",
        2,
    ),
}


@each_row("name", FAULTS)
def test_what_does_not_agree_is_named_with_its_id_and_file(name, tmp_path):
    change, message, left = FAULTS[name]
    change(make(tmp_path))
    split = read(tmp_path)
    assert any(message in note for note in split.notes), split.notes
    assert len(objects_of(split).of(0).boxes) == left


def test_real_segments_have_cocos_own_boxes_and_areas_and_are_its_objects(real_data):
    root = real_data / "coco_mini"
    ours, theirs = (read(root / f"{name}.json") for name in ("panoptic", "instances"))
    assert ours.notes == (
        "segments of stuff, left out: 52 (000000000030.jpg, 000000000072.jpg, 000000000073.jpg, ...)",
    )
    assert ours.labels.names == theirs.labels.names and list(ours.contents.keys) == list(theirs.contents.keys)
    agree = []
    for row in range(15):
        found, other = (objects_of(split).of(row) for split in (ours, theirs))
        size = tuple(found.sizes[0].tolist())
        assert sorted(found.labels) == sorted(other.labels) and found.crowd.sum() == other.crowd.sum()
        masks = [Rle.of_text(text, size) for text in found.outlines]
        # the box and the area that stand in the JSON
        assert [[*mask.box] for mask in masks] == found.boxes.tolist()
        assert [mask.area for mask in masks] == found.areas.tolist()
        pixels = np.array([mask.to_mask().ravel() for mask in masks]).reshape(-1, size[0] * size[1])
        for label, text in zip(other.labels, other.outlines):
            own, mine = Rle.of_text(text, size).to_mask().ravel(), pixels[found.labels == label]
            agree.append(((mine & own).sum(1) / (mine | own).sum(1)).max())
    assert len(agree) == 90 and np.mean(agree) > 0.97 and np.mean(np.array(agree) > 0.9) > 0.9


def open_panoptic(root: Path) -> Source:
    train = open_data(root, task="panoptic", validation=0).train
    assert train is not None
    return train


def test_panoptic_takes_stuff_as_well_and_void_is_not_counted(tmp_path):
    train = open_panoptic(make(tmp_path))
    objects, segments = train.targets, panoptic(NAMES)["annotations"][0]["segments_info"]
    names = {each["id"]: each["name"] for each in panoptic(NAMES)["categories"]}
    assert isinstance(objects, PanopticObjects) and objects.lengths().tolist() == [len(segments)] * 2
    labels = [train.classes.index(names[each["category_id"]]) for each in segments]
    assert objects.labels.tolist() == labels * 2
    things = {each["name"]: bool(each.get("isthing", 1)) for each in panoptic(NAMES)["categories"]}
    assert dict(zip(train.classes, objects.list_things(len(train.classes)))) == things
    assert set(things.values()) == {True, False}
    values = objects.read_map(0, SIZE)
    ids = np.asarray(Image.open(tmp_path / "panoptic" / NAMES[0])).astype(int) @ [1, 256, 65_536]
    expected = np.full(SIZE, UNCOUNTED)
    for number, (each, label) in enumerate(zip(segments, labels), 1):
        expected[ids == each["id"]] = UNCOUNTED if each.get("iscrowd") else number << LABEL_BITS | label
    assert (values == expected).all() and (ids == 0).any()


def test_stuff_stays_stuff_where_classes_are_numbered_anew_and_rows_are_taken(tmp_path):
    objects = open_panoptic(make(tmp_path)).targets
    classes = int(objects.labels.max()) + 1
    turned = objects.renumber(np.arange(classes)[::-1])[np.array([1])]
    assert turned.list_things(classes) == objects.list_things(classes)[::-1]
    assert type(objects).join([turned, turned]).stuff == turned.stuff


def test_panoptic_needs_segments_and_other_tasks_leave_stuff_out(tmp_path):
    make(tmp_path)
    instances = open_data(tmp_path, task="instances", validation=0)
    assert instances.classes == ("cat", "dog") and any("stuff, left out" in note for note in instances.notes)
    save_pictures(tmp_path / "boxes" / "images", NAMES)
    write(tmp_path / "boxes" / "instances.json", coco(NAMES))
    with pytest.raises(DataError, match=r"no segments of things and stuff.*\n.*--head queries"):
        open_data(tmp_path / "boxes", task="panoptic")
