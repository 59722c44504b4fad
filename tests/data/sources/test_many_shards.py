"""Many images in bounded memory: a simulated index, in which one image stands again and again."""

from __future__ import annotations

import hashlib
import json
import tracemalloc

import numpy as np
import pytest
import scipy.special  # noqa: F401 - imported before memory is measured
from PIL import Image

from tests.slow import few_or_nightly
from vitrail.data import sample_order
from vitrail.data.augment.policy import POLICIES
from vitrail.data.loader import train_batches
from vitrail.data.sources import shards
from vitrail.data.sources.open import open_data
from vitrail.files import write_checksummed
from vitrail.shards import index
from vitrail.shards.index import CATALOGUE, FOLDER
from vitrail.verbs.data import shard_data

BOUND = 1e6  # bytes beside the mapped index, however many images there are


def read_rows(source, start):
    given = {"policy": POLICIES["inception"], "size": (16, 16), "batch": 64, "seed": 1}
    return [batch.ids[:, 1].tolist() for batch in train_batches(source, start=start, stop=start + 2, **given)]


@pytest.mark.parametrize("images", few_or_nightly(2_000_000, 100_000_000))
def test_many_images_are_trained_on_in_bounded_memory(tmp_path, monkeypatch, images):
    """The index of one image, whose tables are repeated where they are mapped; that of targets, which is counted, is a file."""
    path = tmp_path / "photos" / "ant" / "1.png"
    path.parent.mkdir(parents=True)
    Image.new("RGB", (20, 20)).save(path)
    shard_data(tmp_path / "photos", tmp_path / "shards", quiet=True)
    folder = tmp_path / "shards" / FOLDER
    np.lib.format.open_memmap(folder / "targets.npy", "w+", np.int64, (images,)).flush()  # zeros that take no room
    with open(folder / "targets.npy", "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    described = json.loads((folder / CATALOGUE).read_text())
    described["tables"]["targets"]["sha256"] = digest
    described["images"] = described["shards"][0]["images"] = images
    write_checksummed(folder / CATALOGUE, described)
    for module in (sample_order, shards):
        monkeypatch.setattr(module, "MAX_SORTED", min(module.MAX_SORTED, images // 2))
    load = index._map
    monkeypatch.setattr(
        index, "_map", lambda path: table if len(table := load(path)) != 1 else np.broadcast_to(table, (images,))
    )
    tracemalloc.start()
    try:
        source = open_data(tmp_path / "shards", validation=0).train
        source.keys.digest()
        counts = source.counts().tolist()
        rows = [row for start in (0, images // 128) for batch in read_rows(source, start) for row in batch]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(source), counts) == (images, [images])
    assert len(rows) == len(set(rows)) == 4 * 64
    assert 0.4 < np.mean(rows) / images < 0.6
    assert peak < BOUND
