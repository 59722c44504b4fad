"""Fine-tuning, adapters and linear classifiers from one pre-trained ViT, for the same processor time.

Each training is a process with one thread and without workers, given as many steps as its time allows by two short runs: start,
evaluation and all. The classifiers learn from HYMENOPTERA and from 1,000 images of CIFAR10 at 224 pixels, the segmenter from
CAMVID. Cells are kept under --out: the same command goes on where it stopped, and ends with the table.

    python benchmarks/adapting.py DATA WEIGHTS --out runs/adapting [--seeds 0 1 2] [--seconds 60 120 200]

DATA has the folders hymenoptera, cifar10 and camvid.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import harness
import numpy as np

import vitrail
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import take_part

DATA = ("hymenoptera", "cifar10", "camvid")
LIMIT, TESTED = 1_000, 1_000  # images of CIFAR-10 that are learned from, and tested on
METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"lora": 8, "lr": 1e-3},
    "lora, last 4 blocks": {"lora": 8, "lr": 1e-3, "settings": ["model.adapters.blocks=4"]},
    "head": {"head_only": True},
}
RECIPES = {"full": "finetune", "lora": "lora", "lora, last 4 blocks": "lora", "head": "head-only"}  # of classifiers
SHORT = (4, 16)  # steps of the runs that measure a step
CHECKPOINT = "checkpoints/*/*"


def train_cell(data: str, method: str, weights: str, steps: int, seed: int, out: str) -> None:
    """Trains one model in this process, and prints its first figure as JSON."""
    how = {**METHODS[method], "settings": ["compute.threads=1", "data.workers=0", "save.evaluations=1"]}
    how["settings"] += METHODS[method].get("settings", [])
    name = Path(data).name
    source: Any = data
    if name == "cifar10":
        found = open_data(data, seed=0)
        assert found.train is not None and found.test is not None
        source = replace(
            found,
            train=take_part(found.train, count=LIMIT, seed=0),
            val=None,
            test=take_part(found.test, count=TESTED, seed=0),
        )
        how["size"] = 224
    how["recipe"] = "segment" if name == "camvid" else RECIPES[method]
    result = vitrail.train(source, init=weights, steps=steps, seed=seed, out=out, quiet=True, **how)
    print(json.dumps({"figures": result.figures, "split": result.split}))


def measure_cell(out: Path, *asked: Any) -> dict[str, Any]:
    """Runs `train_cell` as a process, and returns what it printed and cost; what was measured before is read."""
    kept = out / "cell.json"
    if kept.exists():
        return json.loads(kept.read_text())
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, __file__, "--cell", json.dumps([*asked, str(out)])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VITRAIL_CACHE": str(out / "cache")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    cell = json.loads(printed.splitlines()[-1]) | {
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_bytes": used.ru_maxrss * 1024,
        "checkpoint_bytes": sum(path.stat().st_size for path in out.glob(CHECKPOINT)),
    }
    kept.write_text(json.dumps(cell))
    return cell


def plan_steps(out: Path, data: str, method: str, weights: str, seconds: float) -> int:
    """Returns the steps that fit into the processor time, by the difference of two short runs."""
    few, more = (
        measure_cell(out / f"short-{steps}", data, method, weights, steps, 0)["cpu_seconds"] for steps in SHORT
    )
    step = max((more - few) / (SHORT[1] - SHORT[0]), 1e-3)
    return max(int((seconds - few) / step) + SHORT[0], SHORT[1])


def main() -> None:
    if sys.argv[1:2] == ["--cell"]:
        return train_cell(*json.loads(sys.argv[2]))
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("data", type=Path)
    words.add_argument("weights")
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    words.add_argument("--seconds", type=float, nargs=len(DATA), default=[60, 120, 200])
    words.add_argument("--only", nargs="+", choices=DATA, default=DATA)
    asked = words.parse_args()
    rows = []
    for data, seconds in zip(DATA, asked.seconds):
        for method in METHODS if data in asked.only else ():
            place, given = asked.out / data / method.replace(", ", "-").replace(" ", "-"), str(asked.data / data)
            steps = plan_steps(place, given, method, asked.weights, seconds)
            cells = [
                measure_cell(place / f"seed-{seed}", given, method, asked.weights, steps, seed) for seed in asked.seeds
            ]
            name = next(iter(cells[0]["figures"]))
            figures = [cell["figures"][name] for cell in cells]
            row = {
                "data": data,
                "method": method,
                "steps": steps,
                "figure": name,
                "split": cells[0]["split"],
                "mean": float(np.mean(figures)),
                "of_seeds": figures,
                **{
                    key: float(np.median([cell[key] for cell in cells]))
                    for key in ("cpu_seconds", "peak_bytes", "checkpoint_bytes")
                },
            }
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    print(harness.write("adapting", {"rows": rows, "seeds": asked.seeds, "seconds": asked.seconds}, device="cpu"))


if __name__ == "__main__":
    main()
