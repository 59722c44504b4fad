"""Predictions of a classifier for perturbed versions of its images, such as those with one part covered.

B images, C channels, H and W their size, K classes, V versions of each image, b versions shown at one time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.models.backbone import at_rest
from vitrail.tasks import Task

Make = Callable[[Tensor, Tensor, Tensor], Tensor]  # pixels (b, C, H, W), image (b,), version (b,) -> (b, C, H, W)


def choose_targets(model: Task, images: Tensor, targets: Tensor | None, *, batch: int) -> Tensor:
    """The classes whose probabilities are followed, (B,) on the model's device: ``targets``, or the model's answers.

    Raises:
        ConfigError: what is no batch of images; a model without a head; targets that are not one class an image; a batch
            of nothing.
    """
    model.check_can_answer(top=1)
    if images.ndim != 4:
        raise ConfigError(f"images of shape {tuple(images.shape)}", "give normalised images, (B, C, H, W)")
    if batch < 1:
        raise ConfigError(f"batch is {batch}", "batch = how many images the model sees at one time, from 1")
    with at_rest(model) as device:
        if targets is not None:
            return check_targets(targets, len(images), len(model.classes)).to(device)
        answers = torch.empty(len(images), dtype=torch.long, device=device)
        for start in range(0, len(images), batch):
            answers[start : start + batch] = model(images[start : start + batch].to(device)).argmax(1)
    return answers


def check_targets(targets: Tensor, images: int, classes: int) -> Tensor:
    """A copy of ``targets``, (B,) int64. Raises `ConfigError` for what is not one class of the model for each image."""
    remedy = f"give one index of a class an image, {images} whole numbers from 0 to {classes - 1}"
    if targets.shape != (images,) or targets.is_floating_point() or targets.dtype == torch.bool:
        raise ConfigError(f"targets of shape {tuple(targets.shape)} and {targets.dtype}", remedy)
    if len(wrong := targets[(targets < 0) | (targets >= classes)]):
        raise ConfigError(f"target {wrong[0]} in a model of {classes} classes", remedy)
    # a copy: no graph takes a tensor that was made in inference mode
    return targets.to(torch.long, copy=True)


def compute_probabilities(
    model: Task, images: Tensor, targets: Tensor, versions: int, make: Make, *, batch: int
) -> Tensor:
    """The probability of each image's target in each of its versions: (B, V) in fp32, on the device of the images.

    Never more than ``batch`` versions are in memory, of whatever images.

    Args:
        targets: (B,) on the model's device, as `choose_targets` gives them.
        make: the versions with these numbers of these images; all that it takes is on the model's device.
    """
    with at_rest(model) as device:
        probabilities = torch.empty(len(images) * versions, device=device)
        for start in range(0, len(probabilities), batch):
            stop = min(start + batch, len(probabilities))
            places = torch.arange(start, stop, device=device)  # (b,)
            image, version = places // versions, places % versions
            first, last = start // versions, (stop - 1) // versions
            pixels = images[first : last + 1].to(device)
            logits = model(make(pixels[image - first], image, version))  # (b, K)
            probabilities[start:stop] = model.probabilities(logits).gather(1, targets[image][:, None])[:, 0]
    return probabilities.view(len(images), versions).to(images.device)
