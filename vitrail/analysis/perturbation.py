"""Predictions of a classifier for perturbed versions of images, such as partly covered images.

B images, C channels, H and W their size, K classes, V versions of each image, b versions per batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.models.backbone import at_rest
from vitrail.tasks import Task

Measure = Callable[[Tensor, Tensor], Tensor]  # outputs for versions of images (b,) -> (b,)
Make = Callable[[Tensor, Tensor, Tensor], Tensor]  # pixels (b, C, H, W), image (b,), version (b,) -> (b, C, H, W)


def choose_targets(model: Task, images: Tensor, targets: Tensor | None, *, batch: int) -> Tensor:
    """Returns the target classes, (B,) on the model's device: ``targets``, or by default the predictions.

    Raises:
        ConfigError: images that are not a batch; a model without a head; targets that are not one class per image; a batch
            size below 1.
    """
    model.check_can_answer(top=1)
    if images.ndim != 4:
        raise ConfigError(f"images of shape {tuple(images.shape)}", "give normalised images, (B, C, H, W)")
    if batch < 1:
        raise ConfigError(f"batch is {batch}", "batch = number of images per forward pass, from 1")
    with at_rest(model) as device:
        if targets is not None:
            return check_targets(targets, len(images), len(model.classes)).to(device)
        answers = torch.empty(len(images), dtype=torch.long, device=device)
        for start in range(0, len(images), batch):
            answers[start : start + batch] = model(images[start : start + batch].to(device)).argmax(1)
    return answers


def check_targets(targets: Tensor, images: int, classes: int) -> Tensor:
    """Returns a copy of ``targets``, (B,) int64. Raises `ConfigError` unless they are one valid class per image."""
    remedy = f"give one class index per image, {images} whole numbers from 0 to {classes - 1}"
    if targets.shape != (images,) or targets.is_floating_point() or targets.dtype == torch.bool:
        raise ConfigError(f"targets of shape {tuple(targets.shape)} and {targets.dtype}", remedy)
    if len(wrong := targets[(targets < 0) | (targets >= classes)]):
        raise ConfigError(f"target {wrong[0]} for a model of {classes} classes", remedy)
    # a copy, as autograd does not accept tensors created in inference mode
    return targets.to(torch.long, copy=True)


def compute_probabilities(
    model: Task, images: Tensor, targets: Tensor, versions: int, make: Make, *, batch: int
) -> Tensor:
    """Computes the probability of the target in each version of each image: (B, V) in fp32, on the device of the images.

    ``targets`` are (B,) on the model's device, from `choose_targets`; further arguments are those of `measure_versions`.
    """
    return measure_versions(model, images, measure_class(model, targets), versions, make, batch=batch)


def measure_class(model: Task, targets: Tensor) -> Measure:
    """Returns the probability of the target (B,) of each image as a measure."""
    return lambda logits, image: model.probabilities(logits).gather(1, targets[image][:, None])[:, 0]


def measure_versions(model: Task, images: Tensor, measure: Measure, versions: int, make: Make, *, batch: int) -> Tensor:
    """Computes a number for each version of each image: (B, V) in fp32, on the device of the images.

    At most ``batch`` versions are in memory at a time.

    Args:
        measure: takes the outputs of some versions and the index of the image of each, and returns their numbers.
        make: returns the given versions of the given images; its arguments are on the model's device.
    """
    with at_rest(model) as device:
        found = torch.empty(len(images) * versions, device=device)
        for start in range(0, len(found), batch):
            stop = min(start + batch, len(found))
            places = torch.arange(start, stop, device=device)  # (b,)
            image, version = places // versions, places % versions
            first, last = start // versions, (stop - 1) // versions
            pixels = images[first : last + 1].to(device)
            found[start:stop] = measure(model(make(pixels[image - first], image, version)), image)
    return found.view(len(images), versions).to(images.device)
