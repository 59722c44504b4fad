"""The metrics by their names in records and figures: label, description and format.

``val_`` before a name is the same metric on the validation split, in the records of an evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vitrail.reports.wording import THIN, decimal, percent, sentence

Format = Callable[[float], str]


def short_percent(share: float) -> str:
    return f"{share * 100:.4g} %"


DECIBELS: Format = f"{{:.3g}}{THIN}dB".format
PLAIN: Format = "{:.4g}".format


@dataclass(frozen=True)
class Metric:
    """``label`` is for use in sentences, ``heading`` for use above a value; ``chart`` and ``line`` say where it is plotted."""

    label: str
    heading: str = ""
    gloss: str = ""
    format: Format = PLAIN
    higher_is_better: bool | None = None  # None if neither
    chart: str = ""
    line: str = ""


METRICS: dict[str, Metric] = {
    # of a classifier on a split
    "top1": Metric("top-1 accuracy", "Top-1", "", percent, True, "Accuracy", "training"),
    "top5": Metric("top-5 accuracy", "Top-5", "the true class is among the five most probable classes", percent, True),
    "map": Metric("mean average precision", "mAP", "", percent, True, "Mean average precision", "training"),
    "f1_macro": Metric(
        "macro F1", "Macro F1", "harmonic mean of precision and recall, averaged over classes", percent, True
    ),
    "f1_micro": Metric("micro F1", "Micro F1", "harmonic mean of precision and recall over all labels", percent, True),
    "nll": Metric(
        "negative log-likelihood", "NLL", "negative log-likelihood; 0 is perfect", decimal, False, "Loss", "training"
    ),
    "ece": Metric(
        "expected calibration error", "ECE", "mean difference between confidence and accuracy", percent, False
    ),
    "brier": Metric("Brier score", "Brier", "mean squared error of the probabilities; 0 is perfect", decimal, False),
    # of features that were learned without labels
    "knn": Metric(
        "kNN accuracy",
        "kNN accuracy",
        "accuracy of k-nearest-neighbour classification on the features",
        percent,
        True,
        "Accuracy",
        "nearest neighbours",
    ),
    "chance": Metric("chance", "Chance", "the share of the most frequent class", percent, None, "Accuracy", "chance"),
    "effective_rank": Metric(
        "effective rank", "Effective rank", "effective number of dimensions of the features", "{:.1f}".format, True
    ),
    "spread": Metric(
        "spread", "Spread", "about 1 if the features cover the sphere, 0 if they are equal", "{:.2g}".format
    ),
    # of objectives during training
    "loss": Metric("loss", "Loss", "on the training images", decimal, False, "Loss", "training"),
    "lr": Metric("learning rate", "Learning rate", chart="Learning rate", line="learning rate"),
    "accuracy": Metric(
        "accuracy",
        "Accuracy",
        "on the prediction task of the objective",
        percent,
        True,
        "Accuracy of the objective",
        "training",
    ),
    "explained": Metric(
        "explained variance",
        "Explained variance",
        "within hidden patches; 0 corresponds to predicting their mean colour",
        percent,
        True,
    ),
    "rmse": Metric(
        "colour RMSE",
        "Colour RMSE",
        "root mean squared error of corrupted patches, colours in [0, 1]",
        "{:.3g}".format,
        False,
    ),
    "batch_spread": Metric(
        "spread in the batch",
        "Spread in the batch",
        "of the compared features; 0 if they are equal",
        "{:.2g}".format,
    ),
    "psnr": Metric("PSNR", "PSNR", "reconstruction of training images; higher is better", DECIBELS, True),
    "psnr_held_out": Metric(
        "PSNR, held out",
        "PSNR, held out",
        "reconstruction of held-out images; higher is better",
        DECIBELS,
        True,
    ),
    "psnr_mean_colour": Metric(
        "PSNR of mean colours", "PSNR of mean colours", "baseline: each patch replaced by its mean colour", DECIBELS
    ),
    "perplexity": Metric("codebook perplexity", "Codebook perplexity", "effective number of codes in a batch"),
    "codes_in_use": Metric("codes in use", "Codes in use", "effective number of codes on held-out images"),
}
# the metrics by which runs are compared: for each run, the first that it has
SELECTED_BY = ("val_top1", "val_map", "knn", "psnr_held_out")


def metric_of(column: str) -> Metric:
    """Returns the metric of a column of the records; an unknown column is named after itself."""
    words = column.replace("_", " ")
    return METRICS.get(column.removeprefix("val_"), Metric(words, sentence(words), "measured by the objective", PLAIN))


def curve_of(column: str) -> tuple[str, str]:
    """Returns the title of the chart that shows a column, and the label of its line."""
    metric = metric_of(column.removeprefix("val_"))
    if not metric.chart:
        title = sentence(f"validation {metric.label}") if column.startswith("val_") else metric.heading
        return title, title
    return metric.chart, "validation" if column.startswith("val_") else metric.line
