"""The protocols of `vitrail probe`: linear classifier, nearest neighbours and few shots on frozen features.

N evaluated images, S draws of the few shots, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from vitrail import weights
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source, Splits, choose_split
from vitrail.errors import ConfigError, DataError, nearest
from vitrail.evaluation.intervals import paired_difference, two_way_interval
from vitrail.evaluation.probes import check_neighbours, draw_shots, knn, linear, ridge
from vitrail.inference.features import Features, features_of
from vitrail.inference.inputs import divide_as_trained, is_trained_on, was_held_out
from vitrail.inference.options import InferenceOptions
from vitrail.models import device_of
from vitrail.rows import Scores
from vitrail.runtime.distributed import Ranks
from vitrail.runtime.progress import LogFunction, to_stderr
from vitrail.tasks import Classifier, Task
from vitrail.tasks.task import read_arguments

HELD_OUT = 0.15  # of data without a test or validation split
Answers = dict[str, np.ndarray]  # name -> (S, N) bool: which of the evaluated images are right


PROTOCOLS = ("linear", "knn", "fewshot")


@dataclass(frozen=True, kw_only=True)
class ProbeProtocol:
    """The protocol: ``k`` neighbours; the numbers of ``shots`` of each class, and ``seeds``, how often they are drawn."""

    protocol: str = "linear"
    k: int = 20
    shots: tuple[int, ...] = (1, 5, 10, 25)
    seeds: int = 5

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ConfigError(f"there is no protocol {self.protocol!r}", nearest(self.protocol, PROTOCOLS))
        if self.k < 1:
            raise ConfigError(f"k is {self.k}", "give 1 neighbour or more")
        if not self.shots or min(self.shots) < 1:
            raise ConfigError(f"shots are {list(self.shots)}", "give images of each class, such as 1,5,10,25")
        if self.seeds < 1:
            raise ConfigError(f"seeds is {self.seeds}", "draw the shots once or more")

    def check(self, targets: np.ndarray) -> None:
        """Refuses training images (N,) that are too few for it. Raises `ConfigError` or `DataError`."""
        if self.protocol == "knn":
            check_neighbours(self.k, len(targets))
        if self.protocol == "fewshot":
            find_usable_shots(self.shots, targets)


@dataclass(frozen=True, eq=False, repr=False)
class Probe(Scores):
    """The result of a protocol: the figures, and for each evaluated image and each draw of shots whether it was right.

    ``figures`` has ``accuracy`` with the ends of its 95 % interval, ``accuracy_low`` and ``accuracy_high``; with shots the
    same of each number of them, as ``accuracy_5shot``, the largest of which is the accuracy; with another model also
    ``against_accuracy`` and ``difference``, ``difference_low`` and ``difference_high``.
    """

    protocol: str
    split: str
    classes: tuple[str, ...]
    keys: tuple[str, ...]
    right: np.ndarray  # (S, N) bool
    figures: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return {"protocol": self.protocol, "split": self.split, **self.figures}

    def table(self) -> tuple[list[str], list[tuple[str, ...]]]:
        """Its head, and a row for the protocol or for each number of shots."""
        columns = [("accuracy %", "accuracy", ""), ("low", "accuracy", "_low"), ("high", "accuracy", "_high")]
        if "difference" in self.figures:
            columns += [("against %", "against_accuracy", ""), ("difference", "difference", "")]
            columns += [("low", "difference", "_low"), ("high", "difference", "_high")]
        by_shots = [name for name in self.figures if name.startswith("accuracy_") and name.endswith("shot")]
        rows: list[tuple[str, ...]] = []
        for end in (name.removeprefix("accuracy") for name in by_shots or ["accuracy"]):
            cells = (f"{100 * self.figures[stem + end + side]:.1f}" for _, stem, side in columns)
            rows.append((end.strip("_").removesuffix("shot") or self.protocol, *cells))
        return ["shots" if by_shots else "protocol", *(name for name, _, _ in columns)], rows


def open_to_probe(data: Any, model: Task) -> Splits:
    """Returns the data, with a part held out of train only where they have nothing else to be evaluated on.

    Of the data that the model was trained on it is the part that was held out then.
    """
    channels = model.config.in_channels
    splits = divide_as_trained(model, open_data(data, validation=0, channels=channels), data)
    if any(part is not None and len(part) for part in (splits.val, splits.test)):
        return splits
    return open_data(data, validation=HELD_OUT, channels=channels)


def warn_of_training_images(model: Task, data: Any, splits: Splits, log: LogFunction) -> None:
    """Says where a part that was held out only now is of the data that the model was trained on."""
    if splits.held_out and is_trained_on(model, data, splits) and not was_held_out(model, splits):
        log("warning  the model was trained on some of the images that it is evaluated on; the figures may be too high")


def choose_images(splits: Splits) -> tuple[Source, str, Source]:
    """Returns the training images, the name of the evaluated split, and its images. Raises `DataError`."""
    train = splits.train
    if train is None or not len(train):
        raise DataError("the data have no training images", "run `vitrail data check` to see what was found")
    read_arguments(Classifier, train, {})
    if train.multi_label:
        fact = "the images have several labels each, and a probe evaluates one label an image"
        raise DataError(fact, "fine-tune instead, with `vitrail train DATA --init MODEL`")
    split, evaluated = choose_split(splits)
    if split == "train":
        raise DataError("the data have no split to evaluate on", "give more images, or a split val or test")
    return train, split, evaluated


def compute_features(
    model: Task,
    sources: Mapping[str, Source],
    *,
    options: InferenceOptions,
    cache: Path | None,
    log: LogFunction,
    ranks: Ranks,
) -> list[Features]:
    """Returns the features of each source, by a model that is fitted to their channels."""
    with ranks.share_errors():
        train, own = next(iter(sources.values())), model.config.in_channels
        # of images in memory, as fine-tuning adapts the model; files are decoded to the channels that it has
        channels = train.images.shape[3] if train.kind == "arrays" else own
        if channels != own:
            log(f"channels {channels} in the data, {own} in the weights: the first layer is adapted")
            model = weights.adapt(model, in_channels=channels).to(device_of(model)).eval()
    settings = {"options": options, "cache": cache, "log": log, "ranks": ranks}
    return [features_of(model, source, title=f"features of {name}", **settings) for name, source in sources.items()]


def keep_shared(by_model: Sequence[Features]) -> list[Features]:
    """Returns the features of several models for one source, of the images that all of them could read."""
    rows = reduce(np.intersect1d, [features.rows for features in by_model])
    return [features.only(rows) for features in by_model]


def evaluate_features(
    protocol: ProbeProtocol,
    split: str,
    train: Sequence[Features],
    evaluated: Sequence[Features],
    *,
    log: LogFunction = to_stderr,
) -> Probe:
    """Returns the probe of one model, or of two on the same images, the first against the second."""
    protocol.check(train[0].targets)
    answers = [compute_answers(protocol, *features, log=log) for features in zip(train, evaluated)]
    figures: dict[str, float] = {}
    for end, right in answers[0].items():
        figures |= compute_figures(right, end)
        if len(answers) > 1:
            figures |= compare_figures(right, answers[1][end], end)
    figures |= {"images": len(evaluated[0]), "train_images": len(train[0])}
    images = {"classes": evaluated[0].source.classes, "keys": tuple(evaluated[0].keys)}
    return Probe(protocol=protocol.protocol, split=split, **images, right=answers[0][""], figures=figures)


def compute_figures(right: np.ndarray, end: str = "") -> dict[str, float]:
    """Returns the accuracy of (S, N) and its interval, clipped to [0, 1]."""
    low, high = np.clip(two_way_interval(right), 0, 1)
    name = f"accuracy{end}"
    return {name: float(right.mean()), f"{name}_low": float(low), f"{name}_high": float(high)}


def compare_figures(right: np.ndarray, other: np.ndarray, end: str) -> dict[str, float]:
    """Returns the accuracy of another model, and by how much the first is better on the same images and draws, (S, N) each."""
    if len(right) == 1 or np.array_equal(right, other):
        mean, low, high = paired_difference(right[0], other[0])
    else:
        difference = right.astype(np.float64) - other
        mean, (low, high) = float(difference.mean()), two_way_interval(difference)
    name = f"difference{end}"
    return {f"against_accuracy{end}": float(other.mean()), name: mean, f"{name}_low": low, f"{name}_high": high}


def compute_answers(protocol: ProbeProtocol, train: Features, evaluated: Features, *, log: LogFunction) -> Answers:
    """Which evaluated images are right, by number of shots where there are such; the last comes without a name too."""
    classes = len(train.source.classes)
    if protocol.protocol == "fewshot":
        return _few_shot(protocol, train, evaluated, classes, log)
    if protocol.protocol == "knn":
        scores = knn(train.values, train.targets, evaluated.values, classes=classes, k=protocol.k)
    else:
        fitted = linear(train.values, train.targets, classes=classes)
        log(f"linear   L2 penalty {fitted.strength:g}, chosen on a fifth of the training images")
        if fitted.at_edge:
            log(f"warning  {fitted.strength:g} is the edge of the penalties that are tried: another may be better")
        if not fitted.converged:
            log("warning  the solver stopped before the minimum: the accuracy may be a little lower than it could be")
        scores = fitted(evaluated.values)
    return {"": (scores.argmax(1) == evaluated.targets)[None]}


def _few_shot(protocol: ProbeProtocol, train: Features, evaluated: Features, classes: int, log: LogFunction) -> Answers:
    usable = find_usable_shots(protocol.shots, train.targets)
    if missing := [shots for shots in protocol.shots if shots not in usable]:
        fewest = int(np.unique(train.targets, return_counts=True)[1].min())
        log(f"shots    {', '.join(map(str, missing))} left out: a class has only {fewest} to learn from")
    answers: Answers = {}
    for shots in usable:
        draws = (draw_shots(train.targets, shots, seed) for seed in range(protocol.seeds))
        scores = (ridge(train.values[rows], train.targets[rows], evaluated.values, classes=classes) for rows in draws)
        answers[f"_{shots}shot"] = np.stack([draw.argmax(1) == evaluated.targets for draw in scores])  # (S, N)
    return {"": answers[f"_{usable[-1]}shot"], **answers}


def find_usable_shots(shots: Sequence[int], targets: np.ndarray) -> list[int]:
    """Returns the numbers of shots that every class with training images has, in rising order. Raises `DataError` for none."""
    fewest = int(np.unique(targets, return_counts=True)[1].min())
    if not (usable := sorted({count for count in shots if count <= fewest})):
        fact = f"a class has only {fewest} to learn from, fewer than any of the shots {', '.join(map(str, shots))}"
        raise DataError(fact, f"give shots up to {fewest}")
    return usable
