"""COCO's panoptic files: things as objects, or with stuff, and every id that only the JSON or only the PNG has by name."""

from __future__ import annotations

import json
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
from vitrail.data.sources.annotations import LABEL_BITS, UNCOUNTED, Objects, OutlinedObjects, PanopticObjects
from vitrail.data.sources.labels import RawSplit
from vitrail.data.sources.open import find_data, open_data
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


def read_stuff(root: Path) -> RawSplit:
    """The training split of the segments of things and stuff at a path."""
    return find_data(root, task="panoptic").read("panoptic")[1]["train"]


def test_segments_of_stuff_are_read_for_the_task_panoptic(tmp_path):
    make(tmp_path)
    write(tmp_path / "instances.json", coco(NAMES))
    opened = open_data(tmp_path, task="panoptic", validation=0)
    assert opened.layout == "COCO panoptic objects (panoptic.json; not used: instances.json)" and opened.notes == ()
    assert opened.classes == ("cat", "dog", "sky", "grass")  # by the ids of the categories
    targets = opened.train.targets
    assert type(targets) is PanopticObjects and targets.things == (True, True, False, False)
    assert targets.labels.tolist() == [0, 1, 2, 3] * 2 and targets.crowd.tolist() == [False, True, False, False] * 2
    assert targets.boxes.tolist() == [*BOXES, [0, 0, 64, 4], [0, 40, 64, 48]] * 2
    assert opened.train.counted == "segments" and opened.train.counts().tolist() == [2] * 4
    expected = np.full(SIZE, UNCOUNTED)  # void and the crowd
    expected[10:30, 10:30] = 1 << LABEL_BITS
    expected[:4], expected[40:] = 3 << LABEL_BITS | 2, 4 << LABEL_BITS | 3
    values = targets.read_map(1, SIZE)
    assert values.dtype == np.int32
    np.testing.assert_array_equal(values, expected)
    # a file with instances is no such data, and the path of the other file is
    assert open_data(tmp_path / "panoptic.json", task="panoptic").classes == opened.classes
    with pytest.raises(DataError, match="no segments of stuff"):
        open_data(tmp_path / "instances.json", task="panoptic")
    instances = open_data(tmp_path, task="instances", validation=0)
    assert type(instances.train.targets) is OutlinedObjects and instances.layout.startswith(
        "COCO objects (instances.json"
    )


def test_classes_are_in_the_order_of_their_ids_also_where_stuff_comes_first(tmp_path):
    tree = panoptic(NAMES)
    for each, number in zip(tree["categories"], (30, 4, 5, 100)):
        each["id"] = number
    for annotation in tree["annotations"]:
        annotation["segments_info"] = [
            {**each, "category_id": number} for each, number in zip(annotation["segments_info"], (30, 4, 5, 100))
        ]
    split = read_stuff(make(tmp_path, tree))
    assert split.labels.names == ("dog", "sky", "cat", "grass")
    assert split.labels.values.things == (True, False, True, False)


def test_without_a_panoptic_file_the_task_is_refused_with_what_can_be_trained(tmp_path):
    save_pictures(tmp_path / "images", NAMES)
    write(tmp_path / "instances.json", coco(NAMES))
    with pytest.raises(DataError, match="has no segments of stuff, which panoptic needs") as error:
        open_data(tmp_path, task="panoptic")
    assert "--task instances --head queries" in error.value.remedy
    assert "--task segment" in error.value.remedy


def test_a_class_of_things_and_of_stuff_is_refused(tmp_path):
    tree = panoptic(NAMES)
    tree["categories"] += [{"id": 77, "name": "cat", "isthing": 0}]
    with pytest.raises(DataError, match="'cat' is one of things and of stuff"):
        read_stuff(make(tmp_path, tree))
    make(tmp_path / "splits", name="panoptic_train")
    tree["categories"][-1] = {**tree["categories"][0], "isthing": 0}
    write(tmp_path / "splits" / "panoptic_val.json", {**tree, "categories": tree["categories"][1:]})
    with pytest.raises(DataError, match=r"panoptic_val\.json: the class 'cat' is one of things and of stuff"):
        read_stuff(tmp_path / "splits")


def test_an_image_without_its_pixels_is_left_out_and_counted(tmp_path):
    (make(tmp_path) / "panoptic" / "a.png").unlink()
    split = read_stuff(tmp_path)
    assert list(split.contents.keys) == ["images/b.png"] and len(objects_of(split).boxes) == 4
    assert split.faulty[:2] == (1, 5)
    assert "its pixels; the image is left out: the file 'a.png' is not found" in split.notes[-1]
    Image.new("RGB", (9, 8)).save(tmp_path / "panoptic" / "a.png")
    split = read_stuff(tmp_path)
    assert list(split.contents.keys) == ["images/b.png"] and split.faulty[:2] == (1, 5)
    assert "its pixels in a.png; the image is left out: it has 9 x 8 pixels" in split.notes[-1]
    with pytest.raises(DataError, match="1 of 5 objects cannot be read"):
        open_data(tmp_path, task="panoptic")


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


def test_ids_of_stuff_that_only_the_json_or_only_the_png_has_are_named(tmp_path):
    paint(make(tmp_path) / "panoptic" / "a.png", (99, 0, 0, 64, 4))
    split = read_stuff(tmp_path)
    assert objects_of(split).of(0).labels.tolist() == [0, 1, 3] and split.faulty[:2] == (2, 9)
    assert "images/a.png, segment 5: no pixel of a.png has this id" in split.notes[-1]
    assert "images/a.png, a.png: pixels with the ids 99, which are not in segments_info" in split.notes[-1]
    # pixels of an id that is not listed are void
    assert (objects_of(split).read_map(0, SIZE)[:4] == UNCOUNTED).all()


def test_real_segments_are_those_of_the_file_pixel_by_pixel(real_data):
    root = real_data / "coco_mini"  # has two files of YOLO, too, between which the task decides
    tree = json.loads((root / "panoptic.json").read_text())
    categories = {each["id"]: each for each in tree["categories"]}
    opened = open_data(root, task="panoptic", validation=0)
    targets = opened.train.targets
    assert opened.notes == () and len(opened.train) == 15 and len(opened.classes) == 133
    is_thing = np.array(targets.things)[targets.labels]
    assert (is_thing.sum(), (~is_thing).sum(), targets.crowd.sum()) == (90, 52, 1)
    files = {Path(each["file_name"]).stem: each for each in tree["annotations"]}
    for row, key in enumerate(opened.train.keys):
        entry = files[Path(key).stem]
        red, green, blue = np.asarray(Image.open(root / "panoptic" / entry["file_name"])).astype(int).transpose(2, 0, 1)
        ids, expected = red + 256 * green + 65_536 * blue, np.full(red.shape, UNCOUNTED)
        for number, each in enumerate(entry["segments_info"], 1):
            category = categories[each["category_id"]]
            label = opened.classes.index(category["name"])
            assert targets.things[label] == bool(category["isthing"])
            if not each["iscrowd"]:
                expected[ids == each["id"]] = number << LABEL_BITS | label
        np.testing.assert_array_equal(targets.read_map(row, ids.shape), expected)


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
