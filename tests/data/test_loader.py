"""Batches are a function of the seed and the step: whoever makes them, whenever, and whatever is missing from them."""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.augment.policy import POLICIES
from vitrail.data.loader import Workers, eval_batches, train_batches
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.contents import Arrays, Files, Strings
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError, DataError

SIZE = (24, 16)
PLAIN = {"policy": POLICIES["inception"], "size": SIZE, "batch": 5, "seed": 3, "start": 0, "stop": 6}


def photograph(height, width, shift=0):
    """Smooth colours and a fine grain: (H, W, 3)."""
    down, across = np.mgrid[:height, :width]
    waves = [np.sin(down / 17 + shift), np.cos(across / 23 + shift), np.sin((down + across) / 31)]
    grain = np.random.default_rng(shift).integers(-12, 13, (height, width, 3))
    return (np.stack(waves, -1) * 100 + 128 + grain).clip(0, 255).astype(np.uint8)


NAMES = [f"{number:02}.{'jpg' if number % 2 else 'png'}" for number in range(13)]


def source_of(folder):
    targets = np.arange(13, dtype=np.int64) % 3
    return Source(contents=Files(str(folder), Strings(NAMES)), targets=targets, classes=("a", "b", "c"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Thirteen files of two formats and several sizes, which are only read."""
    folder = tmp_path_factory.mktemp("files")
    for number, name in enumerate(NAMES):
        Image.fromarray(photograph(40 + 9 * number, 90 - 3 * number, number)).save(folder / name)
    return source_of(folder)


@pytest.fixture
def own_files(files, tmp_path):
    """The same files, of which a test may spoil some."""
    return source_of(shutil.copytree(files.contents.root, tmp_path / "files"))


def arrays(count=10, size=(6, 8), channels=3, kind=np.uint8):
    images = np.random.default_rng(0).integers(0, 256, (count, *size, channels)).astype(np.uint8)
    images = images if kind == np.uint8 else (images / np.float32(255))
    keys = Strings(f"array#{number}" for number in range(count))
    targets = np.arange(count, dtype=np.int64) % 2
    return Source(contents=Arrays(images, keys), targets=targets, classes=("a", "b"))


def assert_equal(some, others):
    some, others = list(some), list(others)
    assert len(some) == len(others)
    for one, other in zip(some, others):
        assert one.keys == other.keys
        assert one.images.dtype == other.images.dtype
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.targets, other.targets)
        assert np.array_equal(one.ids, other.ids)


def test_training_batches_do_not_depend_on_who_makes_them(files):
    alone = list(train_batches(files, **PLAIN, repeats=2))
    assert_equal(alone, train_batches(files, **PLAIN, repeats=2, workers=2))
    assert alone[0].images.shape == (5, 3, *SIZE)
    assert len({picture.numpy().tobytes() for batch in alone for picture in batch.images}) == 30  # views differ


def test_a_training_that_starts_later_resumes_with_the_same_batches(files):
    assert_equal(list(train_batches(files, **PLAIN))[4:], train_batches(files, **PLAIN | {"start": 4}))


def expected_views(views, repeats=1):
    """The ids of `PLAIN`'s thirteen samples, each row as so many views."""
    single = [batch.ids for batch in train_batches(arrays(13), **PLAIN, repeats=repeats)]
    return [
        [[epoch, sample, view * views + each] for epoch, sample, view in ids.tolist() for each in range(views)]
        for ids in single
    ]


@pytest.mark.parametrize("workers", [0, 1])
def test_every_sample_comes_in_its_views_next_to_one_another(files, workers):
    batches = list(train_batches(files, **PLAIN, views=2, workers=workers))
    assert [batch.ids.tolist() for batch in batches] == expected_views(2)
    for batch in batches:
        assert batch.images.shape == (10, 3, *SIZE)
        assert batch.keys[::2] == batch.keys[1::2] == [files.keys[sample] for sample in batch.ids[::2, 1]]
        assert torch.equal(batch.targets[::2], batch.targets[1::2])
        assert not (batch.images[::2] == batch.images[1::2]).all((1, 2, 3)).any()  # each view has its own crop
    first = [batch.images[::2] for batch in batches]
    assert all(map(torch.equal, first, (batch.images for batch in train_batches(files, **PLAIN))))


def test_views_of_arrays_are_the_same_picture_until_they_are_augmented():
    source = arrays(13)
    batches = list(train_batches(source, **PLAIN, views=3, repeats=2))
    assert [batch.ids.tolist() for batch in batches] == expected_views(3, repeats=2)
    for batch in batches:
        assert np.array_equal(batch.images, source.images[batch.ids[:, 1]].transpose(0, 3, 1, 2))
        assert batch.keys == [source.keys[sample] for sample in batch.ids[:, 1]]


def test_a_transform_makes_every_view_anew(user_code):
    source = open_data(user_code.Noise(9), validation=0).train
    options = PLAIN | {"transform": user_code.noisy, "size": (6, 8), "views": 2}
    batches = train_batches(source, **options)
    assert all(not torch.equal(*pair) for batch in batches for pair in batch.images.unflatten(0, (-1, 2)))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_image_is_told_once_and_takes_all_its_views_away(own_files, workers):
    for name in ("03.jpg", "08.png"):
        Path(own_files.contents.root, name).write_bytes(b"")
    told = []
    batches = list(
        train_batches(own_files, **PLAIN, views=2, workers=workers, bad=lambda key, reason: told.append((key, reason)))
    )
    rows = expected_views(2)
    assert [batch.ids.tolist() for batch in batches] == [[row for row in some if row[1] not in (3, 8)] for some in rows]
    assert [key for key, _ in told] == [
        own_files.keys[row[1]] for some in rows for row in some[::2] if row[1] in (3, 8)
    ]
    assert all(len(batch.images) == len(batch.targets) == len(batch.keys) == len(batch.ids) for batch in batches)


def test_a_view_that_cannot_be_made_takes_the_others_away(user_code):
    source = open_data(user_code.Fickle(9), validation=0).train
    told = []
    batches = list(train_batches(source, **PLAIN, views=2, bad=lambda key, _: told.append(key)))
    assert 0 < len(told) < 30
    assert sum(map(len, batches)) == 60 - 2 * len(told)
    for batch in batches:
        assert batch.ids[:, 2].tolist() == [0, 1] * (len(batch) // 2)
        assert np.array_equal(batch.ids[::2, :2], batch.ids[1::2, :2])


def test_evaluation_sees_every_file_once_in_order_as_preprocessing_has_it(files):
    preprocessing = Preprocessing.timm(SIZE)
    batches = list(eval_batches(files, preprocessing, batch=4))
    assert_equal(batches, eval_batches(files, preprocessing, batch=4, workers=1))
    assert [key for batch in batches for key in batch.keys] == list(files.keys)
    assert torch.equal(torch.cat([batch.targets for batch in batches]), torch.from_numpy(files.targets))
    for key, picture in zip(files.keys, torch.cat([batch.images for batch in batches])):
        with Image.open(f"{files.contents.root}/{key}") as image:
            assert np.array_equal(picture, preprocessing.picture(image))


def test_fast_evaluation_of_large_jpegs_is_nearly_the_same(tmp_path):
    Image.fromarray(photograph(480, 640)).save(tmp_path / "large.jpg", quality=95)
    source = Source(contents=Files(str(tmp_path), Strings(["large.jpg"])), targets=np.zeros(0, np.int64))
    full, fast = (next(eval_batches(source, Preprocessing.timm(48), batch=1, fast=fast)) for fast in (False, True))
    difference = (full.images.int() - fast.images.int()).abs()
    assert 0 < difference.max() <= 8
    assert full.targets.tolist() == [-1]  # unlabelled


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_image_is_told_in_order_and_leaves_a_smaller_batch(own_files, workers):
    for name in ("03.jpg", "08.png"):
        path = Path(own_files.contents.root, name)
        os.truncate(path, path.stat().st_size // 2)
    told = []
    batches = list(
        train_batches(own_files, **PLAIN, workers=workers, bad=lambda key, reason: told.append((key, reason)))
    )
    order = [sample for batch in train_batches(arrays(13), **PLAIN) for sample in batch.ids[:, 1]]
    assert [key for key, _ in told] == [own_files.keys[sample] for sample in order if sample in (3, 8)]
    assert all("truncated" in reason for _, reason in told)
    assert sum(map(len, batches)) == 30 - len(told)
    for batch in batches:
        assert len(batch.images) == len(batch.targets) == len(batch.keys) == len(batch.ids)
        assert batch.keys == [own_files.keys[sample] for sample in batch.ids[:, 1]]
        assert batch.targets.tolist() == [own_files.targets[sample] for sample in batch.ids[:, 1]]


def test_evaluation_passes_over_a_batch_that_is_all_bad_and_training_does_not(own_files):
    for name in list(own_files.keys)[4:8]:
        Path(own_files.contents.root, name).write_bytes(b"")
    assert [len(batch) for batch in eval_batches(own_files, Preprocessing.timm(16), batch=4, bad=lambda *_: None)] == [
        4,
        4,
        1,
    ]
    with pytest.raises(DataError, match="all images of step 0 are bad"):
        next(train_batches(own_files.subset([4, 5, 6]), **PLAIN, bad=lambda *_: None))


def test_without_a_policy_the_first_bad_image_is_an_error(own_files):
    Path(own_files.contents.root, "00.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"the image 00.png is bad: the file is empty"):
        list(eval_batches(own_files, Preprocessing.timm(16), batch=4))


def test_stopping_the_caller_stops_the_workers(files, monkeypatch):
    pools = []

    class Watched(Workers):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            pools.append(self)

    monkeypatch.setattr("vitrail.data.loader.Workers", Watched)
    before = set(threading.enumerate())
    batches = train_batches(files, **PLAIN | {"stop": 1000}, workers=1)
    next(batches)
    batches.close()
    assert [process.poll() is None for process in pools[0].processes] == [False]
    assert not [each for each in set(threading.enumerate()) - before if each.name.startswith("vitrail-data")]


@pytest.mark.parametrize(("channels", "kind"), [(1, np.uint8), (3, np.uint8), (5, np.float32)])
def test_arrays_come_as_they_are_for_training_and_where_the_size_fits_for_evaluation(channels, kind):
    source = arrays(channels=channels, kind=kind)
    preprocessing = Preprocessing(size=(6, 8), mean=(0.5,) * channels, std=(0.5,) * channels)
    train = train_batches(source, **PLAIN, channels=channels)
    for batch in [*train, *eval_batches(source, preprocessing, batch=4)]:
        expected = source.images[batch.ids[:, 1]].transpose(0, 3, 1, 2)
        assert batch.images.numpy().dtype == kind
        assert np.array_equal(batch.images, expected)
        assert batch.images.is_contiguous()
        assert batch.targets.tolist() == (batch.ids[:, 1] % 2).tolist()


def test_arrays_of_another_size_are_preprocessed_for_evaluation():
    source, preprocessing = (
        arrays(channels=5, kind=np.float32),
        Preprocessing(size=(12, 12), mean=(0,) * 5, std=(1,) * 5),
    )
    batch = next(eval_batches(source, preprocessing, batch=10))
    assert np.array_equal(batch.images, [preprocessing.picture(image) for image in source.images])


def test_arrays_of_another_number_of_channels_are_refused():
    with pytest.raises(DataError, match="5 channels, but the model requires 3"):
        next(train_batches(arrays(channels=5), **PLAIN))


def test_targets_of_several_labels_stay_rows():
    images = np.zeros((4, 6, 8, 3), np.uint8)
    targets = np.eye(4, 3, dtype=np.float32)
    source = open_data((images, targets), validation=0).train
    batch = next(eval_batches(source, Preprocessing(size=(6, 8)), batch=3))
    assert batch.targets.dtype == torch.float32
    assert np.array_equal(batch.targets, targets[:3])


@pytest.mark.parametrize(("channels", "floats"), [(3, False), (1, False), (5, True)])
def test_a_users_dataset_is_cropped_like_files(user_code, channels, floats):
    dataset = user_code.Shades(9, channels=channels, bad=(2,), floats=floats)
    source = open_data(dataset, channels=channels, validation=0).train
    told = set()
    for batch in train_batches(source, **PLAIN, channels=channels, bad=lambda key, _: told.add(key)):
        assert batch.images.shape[1:] == (channels, *SIZE)
        shades = batch.ids[:, 1] / 255 if floats else batch.ids[:, 1]
        assert np.allclose(batch.images.amax((1, 2, 3)), shades)
        assert np.allclose(batch.images.amin((1, 2, 3)), shades)
    assert told == {"dataset#2"}


@pytest.mark.parametrize("transform", [None, "noisy"])
def test_random_numbers_of_user_code_are_the_same_in_a_worker_and_leave_the_global_state(user_code, transform):
    source = open_data(user_code.Noise(9), validation=0).train
    options = PLAIN | {"transform": getattr(user_code, transform) if transform else None, "size": (6, 8)}
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    drawn = random.random(), np.random.rand(), torch.rand(1)
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    here = list(train_batches(source, **options))
    assert (random.random(), np.random.rand(), torch.rand(1)) == drawn
    assert_equal(here, train_batches(source, **options, workers=1))
    assert here[0].images.float().std() > 0.1
    assert not torch.equal(here[0].images[0], here[0].images[1])


def test_a_module_may_be_the_transform_and_arrays_go_through_it():
    class Inverted(torch.nn.Module):
        def forward(self, picture):
            return 1 - torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255

    source = arrays()
    batch = next(train_batches(source, **PLAIN | {"size": (6, 8)}, transform=Inverted()))
    expected = 1 - torch.from_numpy(source.images[batch.ids[:, 1]]).permute(0, 3, 1, 2) / 255
    assert torch.equal(batch.images, expected)


def test_a_transform_that_fails_or_gives_another_size_is_named_with_its_image(user_code):
    with pytest.raises(DataError, match=r"the transform failed on array#.: KeyError"):
        next(train_batches(arrays(), **PLAIN, transform=user_code.failing))
    with pytest.raises(ConfigError, match=r"\(3, 4, 4\) for array#., but the model requires \(3, 24, 16\)"):
        next(train_batches(arrays(), **PLAIN, transform=user_code.narrow))
    with pytest.raises(ConfigError, match=r"values from -1 to 1 for array#.[^$]*without normalisation"):
        next(train_batches(arrays(), **PLAIN, transform=user_code.normalised))


def test_moving_a_batch_keeps_what_it_holds():
    batch = next(train_batches(arrays(), **PLAIN))
    moved = batch.to("meta")
    assert moved.images.shape == batch.images.shape
    assert moved.targets.device.type == "meta"
    assert moved.keys is batch.keys
    assert_equal([batch], [batch.to("cpu")])
