"""Table 6 of the ViT paper (Dosovitskiy et al. 2021), fitted again without a training. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.evaluation.intervals import draw_weights
from vitrail.studies.statistics import Resampled

SETS = ("imagenet", "real", "cifar10", "cifar100", "pets", "flowers")


@dataclass(frozen=True)
class PublishedModel:
    """A row of table 6: trained on JFT-300M, then fine-tuned on each of `SETS`; accuracies in percent."""

    name: str
    family: str
    epochs: int
    accuracies: tuple[float, ...]
    exaflops: float


# Dosovitskiy et al. 2021 (2010.11929v2), appendix D.5, table 6: "transfer accuracy together with pre-training compute"
TABLE_6 = (
    PublishedModel("ViT-B/32", "vit", 7, (80.73, 86.27, 98.61, 90.49, 93.40, 99.27), 55),
    PublishedModel("ViT-B/16", "vit", 7, (84.15, 88.85, 99.00, 91.87, 95.80, 99.56), 224),
    PublishedModel("ViT-L/32", "vit", 7, (84.37, 88.28, 99.19, 92.52, 95.83, 99.45), 196),
    PublishedModel("ViT-L/16", "vit", 7, (86.30, 89.43, 99.38, 93.46, 96.81, 99.66), 783),
    PublishedModel("ViT-L/16", "vit", 14, (87.12, 89.99, 99.38, 94.04, 97.11, 99.56), 1567),
    PublishedModel("ViT-H/14", "vit", 14, (88.08, 90.36, 99.50, 94.71, 97.11, 99.71), 4262),
    PublishedModel("ResNet50x1", "resnet", 7, (77.54, 84.56, 97.67, 86.07, 91.11, 94.26), 50),
    PublishedModel("ResNet50x2", "resnet", 7, (82.12, 87.94, 98.29, 89.20, 93.43, 97.02), 199),
    PublishedModel("ResNet101x1", "resnet", 7, (80.67, 87.07, 98.48, 89.17, 94.08, 95.95), 96),
    PublishedModel("ResNet152x1", "resnet", 7, (81.88, 87.96, 98.82, 90.22, 94.17, 96.94), 141),
    PublishedModel("ResNet152x2", "resnet", 7, (84.97, 89.69, 99.06, 92.05, 95.37, 98.62), 563),
    PublishedModel("ResNet152x2", "resnet", 14, (85.56, 89.89, 99.24, 91.92, 95.75, 98.75), 1126),
    PublishedModel("ResNet200x3", "resnet", 14, (87.22, 90.15, 99.34, 93.53, 96.32, 99.04), 3306),
    PublishedModel("R50x1+ViT-B/32", "hybrid", 7, (84.90, 89.15, 99.01, 92.24, 95.75, 99.46), 106),
    PublishedModel("R50x1+ViT-B/16", "hybrid", 7, (85.58, 89.65, 99.14, 92.63, 96.65, 99.40), 274),
    PublishedModel("R50x1+ViT-L/32", "hybrid", 7, (85.68, 89.04, 99.24, 92.93, 96.97, 99.43), 246),
    PublishedModel("R50x1+ViT-L/16", "hybrid", 7, (86.60, 89.72, 99.18, 93.64, 97.03, 99.40), 859),
    PublishedModel("R50x1+ViT-L/16", "hybrid", 14, (87.12, 89.76, 99.31, 93.89, 97.36, 99.11), 1668),
)
METRICS = {
    "ImageNet": ("imagenet",),
    "mean of five sets": tuple(name for name in SETS if name != "real"),
    "ImageNet ReaL": ("real",),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class ComputeRatio:
    """How many times less compute the first of two families needs than the second for the same accuracy.

    Attributes:
        ratio: at any accuracy, from lines of one slope.
        slopes: of each family alone, the growth of logit accuracy with the natural logarithm of FLOPs.
        same_slope: the p-value of the F test that the slopes are equal; NaN without degrees of freedom.
    """

    ratio: Resampled
    slopes: tuple[float, float]
    same_slope: float


def fit_compute_ratio(
    flops: np.ndarray, logits: np.ndarray, first: np.ndarray, *, seed: int = 0, resamples: int = 10_000
) -> ComputeRatio:
    """Returns the ratio of FLOPs at equal accuracy, from lines logit = height of the family + slope log FLOPs by least squares.

    Models are resampled within their families; a resample whose slope is not positive has no ratio.

    Args:
        flops: of M models.
        logits: of their accuracies, (M,).
        first: whether a model is of the first family, (M,); each family has two models or more.
    """
    from scipy.special import fdtrc  # a dependency of scikit-learn

    x, y, first = np.log(np.asarray(flops, float)), np.asarray(logits, float), np.asarray(first, bool)
    families = (first, ~first)
    weights = np.ones((1 + resamples, len(x)))  # (R + 1, M): each model once, then the resamples
    for number, family in enumerate(families):
        weights[1:, family] = np.concatenate(
            list(draw_weights(int(family.sum()), seed=seed + number, resamples=resamples))
        )

    def sum_products(family: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns the means of x and y, and the sums of products and of squares around them: (R + 1,) each."""
        own = weights[:, family]
        mean_x, mean_y = (own @ values[family] / own.sum(1) for values in (x, y))
        from_x, from_y = x[family] - mean_x[:, None], y[family] - mean_y[:, None]
        return mean_x, mean_y, (own * from_x * from_y).sum(1), (own * from_x**2).sum(1)

    (x1, y1, products1, squares1), (x2, y2, products2, squares2) = map(sum_products, families)
    slopes = float(products1[0] / squares1[0]), float(products2[0] / squares2[0])
    total = sum(float(((y[family] - y[family].mean()) ** 2).sum()) for family in families)
    separate, freedom = total - slopes[0] * products1[0] - slopes[1] * products2[0], len(x) - 4
    with np.errstate(
        invalid="ignore", divide="ignore", over="ignore"
    ):  # a resample of one model, many times; a perfect fit
        slope = (products1 + products2) / (squares1 + squares2)
        ratios = np.where(slope > 0, np.exp((y1 - y2) / slope - (x1 - x2)), np.nan)
        common = total - slope[0] * (products1[0] + products2[0])
        same = float(fdtrc(1, freedom, (common - separate) / (separate / freedom))) if freedom > 0 else np.nan
    return ComputeRatio(ratio=Resampled(value=float(ratios[0]), draws=ratios[1:]), slopes=slopes, same_slope=same)


