"""How long a training waits for its checkpoint, and how long writing it takes, in one CPU process and in two.

ViT-B/16 with 1,000 classes and the moments of AdamW: 1.04 GB. The processes do nothing else meanwhile.

    python benchmarks/saving.py
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import harness
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.training.ranks import start_pool
from vitrail.config.schema import ComputeSettings
from vitrail.models import MODELS
from vitrail.objectives.supervised import Supervised
from vitrail.runs.checkpoint import BackgroundSaver
from vitrail.runtime.distributed import SINGLE, Ranks
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.training.parallel import parallelise

TIMES = 7


def time_saving(ranks: Ranks, folder: Path, parallel: str) -> dict[str, float]:
    """Median seconds for which the training waits, and until the checkpoint is complete."""
    torch.manual_seed(0)
    trained = Supervised(create_classifier(MODELS["vit-b16"], classes=1000))
    if not ranks.is_single:
        trained = parallelise(trained, ComputeSettings(parallel=parallel), ranks, torch.device("cpu"))
    state = trained.state_dict()
    moments = {f"{name}/{moment}": tensor.clone() for name, tensor in state.items() for moment in ("mean", "square")}
    groups = {"objective": state, "optimiser": moments}
    saver = BackgroundSaver(ranks)
    waits, totals = [], []
    folder.mkdir(parents=True, exist_ok=True)
    for step in range(TIMES):
        began = time.perf_counter()
        saver.save(folder, step, groups, {}, keep=1)
        waits.append(time.perf_counter() - began)
        saver.wait()
        totals.append(time.perf_counter() - began)
    return {"waits_s": statistics.median(waits[1:]), "complete_s": statistics.median(totals[1:])}


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as place, start_pool(Path(place), most=2) as pool:
        rows.append({"ranks": 1, **time_saving(SINGLE, Path(place) / "one", "")})
        for parallel in ("replicate", "shard"):
            first, _ = pool(2, time_saving, Path(place) / parallel, parallel)
            rows.append({"ranks": 2, "parallel": parallel, **first})
        print(*rows, sep="\n")
    print(harness.write("saving", {"runs": rows}, device="cpu"))


if __name__ == "__main__":
    main()
