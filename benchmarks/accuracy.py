"""What a recipe reaches in a given time: the whole of `vitrail train` and `vitrail evaluate`, once for each seed.

The figures are those of the part of the data that `vitrail evaluate` takes (test, else val), which the training never
sees; the weights are those of the last step. With --time nothing else should run on the machine; a number of steps gives the
same weights on a busy one, and the processor's seconds tell what they cost.

    python benchmarks/accuracy.py [DATA] --recipe small-data --time 10m --seeds 0 1 2
    python benchmarks/accuracy.py [DATA] --set schedule.steps=5800 compute.threads=1 --name vit-5800-steps
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

import vitrail


def measure(data: str, out: Path, **how: Any) -> dict[str, float]:
    """One training and its figures, with what it cost."""
    started, busy = time.perf_counter(), time.process_time()
    result = vitrail.train(data, out=out, **how)
    seconds, busy = time.perf_counter() - started, time.process_time() - busy
    evaluated = vitrail.evaluate(result.folder, data)
    laps = [json.loads(line) for line in (result.folder / "timing.jsonl").read_text().splitlines()]
    logged = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    rates = [lap["images_per_second"] for lap in laps if "images_per_second" in lap]
    last = [record for record in logged if "loss" in record][-1]
    taken = {name: evaluated.figures[name] for name in ("top1", "top5", "nll", "ece") if name in evaluated.figures}
    return {
        **taken,
        "steps": last["step"],
        "epochs": last["epoch"],
        "images_per_second": statistics.median(rates),
        "seconds": round(seconds, 1),
        "processor_seconds": round(busy, 1),
    }


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("data", nargs="?", default="digits")
    words.add_argument("--recipe", default="small-data")
    words.add_argument("--time", help="as 10m; by default the recipe's own length")
    words.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    words.add_argument("--name", help="of the record; by default from data, recipe and time")
    words.add_argument("--set", nargs="*", default=[], help="settings, as --set takes them")
    asked = words.parse_args()
    runs: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as place:
        for seed in asked.seeds:
            how = {"recipe": asked.recipe, "time": asked.time, "seed": seed, "settings": asked.set}
            runs[str(seed)] = found = measure(asked.data, Path(place) / f"seed-{seed}", **how)
            print(f"seed {seed}: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)
    scores = [run["top1"] for run in runs.values()]
    name = asked.name or "-".join(filter(None, (Path(asked.data).name, asked.recipe, asked.time)))
    spread = statistics.stdev(scores) if len(scores) > 1 else None
    facts = {"recipe": asked.recipe, "time": asked.time, "settings": asked.set, "runs": runs}
    path = harness.write(
        f"accuracy-{name}", {**facts, "top1": {"mean": statistics.mean(scores), "deviation": spread}}, device="cpu"
    )
    print(f"top1 {statistics.mean(scores):.4f} ± {spread or 0:.4f} over {len(scores)} seeds; {path}")


if __name__ == "__main__":
    main()
