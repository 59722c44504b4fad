"""How long the exact search of `vitrail search` takes among a million images, a thread, by width of the features and batch.

Features are random unit vectors, mapped from a file that was just read, as an index is. The answers for the batch are first
compared with those of one product of float64 on a part of the index.

    python benchmarks/search.py [--images 1000000] [--widths 192 768] [--batches 1 100]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import harness
import numpy as np
import torch
import torch.nn.functional as F

from vitrail.inference.similarity import find_nearest, find_pairs

TOP, CHECKED, BLOCKS = 10, 10_000, 5


def write_features(path: Path, images: int, width: int) -> torch.Tensor:
    """Writes unit vectors (N, D) and maps them."""
    generator = torch.Generator().manual_seed(0)
    values = np.lib.format.open_memmap(path, "w+", np.float32, (images, width))
    for start in range(0, images, 100_000):
        part = torch.randn(min(100_000, images - start), width, generator=generator)
        values[start : start + len(part)] = F.normalize(part, dim=1).numpy()
    del values
    return torch.from_numpy(np.asarray(np.load(path, mmap_mode="c")))


def check(features: torch.Tensor, queries: torch.Tensor) -> None:
    exact = (queries.double() @ features.double().T).round(decimals=6)
    order = exact.argsort(dim=1, descending=True, stable=True)[:, :TOP]
    found = list(find_nearest(features, queries, TOP))
    assert found == list(zip(order.tolist(), exact.gather(1, order).tolist()))


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--images", type=int, default=1_000_000)
    words.add_argument("--widths", type=int, nargs="+", default=[192, 768])
    words.add_argument("--batches", type=int, nargs="+", default=[1, 100])
    asked = words.parse_args()
    torch.set_num_threads(1)
    rows = []
    for width in asked.widths:
        with tempfile.TemporaryDirectory() as place:
            features = write_features(Path(place) / "features.npy", asked.images, width)
            for batch in asked.batches:
                queries = F.normalize(torch.randn(batch, width, generator=torch.Generator().manual_seed(1)), dim=1)
                check(features[:CHECKED], queries)
                rows.append(measure(features, queries))
                print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
            some = features[:CHECKED]
            began = time.process_time()
            assert not list(find_pairs(0.9, some))
            rate = CHECKED * (CHECKED - 1) / 2 / (time.process_time() - began)
            rows.append({"width": width, "million pairs compared a second": round(rate / 1e6, 1)})
            print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    print(harness.write("search", {"top": TOP, "rows": rows}, device="cpu"))


def measure(features: torch.Tensor, queries: torch.Tensor) -> dict[str, float]:
    """Returns milliseconds of processor time and of the wall's clock for a query, medians over blocks."""
    spent, passed = [], []
    for _ in range(BLOCKS + 1):  # the first reads the file
        processor, wall = time.process_time(), time.perf_counter()
        for _ in find_nearest(features, queries, TOP):
            pass
        spent.append(1000 * (time.process_time() - processor) / len(queries))
        passed.append(1000 * (time.perf_counter() - wall) / len(queries))
    low, middle, high = statistics.quantiles(spent[1:], n=4)
    return {
        "images": len(features),
        "width": features.shape[1],
        "batch": len(queries),
        "ms_per_query": round(middle, 2),
        "spread": round((high - low) / 2, 2),
        "ms_of_wall": round(statistics.median(passed[1:]), 2),
    }


if __name__ == "__main__":
    main()
