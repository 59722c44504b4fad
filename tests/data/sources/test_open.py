"""Opening data of any kind: classes joined by name, the held-out part, and errors that show the way."""

from __future__ import annotations

import os
import pickle
import re
import tracemalloc
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from vitrail.data.sources.contents import Arrays, Strings
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source, Splits, choose_held_out
from vitrail.errors import ConfigError, DataError
from vitrail.images.decode import BadImage


def arrays(labels, *, seed=0):
    """Unlike images with these labels."""
    images = np.random.default_rng(seed).integers(0, 256, (len(labels), 2, 2, 1)).astype(np.uint8)
    images[:, 0, 0, 0], images[:, 0, 1, 0] = np.divmod(np.arange(len(labels)), 256)
    return images, np.asarray(labels)


def folder(root, counts, text="{}"):
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            (root / name / f"{number}.jpg").write_text(text.format(f"{name}/{number}"))
    return root


def test_each_class_keeps_its_part_and_both_sides():
    labels = np.repeat(np.arange(6), [100, 40, 10, 3, 2, 1])
    splits = open_data(arrays(labels))
    assert splits.held_out
    assert splits.val.counts().tolist() == [15, 6, 2, 1, 1, 0]
    assert splits.train.counts().tolist() == [85, 34, 8, 2, 1, 1]
    assert not set(splits.train.keys) & set(splits.val.keys)


def test_the_part_is_the_callers():
    labels = np.repeat([0, 1], 50)
    assert open_data(arrays(labels), validation=0.4).val.counts().tolist() == [20, 20]
    assert open_data(arrays(labels), validation=0).val is None
    for part in (1.0, -0.1, 15):
        with pytest.raises(ConfigError, match="validation fraction"):
            open_data(arrays(labels), validation=part)


def test_the_held_out_part_is_a_function_of_the_seed():
    labels = np.repeat([0, 1], 100)
    keys = [list(open_data(arrays(labels), seed=seed).val.keys) for seed in (0, 0, 1, 2)]
    assert keys[0] == keys[1]
    assert len({tuple(each) for each in keys}) == 3


def test_other_seeds_hold_out_every_image_in_its_turn():
    labels = np.repeat([0, 1], 40)
    times = np.zeros(80)
    for seed in range(400):
        images, _ = arrays(labels)
        held, _ = choose_held_out(Arrays(images, Strings(map(str, range(80)))), labels, fraction=0.25, seed=seed)
        times += held
    # binomial of 400 draws at 0.25: 100 +- 8.7; five deviations
    assert np.abs(times - 100).max() < 44
    assert times.sum() == 400 * 20


def test_the_held_out_part_does_not_depend_on_the_order_of_the_images():
    images, labels = arrays(np.repeat([0, 1, 2], 20))
    keys = np.array([f"{row}.jpg" for row in range(60)])
    order = np.random.default_rng(1).permutation(60)
    held, _ = choose_held_out(Arrays(images, Strings(keys)), labels, fraction=0.15, seed=3)
    again, _ = choose_held_out(Arrays(images[order], Strings(keys[order])), labels[order], fraction=0.15, seed=3)
    assert set(keys[held]) == set(keys[order][again])


def test_new_images_move_few_old_ones():
    images, labels = arrays(np.repeat([0, 1], 100))
    keys = np.array([f"{row}.jpg" for row in range(200)])
    old = np.arange(200) % 10 > 0
    before, _ = choose_held_out(Arrays(images[old], Strings(keys[old])), labels[old], fraction=0.15, seed=0)
    after, _ = choose_held_out(Arrays(images, Strings(keys)), labels, fraction=0.15, seed=0)
    assert (before != after[old]).sum() <= 4


def test_equal_images_stay_on_one_side(tmp_path):
    root = folder(tmp_path, {"ant": 40, "bee": 40})
    for name in ("ant", "bee"):
        for number in range(20, 40):  # each of these equals another one of its class
            (root / name / f"{number}.jpg").write_text(f"{name}/{number - 20}")
    splits = open_data(root, validation=0.3)
    sides = [{part.read(row).content for row in range(len(part))} for part in (splits.train, splits.val)]
    assert not sides[0] & sides[1]
    assert splits.val.counts().tolist() == [12, 12]  # 6 of 20 distinct images, twice each


