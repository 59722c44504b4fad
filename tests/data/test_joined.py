"""Two sources as one: their items, in this order, however they are stored."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.sources.contents import Arrays, Files, Strings
from vitrail.data.sources.source import Joined, Source, join_sources
from vitrail.errors import DataError


def in_memory(name: str, shape: tuple[int, ...], value: int) -> Source:
    images = np.full(shape, value, np.uint8)
    keys = Strings(f"{name}#{row}" for row in range(len(images)))
    return Source(contents=Arrays(images, keys), targets=np.full(len(images), value), classes=("a", "b", "c"))


def on_disk(folder: Path, name: str, count: int, target: int) -> Source:
    for row in range(count):
        (folder / f"{name}{row}").write_bytes(f"{name} {row}".encode())
    keys = Strings(f"{name}{row}" for row in range(count))
    return Source(contents=Files(str(folder), keys), targets=np.full(count, target), classes=("a", "b", "c"))


def test_files_of_one_folder_stay_files(tmp_path: Path) -> None:
    joined = join_sources(on_disk(tmp_path, "train", 2, 0), on_disk(tmp_path, "val", 1, 1))
    assert isinstance(joined.contents, Files), "their features can be cached"
    assert [joined.read(row).content for row in range(3)] == [b"train 0", b"train 1", b"val 0"]
    assert joined.targets.tolist() == [0, 0, 1]


def test_images_in_memory_stay_in_memory() -> None:
    joined = join_sources(in_memory("train", (2, 4, 5, 3), 1), in_memory("val", (1, 4, 5, 3), 2))
    assert joined.kind == "arrays"
    assert joined.images[:, 0, 0, 0].tolist() == [1, 1, 2]
    with pytest.raises(DataError, match="same size"):
        join_sources(in_memory("train", (2, 4, 5, 3), 1), in_memory("val", (1, 4, 4, 3), 2))


def test_sources_of_two_kinds_are_read_item_by_item_also_in_a_worker(tmp_path: Path) -> None:
    val = in_memory("val", (2, 4, 5, 3), 2)
    val.images[1] = 7
    joined = join_sources(on_disk(tmp_path, "train", 2, 0), val)
    assert isinstance(joined.contents, Joined)
    part = pickle.loads(pickle.dumps(joined.subset([3, 1])))
    assert list(part.keys) == ["val#1", "train1"]
    assert part.read(0).content[0, 0, 0] == 7
    assert part.read(1).content == b"train 1"
    assert part.targets.tolist() == [2, 0]
