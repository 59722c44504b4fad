"""Which score tells images of another kind from those of a training: AUROC, and what is caught at 5 % false alarms.

Far: fine-tuned models, held-out images of their data against other data sets; the threshold is fitted to one half of the
held-out images, and the false alarms are counted on the other, over 20 random halves. Near: features of pre-trained weights,
six classes of CIFAR-10 against the other four.

    python benchmarks/unknown_images.py DATA --runs RUN [RUN ...] --others OTHER [OTHER ...] --near WEIGHTS CIFAR10
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

import harness
import numpy as np
import torch

import vitrail
from vitrail.data.sources.contents import choose_evenly
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source
from vitrail.evaluation.unlikeness import auroc
from vitrail.inference.features import features_of
from vitrail.inference.inputs import find_inputs
from vitrail.inference.options import InferenceOptions

MOST, HALVES, FALSE_ALARMS = 300, 20, 0.05
KNOWN = np.arange(6)  # classes of CIFAR-10
Score = Callable[[np.ndarray], np.ndarray]  # features (N, F) to (N,), larger for unlike images


def list_scores(train: np.ndarray, labels: np.ndarray, head: Score | None) -> Iterator[tuple[str, Score]]:
    """Yields the scores by name, of features (N, F) and classes (N,) of the training images."""
    if head is not None:
        logits = lambda x: head(x).astype(float)  # noqa: E731
        yield "max softmax", lambda x: np.logaddexp.reduce(logits(x), axis=1) - logits(x).max(1)
        yield "energy (Liu et al. 2020)", lambda x: -np.logaddexp.reduce(logits(x), axis=1)
    unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)  # noqa: E731
    for k in (1, 10):
        name = f"nearest neighbour, k {k} (Sun et al. 2022)"
        yield name, lambda x, k=k: -np.sort(unit(x) @ unit(train).T, axis=1)[:, -k]
    means, mean = np.stack([train[labels == each].mean(0) for each in np.unique(labels)]), train.mean(0)
    index = np.searchsorted(np.unique(labels), labels)
    for shrinkage in (0.01, 0.1, 0.3):

        def invert(x: np.ndarray, shrinkage: float = shrinkage) -> np.ndarray:
            covariance = x.T @ x / len(x)
            spread = np.trace(covariance) / len(covariance)
            return np.linalg.inv((1 - shrinkage) * covariance + shrinkage * spread * np.eye(len(covariance)))

        within, overall = invert(train - means[index]), invert(train - mean)
        nearest = lambda x, p=within: np.min([np.sum((x - c) @ p * (x - c), 1) for c in means], axis=0)  # noqa: E731
        all_images = lambda x, p=overall: np.sum((x - mean) @ p * (x - mean), 1)  # noqa: E731
        yield f"Mahalanobis, shrunk by {shrinkage} (Lee et al. 2018)", nearest
        yield f"Mahalanobis to all images, shrunk by {shrinkage}", all_images
        relative = lambda x, a=nearest, b=all_images: a(x) - b(x)  # noqa: E731
        yield f"relative Mahalanobis, shrunk by {shrinkage} (Ren et al. 2021)", relative


def count_alarms(own: np.ndarray) -> float:
    """The share of false alarms on images that did not set the threshold, the mean over random halves."""
    generator, shares = np.random.default_rng(0), []
    for _ in range(HALVES):
        one, other = np.array_split(generator.permutation(own), 2)
        rank = int(np.ceil((len(one) + 1) * (1 - FALSE_ALARMS)))
        shares.append(float((other > np.sort(one)[rank - 1 : rank + 1].mean()).mean()))
    return float(np.mean(shares))


def compare(
    model: vitrail.Classifier, train: Source, held_out: Source, others: dict[str, Source], *, headless: bool = False
) -> list[dict]:
    """Returns a row for each score and other data set."""
    how = {"options": InferenceOptions(batch=25), "log": lambda line: None}
    known = features_of(model, train, **how)
    own = features_of(model, held_out, **how).values.astype(float)
    found = {name: features_of(model, source, **how).values.astype(float) for name, source in others.items()}
    head = lambda x: model.head(torch.from_numpy(x).float()).detach().numpy()  # noqa: E731
    rows = []
    for name, score in list_scores(known.values.astype(float), known.targets, None if headless else head):
        mine = score(own)
        threshold = np.sort(mine)[int(np.ceil((len(mine) + 1) * (1 - FALSE_ALARMS))) - 1]
        for other, values in ((other, score(x)) for other, x in found.items()):
            area, caught = auroc(mine, values)[0], float((values > threshold).mean())
            rows.append({"score": name, "other": other, "auroc": area, "caught": caught, "alarms": count_alarms(mine)})
    return rows


def thin(source: Source, most: int = MOST) -> Source:
    return source.subset(choose_evenly(len(source), most))


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("data")
    words.add_argument("--runs", nargs="+", default=[])
    words.add_argument("--others", nargs="+", default=[])
    words.add_argument("--near", nargs=2)
    asked = words.parse_args()
    splits, rows = open_data(asked.data), []
    others = {Path(each).parent.name + "/" + Path(each).name: thin(find_inputs([each]).source) for each in asked.others}
    for run in asked.runs:
        rows += [{"run": Path(run).name, **row} for row in compare(vitrail.load(run), splits.train, splits.val, others)]
    if asked.near:
        weights, data = asked.near
        objects = open_data(data)
        of = lambda source, known: source.subset(np.flatnonzero(np.isin(source.labels, KNOWN) == known))  # noqa: E731
        test = {known: thin(of(objects.test, known), 400) for known in (True, False)}
        how = {"others": {"near: other classes": test[False]}, "headless": True}
        found = compare(vitrail.load(weights), thin(of(objects.train, True), 1_500), test[True], **how)
        rows += [{"run": "pre-trained", **row} for row in found]
    for score, other in dict.fromkeys((row["score"], row["other"]) for row in rows):
        same = [row for row in rows if (row["score"], row["other"]) == (score, other)]
        means = {name: np.mean([row[name] for row in same]) for name in ("auroc", "caught", "alarms")}
        print(f"{score:55} {other:25} " + "  ".join(f"{name} {value:.4f}" for name, value in means.items()))
    print(harness.write("unknown-images", {"rows": rows, "most": MOST, "false_alarms": FALSE_ALARMS}, device="cpu"))


if __name__ == "__main__":
    main()
