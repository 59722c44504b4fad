"""Training on a part of the training images: nested, stratified, drawn by the seed, and part of what a run is."""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

import vitrail
from tests.data.sources.layouts import write_masks, write_voc
from vitrail.config.compose import compose_run
from vitrail.config.schema import DataSettings
from vitrail.data.sources.contents import Arrays, Strings
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source, Splits, choose_part
from vitrail.errors import ConfigError, DataError
from vitrail.runs.folder import RunFolder
from vitrail.training.data import limit_training
from vitrail.verbs.data import shard_data

TINY = (
    "model.changes={width: 16, depth: 1, heads: 1, mlp_width: 32, patch_size: [4, 4]}",
    "compute.threads=1",
    "save.evaluations=1",
)


def contents(images: int) -> Arrays:
    return Arrays(np.zeros((images, 2, 2, 1), np.uint8), Strings(f"{row}.png" for row in range(images)))


def part(labels, count, seed=0):
    """The rows of a part."""
    return np.flatnonzero(choose_part(contents(len(labels)), np.asarray(labels), count=count, seed=seed))


def test_classes_take_turns_in_proportion_to_their_sizes():
    labels = np.repeat([0, 1, 2], [8, 4, 1])
    # one of each, the largest class first; then by the share of its class at which an image is the next one, which is
    # (1.5, 2.5, ...) / 8 of class 0 and (1.5, 2.5, 3.5) / 4 of class 1
    turns = [0, 1, 2, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0]
    for count in range(1, 14):
        assert np.bincount(labels[part(labels, count)], minlength=3).tolist() == [
            turns[:count].count(label) for label in range(3)
        ]


def test_a_smaller_part_is_contained_in_a_larger_one_of_the_same_seed():
    labels = np.random.default_rng(0).integers(0, 7, 300)
    parts = [set(part(labels, count, seed=5)) for count in (3, 10, 50, 51, 200, 300)]
    assert all(small < large for small, large in pairwise(parts))
    assert not parts[2] <= set(part(labels, 200, seed=6))


def test_every_class_keeps_its_share_up_to_an_image():
    labels = np.random.default_rng(1).choice(5, 1000, p=[0.5, 0.25, 0.15, 0.09, 0.01])
    sizes = np.bincount(labels)
    for count in (20, 100, 333, 777):
        kept = np.bincount(labels[part(labels, count)], minlength=5)
        assert kept.sum() == count
        assert kept.min() >= 1
        assert (np.abs(kept - count * sizes / 1000) <= 1).all()


def test_every_image_is_as_likely_as_another_of_its_class():
    labels = np.repeat([0, 1], [30, 10])
    times = np.bincount(np.concatenate([part(labels, 20, seed) for seed in range(400)]), minlength=40)
    assert np.abs(times / 400 - 0.5).max() < 0.12  # 4.8 standard deviations


def test_a_part_depends_on_keys_and_labels_not_on_the_order_of_the_images():
    labels, order = np.arange(60) % 4, np.random.default_rng(2).permutation(60)
    shuffled = Arrays(np.zeros((60, 2, 2, 1), np.uint8), Strings(f"{row}.png" for row in order))
    kept = choose_part(shuffled, labels[order], count=25, seed=3)
    assert set(order[kept]) == set(part(labels, 25, seed=3))


def test_images_without_labels_are_drawn_alike():
    none = np.zeros(0, np.int64)
    kept = [set(np.flatnonzero(choose_part(contents(50), none, count=count, seed=0))) for count in (10, 20)]
    assert [len(rows) for rows in kept] == [10, 20]
    assert kept[0] < kept[1]


def photos(root):
    noise = np.random.default_rng(0)
    for row in range(30):
        path = root / ("ant" if row % 3 else "bee") / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 255, (8, 8, 3), np.uint8)).save(path)
    return root


def shards(root):
    shard_data(photos(root / "photos"), root / "shards", images=7, quiet=True)
    return root / "shards"


def parquet(root):
    root.mkdir(exist_ok=True)
    files = []
    for row in range(24):
        Image.new("L", (8, 8), row).save(held := io.BytesIO(), "PNG")
        files.append(held.getvalue())
    for split in ("train", "test"):
        table = pa.table({"image": files, "label": [row % 4 for row in range(24)]})
        pq.write_table(table, root / f"{split}.parquet", row_group_size=5)
    return root


