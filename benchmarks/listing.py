"""How long a folder of many files takes to be listed and split, and how much memory: 1,000 to 1,000,000 empty-ish files.

    python benchmarks/listing.py --files 1000 10000 100000 1000000

A process of its own opens each folder, so the peak of its memory is that of the listing. The files are JPEG of one pixel in a
hundred class folders, just written: the disk is warm.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import harness
from PIL import Image

CLASSES = 100
OPEN = """
import json, resource, sys, time
from vitrail.data.augment.policy import POLICIES
from vitrail.data.loader import train_batches
from vitrail.data.sources.open import open_data

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

before, began = peak(), time.perf_counter()
train = open_data(sys.argv[1]).train
opened = time.perf_counter()
next(train_batches(train, policy=POLICIES["inception"], size=(32, 32), batch=64, seed=0, start=0, stop=1))
done = time.perf_counter()
taken = (peak() - before) / int(sys.argv[2])
print(json.dumps({"seconds": opened - began, "first_batch": done - opened, "bytes_per_file": taken}))
"""


def write_files(folder: Path, count: int) -> None:
    pixel = io.BytesIO()
    Image.new("RGB", (1, 1)).save(pixel, "JPEG")
    for label in range(CLASSES):
        (folder / f"class{label:02}").mkdir()
    for number in range(count):
        (folder / f"class{number % CLASSES:02}" / f"{number:07}.jpg").write_bytes(pixel.getvalue())


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--files", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000])
    words.add_argument("--repeats", type=int, default=3)
    asked = words.parse_args()
    found: dict[str, list[dict[str, float]]] = {}
    for count in asked.files:
        with tempfile.TemporaryDirectory() as place:
            write_files(Path(place), count)
            command = [sys.executable, "-c", OPEN, place, str(count)]
            found[str(count)] = [
                json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                for _ in range(asked.repeats)
            ]
        best = min(found[str(count)], key=lambda each: each["seconds"])
        print(f"{count:>9,} files  " + "  ".join(f"{name} {value:.3g}" for name, value in best.items()), flush=True)
    print(harness.write("listing", {"files": found}, device="cpu"))


if __name__ == "__main__":
    main()