def test_equal_images_with_unlike_labels_stay_on_one_side(tmp_path):
    root = folder(tmp_path, {"ant": 20, "bee": 20})
    for number in range(20):
        (root / "bee" / f"{number}.jpg").write_text(f"ant/{number}")
    splits = open_data(root)
    sides = [{part.read(row).content for row in range(len(part))} for part in (splits.train, splits.val)]
    assert not sides[0] & sides[1]


def test_of_several_labels_the_rarest_decides():
    common = np.zeros((100, 3), np.float32)
    common[:, 0] = 1
    common[:10, 1] = 1  # rare, and always beside the common one
    common[95:] = 0  # no label at all
    splits = open_data(arrays(common))
    assert splits.val.targets[:, 1].sum() == 2  # round(0.15 x 10)
    assert (splits.val.targets.sum(1) == 0).sum() == 1  # round(0.15 x 5)
    assert splits.val.multi_label


def test_unlabelled_images_are_held_out_too():
    splits = open_data(arrays(np.zeros(100))[0], labelled=False)
    assert (len(splits.train), len(splits.val)) == (85, 15)


def test_a_models_classes_are_joined_by_name(tmp_path):
    root = folder(tmp_path, {"ant": 3, "wasp": 2})
    source = open_data(root, classes=["wasp", "bee", "ant"], validation=0).train
    assert source.classes == ("wasp", "bee", "ant")
    assert source.targets.tolist() == [2, 2, 2, 0, 0]
    assert source.counts().tolist() == [2, 0, 3]


def test_a_class_that_a_model_does_not_know_is_in_a_table(tmp_path):
    root = folder(tmp_path, {"ants": 3, "zebra": 2, "bee": 1})
    with pytest.raises(DataError, match="2 classes not among the 3 given classes") as error:
        open_data(root, classes=["ant", "bee", "wasp"])
    lines = error.value.value.splitlines()
    assert [line.split()[:3] for line in lines] == [["ants", "train", "3"], ["zebra", "train", "2"]]
    assert lines[0].endswith("did you mean 'ant'?")


def test_a_long_table_is_cut():
    labels = np.array([f"class{number:03}" for number in range(50)])
    with pytest.raises(DataError) as error:
        open_data((arrays(labels)[0], labels), classes=["other"])
    assert len(error.value.value.splitlines()) == 21
    assert error.value.value.endswith("... and 30 more")


def test_one_split_with_several_labels_makes_all_so():
    images, _ = arrays(range(2))
    data = {"train": (images, np.array(["a;b", "b"])), "val": (images, np.array(["b", "a"]))}
    splits = open_data(data)
    assert splits.val.multi_label
    assert splits.val.targets.tolist() == [[0, 1], [1, 0]]


def test_a_source_survives_pickling_and_is_picked_by_keys(tmp_path):
    source = open_data(folder(tmp_path, {"ant": 3, "bee": 3}), validation=0).train
    copy = pickle.loads(pickle.dumps(source)).pick(["bee/1.jpg", "ant/0.jpg"])
    assert [copy.read(row).content for row in range(2)] == [b"bee/1", b"ant/0"]
    assert copy.targets.tolist() == [1, 0]
    with pytest.raises(DataError, match=r"1 of 2 recorded images are not in the data, e\.g\. 'gone'"):
        source.pick(["gone", "ant/0.jpg"])


def test_items_are_numbered_as_in_a_list(tmp_path):
    source = open_data(folder(tmp_path, {"ant": 2, "bee": 1}), validation=0).train
    assert source.read(-1).key == "bee/0.jpg"
    with pytest.raises(IndexError):
        source.read(3)


def test_a_file_that_is_gone_is_a_bad_image(tmp_path):
    source = open_data(folder(tmp_path, {"ant": 2, "bee": 1}), validation=0).train
    (tmp_path / "ant/1.jpg").unlink()
    os.mkfifo(tmp_path / "ant/1.jpg")
    with pytest.raises(BadImage, match="not a regular file"):
        source.read(1)


