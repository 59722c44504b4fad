"""The claim on compute from the figures that the paper itself prints: its table 6, fitted again without training anything."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vitrail.evaluation.laws import ComputeRatio, compare_compute, logit

SETS = ("imagenet", "real", "cifar10", "cifar100", "pets", "flowers")


@dataclass(frozen=True)
class Model:
    """A row of table 6: trained on JFT-300M, then fine-tuned on each of `SETS`; accuracies in percent."""

    name: str
    family: str
    epochs: int
    accuracies: tuple[float, ...]
    exaflops: float


# Dosovitskiy et al. 2021 (2010.11929v2), appendix D.5, table 6: "transfer accuracy together with pre-training compute"
TABLE_6 = (
    Model("ViT-B/32", "vit", 7, (80.73, 86.27, 98.61, 90.49, 93.40, 99.27), 55),
    Model("ViT-B/16", "vit", 7, (84.15, 88.85, 99.00, 91.87, 95.80, 99.56), 224),
    Model("ViT-L/32", "vit", 7, (84.37, 88.28, 99.19, 92.52, 95.83, 99.45), 196),
    Model("ViT-L/16", "vit", 7, (86.30, 89.43, 99.38, 93.46, 96.81, 99.66), 783),
    Model("ViT-L/16", "vit", 14, (87.12, 89.99, 99.38, 94.04, 97.11, 99.56), 1567),
    Model("ViT-H/14", "vit", 14, (88.08, 90.36, 99.50, 94.71, 97.11, 99.71), 4262),
    Model("ResNet50x1", "resnet", 7, (77.54, 84.56, 97.67, 86.07, 91.11, 94.26), 50),
    Model("ResNet50x2", "resnet", 7, (82.12, 87.94, 98.29, 89.20, 93.43, 97.02), 199),
    Model("ResNet101x1", "resnet", 7, (80.67, 87.07, 98.48, 89.17, 94.08, 95.95), 96),
    Model("ResNet152x1", "resnet", 7, (81.88, 87.96, 98.82, 90.22, 94.17, 96.94), 141),
    Model("ResNet152x2", "resnet", 7, (84.97, 89.69, 99.06, 92.05, 95.37, 98.62), 563),
    Model("ResNet152x2", "resnet", 14, (85.56, 89.89, 99.24, 91.92, 95.75, 98.75), 1126),
    Model("ResNet200x3", "resnet", 14, (87.22, 90.15, 99.34, 93.53, 96.32, 99.04), 3306),
    Model("R50x1+ViT-B/32", "hybrid", 7, (84.90, 89.15, 99.01, 92.24, 95.75, 99.46), 106),
    Model("R50x1+ViT-B/16", "hybrid", 7, (85.58, 89.65, 99.14, 92.63, 96.65, 99.40), 274),
    Model("R50x1+ViT-L/32", "hybrid", 7, (85.68, 89.04, 99.24, 92.93, 96.97, 99.43), 246),
    Model("R50x1+ViT-L/16", "hybrid", 7, (86.60, 89.72, 99.18, 93.64, 97.03, 99.40), 859),
    Model("R50x1+ViT-L/16", "hybrid", 14, (87.12, 89.76, 99.31, 93.89, 97.36, 99.11), 1668),
)
METRICS = {"imagenet": ("imagenet",), "real": ("real",), "mean of five": tuple(name for name in SETS if name != "real")}


def compare_published(metric: str, *, seed: int = 0) -> ComputeRatio:
    """How many times less compute ViTs need than ResNets for the same accuracy, in table 6.

    A line for each of the two families, of one slope, fits the logit of the mean accuracy over the sets of a metric; models are
    resampled within their families. Accuracies are averaged before the logit: otherwise Flowers, near its ceiling, decides.

    Args:
        metric: a key of `METRICS`.
    """
    models = [model for model in TABLE_6 if model.family != "hybrid"]
    columns = [SETS.index(name) for name in METRICS[metric]]
    accuracies = np.array([model.accuracies for model in models])[:, columns].mean(1) / 100
    flops = np.array([1e18 * model.exaflops for model in models])
    vits = np.array([model.family == "vit" for model in models])
    return compare_compute(flops, logit(accuracies), vits, seed=seed)
