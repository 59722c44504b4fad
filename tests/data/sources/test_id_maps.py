"""Id maps: each value is an object; how they are told from masks of classes; Cityscapes' instanceIds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.each_row import each_row
from vitrail.data.sources.annotations import LABEL_BITS, UNCOUNTED, Objects, PanopticObjects
from vitrail.data.sources.mask_folders import list_images
from vitrail.data.sources.open import find_data, open_data
from vitrail.data.sources.scan import Scan
from vitrail.errors import DataError
from vitrail.images.rle import Rle

SIZE = HEIGHT, WIDTH = 12, 16


def id_map(*values: int, dtype: type = np.uint8) -> np.ndarray:
    """Each value in a square of 3 pixels and, apart from it, one pixel further down."""
    ids = np.zeros(SIZE, dtype)
    for place, value in enumerate(values):
        ids[2:5, 4 * place : 4 * place + 3] = value
        ids[8, 4 * place] = value
    return ids


def box_of(place: int) -> list[int]:
    return [4 * place, 2, 4 * place + 3, 9]


def save(path: Path, ids: np.ndarray | None = None) -> None:
    """Saves a map, or a picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.new("RGB", (WIDTH, HEIGHT), (sum(map(ord, str(path))) % 251, 9, 9))
    (picture if ids is None else Image.fromarray(ids)).save(path)


def read(root: Path, *, outlines: bool = True) -> tuple[str, dict[str, dict[str, Objects]], list[str]]:
    """The layout, the objects of each picture by split, and the notes."""
    found = find_data(root)
    assert found.objects is not None
    layout, splits = found.objects(outlines=outlines)
    objects = {
        split: {key: part.labels.values.of(row) for row, key in enumerate(part.contents.keys)}
        for split, part in splits.items()
    }
    return layout, objects, [note for part in splits.values() for note in part.notes]


FORMS = {
    "8 bits": ("a.png", id_map(3, 200, 255)),
    "16 bits": ("a.png", id_map(3, 300, 65_535, dtype=np.uint16)),
    "TIFF of 16 bits": ("a.tif", id_map(3, 300, 65_535, dtype=np.uint16)),
    "TIFF of 32 bits": ("a.tiff", id_map(3, 300, 70_000, dtype=np.int32)),
    "grey colours": ("a.png", np.repeat(id_map(3, 4, 5)[..., None], 3, 2)),
}


@each_row("name", FORMS)
def test_every_value_but_0_is_an_object_with_its_pixels(name, tmp_path):
    file, ids = FORMS[name]
    save(tmp_path / "images" / "a.png")
    save(tmp_path / "instances" / file, ids)
    layout, splits, notes = read(tmp_path)
    assert layout == "images and id maps (in instances/ every value but 0 is an object)" and notes == []
    objects = splits["train"]["images/a.png"]
    assert objects.boxes.tolist() == [box_of(place) for place in range(3)] and objects.areas.tolist() == [10] * 3
    levels = ids if ids.ndim == 2 else ids[..., 0]
    for value, outline in zip(np.unique(levels)[1:], objects.outlines, strict=True):
        np.testing.assert_array_equal(Rle.of_text(outline, SIZE).to_mask(), levels == value)
    _, boxes, _ = read(tmp_path, outlines=False)
    assert (boxes["train"]["images/a.png"].boxes == objects.boxes).all()
    assert set(boxes["train"]["images/a.png"].outlines) == {b""}


LAYOUTS = {
    "images and instances": ("images/{0}/x.png", "instances/{0}/x.png"),
    "splits outside": ("{0}/images/x.png", "{0}/Instance_Maps/x.tif"),
    "folders beside those of splits": ("{0}/x.jpg", "{0}_ids/x.png"),
    "ids with an ending": ("{0}/images/x.png", "{0}/ids/x_instances.png"),
    "labels of 16 bits with large values": ("images/{0}/x.png", "labels/{0}/x.png"),
}


