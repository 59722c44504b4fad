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
    """``label`` stands within a sentence, ``heading`` above a value; ``chart`` and ``line`` place its curve among others."""

    label: str
    heading: str = ""
    gloss: str = ""
    format: Format = PLAIN
    higher_is_better: bool | None = None  # None where neither is
    chart: str = ""
    line: str = ""


METRICS: dict[str, Metric] = {
    # of a classifier on a split
    "top1": Metric("top-1 accuracy", "Top-1", "", percent, True, "Accuracy", "training"),
    "top5": Metric("top-5 accuracy", "Top-5", "the right class is among the five likeliest", percent, True),
    "map": Metric("mean average precision", "mAP", "", percent, True, "Mean average precision", "training"),
    "f1_macro": Metric(
        "macro F1", "Macro F1", "precision and recall in one, every class weighing the same", percent, True
    ),
    "f1_micro": Metric(
        "micro F1", "Micro F1", "precision and recall in one, every label weighing the same", percent, True
    ),
    "nll": Metric(
        "negative log-likelihood", "NLL", "negative log-likelihood; 0 is perfect", decimal, False, "Loss", "training"
    ),
    "ece": Metric(
        "expected calibration error", "ECE", "how far confidence is from accuracy, on average", percent, False
    ),
    "brier": Metric("Brier score", "Brier", "squared error of the probabilities; 0 is perfect", decimal, False),
    # of features that were learned without labels
    "knn": Metric(
        "kNN accuracy",
        "kNN accuracy",
        "the class that most of an image’s nearest neighbours have, by their features",
        percent,
        True,
        "Accuracy",
        "nearest neighbours",
    ),
    "chance": Metric("chance", "Chance", "the share of the most frequent class", percent, None, "Accuracy", "chance"),
    "effective_rank": Metric(
        "effective rank", "Effective rank", "how many directions the features use", "{:.1f}".format, True
    ),
    "spread": Metric("spread", "Spread", "about 1 is all over the sphere, 0 is one point", "{:.2g}".format),
    # what objectives measure on their way
    "loss": Metric("loss", "Loss", "of the training images", decimal, False, "Loss", "training"),
    "lr": Metric("learning rate", "Learning rate", chart="Learning rate", line="learning rate"),
    "accuracy": Metric("accuracy", "Accuracy", "of the answers to the objective’s own question", short_percent, True),
    "explained": Metric(
        "explained", "Explained", "of what hidden patches vary by inside; 0 is their mean colour", short_percent, True
    ),
    "rmse": Metric(
        "error of colours",
        "Error of colours",
        "of corrupted patches, on the scale from 0 to 1",
        "{:.3g}".format,
        False,
    ),
    "batch_spread": Metric(
        "spread in the batch",
        "Spread in the batch",
        "of the features that are compared; 0 is one point",
        "{:.2g}".format,
    ),
    "psnr": Metric("PSNR", "PSNR", "how near the images it learns from are rebuilt", DECIBELS, True),
    "psnr_held_out": Metric(
        "PSNR, held out",
        "PSNR, held out",
        "how near images it did not learn from are rebuilt; more is nearer",
        DECIBELS,
        True,
    ),
    "psnr_mean_colour": Metric(
        "PSNR of mean colours", "PSNR of mean colours", "of telling each patch by its mean colour alone", DECIBELS
    ),
    "perplexity": Metric("codes in a batch", "Codes in a batch", "how many are in use, were all used equally often"),
    "codes_in_use": Metric(
        "codes in use", "Codes in use", "on images it did not learn from, were all used equally often"
    ),
}
# the figures that runs are compared by: of each run the first that it has
SELECTED_BY = ("val_top1", "val_map", "knn", "psnr_held_out")


def metric_of(column: str) -> Metric:
    """The metric of a column of the records; one that an objective of its own measures is called after the column."""
    words = column.replace("_", " ")
    return METRICS.get(
        column.removeprefix("val_"), Metric(words, sentence(words), "as the objective measures it", PLAIN)
    )


def curve_of(column: str) -> tuple[str, str]:
    """The chart that a column is drawn in, and the name of its line there."""
    metric = METRICS.get(column.removeprefix("val_"))
    if metric is None or not metric.chart:
        return column.replace("_", " "), column.replace("_", " ")
    return metric.chart, "validation" if column.startswith("val_") else metric.line