def several_labels(root):
    targets = np.random.default_rng(0).integers(0, 2, (40, 3)).astype(np.float32)
    return np.random.default_rng(1).integers(0, 255, (40, 8, 8, 1)).astype(np.uint8), targets


def masks(root):
    return write_masks(root, {0: 0, 1: 1, 2: 255}, splits=False)


@pytest.mark.parametrize(
    "layout", [photos, shards, parquet, several_labels, write_voc, masks], ids=lambda f: f.__name__
)
def test_every_kind_of_data_can_be_limited_and_keeps_its_other_splits(layout, tmp_path):
    splits = open_data(layout(tmp_path / "data"), validation=0.3, seed=1)
    whole = len(splits.train)
    before = set(splits.train.keys)
    for count in (1, whole - 1, whole):
        limited = limit_training(splits, DataSettings(limit=count), seed=1)
        keys = set(limited.train.keys)
        assert len(keys) == len(limited.train) == count
        assert keys <= before
        assert limited.train.classes == splits.train.classes
        assert (limited.val, limited.test) == (splits.val, splits.test)
        for row in {0, count - 1}:
            key = limited.train.keys[row]
            item, same = limited.train.read(row), splits.train.read(list(splits.train.keys).index(key))
            assert np.array_equal(item.content, same.content)
            assert limited.train.digest_target(row) == splits.train.digest_target(list(splits.train.keys).index(key))
        assert (f"; {count:,} of {whole:,} training images, drawn by seed 1" in limited.layout) == (count < whole)


def test_a_folder_and_its_shards_give_the_same_part(tmp_path):
    sources = [open_data(data, validation=0) for data in (photos(tmp_path / "one"), shards(tmp_path))]
    parts = [limit_training(splits, DataSettings(fraction=0.5), seed=2).train for splits in sources]
    assert sorted(parts[0].keys) == sorted(parts[1].keys)
    assert len(parts[0]) == 15


def test_a_share_is_rounded_and_is_one_image_at_least():
    splits = Splits(train=Source(contents=contents(10), targets=np.arange(10) % 2, classes=("a", "b")))
    lengths = [len(limit_training(splits, DataSettings(fraction=share), 0).train) for share in (0.01, 0.26, 0.5, 1)]
    assert lengths == [1, 3, 5, 10]


def test_more_images_than_there_are_is_an_error_that_says_how_many_there_are():
    splits = Splits(train=Source(contents=contents(10), targets=np.arange(10) % 2, classes=("a", "b")))
    with pytest.raises(DataError, match=r"data.limit is 11, and there are 10 training images\n.*--limit 10"):
        limit_training(splits, DataSettings(limit=11), 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limit": 0}, "data.limit is 0"),
        ({"fraction": 0}, "data.fraction is 0"),
        ({"fraction": "110%"}, "data.fraction is 1.1"),
        ({"limit": 5, "fraction": 0.5}, "data.limit is 5, and data.fraction is 0.5\n.*set one of them"),
    ],
)
def test_invalid_numbers_are_refused_with_a_remedy(settings, message):
    with pytest.raises(ConfigError, match=message):
        compose_run(flags={"data": {"source": "digits", **settings}})


@pytest.mark.slow
def test_a_run_learns_from_its_part_resumes_with_it_and_refuses_another(tmp_path):
    out = tmp_path / "run"
    given = {"set": TINY, "batch": 10, "quiet": True, "out": out}
    run = vitrail.train("digits", fraction="5%", epochs=2, **given)
    assert yaml.safe_load((out / "config.yaml").read_text())["data"]["fraction"] == 0.05
    assert RunFolder(out).status()["steps"] == 15  # 2 x 76 of the 1,528 images, in batches of 10
    assert "76 of 1,528 training images, drawn by seed 0" in (out / "card.md").read_text()
    assert len(run.load().classes) == 10
    with pytest.raises(ConfigError, match=r"other settings[\s\S]*data\.fraction: 0\.05 there, 0\.1 asked"):
        vitrail.train("digits", fraction="10%", epochs=2, **given)
    vitrail.train(resume=out, epochs=3, quiet=True)
    assert RunFolder(out).status()["steps"] == 23


def test_learning_without_labels_takes_a_part_too(tmp_path):
    given = {"steps": 2, "batch": 8, "out": tmp_path / "run", "set": TINY, "quiet": True}
    run = vitrail.pretrain("digits", objective="mae", limit=64, **given)
    assert "training images, drawn by seed 0: 64 train," in (run.folder / "log.txt").read_text()
