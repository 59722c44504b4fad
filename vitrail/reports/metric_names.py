"""The metrics by their names in records and figures: label, description and format.

``val_`` before a name is the same metric on the validation split, in the records of an evaluation; ``train_`` on training images
without augmentation. A new figure is one line of `METRICS`; a column without one is named after itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from vitrail.text import THIN, decimal, percent, sentence

Format = Callable[[float], str]


def short_percent(share: float) -> str:
    return f"{share * 100:.4g} %"


DECIBELS: Format = f"{{:.3g}}{THIN}dB".format
PLAIN: Format = "{:.4g}".format


@dataclass(frozen=True)
class Metric:
    """``label`` is for use in sentences, `heading` for use above a value; ``chart`` and ``line`` say where it is plotted."""

    label: str
    gloss: str = ""
    short: str = ""  # the heading, unless it is the label
    format: Format = PLAIN
    higher_is_better: bool | None = None  # None if neither
    chart: str = ""
    line: str = ""

    @property
    def heading(self) -> str:
        return self.short or sentence(self.label)


share = partial(Metric, format=percent, higher_is_better=True)
# of objects, in pixels of the picture
SIZES = {"small": "below 32 x 32 pixels", "medium": "of 32 x 32 to 96 x 96 pixels", "large": "above 96 x 96 pixels"}
OF_CLASSIFIERS = {
    "top1": share("top-1 accuracy", short="Top-1", chart="Accuracy", line="training"),
    "top5": share("top-5 accuracy", "the true class is among the five most probable classes", "Top-5"),
    "real_top1": share("ReaL accuracy", "share of the images whose class is one of the acceptable ones", "ReaL"),
    "without_label": Metric(
        "images without a label", "images without any acceptable class, which are not counted", "Without label"
    ),
    "map": share("mean average precision", short="mAP", chart="Mean average precision", line="training"),
    "mean_recall": share(
        "mean recall", "share of the images of a class that are right, averaged over classes", "Mean recall"
    ),
    "f1_macro": share("macro F1", "harmonic mean of precision and recall, averaged over classes", "Macro F1"),
    "f1_micro": share("micro F1", "harmonic mean of precision and recall over all labels"),
    "nll": Metric(
        *("negative log-likelihood", "negative log-likelihood; 0 is perfect", "NLL", decimal, False),
        *("Loss", "training"),
    ),
    "ece": Metric(
        "expected calibration error", "mean difference between confidence and accuracy", "ECE", percent, False
    ),
    "brier": Metric("Brier score", "mean squared error of the probabilities; 0 is perfect", "Brier", decimal, False),
    "unlike": Metric("false alarms", "share of these images called unlike the training images", "", percent, False),
    "ood_auroc": share("AUROC of other images", "pairs of which the image of the other data set is more unlike"),
    "ood_unlike": share("other images called unlike", "share of the images of the other data set"),
}
OF_DETECTORS = {
    "ap": share(
        *("average precision", "the mean over IoU thresholds from 0.5 to 0.95 and classes, as COCO has it", "AP"),
        chart="Average precision",
        line="AP",
    ),
    "ap50": share(
        *("AP at IoU 0.5", "average precision where an answer counts from an IoU of 0.5", "AP50"),
        chart="Average precision",
        line="AP50",
    ),
    "ap75": share("AP at IoU 0.75", "average precision where an answer counts from an IoU of 0.75", "AP75"),
    **{
        f"ap_{size}": share(f"AP, {size} objects", f"average precision of objects {extent}", f"AP {size}")
        for size, extent in SIZES.items()
    },
    **{
        f"ar_{most}": share(
            f"average recall, {most}", f"recall of the best {most} answers an image and class", f"AR@{most}"
        )
        for most in (1, 10, 100)
    },
    **{
        f"ar_{size}": share(f"average recall, {size} objects", f"recall of objects {extent}", f"AR {size}")
        for size, extent in SIZES.items()
    },
    "threshold": Metric("best threshold", "the score from which on answers have the largest F1", "Threshold", decimal),
    "precision": share("precision", "share of the answers above the threshold that are right"),
    "recall": share("recall", "share of the objects that are found above the threshold"),
    "f1": share("F1", "harmonic mean of the precision and the recall at the threshold"),
    "box_ap": share("average precision of boxes", "as the average precision, of boxes in place of masks", "AP, boxes"),
    "box_ap50": share("AP of boxes at IoU 0.5", "where a box counts from an IoU of 0.5", "AP50, boxes"),
}
OF_SEGMENTERS = {
    "miou": share(
        "mean IoU", "intersection over union, the mean over classes", "mIoU", chart="Mean IoU", line="validation"
    ),
    "pixel_accuracy": share("pixel accuracy", "share of the pixels that are right"),
    "mean_accuracy": share("mean accuracy", "recall of pixels, the mean over classes"),
    "frequency_weighted_iou": share(
        "frequency-weighted IoU", "IoU of each class weighted by its pixels", "Weighted IoU"
    ),
    "dice": share("Dice coefficient", "F1 of pixels, the mean over classes", "Dice"),
    "boundary_f": share("boundary F", "F1 of pixels on boundaries, the mean over classes"),
}
OF_PANOPTIC = {
    "pq": share(
        *("panoptic quality", "IoU of matched segments times F1 of segments, the mean over classes", "PQ"),
        chart="Panoptic quality",
        line="validation",
    ),
    "sq": share("segmentation quality", "the IoU of matched segments, the mean over classes", "SQ"),
    "rq": share("recognition quality", "F1 of segments, the mean over classes", "RQ"),
    "pq_things": share("PQ of things", "panoptic quality, the mean over classes of things"),
    "pq_stuff": share("PQ of stuff", "panoptic quality, the mean over classes of stuff"),
}
OF_NUMBERS = {
    "r2": Metric(
        *("R2", "share of the variance that is explained; 0 is the mean as the answer to all", "R2", decimal, True),
        *("R2", "validation"),
    ),
    "mae": Metric("mean absolute error", "in the unit of the number", "MAE", PLAIN, False),
    "rmse": Metric("RMSE", "root mean squared error; of patches, colours are in [0, 1]", "", PLAIN, False),
}
OF_VIEWS = {
    "without_tta": Metric("first figure without test-time augmentation", "of the same images", "Without TTA"),
    "tta_gain": Metric("gain of test-time augmentation", "difference of the first figure", "Gain of TTA"),
}
OF_FEATURES = {
    "knn": share(
        *("kNN accuracy", "accuracy of k-nearest-neighbour classification on the features", "kNN accuracy"),
        chart="Accuracy",
        line="nearest neighbours",
    ),
    "teacher_knn": share(
        *("the teacher's kNN accuracy", "of the teacher's features of the same images", "Teacher's kNN accuracy"),
        chart="Accuracy",
        line="teacher",
    ),
    "chance": Metric("chance", "the share of the most frequent class", "", percent, None, "Accuracy", "chance"),
    "effective_rank": Metric(
        "effective rank", "effective number of dimensions of the features", "", "{:.1f}".format, True
    ),
    "spread": Metric("spread", "about 1 if the features cover the sphere, 0 if they are equal", "", "{:.2g}".format),
}
OF_OBJECTIVES = {
    "loss": Metric("loss", "on the training images", "", decimal, False, "Loss", "training"),
    "lr": Metric("learning rate", chart="Learning rate", line="learning rate"),
    "accuracy": share(
        "accuracy", "on the prediction task of the objective", chart="Accuracy of the objective", line="training"
    ),
    "explained": share("explained variance", "within hidden patches; 0 corresponds to predicting their mean colour"),
    "batch_spread": Metric("spread in the batch", "of the compared features; 0 if they are equal", "", "{:.2g}".format),
    "images_loss": Metric(
        "loss of images", "divergence of the similarities of images from the teacher's", "", decimal, False
    ),
    "patches_loss": Metric(
        "loss of patches", "divergence of the similarities of patches from the teacher's", "", decimal, False
    ),
    "teacher_cosine": Metric("cosine to the teacher", "of the features of training images", "", "{:.2f}".format, True),
    "psnr": Metric("PSNR", "reconstruction of training images; higher is better", "", DECIBELS, True),
    "psnr_held_out": Metric(
        "PSNR, held out", "reconstruction of held-out images; higher is better", "", DECIBELS, True
    ),
    "psnr_mean_colour": Metric(
        "PSNR of mean colours", "baseline: each patch replaced by its mean colour", "", DECIBELS
    ),
    "perplexity": Metric("codebook perplexity", "effective number of codes in a batch"),
    "codes_in_use": Metric("codes in use", "effective number of codes on held-out images"),
}
METRICS: dict[str, Metric] = (
    OF_CLASSIFIERS | OF_DETECTORS | OF_SEGMENTERS | OF_PANOPTIC | OF_NUMBERS | OF_VIEWS | OF_FEATURES | OF_OBJECTIVES
)
# the images of an evaluation, by the beginning of a column
PARTS = {"val_": "validation", "train_": "unaugmented training"}
# the metrics by which runs are compared: for each run, the first that it has
SELECTED_BY = ("val_top1", "val_map", "val_ap", "val_pq", "val_miou", "val_r2", "knn", "psnr_held_out")


def metric_of(column: str) -> Metric:
    """Returns the metric of a column of the records; an unknown column is named after itself."""
    words = column.replace("_", " ")
    source = "a metric of your own" if column.startswith(tuple(PARTS)) else "measured by the objective"
    plain = column.removeprefix("val_").removeprefix("train_")
    name, _, figure = plain.rpartition("_")  # of one of several numbers
    if plain not in METRICS and name and figure in OF_NUMBERS:
        metric = OF_NUMBERS[figure]
        return replace(metric, label=f"{metric.label} of {name}", short=f"{metric.heading}, {name}", chart="")
    return METRICS.get(plain, Metric(words, source))


def curve_of(column: str) -> tuple[str, str]:
    """Returns the title of the chart that shows a column, and the label of its line."""
    metric = metric_of(column)
    part = next((part for prefix, part in PARTS.items() if column.startswith(prefix)), "")
    if not metric.chart:
        title = sentence(f"{part} {metric.label}") if part else metric.heading
        return title, title
    return metric.chart, part or metric.line
