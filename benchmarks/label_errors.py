"""How many wrong labels `vitrail data check --model` finds, where 5 and 10 % of the labels were replaced by random other classes,
and how many it suspects where none were.

Labels are ranked by the probability of the given label and by its margin to the most probable other one, out of fold, and the
first as many as were replaced are compared with them; and so are the suspects that vitrail names and, where it is installed, the
issues of cleanlab on the same probabilities. Features are computed once. Precision and recall are means over the seeds.

    python benchmarks/label_errors.py HYMENOPTERA CIFAR10 MODEL [--seeds 0 1 2] [--images 5000]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import harness
import numpy as np

from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import list_splits
from vitrail.evaluation.label_errors import predict_held_out, rank_suspects
from vitrail.inference.features import default_cache, features_of
from vitrail.inference.options import InferenceOptions

NOISE = (0.0, 0.05, 0.1)


def inject(targets: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the targets (N,) with a share of them replaced by another class, and which: (N,) bool."""
    generator, wrong = np.random.default_rng(seed), np.zeros(len(targets), bool)
    wrong[generator.permutation(len(targets))[: round(share * len(targets))]] = True
    classes = targets.max() + 1
    shift = generator.integers(1, classes, len(targets))
    return np.where(wrong, (targets + shift) % classes, targets), wrong


def score(found: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """Returns the precision and recall of images (n,) among those that are wrong (N,) bool, and n."""
    right = float(wrong[found].sum())
    return {"precision": right / max(len(found), 1), "recall": right / max(wrong.sum(), 1), "named": len(found)}


def measure(features: np.ndarray, targets: np.ndarray, share: float, seed: int) -> dict[str, dict[str, float]]:
    """Returns the scores of every way for one draw of wrong labels."""
    given, wrong = inject(targets, share, seed)
    rows, began = np.arange(len(given)), time.process_time()
    probabilities = predict_held_out(features, given, rows)
    seconds = time.process_time() - began
    own, others = probabilities[rows, given], probabilities.copy()
    others[rows, given] = -1
    first = int(wrong.sum())
    found = {
        "self-confidence": np.argsort(own)[:first],
        "margin": np.argsort(own - others.max(1))[:first],
        "suspects": rank_suspects(probabilities, given),
    }
    try:
        from cleanlab.filter import find_label_issues
        from cleanlab.rank import get_label_quality_scores
    except ImportError:
        print("cleanlab is not installed: pip install cleanlab")
    else:
        for method in ("self_confidence", "normalized_margin"):
            scores = get_label_quality_scores(given, probabilities, method=method)
            found[f"cleanlab, {method}"] = np.argsort(scores)[:first]
        for rule in ("low_self_confidence", "confident_learning", "prune_by_noise_rate"):
            found[f"cleanlab, {rule}"] = np.flatnonzero(
                find_label_issues(given, probabilities, filter_by=rule, n_jobs=1)
            )
    return {"seconds": {"folds": seconds}, **{name: score(rows, wrong) for name, rows in found.items()}}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("hymenoptera", "cifar10", "model"):
        words.add_argument(name)
    words.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    words.add_argument("--images", type=int, default=5_000)
    asked = words.parse_args()
    options = InferenceOptions(quiet=True)
    model, rows = options.load(asked.model, print), []
    for data in (asked.hymenoptera, asked.cifar10):
        splits = list_splits(open_data(data, validation=0))
        sources = list(splits.values())
        if len(sources[0]) > asked.images:
            sources = [sources[0].subset(np.arange(asked.images))]
        parts = [features_of(model, source, options=options, cache=default_cache()) for source in sources]
        features = np.concatenate([part.values for part in parts])
        targets = np.concatenate([part.targets for part in parts])
        for share in NOISE:
            draws = [measure(features, targets, share, seed) for seed in asked.seeds]
            means: dict[str, Any] = {
                way: {name: float(np.mean([draw[way][name] for draw in draws])) for name in draws[0][way]}
                for way in draws[0]
            }
            rows.append({"images": len(targets), "classes": int(targets.max()) + 1, "noise": share, "means": means})
            rows[-1]["draws"] = draws
            print(f"{len(targets):,} images, {share:.0%} wrong")
            for way, values in means.items():
                print(f"  {way:32}", "  ".join(f"{name} {value:.3f}" for name, value in values.items()), flush=True)
    print(harness.write("label-errors", {"rows": rows, "seeds": asked.seeds}, device="cpu"))


if __name__ == "__main__":
    main()
