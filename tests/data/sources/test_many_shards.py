"""A hundred million images in bounded memory: a simulated index, in which one image stands again and again."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from vitrail.files import write_sealed
from vitrail.shards.index import CATALOGUE, FOLDER
from vitrail.workflows.shard_data import shard_data

pytestmark = pytest.mark.slow

IMAGES = 100_000_000
STEPS = """
import json, sys, tracemalloc
import numpy as np
from vitrail.data.augment.policy import POLICIES
from vitrail.data.loader import train_batches
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import fingerprint
from vitrail.shards import index

import scipy.special  # imported before memory is measured
load = index._map
index._map = lambda path: table if len(table := load(path)) != 1 else np.broadcast_to(table, (100_000_000,))
tracemalloc.start()
source = open_data(sys.argv[1], validation=0).train
digest, counts = fingerprint(source), source.counts().tolist()
make = dict(policy=POLICIES["inception"], size=(16, 16), batch=64, seed=1)
rows = [batch.ids[:, 1].tolist() for start in (0, 10**6) for batch in train_batches(source, start=start, stop=start + 2, **make)]
print(json.dumps({"images": len(source), "counts": counts, "rows": rows, "peak": tracemalloc.get_traced_memory()[1]}))
"""


@pytest.fixture
def simulated(tmp_path):
    """An index of one image, whose tables are repeated where they are mapped; that of targets, which is counted, is a file."""
    path = tmp_path / "photos" / "ant" / "1.png"
    path.parent.mkdir(parents=True)
    Image.new("RGB", (20, 20)).save(path)
    shard_data(tmp_path / "photos", tmp_path / "shards", quiet=True)
    folder = tmp_path / "shards" / FOLDER
    np.lib.format.open_memmap(folder / "targets.npy", "w+", np.int64, (IMAGES,)).flush()  # zeros that take no room
    with open(folder / "targets.npy", "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    described = json.loads((folder / CATALOGUE).read_text())
    described["tables"]["targets"]["sha256"] = digest
    described["images"] = IMAGES
    write_sealed(folder / CATALOGUE, described)
    return tmp_path / "shards"


def test_a_hundred_million_images_are_trained_on_in_bounded_memory(simulated):
    found = json.loads(subprocess.check_output([sys.executable, "-c", STEPS, str(simulated)], text=True))
    assert (found["images"], found["counts"]) == (IMAGES, [IMAGES])
    rows = [row for batch in found["rows"] for row in batch]
    assert len(rows) == len(set(rows)) == 4 * 64
    assert 0.4 < np.mean(rows) / IMAGES < 0.6
    assert found["peak"] < 20e6  # bytes beside the mapped index: a fifth of a byte an image
