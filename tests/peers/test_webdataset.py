"""Tar shards beside webdataset: it reads ours, and we read its."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.data.sources.open import open_data

webdataset = pytest.importorskip("webdataset")
# it leaves the archives open that it has read
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


def picture(number):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 255, (8, 9, 3), np.uint8)).save(file, "png")
    return file.getvalue()


def test_webdataset_reads_every_sample_of_ours(tmp_path):
    for number in range(12):
        path = tmp_path / "photos" / ("ant" if number % 3 else "bee") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
    vitrail.shard_data(tmp_path / "photos", tmp_path / "shards", images=5, quiet=True)
    source = open_data(tmp_path / "photos", validation=0).train
    paths = [str(path) for path in sorted(tmp_path.glob("shards/*.tar"))]
    read = {sample["__key__"]: sample for sample in webdataset.WebDataset(paths, shardshuffle=False)}
    assert sorted(read) == [f"{row:08d}" for row in range(12)]
    for row in range(12):
        assert read[f"{row:08d}"]["png"] == source.read(row).content
    decoded = webdataset.WebDataset(paths, shardshuffle=False).decode("rgb8").to_tuple("png", "cls", "__key__")
    for pixels, label, key in decoded:
        assert label == source.targets[int(key)]
        assert np.array_equal(pixels, np.asarray(Image.open(io.BytesIO(source.read(int(key)).content))))


def test_shards_written_by_webdataset_are_read(tmp_path):
    with webdataset.ShardWriter(str(tmp_path / "x-%04d.tar"), maxcount=4, verbose=0) as writer:
        for number in range(10):
            writer.write({"__key__": f"folder/sample{number:03d}", "png": picture(number), "cls": number % 3})
    vitrail.index_data(tmp_path, quiet=True)
    source = open_data(tmp_path, validation=0).train
    assert len(source.contents.index.shards) == 3
    assert source.targets.tolist() == [number % 3 for number in range(10)]
    assert [source.read(row).content for row in range(10)] == [picture(number) for number in range(10)]
