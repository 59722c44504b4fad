"""Numbers read from photographs: red blood cells and cells of all kinds on pictures of BCCD, and the percent of the pixels of
CamVid that are sky and road.

A ViT-Ti/16 of ImageNet is fine-tuned by the defaults of `--task regress`, and compared with ridge regression on frozen features
(the penalty chosen on val) and with the mean of the training images as the answer to all, on the official test splits. The
numbers are those of the annotations. One thread, at 112 pixels; the processor time of each training is in the record.

    python benchmarks/regression.py DATA WEIGHTS --out runs/regression [--seeds 0 1 2] [--steps 60]

DATA has the folders bccd and camvid.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import harness
import numpy as np
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

import vitrail
from vitrail.data.sources.open import find_data, open_data
from vitrail.data.sources.source import list_splits
from vitrail.tasks.regression.metric import NumberMetric

PENALTIES = np.logspace(-1, 6, 15)
SIZE = 112
Rows = Iterator[tuple[Path, list[float], str]]  # the path of a picture, its numbers, and its split


def count_cells(root: Path) -> Rows:
    for split in ("train", "val", "test"):
        for name in (root / "ImageSets" / "Main" / f"{split}.txt").read_text().split():
            tree = ElementTree.parse(root / "Annotations" / f"{name}.xml")
            kinds = [each.findtext("name") for each in tree.iter("object")]
            yield root / "JPEGImages" / f"{name}.jpg", [kinds.count("RBC"), len(kinds)], split


def measure_classes(root: Path) -> Rows:
    splits = open_data(root, task="segmentation")
    for split, source in list_splits(splits).items():
        for row, key in enumerate(source.keys):
            shares = [
                100 * float(np.mean(source.targets.of(row) == splits.classes.index(name))) for name in ("sky", "road")
            ]
            yield Path(source.contents.root) / str(key), shares, split


DATA = {"bccd": (("rbc", "cells"), count_cells), "camvid": (("sky", "road"), measure_classes)}


def write_table(data: Path, table: Path) -> tuple[str, ...]:
    """Writes a row for each picture, and returns the names of the numbers."""
    names, measure = DATA[data.name]
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("path", *names, "split"))
        writer.writerows((path, *numbers, split) for path, numbers, split in measure(data.resolve()))
    return names


def predict_simply(table: Path, names: tuple[str, ...], weights: str) -> dict[str, NumberMetric]:
    """Returns the metrics on test of the mean, and of a ridge regression by the penalty that is best on val."""
    splits = list_splits(open_data(find_data(table, {"label": "+".join(names)}), task="regression"))
    model = vitrail.load(weights, log=lambda line: None, image_size=SIZE)
    model.preprocessing = model.preprocessing.override(resize="squash")
    parts = {}
    for split, source in splits.items():
        pictures = [os.path.join(source.contents.root, key) for key in source.keys]
        features = vitrail.embed(model, pictures, precision="fp32", quiet=True)
        parts[split] = np.stack([row.features for row in features]).astype(np.float64), source.targets.values
    scaler = StandardScaler().fit(parts["train"][0])
    inputs = {split: scaler.transform(features) for split, (features, _) in parts.items()}
    numbers = {split: values.astype(np.float64) for split, (_, values) in parts.items()}
    fits = [Ridge(penalty).fit(inputs["train"], numbers["train"]) for penalty in PENALTIES]
    best = max(fits, key=lambda fit: fit.score(inputs["val"], numbers["val"]))
    mean = np.broadcast_to(numbers["train"].mean(0), numbers["test"].shape)
    metrics = {"mean": NumberMetric(names), "ridge": NumberMetric(names)}
    for metric, answers in zip(metrics.values(), (mean, best.predict(inputs["test"]))):
        metric.update(answers, numbers["test"], list(splits["test"].keys))
    return metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("weights")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    settings = ["compute.threads=1", "compute.tune=false", "data.workers=0", "save.evaluations=1"]
    rows = []
    for data in DATA:
        names = write_table(asked.data / data, table := asked.out / f"{data}.csv")
        for method, metric in predict_simply(table, names, asked.weights).items():
            rows.append({"data": data, "method": method, **metric.compute()})
            print(rows[-1], flush=True)
        for seed in asked.seeds:
            started, out = time.process_time(), asked.out / f"{data}-{seed}"
            how = {"columns": {"label": "+".join(names)}, "init": asked.weights, "size": SIZE, "precision": "fp32"}
            how |= {"steps": asked.steps, "seed": seed, "settings": settings, "quiet": True, "out": out}
            run = vitrail.train(table, task="regress", **how)
            seconds = time.process_time() - started
            flipped = vitrail.evaluate(run.folder, table, tta="flip", quiet=True).figures
            gain = {name: flipped[name] for name in flipped if name.startswith("tta_gain")}
            fine_tuned = {"method": "fine-tuned", "seed": seed, **run.figures, **gain, "cpu_seconds": seconds}
            rows.append({"data": data, **fine_tuned})
            print(rows[-1], flush=True)
    print(harness.write("regression", {"rows": rows, "steps": asked.steps}, device="cpu"))


if __name__ == "__main__":
    main()
