"""Table 6 of the ViT paper (Dosovitskiy et al. 2021), fitted again without a training. Nothing here imports torch."""

from __future__ import annotations

import numpy as np

from vitrail.evaluation.intervals import bound_percentiles, draw_weights

# 2010.11929v2, appendix D.5, table 6, "transfer accuracy together with pre-training compute", without the hybrids:
# accuracies on ImageNet, ReaL, CIFAR-10, CIFAR-100, Pets and Flowers in percent, and exaFLOPs of the pre-training
VITS = np.array([
    (80.73, 86.27, 98.61, 90.49, 93.40, 99.27, 55),  # B/32, 7 epochs
    (84.15, 88.85, 99.00, 91.87, 95.80, 99.56, 224),  # B/16, 7
    (84.37, 88.28, 99.19, 92.52, 95.83, 99.45, 196),  # L/32, 7
    (86.30, 89.43, 99.38, 93.46, 96.81, 99.66, 783),  # L/16, 7
    (87.12, 89.99, 99.38, 94.04, 97.11, 99.56, 1567),  # L/16, 14
    (88.08, 90.36, 99.50, 94.71, 97.11, 99.71, 4262),  # H/14, 14
])  # fmt: skip
RESNETS = np.array([
    (77.54, 84.56, 97.67, 86.07, 91.11, 94.26, 50),  # 50x1, 7 epochs
    (82.12, 87.94, 98.29, 89.20, 93.43, 97.02, 199),  # 50x2, 7
    (80.67, 87.07, 98.48, 89.17, 94.08, 95.95, 96),  # 101x1, 7
    (81.88, 87.96, 98.82, 90.22, 94.17, 96.94, 141),  # 152x1, 7
    (84.97, 89.69, 99.06, 92.05, 95.37, 98.62, 563),  # 152x2, 7
    (85.56, 89.89, 99.24, 91.92, 95.75, 98.75, 1126),  # 152x2, 14
    (87.22, 90.15, 99.34, 93.53, 96.32, 99.04, 3306),  # 200x3, 14
])  # fmt: skip
METRICS = {"ImageNet": [0], "mean of five sets": [0, 2, 3, 4, 5], "ImageNet ReaL": [1]}  # columns


def fit_table_6(metric: str, *, resamples: int = 10_000) -> tuple[float, float, float]:
    """Returns how many times less compute ViTs need than ResNets for equal accuracy, by a key of `METRICS`, with its interval.

    Lines logit = height of the family + slope log FLOPs, of one slope, are fitted by least squares; models are resampled within
    their families. Accuracies are averaged before the logit: otherwise Flowers, near its ceiling, decides.
    """
    means, products, squares = [], 0.0, 0.0
    for seed, table in enumerate((VITS, RESNETS)):
        accuracy = table[:, METRICS[metric]].mean(1) / 100
        x, y = np.log(table[:, -1]), np.log(accuracy / (1 - accuracy))
        drawn = draw_weights(len(x), seed=seed, resamples=resamples)
        weights = np.concatenate([np.ones((1, len(x))), *drawn])  # (R + 1, M): each model once, then the resamples
        mean_x, mean_y = (weights @ values / len(x) for values in (x, y))
        from_x, from_y = x - mean_x[:, None], y - mean_y[:, None]
        products, squares = products + (weights * from_x * from_y).sum(1), squares + (weights * from_x**2).sum(1)
        means.append((mean_x, mean_y))
    (x1, y1), (x2, y2) = means
    ratios = np.exp((y1 - y2) * squares / products - (x1 - x2))
    return float(ratios[0]), *bound_percentiles(ratios[1:])
