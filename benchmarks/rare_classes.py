"""What helps rare classes: a ViT-Ti of ImageNet, fine-tuned at 64 pixels on a long-tailed CIFAR-10 with an imbalance of 50.

The ten classes have 1,000 to 20 training images, in an exponential profile (Cui et al. 2019). Arms: `plain`; `weights`, which is
--class-weights auto; `balance`, which is --balance; and `adjusted`, the plain model with --logit-adjust 1. Beside them, torch's
WeightedRandomSampler in the place of --balance, with weights of 1 / sqrt(n), `sampler_root`, and of 1 / n, `sampler_inverse`; and
scikit-learn's logistic regression on frozen features, `logistic`, also with class_weight="balanced". Of 2,000 test images,
nearly as many of each class, the table has the mean recall, the recall of the three rarest classes, and the top-1 accuracy that
the recalls would give on images as frequent as in the training; with 95 % intervals over seeds and images, and the differences
from `plain`. Cells are kept under --out: the same command goes on where it stopped, and ends with the table.

    python benchmarks/rare_classes.py CIFAR10 WEIGHTS --out runs/rare [--seeds 0 1 2] [--head-only]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import harness
import numpy as np
import torch
from pretraining import Study, interval
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch.utils.data import WeightedRandomSampler

import vitrail
from vitrail.data import sample_order
from vitrail.data.sample_order import Balance
from vitrail.data.sources.source import Splits
from vitrail.inference.features import features_of
from vitrail.inference.options import InferenceOptions
from vitrail.weights import load

LARGEST, IMBALANCE, TESTED, RAREST = 1_000, 50, 2_000, 3
STEPS, BATCH, SIZE = 800, 32, 64
HOW = ["compute.precision=bf16", "compute.threads=1", "compute.compile=false", "save.evaluations=1"]
ARMS: dict[str, dict[str, Any]] = {"plain": {}, "weights": {"class_weights": "auto"}, "balance": {"balance": True}}
SAMPLERS = {"sampler_root": 0.5, "sampler_inverse": 1.0}  # powers of n
LOGISTIC = {"logistic": None, "logistic_balanced": "balanced"}


def draw_with_torch(power: float) -> Callable[[int, int, Balance], np.ndarray]:
    """Returns a function in the place of vitrail's balanced order, which draws the samples of an epoch (n, 2) with torch."""

    def draw(seed: int, epoch: int, balance: Balance) -> np.ndarray:
        labels = np.asarray(balance.labels)
        weights = (np.bincount(labels) ** -power)[labels]
        generator = torch.Generator().manual_seed(1_000 * seed + epoch)
        samples = np.array([*WeightedRandomSampler(weights.tolist(), len(labels), generator=generator)])
        earlier = np.tril(samples[:, None] == samples, -1).sum(1)  # draws of the same sample
        return np.stack([samples, earlier], 1)

    return draw


class RareClasses(Study):
    """The cells of the table: which test images are right."""

    def __init__(self, data: str, weights: str, out: Path, *, head_only: bool) -> None:
        super().__init__(data, out)
        self.head_only = head_only
        self.weights, labels, classes = weights, self.train.labels, len(self.train.classes)
        self.counts = np.rint(LARGEST * IMBALANCE ** (-np.arange(classes) / (classes - 1))).astype(int)
        rows = [np.flatnonzero(labels == each)[:count] for each, count in enumerate(self.counts)]
        self.train, self.test = self.train.subset(np.concatenate(rows)), self.test.subset(np.arange(TESTED))

    def tested(self, arm: str, seed: int) -> np.ndarray:
        if arm in LOGISTIC:
            return self.regressed(LOGISTIC[arm])
        trained = "plain" if arm == "adjusted" else arm
        draw = draw_with_torch(SAMPLERS[arm]) if arm in SAMPLERS else None
        with patch.object(sample_order, "_balanced_order", draw) if draw else nullcontext():
            run = vitrail.train(
                self.splits(),
                init=self.weights,
                recipe="head-only" if self.head_only else "finetune",
                size=SIZE,
                steps=STEPS,
                batch=BATCH,
                seed=seed,
                out=self.out / f"{trained}-{seed}",
                settings=HOW,
                quiet=True,
                **ARMS.get(trained, {"balance": True}),
            )
        adjust = 1.0 if arm == "adjusted" else None
        data = Splits(test=self.test, classes=self.test.classes)
        how = {"batch": 250, "quiet": True, "log": lambda line: None}
        return vitrail.evaluate(run.folder, data, logit_adjust=adjust, **how).metric.right

    def regressed(self, class_weight: str | None) -> np.ndarray:
        """By logistic regression on features of the network without training."""
        model = load(self.weights, image_size=SIZE, log=lambda line: None)
        how: dict[str, Any] = {"options": InferenceOptions(precision="fp32", quiet=True), "log": lambda line: None}
        train, test = (features_of(model, source, **how).values for source in (self.train, self.test))
        fitted = make_pipeline(StandardScaler(), LogisticRegression(class_weight=class_weight, max_iter=2_000))
        return fitted.fit(train, self.train.labels).predict(test) == self.test.labels

    def row(self, arm: str, seeds: list[int]) -> dict[str, Any]:
        right, plain = (
            np.stack([self.cell(f"{name}-{seed}", partial(self.tested, name, seed)) for seed in seeds])
            for name in (arm, "plain")
        )  # (S, M)
        labels, classes = self.test.labels, np.arange(len(self.counts))
        each = (self.counts / self.counts.sum() / np.bincount(labels))[labels] * len(labels)  # (M,) mean 1
        equal = (1 / len(classes) / np.bincount(labels))[labels] * len(labels)
        is_rare = labels >= len(classes) - RAREST
        row: dict[str, Any] = {"arm": arm}
        for name, weigh in {
            "mean recall": lambda values: values * equal,
            "recall of the rarest": lambda values: values[:, is_rare],
            "top-1 as in training": lambda values: values * each,
        }.items():
            row[name] = interval(weigh(right.astype(np.float64)))
            row[f"{name}, difference"] = interval(weigh(right.astype(np.float64) - plain))
        row["recall"] = [round(100 * float(right[:, labels == each].mean()), 1) for each in classes]
        return row


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("data")
    words.add_argument("weights")
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--head-only", action="store_true", help="train the head alone, in minutes")
    words.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    asked = words.parse_args()
    study = RareClasses(asked.data, asked.weights, asked.out, head_only=asked.head_only)
    arms = (*ARMS, "adjusted", *SAMPLERS, *LOGISTIC)
    for seed in asked.seeds:  # so that a study that is stopped has whole seeds
        for arm in arms:
            study.cell(f"{arm}-{seed}", partial(study.tested, arm, seed))
    rows = [study.row(arm, asked.seeds) for arm in arms]
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    facts = {"rows": rows, "seeds": asked.seeds, "images": study.counts.tolist(), "steps": STEPS, "batch": BATCH}
    print(harness.write("rare_classes_head" if asked.head_only else "rare_classes", facts, device="cpu"))


if __name__ == "__main__":
    main()