def test_sources_and_splits_are_taken_as_they_are():
    splits = open_data(arrays([0, 1] * 10))
    assert open_data(splits) is splits
    again = open_data({"train": splits.train, "test": splits.val}, validation=0)
    np.testing.assert_array_equal(again.train.images, splits.train.images)
    np.testing.assert_array_equal(again.test.targets, splits.val.targets)
    assert (
        open_data(splits.train, validation=0, classes=["1", "0"]).train.targets.tolist()
        == (1 - splits.train.targets).tolist()
    )


def test_a_list_of_files_keeps_their_names(tmp_path):
    root = folder(tmp_path, {"ant": 3})
    paths = [root / "ant/2.jpg", str(root / "ant/0.jpg")]
    source = open_data(paths, validation=0, labelled=False).train
    assert list(source.keys) == list(map(str, paths))
    assert source.read(0).content == b"ant/2"
    assert open_data(paths[1], validation=0, labelled=False).train.read(0).content == b"ant/0"


def test_a_path_is_relative_to_where_it_was_opened(tmp_path, monkeypatch):
    folder(tmp_path / "data", {"ant": 1, "bee": 1})
    monkeypatch.chdir(tmp_path)
    source = open_data("data", validation=0).train
    monkeypatch.chdir("/")
    assert source.read(0).content == b"ant/0"


def test_a_mistyped_path_shows_the_nearest(tmp_path):
    folder(tmp_path / "shapes/train", {"ant": 1, "bee": 1})
    for path, near, remedy in (
        ("shpes", "", r"did you mean '.*/shapes'\?"),
        ("Shapes/train/antz", "", r"did you mean '.*/shapes'\?"),
        ("shapes/trian/ant", "/shapes", r"did you mean '.*/shapes/train'\?"),
        ("qqqq/zzzz", "", "give a folder"),
    ):
        with pytest.raises(DataError, match=f"{tmp_path}/{path} does not exist") as error:
            open_data(tmp_path / path)
        assert error.value.value == f"the nearest existing folder: {tmp_path}{near}"
        assert re.search(remedy, str(error.value)), path


def test_a_mistyped_built_in_name_is_recognised(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="did you mean 'digits'"):
        open_data("digit")


def test_what_is_no_data_is_refused(tmp_path):
    (tmp_path / "x.docx").write_text("")
    with pytest.raises(DataError, match=r"file type of .* is not supported"):
        open_data(tmp_path / "x.docx")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DataError, match="neither a regular file"):
        open_data(tmp_path / "pipe.csv")
    with pytest.raises(DataError, match="data of type int"):
        open_data(5)
    with pytest.raises(ConfigError, match="'train'"):
        open_data({"trian": arrays([0, 1])})
    with pytest.raises(DataError, match="has no splits"):
        open_data({})


def test_a_part_of_a_dict_may_not_hold_splits_itself(tmp_path):
    folder(tmp_path / "train", {"ant": 1, "bee": 1})
    folder(tmp_path / "val", {"ant": 1, "bee": 1})
    with pytest.raises(DataError, match="train itself contains several splits: train, val"):
        open_data({"train": tmp_path})
    splits = open_data({"train": tmp_path / "train", "val": tmp_path / "val"})
    assert isinstance(splits, Splits)
    assert isinstance(splits.val, Source)


@pytest.mark.slow
def test_many_files_are_scanned_in_little_memory(tmp_path, monkeypatch):
    """Fifty folders of a thousand files each, which the file system only claims to have."""
    for number in range(50):
        (tmp_path / f"n{number:08}").mkdir()
    scandir = os.scandir

    @contextmanager
    def claim(folder):
        if folder == str(tmp_path):
            with scandir(folder) as entries:
                yield entries
        else:
            yield (SimpleNamespace(name=f"{number}.JPEG", is_dir=lambda: False) for number in range(1000))

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", claim)
        tracemalloc.start()
        try:
            train = open_data(tmp_path, validation=0).train
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert len(train) == 50_000
    assert peak < 100 * len(train)  # bytes; lists of paths and names take 200
