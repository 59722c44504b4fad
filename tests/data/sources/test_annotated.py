"""Data sets of boxes and masks: one set of images in all layouts, and what is wrong in each said with its remedy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.sources.layouts import (
    NAMES,
    OBJECTS,
    SIZES,
    coco,
    cvat,
    labelme,
    save_images,
    voc,
    write,
    write_coco,
    write_coco_beside_images,
    write_cvat,
    write_labelme,
    write_masks,
    write_voc,
    write_yolo,
    write_yolo_polygons,
)
from vitrail.data.sources.annotations import LabelMaps, Objects
from vitrail.data.sources.layout_warnings import find_layout_warnings
from vitrail.data.sources.open import open_data
from vitrail.errors import DataError
from vitrail.images.masks import IGNORED
from vitrail.verbs.data.findings import check

LAYOUTS = (
    write_coco,
    write_coco_beside_images,
    write_voc,
    write_yolo,
    write_yolo_polygons,
    write_labelme,
    write_cvat,
)


def refusal(path: Path, **options) -> str:
    """What is said of data that cannot be opened, with the remedy."""
    with pytest.raises(DataError) as error:
        open_data(path, **options)
    return f"{error.value.what}; {error.value.remedy}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_objects_are_read_from_every_layout(layout, tmp_path):
    splits = open_data(layout(tmp_path), validation=0)
    assert set(splits.classes) == set(NAMES)
    found = {}
    for source in (splits.train, splits.val):
        if source is not None:
            assert isinstance(source.targets, Objects)
            for row, key in enumerate(source.keys):
                one = source.targets.of(row)
                assert source.contents[row].startswith(b"\x89PNG")
                assert tuple(one.sizes[0]) == SIZES[Path(key).stem]
                boxes = one.boxes.round(4).tolist()
                found[Path(key).stem] = sorted((splits.classes[label], *box) for label, box in zip(one.labels, boxes))
    assert found == {name: sorted(objects) for name, objects in OBJECTS.items()}


def test_a_split_of_coco_is_evaluated_by_the_names_of_a_model(tmp_path):
    splits = open_data(write_coco(tmp_path), validation=0, classes=("bird", "dog", "cat"))
    assert splits.train is not None
    assert sorted(splits.train.targets.labels) == [1, 2, 2]
    assert "a class not among the 1 given classes" in refusal(tmp_path, classes=("cat",))


def test_boxes_that_cannot_be_meant_are_left_out_and_said(tmp_path):
    odd = coco()
    odd["annotations"] += [
        {"id": 90, "image_id": 100, "category_id": 3, "bbox": [5, 5, 0, 9]},
        {"id": 91, "image_id": 100, "category_id": 3, "bbox": [80, 5, 9, 9]},
        {"id": 92, "image_id": 98, "category_id": 3, "bbox": [-9, 0, 19, 5]},
        {"id": 93, "image_id": 98, "category_id": 3, "bbox": [0, 0, 20.5, 5], "iscrowd": 1, "area": 7},
    ]
    save_images(tmp_path)
    write(tmp_path / "train.json", odd)
    splits = open_data(tmp_path / "train.json", validation=0)
    assert splits.notes == (
        "train: boxes without area, left out: 1 (a.png)",
        "train: boxes outside of their image, left out: 1 (a.png)",
        "train: boxes that reach out of their image, cut at its edge: 1 (c.png)",
    )
    last = splits.train.targets.of(2)
    assert last.boxes.tolist() == [[5, 10, 15, 30], [0, 0, 10, 5], [0, 0, 20, 5]]
    assert last.crowd.tolist() == [False, False, True] and last.areas.tolist() == [200, 50, 7]
    warnings = find_layout_warnings(splits)
    assert warnings[0] == splits.notes[0]
    assert "1 of 3 images in train have no objects, and count as background" in warnings


def test_data_check_counts_objects_and_finds_pictures_of_another_size(tmp_path):
    write_voc(tmp_path)
    Image.new("RGB", (30, 31)).save(tmp_path / "JPEGImages" / "b.png")
    found = check(tmp_path)
    assert (found.counted, found.images) == ("objects", 3)
    assert found.counts == {"train": {"cat": 1, "dog": 1}, "val": {"cat": 1, "dog": 0}}
    assert found.bad == (
        ("train/JPEGImages/b.png", "the annotation is for 30 x 30 pixels, the upright image has 30 x 31"),
    )
    assert "objects  train  val" in found.to_text()


MISTAKES = {
    "no such category": (
        lambda root: write(root / "annotations" / "instances.json", coco(categories=[{"id": 3, "name": "cat"}])),
        "annotation 0: the category '17', which instances.json does not name",
    ),
    "an image that is not listed": (
        lambda root: write(root / "annotations" / "instances.json", coco(images=coco()["images"][1:])),
        "an annotation of the image '100', which instances.json does not list",
    ),
    "a box of words": (
        lambda root: write(
            root / "annotations" / "instances.json",
            coco(annotations=[{"id": 1, "image_id": 100, "category_id": 3, "bbox": "0 0 1 1"}]),
        ),
        "annotation 1: bbox is 0 0 1 1, not 4 numbers; give bbox: [left, top, width, height] in pixels",
    ),
    "cut off": (
        lambda root: write(root / "annotations" / "instances.json", json.dumps(coco())[:-20]),
        "is no valid JSON",
    ),
    "deep": (
        lambda root: write(
            root / "annotations" / "instances.json", '{"images": ' + "[" * 90_000 + ', "annotations", "categories"'
        ),
        "is no valid JSON",
    ),
    "images elsewhere": (
        lambda root: (
            write(root / "annotations" / "instances.json", coco()),
            (root / "images").rename(root / "pictures"),
        ),
        "are not found, e.g. 'a.png'; put them in one of",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_coco_files_are_named_with_the_remedy(mistake, tmp_path):
    write_coco(tmp_path)
    spoil, message = MISTAKES[mistake]
    spoil(tmp_path)
    assert message in refusal(tmp_path)


def test_mistakes_in_voc_files_are_named_with_the_remedy(tmp_path):
    write_voc(tmp_path)
    path = tmp_path / "Annotations" / "a.xml"
    for content, message in (
        ("<annotation><object><name>cat</name></object></annotation>", "JPEGImages/a.png, object 1: it has no bndbox"),
        ("<annotation>", "a.xml is no valid XML"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><annotation/>', "declares a document type"),
        (voc("a").replace("<xmin>1<", "<xmin>one<"), "xmin is 'one', not a number"),
    ):
        write(path, content)
        assert message in refusal(tmp_path)
    write(path, voc("a"))
    write(tmp_path / "ImageSets" / "Main" / "val.txt", "c\nd\n")
    assert "train: lines of lists that name no image: 1 (d)" in open_data(tmp_path).notes
    write(tmp_path / "ImageSets" / "Main" / "val.txt", "d\n")
    assert "none of the 1 images in the list of val is in" in refusal(tmp_path)


def test_mistakes_in_yolo_files_are_named_with_the_remedy(tmp_path):
    write_yolo(tmp_path)
    path = tmp_path / "labels" / "train" / "a.txt"
    for content, message in (
        ("0 30 20 10 10", "the coordinate 30, and not fractions of the image; divide by the image's width and height"),
        ("0 0.5 0.5 0.2 1.2", "the coordinate 1.2, and not fractions of the image; give numbers from 0 to 1"),
        ("2 0.5 0.5 0.1 0.1", "the class 2, which has no name"),
        ("0 0.5 0.5 0.1", "a line of 3 coordinates"),
        ("cat 0.5 0.5 0.1 0.1", "the class is 'cat', not a whole number"),
    ):
        write(path, content)
        assert message in refusal(tmp_path)
    path.unlink()
    assert "no training image has an object" in refusal(tmp_path)
    splits = open_data(tmp_path, labelled=False)
    assert splits.notes == ("train: images without a text file, taken as images without objects: 1 (a.png)",)
    write(tmp_path / "data.yaml", "train: images/missing\nval: images/val\nnames: [cat, dog]\n")
    assert "missing, which does not exist; give paths relative to the file" in refusal(tmp_path)
    write(tmp_path / "more.yaml", "train: images/train\nnames: [cat, dog]\n")
    assert "several descriptions of objects: data.yaml, more.yaml" in refusal(tmp_path)


def expect_halves(source) -> None:
    assert isinstance(source.targets, LabelMaps)
    for row, key in enumerate(source.keys):
        levels = source.targets.of(row)
        assert levels.shape == SIZES[Path(key).stem]
        assert (levels[0] == IGNORED).all()
        middle = levels.shape[1] // 2
        assert (levels[1:, :middle] == 0).all() and (levels[1:, middle:] == 1).all()


def test_mistakes_in_files_of_labelme_and_cvat_are_named_with_the_remedy(tmp_path):
    write_labelme(tmp_path / "labelme")
    path = tmp_path / "labelme" / "train" / "a.json"
    for content, message in (
        (labelme("a", imagePath="z.png"), "the image 'z.png' does not exist: put the image beside its annotation"),
        (
            labelme("a", shapes=[{"label": "cat"}]),
            "train/a.json, shape 1: it has no 'points'",
        ),
        (labelme("a", shapes=[{"label": "cat", "points": [["one", 2]]}]), "a point of points is 'one', not a number"),
    ):
        write(path, content)
        assert message in refusal(tmp_path / "labelme")
    path.unlink()
    assert (
        "images without an annotation file, left out: 1 (a.png)"
        in open_data(tmp_path / "labelme", labelled=False).notes[0]
    )
    write_cvat(tmp_path / "cvat")
    path = tmp_path / "cvat" / "annotations.xml"
    for content, message in (
        (cvat('<box label="cat" xtl="1"/>'), "images/Train/a.png, box 1: it has no 'ytl'"),
        (cvat('<polygon label="cat" points="1,2;three,4"/>'), "x is 'three', not a number"),
        (cvat().replace("c.png", "d.png"), "the image 'd.png' is not found: put the images into"),
        ("<annotations/>", "has no images"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><annotations/>', "declares a document type"),
    ):
        write(path, content)
        assert message in refusal(tmp_path / "cvat")


@pytest.mark.parametrize("splits", [True, False])
def test_masks_are_paired_with_their_images_and_255_is_ignored(splits, tmp_path):
    write_masks(tmp_path, {0: 0, 1: 1, 2: 255}, splits=splits)
    write(tmp_path / "classes.txt", "sky\nground\n")
    opened = open_data(tmp_path, validation=0)
    assert opened.classes == ("sky", "ground")
    assert [part and len(part) for part in (opened.train, opened.val)] == ([2, 1] if splits else [3, None])
    expect_halves(opened.train)


def test_colours_without_a_table_become_classes_and_unknown_ones_are_refused(tmp_path):
    write_masks(tmp_path, {0: (9, 8, 7), 1: (200, 0, 0)}, mode="RGB")
    opened = open_data(tmp_path)
    assert opened.classes == ("#090807", "#c80000")
    assert "give a palette.csv with index,name,red,green,blue" in opened.notes[0]
    write(tmp_path / "palette.csv", "index,name,red,green,blue\n0,sky,9,8,7\n1,ground,201,0,0\n")
    assert "have the colours (200, 0, 0) (3 masks, e.g. masks/train/a_mask.png), which palette.csv does not" in refusal(
        tmp_path
    )


def test_255_is_the_foreground_of_masks_without_other_values(tmp_path):
    write_masks(tmp_path, {0: 0, 1: 255})
    opened = open_data(tmp_path)
    assert opened.classes == ("background", "foreground")
    np.testing.assert_array_equal(np.unique(opened.train.targets.of(0)), [0, 1])
    assert "255 is taken as the second class, not as ignored" in opened.notes[0]


def test_values_without_a_name_and_images_without_a_mask_are_said(tmp_path):
    write_masks(tmp_path, {0: 0, 1: 4, 2: 255})
    write(tmp_path / "classes.txt", "sky\nground\n")
    assert "e.g. masks/train/a_mask.png), and classes.txt names 2; add their names" in refusal(tmp_path)
    (tmp_path / "classes.txt").unlink()
    (tmp_path / "masks" / "train" / "a_mask.png").unlink()
    opened = open_data(tmp_path)
    assert opened.classes == ("0", "4")
    assert opened.notes == ("train: images without a mask, left out: 1 (images/train/a.png)",)


def test_cityscapes_is_read_as_its_19_evaluated_classes(tmp_path):
    for kind, value in (("leftImg8bit", None), ("gtFine", 26)):
        folder = tmp_path / kind / "train" / "ulm"
        folder.mkdir(parents=True)
        name = "ulm_000_leftImg8bit.png" if value is None else "ulm_000_gtFine_labelIds.png"
        image = Image.new("RGB" if value is None else "L", (8, 4), 0 if value is None else value)
        if value is not None:
            image.paste(1, (0, 0, 2, 4))  # the ego vehicle, which is not evaluated
        image.save(folder / name)
    opened = open_data(tmp_path, validation=0)
    assert len(opened.classes) == 19 and opened.classes[13] == "car"
    np.testing.assert_array_equal(opened.train.targets.of(0)[0], [255, 255, 13, 13, 13, 13, 13, 13])


def test_class_folders_are_still_class_folders(tmp_path):
    for name in ("images", "pictures"):
        save_images(tmp_path / name)
    assert open_data(tmp_path).layout.startswith("class folders")


def test_real_annotations_are_read_whole(real_data):
    """The numbers that the README of each data set states."""
    cells = open_data(real_data / "bccd")
    assert [len(part) for part in (cells.train, cells.val, cells.test)] == [205, 87, 72]
    counts = sum(part.counts() for part in (cells.train, cells.val, cells.test))
    left_out = [note for note in cells.notes if "boxes without area, left out: 1 (" in note]
    assert counts.sum() + len(left_out) == 4_888 and dict(zip(cells.classes, counts))["WBC"] == 372
    streets = open_data(real_data / "camvid")
    assert [len(part) for part in (streets.train, streets.val, streets.test)] == [123, 34, 59]
    assert streets.classes[:3] == ("sky", "building", "pole") and streets.notes == ()
    coco_boxes = open_data(real_data / "coco_mini" / "instances.json", validation=0).train
    assert coco_boxes.targets.crowd.sum() == 1 and len(coco_boxes) == 15
