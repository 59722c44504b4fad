"""Tar shards with an index: the same source as the folder that they were written from, and what is damaged is named."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.augment.policy import POLICIES
from vitrail.data.loader import train_batches
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import join_sources
from vitrail.errors import DataError
from vitrail.images.decode import BadImage
from vitrail.verbs.data import shard_data


def photos(root, count=23):
    noise = np.random.default_rng(0)
    for number in range(count):
        path = root / ("ant" if number % 3 else "bee") / f"{number}.x.{'jpg' if number % 2 else 'png'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 255, (20 + number, 30, 3), np.uint8)).save(path)
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return photos(tmp_path_factory.mktemp("shards") / "photos")


@pytest.fixture(scope="module")
def shards(folder):
    """Shards of five images of the folder, which are only read."""
    shard_data(folder, folder.with_name("shards"), images=5, quiet=True)
    return folder.with_name("shards")


@pytest.fixture
def own_shards(shards, tmp_path):
    """The same shards, of which a test may damage some."""
    return Path(shutil.copytree(shards, tmp_path / "shards"))


def test_a_source_of_shards_is_that_of_the_folder(folder, shards):
    theirs, ours = open_data(folder, seed=3), open_data(shards, seed=3)
    assert ours.layout == "5 tar shards"
    for one, other in ((theirs.train, ours.train), (theirs.val, ours.val)):
        assert list(other.keys) == list(one.keys) and other.classes == one.classes
        assert other.targets.tolist() == one.targets.tolist() and other.targets.dtype == one.targets.dtype
        assert [other.read(row).content for row in range(len(other))] == [
            one.read(row).content for row in range(len(one))
        ]
        assert other.keys.digest() == one.keys.digest()
        assert other.keys[2:5] == one.keys[2:5] and other.keys[-1] == one.keys[-1]


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_shards_are_those_of_the_folder_from_any_step_on(folder, shards, workers):
    def batches(data, start, workers):
        source, policy = open_data(data, validation=0).train, POLICIES["inception"]
        return train_batches(
            source, policy=policy, size=(16, 16), batch=8, seed=1, start=start, stop=6, workers=workers
        )

    for one, other in zip(batches(folder, 2, 0), batches(shards, 2, workers), strict=True):
        assert one.images.equal(other.images) and one.targets.equal(other.targets) and one.keys == other.keys


def test_a_source_of_shards_is_small_to_pickle_and_reads_in_another_process_what_it_read_here(shards):
    source = open_data(shards, validation=0).train
    source.read(0)
    again = pickle.loads(content := pickle.dumps(source.subset([7, 2]).contents))
    assert len(content) < 3000
    assert (again[0], again[1]) == (source.contents[7], source.contents[2])
    assert list(again.keys) == [source.keys[7], source.keys[2]]
    assert list(again.take(np.array([1])).keys) == [source.keys[2]]


def test_a_joined_source_has_the_names_of_both(shards):
    source = open_data(shards, validation=0).train
    joined = join_sources(source.subset([3, 1]), source.subset([0]))
    assert list(joined.keys) == [source.keys[3], source.keys[1], source.keys[0]]
    assert joined.contents[1] == source.contents[1]


def bad(source):
    reasons = {}
    for row in range(len(source)):
        try:
            source.contents[row]
        except BadImage as error:
            reasons[source.keys[row]] = error.reason
    return reasons


def in_shard(source, name):
    index = source.contents.index
    number = [shard.name for shard in index.shards].index(name)
    return {source.keys[row] for row in np.flatnonzero(index.find_shards(slice(None)) == number).tolist()}


def test_the_images_of_a_shard_that_is_cut_off_are_bad_by_name(own_shards):
    source, path = open_data(own_shards, validation=0).train, own_shards / "shard-000002.tar"
    assert not bad(source)
    with open(path, "rb+") as file:
        file.truncate(path.stat().st_size // 2)
    reasons = bad(source)
    assert 0 < len(reasons) < 5 and reasons.keys() < in_shard(source, path.name)
    assert all("shard-000002.tar is cut off before the end of this image" in reason for reason in reasons.values())
    notes = open_data(own_shards, validation=0).notes
    assert len(notes) == 1 and "train: shard-000002.tar has " in notes[0]


def test_one_changed_byte_makes_one_image_bad(own_shards):
    source, path = open_data(own_shards, validation=0).train, own_shards / "shard-000001.tar"
    content = bytearray(path.read_bytes())
    content[700] ^= 1  # in the first image, behind its header
    path.write_bytes(content)
    ((key, reason),) = bad(source).items()
    assert key in in_shard(source, path.name)
    assert "shard-000001.tar is damaged: it has other bytes at 512 than when it was indexed" in reason


def test_a_missing_shard_is_named_and_its_images_are_counted(own_shards):
    (own_shards / "shard-000004.tar").unlink()
    splits = open_data(own_shards, validation=0)
    assert splits.notes == ("train: shard-000004.tar cannot be read (No such file or directory): 3 images",)
    reasons = bad(splits.train)
    assert reasons.keys() == in_shard(splits.train, "shard-000004.tar")
    assert "shard-000004.tar" in next(iter(reasons.values()))


@pytest.mark.parametrize("name", ["index.json", "targets.npy", "name_ends.npy"])
def test_a_damaged_index_is_refused(own_shards, name):
    path = own_shards / "index" / name
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"the index .* is damaged"):
        open_data(own_shards)


def test_a_pattern_or_one_archive_takes_some_of_the_shards(shards):
    whole = open_data(shards, validation=0).train
    some = open_data(str(shards / "shard-00000[12].tar"), validation=0)
    assert some.layout == "2 tar shards"
    wanted = in_shard(whole, "shard-000001.tar") | in_shard(whole, "shard-000002.tar")
    assert set(some.train.keys) == wanted
    assert set(open_data(shards / "shard-000004.tar", validation=0).train.keys) == in_shard(whole, "shard-000004.tar")
    row = 3
    assert some.train.read(row).content == whole.contents[list(whole.keys).index(some.train.keys[row])]


def test_a_mistake_is_refused_with_what_to_do(own_shards, tmp_path):
    with pytest.raises(DataError, match=r"none of the 5 shards .* matches 'train-\*\.tar'"):
        open_data(str(own_shards / "train-*.tar"))
    with pytest.raises(DataError, match="no file matches"):
        open_data(str(tmp_path / "nothing" / "*.tar"))
    (own_shards / "index" / "index.json").unlink()
    for data in (own_shards, str(own_shards / "*.tar"), own_shards / "shard-000000.tar"):
        with pytest.raises(DataError, match="have no index") as refused:
            open_data(data)
        assert refused.value.remedy.startswith(f"vitrail data index {own_shards}")


def test_folders_of_splits_are_splits_of_one_set(tmp_path):
    for split, count in (("train", 12), ("val", 5)):
        photos(tmp_path / "photos" / split, count)
    written = shard_data(tmp_path / "photos", tmp_path / "shards", images=5, quiet=True)
    assert {name: (shards.shards, shards.images) for name, shards in written.items()} == {
        "train": (3, 12),
        "val": (1, 5),
    }
    theirs, ours = open_data(tmp_path / "photos"), open_data(tmp_path / "shards")
    assert ours.layout == "tar shards in train, val"
    assert list(ours.val.keys) == list(theirs.val.keys) and ours.classes == theirs.classes
    only = open_data(tmp_path / "shards" / "val", validation=0)
    assert list(only.train.keys) == list(theirs.val.keys)
