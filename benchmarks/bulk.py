"""60,000 images through `vitrail predict --parts`, processes killed at random: every image once, and the time of one process.

python benchmarks/bulk.py DATA/cifar10 [--only "one process" ray] [--images 60000]

CIFAR-10's training and test images as files, a small ViT without training (the answers only have to be the same), parts of
1,024 images, one thread a process. Contenders:

    one process       `vitrail predict --out table.parquet`, the reference for the answers and the time
    parts             the same with --parts, one process
    parts, two        two processes on one folder at a time
    parts, killed     two processes on one folder at a time; every few seconds one is killed (SIGKILL) and started again
    ray               --engine ray
    ray, killed       --engine ray; every few seconds an actor is killed, and once the driver, which is started again

After each the folder is checked: `vitrail check-parts`, the paths of all parts in their order are those of the table, and so are
the labels; scores differ by rounding at most.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow.dataset
import pyarrow.parquet
import torch

from vitrail import check_parts, create_model
from vitrail.weights.native import save_model

PART = 1024
BETWEEN = (2.0, 8.0)  # seconds between two kills
KILLS = {"parts, killed": 12, "ray, killed": 4}


def unpack(data: Path, folder: Path, count: int) -> None:
    """The first ``count`` images as ``folder/00000.png``, ..."""
    folder.mkdir()
    number = 0
    for name in ("train", "test"):
        for row in pyarrow.parquet.read_table(data / f"{name}.parquet", columns=["image"])["image"].to_pylist():
            if number < count:
                (folder / f"{number:05}.png").write_bytes(row["bytes"])
                number += 1


def start(place: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "vitrail", "predict", "model", "images", "--top", "1", "--quiet", *more]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=place, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def records(out: Path) -> list[Path]:
    return sorted(out.glob("_records/[0-9]*.json"), key=lambda path: path.stat().st_mtime_ns)


def finish(process: subprocess.Popen[bytes]) -> None:
    assert process.wait() == 0, process.args


def run_table(place: Path, out: Path, draw: random.Random) -> int:
    finish(start(place, "--out", str(out)))
    return 0


def run_parts(processes: int, kills: int = 0) -> Callable[[Path, Path, random.Random], int]:
    """Some processes at a time, of which one is killed now and then; returns the number of kills."""

    def run(place: Path, out: Path, draw: random.Random) -> int:
        how = ("--parts", str(out), "--part-size", str(PART))
        running = [start(place, *how) for _ in range(processes)]
        done = 0
        while done < kills:
            time.sleep(draw.uniform(*BETWEEN))
            if all(process.poll() is not None for process in running):
                break
            victim = draw.choice([process for process in running if process.poll() is None])
            victim.kill()
            victim.wait()
            done += 1
            running[running.index(victim)] = start(place, *how)
        for process in running:
            finish(process)
        return done

    return run


def run_ray(kills: int = 0) -> Callable[[Path, Path, random.Random], int]:
    """The actor that wrote the newest part is killed now and then, and in the middle the driver."""

    def run(place: Path, out: Path, draw: random.Random) -> int:
        how = ("--parts", str(out), "--part-size", str(PART), "--engine", "ray")
        driver, killed = start(place, *how), set()
        while len(killed) < kills and driver.poll() is None:
            time.sleep(draw.uniform(*BETWEEN))
            written = [int(json.loads(path.read_text())["process"].split("@")[0]) for path in records(out)[-1:]]
            alive = [process for process in written if process not in killed and Path(f"/proc/{process}").exists()]
            if not alive:
                continue
            killed.add(alive[0])
            os.kill(alive[0], signal.SIGKILL)
            if len(killed) == kills // 2:
                driver.kill()
                driver.wait()
                killed.add(driver.pid)
                driver = start(place, *how)
        finish(driver)
        return len(killed)

    return run


CONTENDERS = {
    "one process": run_table,
    "parts": run_parts(1),
    "parts, two": run_parts(2),
    "parts, killed": run_parts(2, KILLS["parts, killed"]),
    "ray": run_ray(),
    "ray, killed": run_ray(KILLS["ray, killed"]),
}


def compare(out: Path, table: Path) -> dict[str, Any]:
    """Raises where an image is missing, doubled or answered otherwise."""
    found = check_parts(out, quiet=True)
    assert found.sound, found
    parts = sorted(out.glob("part-*.parquet"))
    ours, theirs = pyarrow.dataset.dataset(parts).to_table(), pyarrow.parquet.read_table(table)
    assert ours["path"].to_pylist() == theirs["path"].to_pylist()
    assert len(set(ours["path"].to_pylist())) == len(ours)
    assert ours["label"].to_pylist() == theirs["label"].to_pylist()
    apart = np.abs(ours["score"].to_numpy() - theirs["score"].to_numpy()).max()
    assert apart < 1e-5
    wrote = {json.loads(path.read_text())["process"] for path in records(out)}
    return {"images": len(ours), "parts": len(parts), "processes_that_wrote": len(wrote), "scores_apart": float(apart)}


def processor_seconds() -> float:
    """Of all processes that were started from here and have ended, killed ones too."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(place: Path, only: list[str], seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    table = place / "table.parquet"
    if not table.exists():
        run_table(place, table, random.Random(0))
    for name in only:
        out = place / name.replace(",", "").replace(" ", "-")
        shutil.rmtree(out, ignore_errors=True)
        out = out.with_suffix(".parquet") if name == "one process" else out
        loads, started, processor = [os.getloadavg()[0]], time.perf_counter(), processor_seconds()
        kills = CONTENDERS[name](place, out, random.Random(seed))
        seconds, processor = time.perf_counter() - started, processor_seconds() - processor
        facts: dict[str, Any] = {"seconds": round(seconds, 1), "kills": kills}
        if not name.startswith("ray"):  # actors are no children
            facts["processor_seconds"] = round(processor, 1)
        facts["load_average"] = [round(load, 1) for load in [*loads, os.getloadavg()[0]]]
        yield name, facts if name == "one process" else {**facts, **compare(out, table)}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("data", type=Path, help="the folder with train.parquet and test.parquet of CIFAR-10")
    words.add_argument("--images", type=int, default=60_000)
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--only", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    words.add_argument("--records", type=Path, default=harness.RECORDS)
    asked = words.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in asked.only}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        unpack(asked.data, place / "images", asked.images)
        size = {"image_size": 32, "patch_size": 4, "width": 64, "depth": 2, "heads": 2, "mlp_width": 128}
        save_model(place / "model", create_model("vit-ti16", classes=[str(number) for number in range(10)], **size))
        for number in range(asked.rounds):
            for name, facts in measure(place, asked.only[:: -1 if number % 2 else 1], number):
                rounds[name].append(facts)
                print(f"{name:16}{facts}", flush=True)
    facts = {"images": asked.images, "part_size": PART, "model": size, "rounds": rounds}
    print(harness.write("bulk", facts, device="cpu", records=asked.records))


if __name__ == "__main__":
    main()
