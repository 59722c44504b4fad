"""Folders as people have them: what is found in them, in which order, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.sources.folders import read_folder
from vitrail.data.sources.layout_warnings import find_layout_warnings
from vitrail.data.sources.open import open_data
from vitrail.errors import DataError

GIF = b"GIF89a" + b"\0" * 10


def make(root, *paths):
    """Files with unlike contents that look like images by their first bytes."""
    for number, path in enumerate(paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(GIF + str(number).encode())
    return root


def seen(source):
    return {key: source.classes[target] for key, target in zip(source.keys, source.targets)}


def test_a_folder_for_each_class(tmp_path):
    make(tmp_path, "bee/2.jpg", "bee/10.jpg", "ant/x.png", "ant/deep/er/y.gif", "10/a.bmp", "9/a.webp")
    splits = open_data(tmp_path, validation=0)
    assert splits.layout == "class folders"
    assert splits.classes == ("10", "9", "ant", "bee")
    assert seen(splits.train) == {
        "10/a.bmp": "10", "9/a.webp": "9", "ant/deep/er/y.gif": "ant", "ant/x.png": "ant", "bee/10.jpg": "bee",
        "bee/2.jpg": "bee",
    }  # fmt: skip
    assert (splits.val, splits.test, splits.held_out) == (None, None, False)


def test_classes_that_are_numbers_are_in_their_order(tmp_path):
    make(tmp_path, *(f"{number}/a.jpg" for number in (10, 9, 100, 0)))
    assert open_data(tmp_path, validation=0).classes == ("0", "9", "10", "100")


def test_the_order_does_not_depend_on_the_file_system(tmp_path, monkeypatch):
    make(tmp_path, *(f"{name}/{number}.jpg" for name in "cab" for number in range(9)))
    whole = open_data(tmp_path)
    scandir = os.scandir

    class Backwards:
        def __init__(self, folder):
            self.entries = reversed(sorted(scandir(folder), key=lambda entry: entry.name))

        def __enter__(self):
            return self.entries

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(os, "scandir", Backwards)
    again = open_data(tmp_path)
    for part, same in ((whole.train, again.train), (whole.val, again.val)):
        assert list(part.keys) == list(same.keys)
        np.testing.assert_array_equal(part.targets, same.targets)


@pytest.mark.parametrize(
    ("names", "found"),
    [(("train", "val", "test"), ["train", "val", "test"]), (("Training", "validation"), ["train", "val"]),
     (("train", "valid"), ["train", "val"]), (("test",), ["test"])],
)  # fmt: skip
def test_split_folders_by_all_their_names(tmp_path, names, found):
    make(tmp_path, *(f"{name}/{label}/{name}.jpg" for name in names for label in ("ant", "bee")))
    splits = open_data(tmp_path)
    assert splits.layout == f"class folders in {', '.join(found)}"
    assert [name for name in ("train", "val", "test") if getattr(splits, name) is not None] == found
    assert splits.classes == ("ant", "bee")
    assert list(getattr(splits, found[0]).keys) == [f"{names[0]}/ant/{names[0]}.jpg", f"{names[0]}/bee/{names[0]}.jpg"]


def test_a_class_that_validation_lacks_moves_no_number(tmp_path):
    make(tmp_path, "train/ant/1.jpg", "train/bee/1.jpg", "train/cat/1.jpg", "val/ant/1.jpg", "val/cat/1.jpg")
    splits = open_data(tmp_path)
    assert splits.val.targets.tolist() == [0, 2]
    (warning,) = find_layout_warnings(splits)
    assert warning == "1 of 3 classes have no validation image, so no figure says how well they are learned: 'bee'"


def test_a_class_that_training_lacks_is_shown_in_a_table(tmp_path):
    make(tmp_path, "train/ant/1.jpg", "train/bee/1.jpg", "val/ants/1.jpg", "val/ants/2.jpg", "val/wasp/1.jpg")
    with pytest.raises(DataError, match="2 classes not among the 2 classes of the training images") as error:
        open_data(tmp_path)
    lines = error.value.value.splitlines()
    assert [line.split()[:3] for line in lines] == [["ants", "val", "2"], ["wasp", "val", "1"]]
    assert "did you mean 'ant'?" in lines[0]


def test_extensions_in_any_case_missing_or_wrong(tmp_path):
    make(tmp_path, "a/1.JPG", "a/2.JpEg", "a/3.TIFF", "a/noextension", "a/readme.txt", "a/4.heic", "b/1.png")
    (tmp_path / "b/words").write_text("no image")
    splits = open_data(tmp_path, validation=0)
    assert list(splits.train.keys) == ["a/1.JPG", "a/2.JpEg", "a/3.TIFF", "a/4.heic", "a/noextension", "b/1.png"]
    assert splits.layout == "class folders; 2 other files not used (.txt 1, none 1)"


def test_hidden_files_are_no_images(tmp_path):
    make(tmp_path, "a/1.jpg", "a/._1.jpg", ".git/x.jpg", "__MACOSX/a/1.jpg", "b/1.jpg")
    assert list(open_data(tmp_path, validation=0).train.keys) == ["a/1.jpg", "b/1.jpg"]


def test_links_are_followed_but_never_in_a_circle(tmp_path):
    make(tmp_path, "data/a/1.jpg", "data/b/1.jpg", "elsewhere/2.jpg", "elsewhere/deep/3.jpg")
    (tmp_path / "data/a/up").symlink_to(tmp_path / "data")
    (tmp_path / "data/a/self").symlink_to(tmp_path / "data/a")
    (tmp_path / "data/b/more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/b/one.jpg").symlink_to(tmp_path / "elsewhere/2.jpg")
    keys = list(open_data(tmp_path / "data", validation=0).train.keys)
    assert keys == ["a/1.jpg", "b/1.jpg", "b/more/2.jpg", "b/more/deep/3.jpg", "b/one.jpg"]


def test_a_link_to_itself_does_not_block_its_folder(tmp_path):
    make(tmp_path, "a/1.jpg", "b/1.jpg")
    for name in ("loop", "loop.txt", "a/loop", "a/0.jpg", "x.json", "x.yaml", "index", "train"):
        (tmp_path / name).symlink_to(Path(name).name)
    assert list(open_data(tmp_path, validation=0).train.keys) == ["a/0.jpg", "a/1.jpg", "b/1.jpg"]


def test_a_class_may_be_called_like_a_split(tmp_path):
    make(tmp_path, "train/1.jpg", "bus/1.jpg", "car/1.jpg")
    assert open_data(tmp_path, validation=0).classes == ("bus", "car", "train")


def test_splits_beside_classes_are_refused(tmp_path):
    make(tmp_path, "train/ant/1.jpg", "val/ant/1.jpg", "wasps/1.jpg")
    with pytest.raises(DataError, match=r"split folders \(train, val\) and other folders: 'wasps'"):
        open_data(tmp_path)


def test_a_folder_without_images_beside_the_splits_does_not_matter(tmp_path):
    make(tmp_path, "train/ant/1.jpg", "train/bee/1.jpg")
    make(tmp_path, "docs/notes.txt")
    assert open_data(tmp_path, validation=0).classes == ("ant", "bee")


def test_two_folders_for_one_split_are_refused(tmp_path):
    make(tmp_path, "train/ant/1.jpg", "val/ant/1.jpg", "valid/ant/1.jpg")
    with pytest.raises(DataError, match="more than one val folder: val, valid"):
        open_data(tmp_path)


def test_an_empty_class_is_refused_by_name(tmp_path):
    make(tmp_path, "ant/1.jpg", "bee/1.jpg")
    (tmp_path / "wasp").mkdir()
    with pytest.raises(DataError, match="1 class has no training images: 'wasp'"):
        open_data(tmp_path)
    assert open_data(tmp_path, validation=0, labelled=False).train.counts().tolist() == [1, 1, 0]


def test_an_empty_folder_says_what_it_wants(tmp_path):
    with pytest.raises(DataError, match="there are no images in") as error:
        open_data(tmp_path)
    assert error.value.value == "it is empty"
    make(tmp_path, "a.svg", "b.txt")
    with pytest.raises(DataError, match="there are no images in") as error:
        open_data(tmp_path)
    assert error.value.value == "it contains a.svg, b.txt"


def test_a_training_folder_without_images_is_refused(tmp_path):
    make(tmp_path, "val/ant/1.jpg")
    (tmp_path / "train/ant").mkdir(parents=True)
    with pytest.raises(DataError, match=r"the training folder of .* contains no images"):
        open_data(tmp_path)


def test_an_empty_test_folder_is_passed_over_aloud(tmp_path):
    make(tmp_path, "train/ant/1.jpg", "train/bee/1.jpg", "val/ant/1.jpg")
    (tmp_path / "test").mkdir()
    assert open_data(tmp_path).layout == "class folders in train, val; test is empty"


def test_an_unlabelled_test_folder_is_left_out_aloud(tmp_path):
    make(tmp_path, "train/ant/1.jpg", "train/bee/1.jpg", "val/ant/1.jpg", "test/1.jpg", "test/2.jpg")
    splits = open_data(tmp_path)
    assert splits.test is None
    assert splits.layout.endswith("; test has no labels and is not used")
    unlabelled = open_data(tmp_path, labelled=False)
    assert len(unlabelled.test) == 2
    assert not unlabelled.test.labelled
    assert unlabelled.test.read(0).target is None


def test_a_folder_of_images_alone_is_unlabelled(tmp_path):
    make(tmp_path, "2.jpg", "1.jpg", "deep/3.jpg")
    splits = open_data(tmp_path, validation=0, labelled=False)
    assert list(splits.train.keys) == ["1.jpg", "2.jpg", "deep/3.jpg"]
    assert splits.classes == ()
    assert splits.layout == "an unlabelled folder of images"
    make(tmp_path / "flat", "1.jpg")
    with pytest.raises(DataError, match="the data have no labels") as error:
        open_data(tmp_path / "flat")
    assert "a manifest" in error.value.remedy


def test_images_beside_class_folders_are_named_as_unused(tmp_path):
    make(tmp_path, "stray.jpg", "ant/1.jpg", "bee/1.jpg")
    splits = open_data(tmp_path, validation=0)
    assert splits.layout == "class folders; 1 images next to the class folders not used"
    assert list(splits.train.keys) == ["ant/1.jpg", "bee/1.jpg"]


def test_nothing_is_opened_or_measured_while_scanning(tmp_path, monkeypatch):
    make(tmp_path, *(f"{name}/{number}.jpg" for name in "ab" for number in range(50)))
    opened = []
    monkeypatch.setattr(os, "open", lambda *arguments: opened.append(arguments))
    assert len(read_folder(tmp_path, labelled=True)[1]["train"].contents.keys) == 100
    assert not opened


def test_real_photographs(real_data):
    splits = open_data(real_data / "hymenoptera")
    assert splits.classes == ("ants", "bees")
    assert splits.train.counts().tolist() == [124, 121]
    assert splits.val.counts().tolist() == [70, 83]
    assert "train/ants/imageNotFound.gif" in splits.train.keys


def test_a_pattern_gives_each_matching_folder_as_a_class(tmp_path):
    make(tmp_path, "a/x/1.jpg", "a/y/deep/2.jpg", "b/x/3.jpg", "b/notes.txt", "c.jpg", "a/.hidden/4.jpg")
    splits = open_data(f"{tmp_path}/*/*", validation=0)
    assert splits.classes == ("a/x", "a/y", "b/x")
    assert list(splits.train.keys) == ["a/x/1.jpg", "a/y/deep/2.jpg", "b/x/3.jpg"]
    assert splits.train.targets.tolist() == [0, 1, 2]
    assert open_data(f"{tmp_path}/a/[xy]", validation=0).classes == ("x", "y")
    with pytest.raises(DataError, match=r"no folder that matches .* contains images"):
        open_data(f"{tmp_path}/*/*/none*")
    with pytest.raises(DataError, match="one '\\*' for each level"):
        open_data(f"{tmp_path}/**/x")
    make(tmp_path, "train/x/1.jpg")
    with pytest.raises(DataError, match="only some are in train"):
        open_data(f"{tmp_path}/*/*")


def test_a_pattern_gives_each_folder_with_images_as_a_class_at_any_depth(tmp_path):
    """As in GroceryStore: some classes lie a level deeper than others, and the first level names kinds of them."""
    trees = ("Fruit/Apple/Golden/1.jpg", "Fruit/Apple/Pink/2.jpg", "Fruit/Banana/3.jpg", "Packages/Milk/Oat/4.jpg")
    for split in ("train", "val"):
        make(tmp_path, *(f"{split}/{name}" for name in trees))
    names = ("Fruit/Apple/Golden", "Fruit/Apple/Pink", "Fruit/Banana", "Packages/Milk/Oat")
    splits = open_data(f"{tmp_path}/**")
    assert splits.classes == names
    assert (splits.train.targets.tolist(), splits.val.targets.tolist()) == ([0, 1, 2, 3], [0, 1, 2, 3])
    make(tmp_path, "train/stray.jpg")
    assert open_data(f"{tmp_path}/**").layout.endswith("; 1 image beside the class folders not used")
    (warning,) = find_layout_warnings(open_data(tmp_path), tmp_path)
    assert f"(2 classes); if the subfolders are the classes, give '{tmp_path}/**'" in warning