def logit(accuracy: np.ndarray) -> np.ndarray:
    """Returns the logarithm of the odds of an accuracy strictly between 0 and 1."""
    return np.log(accuracy / (1 - accuracy))


def fit_table_6(metric: str) -> ComputeRatio:
    """Returns how many times less compute ViTs need than ResNets in table 6, by a key of `METRICS`.

    Accuracies are averaged before the logit: otherwise Flowers, near its ceiling, decides.
    """
    models = [model for model in TABLE_6 if model.family != "hybrid"]
    columns = [SETS.index(name) for name in METRICS[metric]]
    accuracies = np.array([model.accuracies for model in models])[:, columns].mean(1) / 100
    flops = np.array([1e18 * model.exaflops for model in models])
    return fit_compute_ratio(flops, logit(accuracies), np.array([model.family == "vit" for model in models]))


def list_published() -> list[dict[str, Any]]:
    """Returns a row for each metric of table 6: the ratio of compute with its interval, and the slopes."""
    rows = []
    for metric in METRICS:
        found = fit_table_6(metric)
        low, high = found.ratio.bounds()
        figures = {"estimate": found.ratio.value, "low": low, "high": high, "unit": "ratio"}
        rows.append({"name": metric, **figures, "slopes": list(found.slopes), "equal_slopes": found.same_slope})
    return rows
