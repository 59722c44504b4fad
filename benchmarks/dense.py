"""What a detector or segmenter reaches: whole runs of `vitrail train` over several seeds, with the processor time they took.

The figures are those of the test split, which the training never sees, with the weights of the last step. Processor time is
that of all processes of a run, evaluations included; on a shared machine the wall clock says little. A run that is finished
is not repeated, so seeds can be added.

    python benchmarks/dense.py camvid/ --init vit_tiny_patch16_224.safetensors --epochs 20 --seeds 0 1 2 --runs runs/
    python benchmarks/dense.py camvid/ --init ... --epochs 20 --set 'model.head={head: linear}' model.head_only=true
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import harness

from vitrail.runs.folder import RunFolder

FIGURES = ("ap", "ap50", "ap75", "box_ap", "box_ap50", "miou", "pixel_accuracy", "mean_accuracy")


def train(command: list[str], out: Path) -> dict[str, Any]:
    """The figures of a run, which is trained unless it is finished, and the seconds of processor time that it took."""
    taken = out.with_suffix(".cpu.json")
    if not taken.exists():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*command, "--out", str(out)], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        taken.write_text(json.dumps({"cpu_seconds": round(seconds)}))
    status = json.loads((out / "status.json").read_text())
    run = RunFolder(out).read_config()
    figures = {name: round(status["figures"][name], 4) for name in FIGURES if name in status["figures"]}
    settings = {"steps": status["steps"], "size": list(run.model.size or ()), "batch": run.data.batch}
    return {**figures, **json.loads(taken.read_text()), **settings}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("data", type=Path)
    words.add_argument("--init", required=True)
    words.add_argument("--name", help="of the record; by default that of the data")
    words.add_argument("--epochs", type=float, help="by default the recipe's")
    words.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    words.add_argument("--set", nargs="*", default=[], help="settings, as --set takes them")
    words.add_argument("--runs", type=Path, default=Path("runs"))
    asked = words.parse_args()
    name = asked.name or asked.data.name
    command = [sys.executable, "-m", "vitrail", "train", str(asked.data), "--init", asked.init, "--quiet"]
    command += ["--epochs", str(asked.epochs)] if asked.epochs else []
    command += [word for setting in asked.set for word in ("--set", setting)]
    runs = {}
    for seed in asked.seeds:
        runs[str(seed)] = train([*command, "--seed", str(seed)], asked.runs / f"{name}{seed}")
        print(f"seed {seed}: {runs[str(seed)]}", flush=True)
    means = {
        figure: round(statistics.mean(run[figure] for run in runs.values()), 4)
        for figure in (*FIGURES, "cpu_seconds")
        if all(figure in run for run in runs.values())
    }
    facts = {"init": Path(asked.init).name, "epochs": asked.epochs, "settings": asked.set, "runs": runs, "mean": means}
    print(f"{means} over {len(runs)} seeds; {harness.write(f'dense-{name}', facts, device='cpu')}")


if __name__ == "__main__":
    main()
