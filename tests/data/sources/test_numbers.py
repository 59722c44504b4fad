"""Numbers of images: which columns of a table are read for regression, and that every cell that is no number is named."""

from __future__ import annotations

import json

import numpy as np
import pandas
import pytest

from vitrail.data.sources.numbers import Numbers
from vitrail.data.sources.open import find_data, open_data
from vitrail.errors import DataError

TABLE = "path,age,w+h,split\na.jpg,3,1.5,train\nb.jpg,-1e3,0.25,train\nc.jpg,0,2,val\n"
AGES, SIZES = [[3], [-1000]], [[1.5], [0.25]]


@pytest.fixture
def table(tmp_path):
    for name in "abcdefghij":
        (tmp_path / f"{name}.jpg").write_bytes(name.encode())

    def write(text, name="numbers.csv"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def read(data, label=None, **how):
    found = find_data(data, {"label": label} if label else None)
    return open_data(found, task="regression", **how)


def test_columns_are_read_in_the_order_in_which_they_are_named(table):
    path = table(TABLE)
    frame = pandas.read_csv(path)
    frame["path"] = [str(path.parent / name) for name in frame["path"]]
    lines = table("".join(json.dumps(row) + "\n" for row in frame.to_dict("records")), "x.jsonl")
    frame.to_parquet(path.parent / "x.parquet")
    for data in (path, frame, lines, path.parent / "x.parquet"):
        for label, names, expected in (
            ("age", ("age",), AGES),
            ("w+h", ("w+h",), SIZES),  # the name of one column is not divided
        ):
            splits = read(data, label)
            assert splits.classes == splits.train.classes == names and not splits.train.multi_label
            assert splits.train.targets.values.dtype == np.float32
            assert splits.train.targets.values.tolist() == expected
            assert len(splits.val) == 1
    two = table(TABLE.replace("w+h", "size"))
    assert read(two, "size+age").train.targets.values.tolist() == [[1.5, 3], [0.25, -1000]]


def test_rows_of_parquet_with_images_have_numbers(tmp_path):
    pandas.DataFrame({"image": [b"1", b"2"], "x": [1, 2], "y": [0.5, 1e-3]}).to_parquet(tmp_path / "x.parquet")
    train = read(tmp_path / "x.parquet", "y+x", validation=0).train
    np.testing.assert_array_equal(train.targets.values, np.float32([[0.5, 1], [1e-3, 2]]))
    assert train.read(1).content == b"2"


def test_the_only_other_column_and_the_usual_names_are_found_and_several_have_to_be_named(table):
    for name in ("weight", "label", "target"):
        assert read(table(f"path,{name}\na.jpg,1.0\nb.jpg,2\n"), validation=0).classes == (name,)
    with pytest.raises(DataError, match="has no label column; its columns are 'path', 'x', 'y'"):
        read(table("path,x,y\na.jpg,1,0\nb.jpg,0,1\n"))
    with pytest.raises(DataError, match="has no column 'z' of the label"):
        read(table("path,x,y\na.jpg,1,0\n"), "x+z")


@pytest.mark.parametrize("cell", ["", "tall", "nan", "inf", "1e39", "1;2", "True"])
def test_a_cell_that_is_no_number_is_named_with_its_line_and_column(table, cell):
    path = table(f"path,x,y\na.jpg,1,2\nb.jpg,1,{cell}\n")
    said = rf"numbers.csv, line 3: (no y|y is '{cell}', not a number)"
    with pytest.raises(DataError, match=said):
        read(path, "x+y")


def test_without_the_task_numbers_are_names_of_classes(table):
    splits = open_data(table("path,label\na.jpg,1.5\nb.jpg,2\n"), validation=0)
    assert splits.classes == ("1.5", "2") and splits.train.targets.tolist() == [0, 1]


def test_the_columns_of_a_model_are_those_of_other_data_in_its_order(table):
    path = table("path,label,y,x\na.jpg,9,1,2\nb.jpg,9,3,4\n")
    model = ("x", "y")
    assert read(path, classes=model, validation=0).train.targets.values.tolist() == [[2, 1], [4, 3]]
    assert read(path, "y+x", classes=model, validation=0).train.targets.values.tolist() == [[2, 1], [4, 3]]
    with pytest.raises(DataError, match="a class not among the 2 given classes"):
        read(path, "label", classes=model)
    lacking = read(path, "y", classes=model, validation=0).train.targets.values
    np.testing.assert_array_equal(lacking, [[np.nan, 1], [np.nan, 3]])


def test_small_and_large_numbers_are_held_out_alike(table):
    rows = "".join(f"{name}.jpg,{number}\n" for number, name in enumerate("abcdefghij"))
    held = [read(table(f"path,x\n{rows}"), validation=0.5, seed=seed).val.targets for seed in range(10)]
    # of each fifth of the numbers one image
    assert all(sorted(targets.values[:, 0] // 2) == [0, 1, 2, 3, 4] for targets in held)
    assert len({targets.values.tobytes() for targets in held}) > 5


def test_equal_numbers_have_equal_digests_and_rows_are_taken_in_order():
    numbers = Numbers(np.float32([[1, 2], [3, 4], [1, 2]]))
    hashes = numbers.hashes()
    assert hashes[0] == hashes[2] != hashes[1] and numbers.digest(0) == numbers.digest(2)
    assert numbers[np.array([1, 0])].values.tolist() == [[3, 4], [1, 2]] and numbers.of(1).tolist() == [3, 4]
    assert not len(numbers[np.zeros(0, np.int64)].strata())
