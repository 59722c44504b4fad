"""Shards at a URL: the same batches as from the folder, fetched before they are needed, and what cannot be fetched is named."""

from __future__ import annotations

import threading
import time
from itertools import chain

import fsspec
import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.data.augment.policy import POLICIES
from vitrail.data.loader import eval_batches, train_batches
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sample_order import TrainStream
from vitrail.data.sources import shards
from vitrail.data.sources.open import open_data
from vitrail.errors import ConfigError, DataError
from vitrail.images.decode import BadImage
from vitrail.shards import cache
from vitrail.verbs.data import shard_data

URL = "memory://bucket/shards"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder of images and one of their shards of three, which are only read."""
    root, noise = tmp_path_factory.mktemp("written"), np.random.default_rng(0)
    for number in range(31):
        path = root / "photos" / ("ant" if number % 3 else "bee") / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 255, (20, 30, 3), np.uint8)).save(path)
    shard_data(root / "photos", root / "shards", images=3, quiet=True)
    return root


@pytest.fixture
def folder(written, tmp_path, monkeypatch):
    """The folder of images, whose shards lie in a store in memory as well."""
    monkeypatch.setenv("VITRAIL_SHARDS", str(tmp_path / "cache"))
    monkeypatch.setenv("VITRAIL_SHARDS_GB", "1")  # whatever room the disk has
    monkeypatch.setattr(cache, "BACK_OFF", 0.0)
    monkeypatch.setattr(cache, "_failed", {})
    store = fsspec.filesystem("memory")
    store.put(f"{written}/shards/", "/bucket/shards/", recursive=True)
    yield written / "photos"
    for thread in threading.enumerate():  # one that still fetches would record failures for the next test
        if thread.name == "vitrail-fetch":
            thread.join(60)
    store.rm("/bucket", recursive=True)


def batches(data, start=0, workers=0, stop=8):
    source, policy = open_data(data, validation=0).train, POLICIES["inception"]
    return train_batches(source, policy=policy, size=(16, 16), batch=8, seed=1, start=start, stop=stop, workers=workers)


def cached():
    return {path.stem for path in cache.cache_folder().glob("*.tar")}


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_shards_at_a_url_are_those_of_the_folder(folder, workers):
    """A worker does not see the store in the memory of this process: shards are fetched here."""
    for one, other in zip(batches(folder, 2), batches(URL, 2, workers), strict=True):
        assert one.images.equal(other.images) and one.targets.equal(other.targets) and one.keys == other.keys


def test_evaluation_of_shards_at_a_url_is_that_of_the_folder(folder):
    seen = [list(eval_batches(open_data(data).val, Preprocessing(size=(16, 16)), batch=4)) for data in (folder, URL)]
    for one, other in zip(*seen, strict=True):
        assert one.images.equal(other.images) and one.keys == other.keys


@pytest.fixture
def windows(monkeypatch):
    monkeypatch.setattr(shards, "WINDOW", 2)


def test_many_shards_are_shuffled_in_windows_from_any_step_on(folder, windows):
    source = open_data(URL, validation=0).train
    index, held = source.contents.index, source.subset(np.arange(0, 31, 2))
    assert source.units.counts.tolist() == [3] * 10 + [1] and source.units.window == 2
    for part in (source, held):
        items = [part.units.list_items(number).tolist() for number in range(11)]
        assert sorted(chain.from_iterable(items)) == list(range(len(part)))
        for number, rows in enumerate(items):
            images = rows if part is source else [2 * row for row in rows]
            assert part.units.counts[number] == len(rows)
            assert set(index.find_shards(np.array(images, int)).tolist()) <= {number}
    whole = [batch.keys for batch in batches(URL)]
    assert [batch.keys for batch in batches(URL, 3)] == whole[3:]
    epoch = list(chain.from_iterable(whole))[:31]
    assert (
        sorted(epoch) == sorted(source.keys) and epoch != [key for batch in batches(folder) for key in batch.keys][:31]
    )
    rows = {key: row for row, key in enumerate(source.keys)}
    assert len(set(index.find_shards(np.array([rows[key] for key in epoch[:5]])).tolist())) <= 2
    assert open_data(folder, validation=0).train.units is None


def test_the_shards_of_the_next_window_are_fetched_before_they_are_needed(folder, windows):
    source = open_data(URL, validation=0).train
    stream = TrainStream(images=31, batch=4, seed=1, units=source.units)
    steps = shards.fetch_ahead(source.contents, map(stream.ids, range(0, 12)))
    assert np.array_equal(next(steps), stream.ids(0))
    deadline = time.monotonic() + 300
    while len(cached()) < 4 and time.monotonic() < deadline:  # those of a window: more than one step needs
        time.sleep(0.02)
    assert 4 <= len(cached()) < 11
    assert np.array_equal(np.stack(list(steps)), np.stack(list(map(stream.ids, range(1, 12)))))


def test_the_images_of_a_shard_that_is_not_what_was_written_are_bad_with_its_url(folder):
    fsspec.filesystem("memory").pipe_file("/bucket/shards/shard-000004.tar", b"x" * 4096)
    source, reasons = open_data(URL, validation=0).train, []
    for row in range(len(source)):
        try:
            source.contents[row]
        except BadImage as error:
            reasons.append(error.reason)
    assert len(reasons) == 3
    assert all(reason.startswith(f"{URL}/shard-000004.tar could not be fetched in 3 tries: ") for reason in reasons)


def test_an_index_is_fetched_again_where_it_changed(folder, tmp_path):
    assert len(open_data(URL, validation=0).train) == 31
    store = fsspec.filesystem("memory")
    store.rm("/bucket/shards", recursive=True)
    shard_data(folder / "ant", tmp_path / "ants", images=9, quiet=True)
    store.put(str(tmp_path / "ants") + "/", "/bucket/shards/", recursive=True)
    assert len(open_data(URL, validation=0, labelled=False).train) == 20
    store.pipe_file("/bucket/shards/index/starts.npy", b"x" * 288)
    (tmp_path / "cache").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="the index memory://bucket/shards/index is damaged"):
        open_data(URL)


def test_one_shard_or_splits_at_a_url_are_read_and_mistakes_refused(folder, written):
    assert len(open_data(f"{URL}/shard-00000[01].tar", validation=0).train) == 6
    store = fsspec.filesystem("memory")
    for split in ("train", "val"):
        store.put(f"{written}/shards/", f"/bucket/splits/{split}/", recursive=True)
    splits = open_data("memory://bucket/splits/")
    assert (splits.layout, len(splits.train), len(splits.val)) == ("tar shards in train, val", 31, 31)
    with pytest.raises(DataError, match="there is no index of shards at memory://bucket/shord"):
        open_data("memory://bucket/shord")


def test_archives_of_others_at_a_url_are_indexed_in_a_folder(folder, tmp_path):
    with pytest.raises(ConfigError, match="an index cannot be written to memory://bucket/shards"):
        vitrail.index_data(URL)
    vitrail.index_data(URL, tmp_path / "index", quiet=True)
    here, there = (open_data(path, validation=0).train for path in (folder, tmp_path / "index"))
    assert there.contents.index.root == URL
    theirs = {there.read(row).content: there.targets[row] for row in range(31)}
    assert theirs == {here.read(row).content: here.targets[row] for row in range(31)}
    with pytest.raises(DataError, match=r"there are no \.tar archives in memory://bucket/photos"):
        vitrail.index_data("memory://bucket/photos", tmp_path / "other")


def test_a_cache_too_small_for_a_training_is_told(folder, windows, monkeypatch):
    assert not open_data(URL).notes
    monkeypatch.setenv("VITRAIL_SHARDS_GB", str(10e-6))
    (note,) = open_data(URL).notes
    assert "a training uses" in note and "the cache holds 1e-05 GB" in note
