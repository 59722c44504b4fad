"""How many ready images a second data workers hand to the process that trains, beside torch's DataLoader.

    OMP_NUM_THREADS=1 python benchmarks/handover.py --size 224 --workers 1 2

The images are random pixels in memory, so what is measured is the way from the worker to the batch. The processor time of
the parent for each image is in the record: it is taken from the training.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial

import numpy as np
import torch
from harness import Timing, report
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitrail.data.prepare import Picture
from vitrail.data.workers import Workers, in_order

VARIETY = 64  # different images


class Ready(Dataset[Tensor]):
    """Images (3, size, size) uint8 in memory, for workers of either kind."""

    def __init__(self, size: int, count: int) -> None:
        self.images = np.random.default_rng(0).integers(0, 256, (VARIETY, 3, size, size), np.uint8)
        self.count = count

    def __call__(self, epoch: int, sample: int, view: int) -> Picture:
        return Picture(self.images[sample % VARIETY], (0.0, 0.0, 1.0, 1.0), (1, 1))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Tensor:
        return torch.from_numpy(self.images[number % VARIETY])


def hand_over(ready: Ready, workers: int, batch: int) -> Iterator[Tensor]:
    """The batches (B, 3, size, size) that workers of this package prepare."""
    pool = Workers(ready, workers, range(len(ready)))

    def stack(rows: np.ndarray) -> Tensor:
        with pool.prepare(rows) as made:
            return torch.from_numpy(np.stack([each.pixels for each in made if isinstance(each, Picture)]))

    samples = np.arange(len(ready)).reshape(-1, batch)
    jobs = [np.stack([np.zeros_like(rows), rows, np.zeros_like(rows)], axis=1) for rows in samples]
    with closing(in_order(stack, jobs, threads=workers, close=pool.close)) as batches:
        yield from batches


def time_batches(start: Callable[[], Iterable[object]], images: int) -> tuple[float, float]:
    """Images per second after the first batches, and the microseconds of this process for each."""
    batches = iter(start())
    count = sum(1 for _ in zip(range(8), batches, strict=False))  # what was ready when the first one came
    wall, processor = time.perf_counter(), time.process_time()
    rest = sum(1 for _ in batches)
    images = images * rest // (count + rest)
    return images / (time.perf_counter() - wall), 1e6 * (time.process_time() - processor) / images


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--size", type=int, default=224)
    words.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    words.add_argument("--batch", type=int, default=128)
    words.add_argument("--images", type=int, default=25_600, help="of one pass")
    words.add_argument("--blocks", type=int, default=7)
    asked = words.parse_args()
    ready = Ready(asked.size, asked.images)
    ours, theirs = hand_over(ready, 1, asked.batch), DataLoader(ready, batch_size=asked.batch)
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))
    contenders: dict[str, Callable[[], Iterable[object]]] = {}
    for workers in asked.workers:
        contenders[f"vitrail, {workers} workers"] = partial(hand_over, ready, workers, asked.batch)
        peer = partial(DataLoader, ready, batch_size=asked.batch, num_workers=workers)
        contenders[f"torch DataLoader, {workers} workers"] = peer
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for block in range(asked.blocks):
        for name in list(contenders)[:: -1 if block % 2 else 1]:
            measured[name].append(time_batches(contenders[name], asked.images))
    timings = {name: Timing(rates=tuple(rate for rate, _ in each)) for name, each in measured.items()}
    parent = {name: float(np.median([cost for _, cost in each])) for name, each in measured.items()}
    notes = {"size": asked.size, "batch": asked.batch, "images": asked.images, "parent_microseconds_per_image": parent}
    print("\n".join(f"  {name:<42} {cost:9.1f} us of the parent per image" for name, cost in parent.items()))
    report(f"handover-{asked.size}", timings, device="cpu", notes=notes)


if __name__ == "__main__":
    main()
