"""How fast CIFAR-10 as 50 tar shards becomes training batches, beside the same files in class folders.

    python benchmarks/shards.py cifar10/train.parquet --workers 0 2

The files of the Parquet are written to a new folder and sharded; the batches are first checked for equal pixels. A figure is the
rate from the first batch to the last, with warm files: it is about what opening, finding and checking a file costs.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from harness import Timing, report
from loading import passes

from vitrail.data.augment.policy import POLICIES
from vitrail.data.loader import train_batches
from vitrail.data.sources.open import open_data
from vitrail.verbs.data import shard_data


def write_folder(parquet: str, folder: Path) -> None:
    """The images as ``CLASS/NUMBER.jpg``."""
    source = open_data(parquet, validation=0).train
    assert source is not None
    for name in source.classes:
        (folder / name).mkdir(parents=True)
    for row in range(len(source)):
        item = source.read(row)
        assert isinstance(item.content, bytes)
        (folder / source.classes[item.target] / f"{row:05d}.jpg").write_bytes(item.content)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given = os.environ.get("VITRAIL_TEST_DATA")
    default = f"{given}/cifar10/train.parquet" if given else None
    words.add_argument("parquet", nargs="?" if default else None, default=default)
    words.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    words.add_argument("--shards", type=int, default=50)
    words.add_argument("--batch", type=int, default=256)
    words.add_argument("--steps", type=int, default=60, help="of one pass")
    words.add_argument("--blocks", type=int, default=9)
    asked = words.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder, shards = Path(place, "folder"), Path(place, "shards")
        write_folder(asked.parquet, folder)
        files = sum(1 for _ in folder.rglob("*.jpg"))
        shard_data(folder, shards, images=-(-files // asked.shards), quiet=True)
        contenders: dict[str, Callable[[], Iterable]] = {}
        for workers in asked.workers:
            for name, path in (("folder", folder), ("tar shards", shards)):
                source = open_data(path, validation=0).train
                assert source is not None
                contenders[f"vitrail, {name}, {workers} workers"] = partial(
                    train_batches, source, policy=POLICIES["inception"], size=(32, 32), batch=asked.batch, seed=0, start=0,
                    stop=asked.steps, workers=workers,
                )  # fmt: skip
        for batches in zip(*(start() for start in contenders.values()), strict=True):  # which also warms the files
            assert all(batch.images.equal(batches[0].images) and batch.keys == batches[0].keys for batch in batches)
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        for block in range(asked.blocks):
            for name in list(contenders)[:: -1 if block % 2 else 1]:
                rates[name].append(passes(contenders[name], asked.steps * asked.batch, asked.batch)[0])
    timings = {name: Timing(rates=tuple(each)) for name, each in rates.items()}
    ratios = {
        str(workers): timings[f"vitrail, tar shards, {workers} workers"].times(
            timings[f"vitrail, folder, {workers} workers"]
        )
        for workers in asked.workers
    }
    notes = {"files": files, "shards": asked.shards, "batch": asked.batch, "shards_to_folder_by_workers": ratios}
    print(
        "shards in place of the folder, by workers: "
        + ", ".join(f"{key}: {ratio:.3f}" for key, ratio in ratios.items())
    )
    report("shards", timings, device="cpu", notes=notes)


if __name__ == "__main__":
    main()
