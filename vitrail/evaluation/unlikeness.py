"""Images unlike those of the training: the distance that tells them is fitted to a model, and evaluated on images of another
data set.

N images of the model's own data, M others.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from vitrail.data.sources.contents import choose_evenly
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError
from vitrail.evaluation.intervals import bound_proportion
from vitrail.inference.features import features_of
from vitrail.inference.options import InferenceOptions
from vitrail.inference.results import open_inputs
from vitrail.models import device_of
from vitrail.runtime.distributed import SINGLE, Ranks
from vitrail.runtime.progress import LogFunction, to_stderr
from vitrail.tasks import Classifier, Task
from vitrail.tasks.classification.unlikeness import Unlikeness
from vitrail.tasks.metric import Values, as_array
from vitrail.text import plural
from vitrail.weights.onnx import ExportedBackbone

MOST = 50_000  # training images whose features are computed


def check_unknown(task: Task, share: float | None, ood: Path | str | None) -> None:
    """Raises `ConfigError` where the `Unlikeness` of ``task`` cannot be fitted with the ``share`` of false alarms, or is not
    there to be evaluated on ``ood``.
    """
    if (share is not None or ood is not None) and not isinstance(task, Classifier):
        what = f"a model of the task {task.name} cannot say which images are unlike those of its training"
        raise ConfigError(what, "leave fit_unknown and ood out, or give a classifier")
    if share is not None:
        if isinstance(task.backbone, ExportedBackbone):
            what = "an exported graph cannot learn which images are unlike those of its training"
            raise ConfigError(what, "fit the model that it was exported from, and export that again")
        if not 0 < share < 1:
            raise ConfigError(f"the share of false alarms is {share:g}", "give one above 0 and below 1, such as 5%")
    elif ood is not None and task.false_alarms is None:
        what = "the model cannot say which images are unlike those of its training"
        raise ConfigError(what, "fit that in the same call with --fit-unknown 5%, or once: it is stored with the model")


def fit_unlikeness(
    task: Task,
    train: Source,
    held_out: Source,
    share: float,
    *,
    split: str,
    options: InferenceOptions,
    log: LogFunction = to_stderr,
    ranks: Ranks = SINGLE,
) -> None:
    """Gives ``task`` the `Unlikeness` of its features of ``train``, at most `MOST` images of it, and ``held_out``, the ``split``.

    Raises `ConfigError` and `DataError` as `Unlikeness.fit`, and for the split train.
    """
    assert isinstance(task, Classifier), "checked by check_unknown"
    if split == "train":
        what = "false alarms are counted on images that took no part in the training, and the split is train"
        raise ranks.collective_error(ConfigError(what, "give data with a split val or test, or --split to choose it"))
    parts = {"train": train.subset(choose_evenly(len(train), MOST)), "held-out images": held_out}
    how = {"options": options, "log": log, "ranks": ranks}
    found = {name: features_of(task, part, title=f"features of {name}", **how) for name, part in parts.items()}
    features, rest = (torch.from_numpy(each.values) for each in found.values())
    with ranks.share_errors():
        labels = torch.from_numpy(found["train"].targets)
        fitted = Unlikeness.fit(features, labels, rest, len(task.classes), share)
    task.set_unlikeness(fitted.to(device_of(task)), share)
    log(
        f"unlike   distance to {len(features):,} of {plural(len(train), 'training image')}; the threshold calls at most "
        f"{100 * share:.3g} % of images like the {len(rest):,} held out unlike"
    )


def measure_unlikeness(
    task: Task, images: Path | str, *, options: InferenceOptions, log: LogFunction = to_stderr, ranks: Ranks = SINGLE
) -> np.ndarray:
    """Returns how unlike its training images ``task`` finds the images of a folder or table (M,), whose labels are ignored."""
    with ranks.share_errors():
        source = open_inputs([str(images)], "compared", log)
    how = {"options": options, "title": "other images", "log": log, "ranks": ranks}
    return features_of(task, source, verb=lambda images: task(images)[:, -1:], **how).values[:, 0]


def summarize_unlikeness(own: Values, others: np.ndarray | None = None) -> dict[str, float]:
    """Returns figures of how unlike its training images a model finds ``own`` images (N,), and ``others`` (M,), with intervals.

    ``unlike`` is the share of own images called so, the false alarms, and ``ood_unlike`` that of the others; ``ood_auroc`` is the
    `auroc`.
    """
    own, figures = as_array(own), {}
    parts = {"unlike": own} if others is None else {"unlike": own, "ood_unlike": others}
    for name, values in parts.items():
        hits = int((values > 1).sum())
        figures[name] = hits / len(values)
        figures |= dict(zip((f"{name}_low", f"{name}_high"), bound_proportion(hits, len(values))))
    if others is not None:
        figures |= dict(zip(("ood_auroc", "ood_auroc_low", "ood_auroc_high"), auroc(own, others)))
        figures["ood_images"] = len(others)
    return figures


def auroc(own: np.ndarray, others: np.ndarray) -> tuple[float, float, float]:
    """Returns the share of pairs of an own image (N,) and another one (M,) in which the latter has the larger value, where ties
    count half, and its 95 % interval by the variance of DeLong et al. (1988).

    If all pairs are in order that variance is 0, and the interval is that of a proportion of as many images as the smaller
    side has.
    """

    def rank(values: np.ndarray, among: np.ndarray) -> np.ndarray:
        ordered = np.sort(among)
        return np.mean([np.searchsorted(ordered, values, side) for side in ("left", "right")], axis=0) / len(among)

    above, below = rank(others, own), 1 - rank(own, others)  # (M,), (N,): of each image, its share of pairs in order
    area = float(above.mean())
    count = min(len(own), len(others))
    if area in (0.0, 1.0) or count < 2:
        return area, *bound_proportion(round(area * count), count)
    half = 1.96 * float(np.sqrt(above.var(ddof=1) / len(others) + below.var(ddof=1) / len(own)))
    return area, max(area - half, 0.0), min(area + half, 1.0)
