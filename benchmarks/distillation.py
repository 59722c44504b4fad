"""What a teacher is worth: a small DeiT on CIFAR-10 with and without the answers of a BiT ResNet, for the same steps.

The teacher is trained on the same 20,000 images. Students differ in nothing but their loss: both have a class and a distillation
token, and without a teacher both heads learn from the labels. Each student is evaluated on the test images and compared with that
without a teacher of the same seed. Runs are kept under --out: the same command goes on where it stopped, and ends with the table.

    python benchmarks/distillation.py CIFAR10 --out runs/distillation [--seeds 0 1 2] [--steps 700]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import harness
import numpy as np
from pretraining import ENCODER, TUNED, Study, interval

import vitrail
from vitrail.data.sources.source import Splits

STUDENT = {
    **ENCODER,
    "prefix": ["cls", "dist"],
    "pool": "cls",
    "gelu": "exact",
    "positions": "sincos2d",
    "patch_dropout": 0.0,
}
TEACHER = {"depths": [2, 2]}
KINDS = ("none", "hard", "soft")
AUGMENT = ["augment.crop=pad", "augment.pad_mode=zero"]
HOW = ["compute.threads=1", "compute.compile=false", "save.evaluations=1", *AUGMENT]


def taught(study: Study, kind: str, seed: int, steps: int, teacher: Path) -> np.ndarray:
    """Which test images a student answers right (M,)."""
    how: dict[str, Any] = {} if kind == "none" else {"teacher": teacher}
    changes = [] if kind == "none" else [f"objective.changes={{kind: {kind}}}"]
    settings = [*HOW, *TUNED, *changes, f"model.changes={STUDENT}", "compute.precision=bf16-weights"]
    run = vitrail.train(
        study.splits(),
        model="vit-ti16",
        recipe="finetune",
        settings=[*settings, "optim.layer_decay=1"],
        steps=steps,
        batch=128,
        seed=seed,
        out=study.out / f"student-{kind}-{seed}",
        size=32,
        quiet=True,
        **how,
    )
    return evaluated(study, run.folder)


def evaluated(study: Study, model: Path) -> np.ndarray:
    data = Splits(test=study.test, classes=study.test.classes)
    found = vitrail.evaluate(model, data, batch=250, quiet=True, log=lambda line: None)
    return found.metric.right


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("data")
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    words.add_argument("--steps", type=int, default=700)
    words.add_argument("--teacher-steps", type=int, default=1_500)
    asked = words.parse_args()
    study = Study(asked.data, asked.out)
    teacher = vitrail.train(
        study.splits(),
        model="bit-r50x1",
        recipe="small-data",
        settings=[*HOW, f"model.changes={TEACHER}", "compute.precision=bf16"],
        steps=asked.teacher_steps,
        out=asked.out / "teacher",
        quiet=True,
    ).folder
    right = {"teacher": study.cell("teacher", lambda: evaluated(study, teacher))[None]}
    for kind in KINDS:
        cells = [
            study.cell(
                f"student-{kind}-{seed}", lambda kind=kind, seed=seed: taught(study, kind, seed, asked.steps, teacher)
            )
            for seed in asked.seeds
        ]
        right[kind] = np.stack(cells)  # (S, M)
    rows = [{"model": name, "top1": interval(each)} for name, each in right.items()]
    for row in rows[2:]:
        row["against none"] = interval(right[row["model"]].astype(np.float64) - right["none"])
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    facts = {"rows": rows, "seeds": asked.seeds, "steps": asked.steps, "teacher_steps": asked.teacher_steps}
    print(harness.write("distillation", facts, device="cpu"))


if __name__ == "__main__":
    main()