@each_row("name", LAYOUTS)
def test_splits_and_names_are_those_of_masks(name, tmp_path):
    image, ids = LAYOUTS[name]
    for split, value in (("train", 300), ("val", 400), ("test", 0)):
        save(tmp_path / image.format(split))
        save(tmp_path / ids.format(split), id_map(1, value, dtype=np.uint16))
    layout, splits, notes = read(tmp_path)
    assert layout.startswith("images and id maps (") and notes == []
    assert {split: len(objects[image.format(split)].boxes) for split, objects in splits.items()} == {
        "train": 2,
        "val": 2,
        "test": 1,
    }


def test_lists_divide_the_images_of_id_maps(tmp_path):
    for name in "abc":
        save(tmp_path / "images" / f"{name}.png")
        save(tmp_path / "instances" / f"{name}.png", id_map(1))
    (tmp_path / "train.txt").write_text("a\n")
    (tmp_path / "val.txt").write_text("b\n")
    layout, splits, notes = read(tmp_path)
    assert {split: [*objects] for split, objects in splits.items()} == {
        "train": ["images/a.png"],
        "val": ["images/b.png"],
    }
    assert "divided by the lists" in layout and notes == ["images in no list, left out: 1 (images/c.png)"]


def test_16_bits_without_large_values_are_masks_of_classes(tmp_path):
    for number, name in enumerate("abcd"):
        save(tmp_path / "images" / f"{name}.png")
        save(tmp_path / "labels" / f"{name}.png", id_map(1, 2, 65_535 if number else 255, dtype=np.uint16))
    assert find_data(tmp_path).task == "segmentation"
    assert open_data(tmp_path, validation=0).classes == ("0", "1", "2")
    save(tmp_path / "labels" / "a.png", id_map(1, 2, 300, dtype=np.uint16))
    assert find_data(tmp_path).task == "segmentation"  # one of four: a fault of this mask
    with pytest.raises(DataError, match="maps of objects belong into a folder 'instances'"):
        open_data(tmp_path)
    for name in "bc":
        save(tmp_path / "labels" / f"{name}.png", id_map(1, 2, 300, dtype=np.uint16))
    layout, _, _ = read(tmp_path)
    assert layout == "images and id maps (labels/ has values above 255: every value but 0 is an object)"


def test_the_only_class_of_a_file_of_names_is_that_of_the_objects(tmp_path):
    save(tmp_path / "images" / "a.png")
    save(tmp_path / "instances" / "a.png", id_map(1, 2))
    assert open_data(tmp_path, validation=0).classes == ("object",)
    for names in ("cell\n", "background\ncell\n"):
        (tmp_path / "classes.txt").write_text(names)
        assert open_data(tmp_path, validation=0).classes == ("cell",)
    (tmp_path / "classes.txt").write_text("cell\nnucleus\n")
    opened = open_data(tmp_path, validation=0)
    assert opened.classes == ("object",)
    assert opened.notes == (
        "train: classes.txt names 2 classes, and id maps do not say the class of an object: all are 'object'",
    )


def test_masks_of_classes_beside_id_maps_are_those_of_segmentation(tmp_path):
    save(tmp_path / "images" / "a.png")
    save(tmp_path / "instances" / "a.png", id_map(1, 2))
    save(tmp_path / "masks" / "a.png", id_map(1, 1))
    assert open_data(tmp_path, validation=0).train.counted == "objects"
    assert open_data(tmp_path, task="segmentation", validation=0).classes == ("0", "1")


FAULTS = {
    "another size": (np.zeros((5, 6), np.uint8), "it has 6 x 5 pixels, the upright image 16 x 12"),
    "colours": (np.random.default_rng(0).integers(0, 255, (*SIZE, 3), np.uint8), "save one number for each object"),
    "negative numbers": (id_map(-1, dtype=np.int32), "the map has the value -1; save objects as whole numbers from 1"),
    "fractions": (id_map(1, dtype=np.float32) / 2, "the map has the value 0.5"),
    "no image": (None, "not a JPEG"),
}


