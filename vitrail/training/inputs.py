"""What an objective is given: from a batch as it was read to the tensors of its forward, each with the images first.

B images, V views of each, K classes, C channels, h x w pixels as the network takes them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitrail.config.schema import Run
from vitrail.data.augment.apply import augment
from vitrail.data.augment.mixing import mix, smooth
from vitrail.data.loader import Batch
from vitrail.data.preprocessing import Preprocessing
from vitrail.objectives.objective import Objective

Feed = Callable[[Batch], tuple[Tensor, ...]]
FrozenNetwork = Callable[[Tensor], Tensor]
AT_ONCE = 128  # images that a frozen network sees, whatever the batch: it has no micro-steps to save memory by


def normalised(batch: Batch, run: Run, preprocessing: Preprocessing, *, cropped: bool) -> Tensor:
    """The batch augmented as the run asks, then normalised: (B, C, h, w)."""
    size = preprocessing.size
    images = augment(batch.images, batch.ids, run.augment, size=size, seed=run.seed, cropped=cropped)
    return preprocessing.normalise(images)


def labelled(run: Run, preprocessing: Preprocessing, classes: int, *, cropped: bool) -> Feed:
    """Images (B, C, h, w) and targets, (B,) or (B, K): mixed, and the targets softened, where the run asks for it."""
    policy = run.augment

    def feed(batch: Batch) -> tuple[Tensor, ...]:
        images, targets = normalised(batch, run, preprocessing, cropped=cropped), batch.targets
        if targets.ndim == 1 and (policy.mixes or policy.smoothing):
            targets = nn.functional.one_hot(targets, classes).float()
        if policy.smoothing:
            targets = smooth(targets, policy.smoothing)
        if policy.mixes:
            images, targets = mix(images, targets, batch.ids, policy, seed=run.seed)
        return images, targets

    return feed


def taught(feed: Feed, teacher: FrozenNetwork) -> Feed:
    """What ``feed`` gives, and the answers of ``teacher`` (B, K) to the same images."""

    def with_answers(batch: Batch) -> tuple[Tensor, ...]:
        images, *rest = feed(batch)
        return images, *rest, in_pieces(teacher, images)

    return with_answers


def viewed(
    run: Run,
    preprocessing: Preprocessing,
    objective: Objective,
    *,
    cropped: bool,
    seen: FrozenNetwork | None = None,
) -> Feed:
    """The views of each image, V times (B, C, h, w), what the objective draws for it, and what ``seen`` makes of the first
    view, where that is given. The views of an image lie next to one another in the batch.
    """
    views = objective.views

    def feed(batch: Batch) -> tuple[Tensor, ...]:
        images = normalised(batch, run, preprocessing, cropped=cropped)  # (B V, C, h, w)
        noise = objective.draw(batch.ids[::views], preprocessing.size, run.seed)
        parts = [images[view::views].contiguous() for view in range(views)]
        drawn = [each.to(images.device) for each in noise]
        return *parts, *drawn, *([in_pieces(seen, parts[0])] if seen is not None else [])

    return feed


def handed_over(images: Tensor, given: Preprocessing, wanted: Preprocessing, size: tuple[int, int]) -> Tensor:
    """Images (B, C, H, W) that were normalised as ``given`` says, scaled to ``size`` and normalised as ``wanted`` says."""
    pictures = given.denormalise(images)
    if pictures.shape[2:] != size:
        pictures = nn.functional.interpolate(pictures, size, mode="bilinear", antialias=True, align_corners=False)
    return wanted.normalise(pictures)


def in_pieces(seen: FrozenNetwork, images: Tensor) -> Tensor:
    """What ``seen`` makes of images (B, ...), a few at a time."""
    return torch.cat([seen(some) for some in images.split(AT_ONCE)])
