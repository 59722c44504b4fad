"""The metrics by their names in records and figures: label, description and format.

``val_`` before a name is the same metric on the validation split, in the records of an evaluation; ``train_`` on training images
without augmentation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vitrail.text import THIN, decimal, percent, sentence

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


# of objects, in pixels of the picture
SIZES = {"small": "below 32 x 32 pixels", "medium": "of 32 x 32 to 96 x 96 pixels", "large": "above 96 x 96 pixels"}
METRICS: dict[str, Metric] = {
    # of a classifier on a split
    "top1": Metric("top-1 accuracy", "Top-1", "", percent, True, "Accuracy", "training"),
    "top5": Metric("top-5 accuracy", "Top-5", "the true class is among the five most probable classes", percent, True),
    "real_top1": Metric(
        "ReaL accuracy", "ReaL", "share of the images whose class is one of the acceptable ones", percent, True
    ),
    "without_label": Metric(
        "images without a label", "Without label", "images without any acceptable class, which are not counted"
    ),
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
    # of detections
    "ap": Metric(
        *("average precision", "AP", "the mean over IoU thresholds from 0.5 to 0.95 and classes, as COCO has it"),
        *(percent, True, "Average precision", "AP"),
    ),
    "ap50": Metric(
        *("AP at IoU 0.5", "AP50", "average precision where a box counts from an IoU of 0.5"),
        *(percent, True, "Average precision", "AP50"),
    ),
    "ap75": Metric("AP at IoU 0.75", "AP75", "average precision where a box counts from an IoU of 0.75", percent, True),
    **{
        f"ap_{size}": Metric(
            f"AP, {size} objects", f"AP {size}", f"average precision of objects {extent}", percent, True
        )
        for size, extent in SIZES.items()
    },
    **{
        f"ar_{most}": Metric(
            *(f"average recall, {most}", f"AR@{most}", f"recall of the best {most} answers an image and class"),
            *(percent, True),
        )
        for most in (1, 10, 100)
    },
    **{
        f"ar_{size}": Metric(
            f"average recall, {size} objects", f"AR {size}", f"recall of objects {extent}", percent, True
        )
        for size, extent in SIZES.items()
    },
    "threshold": Metric("best threshold", "Threshold", "the score from which on answers have the largest F1", decimal),
    "precision": Metric(
        "precision", "Precision", "share of the answers above the threshold that are right", percent, True
    ),
    "recall": Metric("recall", "Recall", "share of the objects that are found above the threshold", percent, True),
    "f1": Metric("F1", "F1", "harmonic mean of the precision and the recall at the threshold", percent, True),
    # of label maps
    "miou": Metric(
        *("mean IoU", "mIoU", "intersection over union, the mean over classes", percent, True),
        *("Mean IoU", "validation"),
    ),
    "pixel_accuracy": Metric("pixel accuracy", "Pixel accuracy", "share of the pixels that are right", percent, True),
    "mean_accuracy": Metric("mean accuracy", "Mean accuracy", "recall of pixels, the mean over classes", percent, True),
    "frequency_weighted_iou": Metric(
        "frequency-weighted IoU", "Weighted IoU", "IoU of each class weighted by its pixels", percent, True
    ),
    "dice": Metric("Dice coefficient", "Dice", "F1 of pixels, the mean over classes", percent, True),
    "boundary_f": Metric(
        "boundary F", "Boundary F", "F1 of pixels on boundaries, the mean over classes", percent, True
    ),
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
# what is judged in an evaluation, by the beginning of a column
PARTS = {"val_": "validation", "train_": "unaugmented training"}
# the metrics by which runs are compared: for each run, the first that it has
SELECTED_BY = ("val_top1", "val_map", "val_ap", "val_miou", "knn", "psnr_held_out")


def metric_of(column: str) -> Metric:
    """Returns the metric of a column of the records; an unknown column is named after itself."""
    words = column.replace("_", " ")
    return METRICS.get(
        column.removeprefix("val_").removeprefix("train_"),
        Metric(words, sentence(words), "measured by the objective", PLAIN),
    )


def curve_of(column: str) -> tuple[str, str]:
    """Returns the title of the chart that shows a column, and the label of its line."""
    metric = metric_of(column)
    part = next((part for prefix, part in PARTS.items() if column.startswith(prefix)), "")
    if not metric.chart:
        title = sentence(f"{part} {metric.label}") if part else metric.heading
        return title, title
    return metric.chart, part or metric.line
