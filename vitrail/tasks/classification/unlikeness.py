"""How unlike the training images an image is, by its features: the relative Mahalanobis distance (Ren et al. 2021).

B images of a batch, N training images, M held out, F features, K classes.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ConfigError, DataError
from vitrail.models.layers import by_hand

SHRINKAGE = 0.1  # of a covariance towards a multiple of the identity; benchmarks/unknown_images.py compares others


class Unlikeness(nn.Module):
    """Maps features (B, F) to how unlike those of the training images they are (B,), in fp32: 0 is the median of held-out images,
    and above 1 an image is called unlike.

    It is the squared Mahalanobis distance to the nearest class mean (Lee et al. 2018), minus that to the mean of all images.
    With several labels an image, there are no class means, and it is the distance to the mean of all images.
    """

    mean: Tensor
    within: Tensor
    overall: Tensor
    centres: Tensor
    range: Tensor

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("within", torch.zeros(features, features))  # whitens what differs inside of classes
        self.register_buffer("overall", torch.zeros(features, features))  # whitens what differs between all images
        self.register_buffer("centres", torch.zeros(classes, features))  # class means, after ``within``
        self.register_buffer("range", torch.tensor([0.0, 1.0]))  # distances of the median and at the threshold

    def forward(self, features: Tensor) -> Tensor:
        with by_hand(features):
            deviations = features.to(self.mean.dtype) - self.mean  # (B, F)
            x, y = F.linear(deviations, self.within), F.linear(deviations, self.overall)  # (B, F) each
            # |x - c|^2 - |x|^2 of the nearest centre
            nearest = F.linear(x, -2 * self.centres, self.centres.square().sum(1)).amin(1)  # (B,)
            distance = x.square().sum(1) + nearest - y.square().sum(1)
            return (distance - self.range[0]) / (self.range[1] - self.range[0])

    @classmethod
    def fit(cls, train: Tensor, labels: Tensor, held_out: Tensor, classes: int, false_alarms: float) -> Unlikeness:
        """Returns the distance from training images, with a threshold that calls the share ``false_alarms`` of further images
        like the held-out ones unlike, or fewer, on average over draws of these (conformal prediction; Vovk et al. 2005).

        Args:
            train: features (N, F).
            labels: classes (N,), or several labels an image (N, K).
            held_out: features (M, F) of images that took no part in the training.

        Raises:
            ConfigError: too few held-out images for the share.
            DataError: all images have the same features.
        """
        rank = math.ceil((len(held_out) + 1) * (1 - false_alarms))
        if rank > len(held_out):
            what = f"{len(held_out):,} held-out images are too few for a threshold with {false_alarms:.3g} false alarms"
            raise ConfigError(what, f"allow {math.ceil(1000 / (len(held_out) + 1)) / 1000:g} or more, or hold out more")
        fitted = cls(train.shape[1], classes).double()
        fitted.mean.copy_(train.double().mean(0))
        deviations = inside = train.double() - fitted.mean  # (N, F)
        means = torch.zeros_like(fitted.centres)  # (K, F)
        if labels.ndim == 1:
            counts = torch.bincount(labels, minlength=classes)[:, None]  # (K, 1)
            means = means.index_add_(0, labels, deviations) / counts.clamp(min=1)
            means = torch.where(counts > 0, means, means[labels[0]])  # of a class without images: that of another one
            inside = deviations - means[labels]
            fitted.overall.copy_(_whiten(deviations))
        fitted.within.copy_(_whiten(inside))
        fitted.centres.copy_(means @ fitted.within.T)
        distances = fitted(held_out).sort().values  # (M,)
        # between two images, as the figures of an image depend on its batch in the last digits
        threshold = distances[rank - 1 : rank + 1].mean()
        median = distances.quantile(0.5)
        if not median < threshold:
            raise DataError(
                "the features of the images are all the same", "see `vitrail data check` and `vitrail inspect`"
            )
        fitted.range.copy_(torch.stack([median, threshold]))
        return fitted.float()


def _whiten(deviations: Tensor) -> Tensor:
    """Returns the matrix (F, F) after which deviations (N, F) have a covariance of about the identity."""
    covariance = deviations.T @ deviations / len(deviations)
    spread = (covariance.trace() / len(covariance)).clamp(min=1e-30)
    shrunk = torch.lerp(covariance, spread * torch.eye(len(covariance), dtype=covariance.dtype), SHRINKAGE)
    return torch.linalg.inv(torch.linalg.cholesky(shrunk))
