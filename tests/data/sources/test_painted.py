"""Maps of classes from the outlines of objects: small objects over large ones, equal to COCO's own maps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from tests.data.sources.layouts import (
    SIZES,
    coco,
    cvat,
    labelme,
    write,
    write_coco,
    write_cvat,
    write_labelme,
    write_voc,
    write_yolo,
    write_yolo_polygons,
)
from vitrail.data.sources.annotations import Objects
from vitrail.data.sources.contents import Strings
from vitrail.data.sources.layout_warnings import find_layout_warnings
from vitrail.data.sources.open import open_data
from vitrail.data.sources.painted import PaintedMaps
from vitrail.errors import DataError
from vitrail.images.decode import BadImage

# corners (x, y) of the objects of the picture "a", 40 x 60: a large dog and on it a small cat, as polygons
DOG, CAT = [(0, 0), (40, 0), (40, 30), (0, 30)], [(10, 10), (20, 10), (20, 20), (10, 20)]


def expected_map() -> np.ndarray:
    levels = np.full(SIZES["a"], "background", object)
    levels[:30, :40] = "dog"
    levels[10:20, 10:20] = "cat"
    return levels


def flat(points) -> list[float]:
    return [float(value) for point in points for value in point]


def paint_coco(root: Path) -> Path:
    write_coco(root)
    objects = [
        {"id": 1, "image_id": 100, "category_id": 3, "bbox": [10, 10, 10, 10], "segmentation": [flat(CAT)]},
        {"id": 2, "image_id": 100, "category_id": 17, "bbox": [0, 0, 40, 30], "segmentation": [flat(DOG)]},
    ]
    write(root / "annotations" / "instances.json", coco(annotations=objects))
    return root


def paint_yolo(root: Path) -> Path:
    write_yolo_polygons(root)
    height, width = SIZES["a"]
    lines = [[label, *(f"{x / width} {y / height}" for x, y in points)] for label, points in ((0, CAT), (1, DOG))]
    write(root / "labels" / "train" / "a.txt", "\n".join(" ".join(map(str, line)) for line in lines))
    return root


def paint_labelme(root: Path) -> Path:
    """The cat as a rectangle: a shape without an outline is its box."""
    write_labelme(root)
    cat = {"label": "cat", "shape_type": "rectangle", "points": [CAT[0], CAT[2]]}
    dog = {"label": "dog", "shape_type": "polygon", "points": DOG}
    write(root / "train" / "a.json", labelme("a", shapes=[cat, dog]))
    return root


def paint_cvat(root: Path) -> Path:
    write_cvat(root)
    cat, dog = (";".join(f"{x},{y}" for x, y in points) for points in (CAT, DOG))
    shapes = f'<polygon label="cat" points="{cat}"/><polygon label="dog" points="{dog}"/>'
    write(root / "annotations.xml", cvat(shapes))
    return root


@pytest.mark.parametrize("paint", [paint_coco, paint_yolo, paint_labelme, paint_cvat])
def test_the_same_map_is_painted_from_every_format(paint, tmp_path):
    splits = open_data(paint(tmp_path), task="segmentation", validation=0)
    assert splits.classes[0] == "background" and set(splits.classes) == {"background", "cat", "dog"}
    (row,) = (row for row, key in enumerate(splits.train.keys) if Path(key).stem == "a")
    found = np.array(splits.classes, object)[splits.train.targets.of(row)]
    assert (found == expected_map()).all()
    assert splits.train.targets.count_classes(3).sum() == sum(
        np.prod(SIZES[Path(key).stem]) for key in splits.train.keys
    )


def test_without_the_word_the_data_stay_boxes(tmp_path):
    assert open_data(paint_coco(tmp_path)).train.counted == "objects"


@pytest.mark.parametrize("write_boxes", [write_coco, write_voc, write_yolo])
def test_boxes_alone_are_no_maps(write_boxes, tmp_path):
    with pytest.raises(DataError, match="boxes without outlines") as error:
        open_data(write_boxes(tmp_path), task="segmentation")
    assert error.value.remedy == "give polygons or masks, or train with --task detect"


def test_an_outline_that_cannot_be_read_is_named(tmp_path):
    write_coco(tmp_path)
    objects = [{"id": 1, "image_id": 100, "category_id": 3, "bbox": [1, 1, 9, 9], "segmentation": [[1, 2, 3]]}]
    write(tmp_path / "annotations" / "instances.json", coco(annotations=objects))
    with pytest.raises(DataError, match="annotation 1, its outline; its box is ignored: a polygon is a flat list"):
        open_data(tmp_path, task="segmentation")


def test_a_picture_of_unknown_size_is_bad():
    with pytest.raises(BadImage, match="does not say how large the picture is"):
        PaintedMaps(Objects.of_image([[0, 0, 5, 5]], [0]), Strings(["a.png"]))[0]


def test_painted_photographs_equal_cocos_own_maps(real_data):
    root = real_data / "coco_mini"
    names = yaml.safe_load((root / "semantic.yaml").read_text())["classes"]
    train = open_data(root / "instances.json", task="segmentation", validation=0).train
    assert len(train) == 15
    for row, key in enumerate(train.keys):
        levels = np.asarray(Image.open(root / "semantic" / f"{Path(key).stem}.png"))
        known = np.array(
            [names.get(value) if names.get(value) in train.classes else "background" for value in range(256)]
        )
        agree = np.array(train.classes)[train.targets.of(row)] == known[levels]
        # the photograph with a crowd shows some pixels of it under another object
        assert agree.mean() == 1 or (Path(key).stem == "000000000257" and agree.mean() > 0.998)


def test_objects_under_smaller_ones_are_counted(tmp_path):
    whole, inner = [[0, 0, 20, 0, 20, 20, 0, 20]], [[5, 5, 15, 5, 15, 15, 5, 15]]
    outlines = {"a.png": [whole, inner, inner], "b.png": [whole]}
    images, annotations = [], []
    for number, (name, polygons) in enumerate(outlines.items()):
        Image.new("RGB", (30, 24)).save(tmp_path / name)
        images.append({"id": number, "file_name": name, "height": 24, "width": 30})
        for polygon in polygons:
            owner = {"id": len(annotations) + 1, "image_id": number, "category_id": 1}
            annotations.append({**owner, "segmentation": polygon, "iscrowd": 0})
    document = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "cell"}]}
    (tmp_path / "instances.json").write_text(json.dumps(document))
    found = find_layout_warnings(open_data(tmp_path, task="instances", validation=0), tmp_path)
    # 400 + 100 + 100 + 400 pixels, of which 200 lie under others
    hidden = "20.0% of the pixels of objects in train lie under smaller objects, and count as theirs"
    assert f"{hidden}; wholly hidden: 1 object" in found
    assert not any(
        "smaller objects" in line for line in find_layout_warnings(open_data(tmp_path, validation=0), tmp_path)
    )
