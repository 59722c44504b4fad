"""Decoded small images in a folder that processes share: decoded once, mapped, and the same bits as without."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.data import decoded_cache
from vitrail.data.decoded_cache import keep_decoded
from vitrail.data.sources.open import open_data
from vitrail.errors import DataError, DiskError

HANGS = 300  # seconds after which a process is said to hang


@pytest.fixture
def photos(tmp_path) -> Path:
    noise = np.random.default_rng(0)
    for row in range(24):
        path = tmp_path / "photos" / "ab"[row % 2] / f"{row:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (16, 16, 3)).astype(np.uint8)).save(path)
    return tmp_path / "photos"


def opened(root: Path):
    return open_data(root, validation=0).train


def is_mapped(images: np.ndarray) -> bool:
    while images.base is not None and not isinstance(images, np.memmap):
        images = images.base
    return isinstance(images, np.memmap)


def keep_and_sum(root: Path, folder: Path, start: Barrier, sums: multiprocessing.Queue) -> None:
    start.wait(HANGS)
    kept = keep_decoded(opened(root), shared=folder)
    sums.put((is_mapped(kept.images), int(kept.images.astype(np.int64).sum())))


def test_images_are_decoded_once_and_then_mapped(photos, tmp_path, monkeypatch):
    plain = keep_decoded(opened(photos))
    first = keep_decoded(opened(photos), shared=tmp_path / "store")
    monkeypatch.setattr(decoded_cache, "_decode", lambda *given: pytest.fail("it decodes again"))
    second = keep_decoded(opened(photos), shared=tmp_path / "store")
    for kept in (first, second):
        assert is_mapped(kept.images)
        assert not kept.images.flags.writeable
        np.testing.assert_array_equal(kept.images, plain.images)
        assert list(kept.keys) == list(plain.keys)
        assert kept.targets.tolist() == plain.targets.tolist()
    assert sorted(path.suffix for path in (tmp_path / "store").iterdir()) == [".json", ".npy"]


def test_other_content_or_channels_are_another_file(photos, tmp_path):
    store = tmp_path / "store"
    before = keep_decoded(opened(photos), shared=store)
    keep_decoded(opened(photos), channels=1, shared=store)
    assert len(list(store.glob("*.npy"))) == 2
    Image.new("RGB", (16, 16), "red").save(photos / "a" / "00.png")
    after = keep_decoded(opened(photos), shared=store)
    assert len(list(store.glob("*.npy"))) == 3
    assert (after.images[0] == (255, 0, 0)).all()
    assert not (before.images[0] == after.images[0]).all()


@pytest.mark.parametrize("damage", ["bit", "cut", "empty", "header", "gone", "described"])
def test_a_damaged_file_is_decoded_again(photos, tmp_path, damage):
    store = tmp_path / "store"
    plain = keep_decoded(opened(photos), shared=store).images.copy()
    path, about = next(store.glob("*.npy")), next(store.glob("*.json"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    header = content.replace(b"), }", b"(, }", 1)  # tokenize.TokenError
    if damage == "gone":
        path.unlink()
    elif damage == "described":
        about.write_text(about.read_text().replace("crc", "src"))
    else:
        path.write_bytes({"bit": content, "cut": content[:500], "empty": b"", "header": header}[damage])
    np.testing.assert_array_equal(keep_decoded(opened(photos), shared=store).images, plain)
    assert path.stat().st_size == len(content)


def test_bad_images_are_told_of_each_time(photos, tmp_path):
    (photos / "a" / "02.png").write_bytes(b"no image")
    for _ in range(2):
        told: dict[str, str] = {}
        kept = keep_decoded(opened(photos), shared=tmp_path / "store", bad=told.__setitem__)
        assert list(told) == ["a/02.png"]
        assert len(kept) == 23
        assert "a/02.png" not in list(kept.keys)
        with pytest.raises(DataError, match=r"a/02\.png is bad"):
            keep_decoded(opened(photos), shared=tmp_path / "store")


def test_images_of_several_sizes_leave_nothing(photos, tmp_path):
    Image.new("RGB", (16, 15)).save(photos / "b" / "99.png")
    files = opened(photos)
    assert keep_decoded(files, shared=tmp_path / "store") is files
    assert not (tmp_path / "store").exists()


def test_a_folder_that_cannot_be_written_is_an_error(photos, tmp_path):
    (tmp_path / "store").write_text("a file")
    with pytest.raises(DiskError, match="store"):
        keep_decoded(opened(photos), shared=tmp_path / "store")


@pytest.mark.slow
def test_processes_that_begin_at_once_all_get_the_images(photos, tmp_path):
    spawn = multiprocessing.get_context("spawn")
    start, sums = spawn.Barrier(3), spawn.Queue()
    given = (photos, tmp_path / "store", start, sums)
    processes = [spawn.Process(target=keep_and_sum, args=given) for _ in range(2)]
    for process in processes:
        process.start()
    keep_and_sum(*given)
    expected = int(keep_decoded(opened(photos)).images.astype(np.int64).sum())
    assert [sums.get(timeout=HANGS) for _ in range(3)] == [(True, expected)] * 3
    for process in processes:
        process.join(HANGS)
    assert len(list((tmp_path / "store").iterdir())) == 2


@pytest.mark.slow
def test_a_training_has_the_same_bits_with_and_without(photos, tmp_path):
    small = "model.changes={width: 16, depth: 1, heads: 1, mlp_width: 32, patch_size: [4, 4]}"
    given = {"steps": 3, "batch": 8, "set": (small, "compute.threads=1", "save.evaluations=1"), "quiet": True}
    plain = vitrail.train(photos, out=tmp_path / "plain", **given)
    more = (*given["set"], f"data.decoded={tmp_path / 'store'}")
    shared = vitrail.train(photos, out=tmp_path / "shared", **{**given, "set": more})
    assert len(list((tmp_path / "store").glob("*.npy"))) == 2  # train and val
    for name in ("metrics.jsonl", "model/model.safetensors"):
        assert (plain.folder / name).read_bytes() == (shared.folder / name).read_bytes()
    # where images are decoded is no part of what a run is
    longer = vitrail.train(photos, out=tmp_path / "shared", **{**given, "steps": 4})
    assert longer.folder == shared.folder
