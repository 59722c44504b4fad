"""What a teacher is worth without labels: a ViT of 1.2 million parameters, distilled from a pre-trained ViT on CIFAR-10.

Of 10,000 images the student learns by `distil`, which flips them and no more, so that the teacher computes each of them once.
Then nearest neighbours and a linear classifier on the frozen features are tested, beside those of the random network and of
the teacher; and the student is fine-tuned on 1 and 10 % of the labels, beside the same network from scratch for twice as many
steps. Cells are kept under --out: the same command goes on where it stopped, and ends with the table.

    python benchmarks/distilling.py CIFAR10 TEACHER --out runs/distilling [--seeds 0 1 2]
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from pretraining import SMALL, Study, interval

import vitrail
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.source import Splits
from vitrail.models import configure

IMAGES, TESTED, LABELS = 10_000, 2_000, (100, 1_000)
STUDENT = {"patch_size": [4, 4], "width": 128, "depth": 6, "heads": 4, "mlp_width": 512, **SMALL}
STEPS, BATCH = 2_250, 128
TUNING_STEPS, TUNING_BATCH = 300, 64
HOW = ["compute.precision=bf16", "compute.threads=1", "compute.compile=false"]


class Distilling(Study):
    """The cells of the table: which test images are right."""

    def __init__(self, data: str, teacher: str, out: Path) -> None:
        super().__init__(data, out)
        self.teacher = teacher
        self.train, self.test = self.train.subset(np.arange(IMAGES)), self.test.subset(np.arange(TESTED))

    def encoder(self, objective: str, seed: int) -> Any:
        if objective == "teacher":
            return self.teacher
        if objective == "random":
            torch.manual_seed(seed)
            config = configure("vit-ti16", image_size=32, classes=0, **STUDENT)
            return vitrail.create_model(config, classes=(), preprocessing=Preprocessing.paper(32))
        began = time.process_time()
        run = vitrail.pretrain(
            self.splits(),
            objective="distil",
            teacher=self.teacher,
            model="vit-ti16",
            steps=STEPS,
            batch=BATCH,
            seed=seed,
            out=self.out / f"distil-{seed}",
            settings=[*HOW, f"model.changes={STUDENT}", "augment.crop=none", "save.evaluations=4"],
        )
        used = self.out / f"distil-{seed}.seconds"
        if not used.exists():
            used.write_text(f"{time.process_time() - began:.0f}")
        return run.folder

    def probed(self, objective: str, protocol: str, seed: int) -> np.ndarray:
        model, data = (
            self.encoder(objective, seed),
            Splits(train=self.train, test=self.test, classes=self.train.classes),
        )
        found = vitrail.probe(model, data, protocol, batch=250, precision="bf16", quiet=True, log=lambda line: None)
        return found.right[0]

    def tuned(self, objective: str, labels: int, seed: int) -> np.ndarray:
        scratch = objective == "scratch"
        start = {"model": "vit-ti16"} if scratch else {"init": self.encoder(objective, seed)}
        changes = [f"model.changes={STUDENT}", "optim.layer_decay=1"] if scratch else []
        how = {"steps": TUNING_STEPS * (1 + scratch), "batch": TUNING_BATCH, "settings": [*HOW, *changes]}
        return self.fine_tune(objective, labels, seed, **how, **start)

    def run_all(self, seeds: list[int]) -> None:
        for protocol in ("knn", "linear"):
            self.cell(f"teacher-0-{protocol}", partial(self.probed, "teacher", protocol, 0))
        for seed in seeds:
            for name in ("random", "distil"):
                for protocol in ("knn", "linear"):
                    self.cell(f"{name}-{seed}-{protocol}", partial(self.probed, name, protocol, seed))
            for count in LABELS:
                for name in ("distil", "scratch"):
                    self.cell(f"{name}-{seed}-{count}", partial(self.tuned, name, count, seed))


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("data")
    words.add_argument("teacher")
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    asked = words.parse_args()
    study = Distilling(asked.data, asked.teacher, asked.out)
    study.run_all(asked.seeds)
    rows = []
    for name in ("random", "scratch", "distil", "teacher"):
        found = {column: study.right(name, column) for column in ("knn", "linear", *map(str, LABELS))}
        cells = {column: interval(np.stack(list(right.values()))) for column, right in found.items() if right}
        rows.append({"model": name, **cells})
        print("  ".join(f"{column} {value}" for column, value in rows[-1].items()))
    seconds = [int(path.read_text()) for path in sorted(asked.out.glob("distil-*.seconds"))]
    facts = {"rows": rows, "seeds": asked.seeds, "processor_seconds": seconds, "steps": STEPS, "batch": BATCH}
    print(harness.write("distilling", facts, device="cpu"))


if __name__ == "__main__":
    main()
