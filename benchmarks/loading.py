"""How fast a folder of photographs becomes training batches, by the number of workers, beside torch's DataLoader.

    python benchmarks/loading.py FOLDER --workers 0 1 2 --size 224

All contenders make the same crops of the same files, uint8, with Pillow; the peer decodes in full, as its users do. A
figure is the rate from the first batch to the last; the time to the first batch is in the record.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from harness import Timing, report
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitrail.data.augment.crops import crop_box
from vitrail.data.augment.policy import POLICIES
from vitrail.data.loader import train_batches
from vitrail.data.sample_order import TrainStream
from vitrail.data.sources.contents import Files
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source

SEED = 0


class Peer(Dataset[Tensor]):
    """What a user of torch writes: open, convert, crop, resize."""

    def __init__(self, source: Source, size: int, stream: TrainStream, steps: int) -> None:
        assert isinstance(source.contents, Files)
        self.paths = [Path(source.contents.root, key) for key in source.keys]
        self.ids, self.size = np.concatenate(list(map(stream.ids, range(0, steps)))), size

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, position: int) -> Tensor:
        epoch, sample, view = self.ids[position].tolist()
        with Image.open(self.paths[sample]) as file:
            image = file.convert("RGB")
        left, top, wide, tall = crop_box(POLICIES["inception"], SEED, epoch, sample, view, image.height, image.width)
        image = image.crop((left, top, left + wide, top + tall))
        image = image.resize((self.size, self.size), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def passes(start: Callable[[], Iterable[object]], images: int, batch: int) -> tuple[float, float]:
    """Images per second after the first batch, and the seconds until it."""
    started = time.perf_counter()
    batches = iter(start())
    next(batches)
    first = time.perf_counter()
    for _ in batches:
        pass
    return (images - batch) / (time.perf_counter() - first), first - started


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given = os.environ.get("VITRAIL_TEST_DATA")
    default = f"{given}/imagenet_val/images" if given else None
    words.add_argument("folder", nargs="?" if default else None, default=default, help="of photographs")
    words.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    words.add_argument("--size", type=int, default=224)
    words.add_argument("--batch", type=int, default=64)
    words.add_argument("--images", type=int, default=1280, help="of one pass")
    words.add_argument("--blocks", type=int, default=5)
    words.add_argument("--without-peer", action="store_true")
    asked = words.parse_args()
    source = open_data(asked.folder, validation=0, labelled=False).train
    assert source is not None
    steps = asked.images // asked.batch
    stream = TrainStream(images=len(source), batch=asked.batch, seed=SEED)
    ours = partial(
        train_batches, source, policy=POLICIES["inception"], size=(asked.size, asked.size), batch=asked.batch, seed=SEED, start=0,
        stop=steps, bad=lambda *_: None,
    )  # fmt: skip
    peer = partial(DataLoader, Peer(source, asked.size, stream, steps), batch_size=asked.batch)
    contenders: dict[str, Callable[[], Iterable[object]]] = {}
    for workers in asked.workers:
        contenders[f"vitrail, {workers} workers"] = partial(ours, workers=workers)
        if not asked.without_peer:
            contenders[f"torch DataLoader, {workers} workers"] = partial(peer, num_workers=workers)
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    firsts: dict[str, float] = {}
    for block in range(asked.blocks):
        for name in list(contenders)[:: -1 if block % 2 else 1]:
            rate, firsts[name] = passes(contenders[name], steps * asked.batch, asked.batch)
            rates[name].append(rate)
    timings = {name: Timing(rates=tuple(each)) for name, each in rates.items()}
    notes = {"size": asked.size, "batch": asked.batch, "files": len(source), "seconds_to_first_batch": firsts}
    report("loading", timings, device="cpu", notes=notes)


if __name__ == "__main__":
    main()