@each_row("name", FAULTS)
def test_maps_that_cannot_be_used_are_named(name, tmp_path):
    ids, message = FAULTS[name]
    for each in "abc":
        save(tmp_path / "images" / f"{each}.png")
        save(tmp_path / "instances" / f"{each}.tif", id_map(1, 2))
    save(tmp_path / "images" / "d.png")
    path = tmp_path / "instances" / "b.tif"
    path.write_bytes(b"none") if ids is None else save(path, ids)
    _, splits, notes = read(tmp_path)
    assert [*splits["train"]] == ["images/a.png", "images/c.png"]
    assert notes[0] == "images without a map, left out: 1 (images/d.png)"
    assert notes[1].startswith("objects that cannot be read, left out: 1 (images/b.png, its map b.tif: ")
    assert message in notes[1]
    with pytest.raises(DataError, match="1 of 5 objects cannot be read"):
        open_data(tmp_path)


def test_id_maps_are_no_inputs_of_predictions(tmp_path):
    save(tmp_path / "images" / "a.png")
    save(tmp_path / "instances" / "a.png", id_map(1, 2))
    scan = Scan()
    assert list_images(tmp_path, scan) == [str(tmp_path / "images" / "a.png")] and scan.masks == 1


def write_cityscapes(root: Path, ids: np.ndarray) -> None:
    for split, city in (("train", "ulm"), ("val", "bonn")):
        save(root / "leftImg8bit" / split / city / f"{city}_000_leftImg8bit.png")
        for kind, values in (("instanceIds", ids), ("labelIds", np.minimum(ids, 26).astype(np.uint8))):
            save(root / "gtFine" / split / city / f"{city}_000_gtFine_{kind}.png", values)


def test_cityscapes_has_segments_of_the_classes_that_are_evaluated(tmp_path):
    write_cityscapes(tmp_path, id_map(26_000, 7, 29_001, 33, dtype=np.uint16))
    opened = open_data(tmp_path, task="panoptic")
    assert opened.layout.startswith("Cityscapes segments (of instanceIds)") and len(opened.classes) == 19
    for source in (opened.train, opened.val):
        targets = source.targets
        assert isinstance(targets, PanopticObjects) and sum(targets.things) == 8
        found = [(opened.classes[label], targets.things[label]) for label in targets.labels.tolist()]
        assert found == [("road", False), ("bicycle", True), ("car", True)]  # a caravan is not evaluated
        assert targets.crowd.tolist() == [False, True, False]
        values = targets.read_map(0, SIZE)
        assert values[2, 0] >> LABEL_BITS == 3 and values[2, 4] >> LABEL_BITS == 1
        assert (values[2, 8:] == UNCOUNTED).all() and values[0, 0] == UNCOUNTED  # the caravan, the crowd, and void


def test_cityscapes_has_objects_of_its_classes_and_crowds_of_its_groups(tmp_path):
    write_cityscapes(tmp_path, id_map(26_000, 7, 24_012, 33, dtype=np.uint16))
    layout, splits, notes = read(tmp_path)
    assert layout.startswith("Cityscapes objects (") and "2 further files of masks not used" in layout and notes == []
    objects = splits["val"]["leftImg8bit/val/bonn/bonn_000_leftImg8bit.png"]
    opened = open_data(tmp_path, validation=0, task="instances")
    assert opened.classes[:3] == ("person", "rider", "car") and len(opened.classes) == 10
    found = sorted(zip(objects.boxes[:, 0] // 4, objects.labels, objects.crowd))  # by place
    assert found == [(0, 2, False), (2, 0, False), (3, 9, True)]
    assert len(open_data(tmp_path, validation=0).classes) == 19  # masks of classes unless objects are asked for


def test_a_value_that_cityscapes_does_not_have_is_named(tmp_path):
    write_cityscapes(tmp_path, id_map(26_000, 40_001, 34, dtype=np.uint16))
    _, splits, notes = read(tmp_path)
    assert len(splits["train"]["leftImg8bit/train/ulm/ulm_000_leftImg8bit.png"].boxes) == 1
    assert "its map ulm_000_gtFine_instanceIds.png: the value 34, which Cityscapes does not have" in notes[0]
