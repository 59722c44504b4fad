"""Data as people hold them: data frames, lists of (path, label), columns of Hugging Face, and arrays of wide types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import vitrail
from tests.each_row import each_row
from tests.looked_at import picture
from vitrail.data.sources.open import open_data
from vitrail.errors import DataError

LABELS = ["ant", "bee"]


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(path, label) of 12 images below the working folder."""
    monkeypatch.chdir(tmp_path)
    rows = []
    for number in range(12):
        path = Path("images", f"{number:02}.png")
        path.parent.mkdir(exist_ok=True)
        picture(20, 24, number).save(path)
        rows.append((str(path), LABELS[number % 2]))
    return rows


def frame(kind: Any, rows: list[tuple[str, str]]) -> Any:
    splits = ["train"] * 8 + ["val"] * 4
    return kind({"file": [path for path, _ in rows], "breed": [label for _, label in rows], "split": splits})


@each_row("kind", [pd.DataFrame, pl.DataFrame])
def test_a_data_frame_is_read_as_a_table(photos, kind):
    splits = open_data(frame(kind, photos))
    assert splits.classes == tuple(LABELS)
    assert splits.layout == "a data frame; labels in the column 'breed'"
    assert (len(splits.train), len(splits.val)) == (8, 4)
    assert list(splits.val.keys) == [path for path, _ in photos[8:]]
    assert splits.val.targets.tolist() == [0, 1, 0, 1]


def test_a_list_of_paths_with_labels_is_read_as_a_table(photos):
    splits = open_data([(Path(path), label) for path, label in photos], validation=0)
    assert splits.classes == tuple(LABELS)
    assert splits.train.targets.tolist() == [0, 1] * 6


@pytest.mark.slow
def test_a_training_takes_them_and_a_mistake_names_the_row(photos):
    result = vitrail.train(
        frame(pd.DataFrame, photos), size=32, steps=1, batch=4, set=["model.changes.depth=1"], out="run", quiet=True
    )
    assert result.load().classes == tuple(LABELS)
    assert len(vitrail.evaluate(result.folder, photos, quiet=True).keys) == 12
    with pytest.raises(DataError, match=r"the list, line 2: the path .* is already in line 1"):
        open_data([photos[0], photos[0]])
    with pytest.raises(DataError, match="the data frame has no path column"):
        open_data(pd.DataFrame({"breed": ["ant"]}))


class ClassLabel:
    names = LABELS


class HubDataset:
    """The protocol of `datasets.Dataset`: columns by name, rows as dicts."""

    column_names = ("image", "label")
    shape = (12, 2)

    def __init__(self) -> None:
        self.features = {"image": object(), "label": ClassLabel()}

    def __len__(self) -> int:
        return 12

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            assert key == "label", "a column of images would be decoded whole"
            return [row % 2 for row in range(12)]
        return {"image": picture(20, 24, key), "label": key % 2}


def test_a_dataset_of_hugging_face_has_its_columns_read():
    splits = open_data({"train": HubDataset(), "validation": HubDataset()})
    assert splits.classes == tuple(LABELS)
    assert splits.train.targets.tolist() == [0, 1] * 6
    np.testing.assert_array_equal(splits.val.contents[3], np.asarray(picture(20, 24, 3)))


def test_numbers_are_those_of_a_models_classes():
    images, numbers = np.zeros((4, 8, 8, 3), np.uint8), np.array([1, 0, 1, 1])
    splits = open_data((images, numbers), validation=0, classes=LABELS)
    assert splits.train.targets.tolist() == [1, 0, 1, 1]
    assert splits.layout == "arrays; labels are the numbers of the 2 classes: 0 is 'ant'"
    with pytest.raises(DataError, match="the labels go up to 2, and there are 2 classes"):
        open_data((images, numbers + 1), validation=0, classes=LABELS)
    named = open_data(
        (images, numbers), validation=0, classes=["0", "1", "2"]
    )  # as a model that was trained on such numbers
    assert named.layout == "arrays"


@each_row("dtype", [np.int64, np.uint16, np.int32])
def test_bytes_in_a_wider_type_are_bytes(dtype):
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 5))
    source = open_data((images.astype(dtype), np.arange(6) % 2), validation=0).train
    assert source.contents[0].dtype == np.uint8
    np.testing.assert_array_equal(source.contents[5], images[5])


def test_wider_values_are_refused_with_what_to_do():
    images = np.full((4, 8, 8, 3), 4095, np.uint16)
    with pytest.raises(DataError, match=r"values from 4095 to 4095\n  hint: scale them to floats in \[0, 1\]"):
        open_data((images, np.arange(4) % 2))
