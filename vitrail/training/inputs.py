"""The inputs of an objective: from a batch to the tensors of its forward pass, batch axis first; and the frozen networks that
compute a part of them: the teacher of a distillation, the tokenizer of BEiT.

B images, V views of each, K classes, C channels, h x w pixels as the network takes them, N patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.data.augment.apply import augment
from vitrail.data.augment.placement import Placement, place
from vitrail.data.augment.policy import Augment
from vitrail.data.imagenet import index_classes
from vitrail.data.loader import Batch
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.to_device import to_device
from vitrail.errors import ConfigError
from vitrail.models import device_of
from vitrail.models.cost import count_operations, on_meta
from vitrail.models.tokenizer import Tokenizer
from vitrail.objectives.objective import Objective
from vitrail.runtime.device import in_precision
from vitrail.tasks.targets import TargetKind
from vitrail.tasks.task import Task
from vitrail.weights.tokenizers import SavedTokenizer

CHUNK = 128  # images that a frozen network sees at once, whatever the batch: it has no micro-steps to save memory by


class Teacher:
    """A frozen classifier that gives its logits for the student's ``classes``, in their order, computed in ``precision``.

    Images with the student's ``preprocessing`` are scaled and normalised for the teacher, which is on the student's device.

    Raises `ConfigError` if the teacher has no head, lacks a class, gives several labels an image, or takes other channels.
    """

    def __init__(
        self, model: Task, classes: Sequence[str], preprocessing: Preprocessing, precision: str = "fp32"
    ) -> None:
        remedy = "train it on these data first: vitrail train DATA --init TEACHER"
        if not model.classes:
            raise ConfigError("the teacher has no head, so it knows no classes", remedy)
        number = index_classes(model.classes)
        missing = [name for name in classes if name not in number]
        if missing:
            shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            knows = f"it knows {len(model.classes)} classes: {', '.join(model.classes[:5])}, ..."
            what = f"the teacher does not know {len(missing)} of the {len(classes)} classes: {shown}"
            raise ConfigError(what, remedy, value=knows)
        if model.multi_label:
            raise ConfigError("the teacher gives every image several labels", "take one that chooses among the classes")
        if model.preprocessing.channels != preprocessing.channels:
            what = f"the teacher takes {model.preprocessing.channels} channels, the student {preprocessing.channels}"
            raise ConfigError(what, "give them images of as many, with data.channels")
        self.model, self.preprocessing, self.precision = model.eval().requires_grad_(False), preprocessing, precision
        self.columns = torch.tensor([number[name] for name in classes], device=device_of(model))

    @torch.no_grad()
    def operations(self, size: tuple[int, int]) -> int:
        """Returns the floating-point operations for one image of any ``size``, which is scaled to the teacher's."""
        own = self.model.preprocessing
        network, image = on_meta(self.model).eval(), torch.empty(1, own.channels, *own.size, device="meta")
        return count_operations(lambda: network(image))

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """(B, C, h, w) as the student takes them to logits (B, K)."""
        own = self.model.preprocessing
        seen = renormalise(images, self.preprocessing, own, own.size)
        with in_precision(self.precision, images.device):
            logits = self.model(seen)
        return logits.float()[:, self.columns]


class TokenizerCodes:
    """The codes of images that were normalised for an encoder, one code for each of the encoder's patches.

    Raises `ConfigError` if the tokenizer takes other channels.
    """

    def __init__(
        self, saved: SavedTokenizer, preprocessing: Preprocessing, patch_size: tuple[int, int], device: torch.device
    ) -> None:
        if saved.preprocessing.channels != preprocessing.channels:
            what = f"the tokenizer takes {saved.preprocessing.channels} channels, the encoder {preprocessing.channels}"
            raise ConfigError(what, "train a tokenizer on these images")
        self.tokenizer: Tokenizer = saved.tokenizer.to(device).eval().requires_grad_(False)
        self.own, self.preprocessing, self.patch_size = saved.preprocessing, preprocessing, patch_size

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """(B, C, H, W) to codes (B, N), of the images scaled so that each patch of the encoder is one of the tokenizer's."""
        size = self._size(images.shape[2:])
        return self.tokenizer.encode(renormalise(images, self.preprocessing, self.own, size)).flatten(1)

    @torch.no_grad()
    def operations(self, size: tuple[int, int]) -> int:
        """Returns the floating-point operations for one image of ``size`` (height, width)."""
        tokenizer = on_meta(self.tokenizer).eval()
        image = torch.empty(1, self.own.channels, *self._size(size), device="meta")
        return count_operations(lambda: tokenizer.encode(image))

    def _size(self, size: Sequence[int]) -> tuple[int, int]:
        """Returns the size to which images of ``size`` are scaled for the tokenizer."""
        grid, patch = self._grid(size), self.tokenizer.config.patch_size
        return grid[0] * patch[0], grid[1] * patch[1]

    def _grid(self, size: Sequence[int]) -> tuple[int, int]:
        return size[0] // self.patch_size[0], size[1] // self.patch_size[1]

    @torch.no_grad()
    def decode(self, codes: Tensor, size: tuple[int, int]) -> Tensor:
        """Decodes codes (B, N) to images of ``size`` (height, width): (B, C, H, W), normalised for the encoder."""
        decoded = self.tokenizer.decode(codes.unflatten(1, self._grid(size)))
        return renormalise(decoded, self.own, self.preprocessing, size)


FrozenNetwork = Teacher | TokenizerCodes  # not trained; an objective takes its outputs for the images of a batch


def renormalise(images: Tensor, source: Preprocessing, target: Preprocessing, size: tuple[int, int]) -> Tensor:
    """Converts images (B, C, H, W) that were normalised for ``source``: scaled to ``size`` and normalised for ``target``."""
    pictures = source.denormalise(images)
    if pictures.shape[2:] != size:
        pictures = nn.functional.interpolate(pictures, size, mode="bilinear", antialias=True, align_corners=False)
    return target.normalise(pictures)


def apply_in_chunks(network: FrozenNetwork, images: Tensor) -> Tensor:
    """Returns the outputs of ``network`` for images (B, ...), computed `CHUNK` images at a time."""
    return torch.cat([network(chunk) for chunk in images.split(CHUNK)])


@dataclass(frozen=True, kw_only=True)
class Augmented:
    """Augments and normalises the images of a batch."""

    policy: Augment
    preprocessing: Preprocessing
    seed: int
    cropped: bool  # they come in the size that the network takes

    def __call__(self, batch: Batch) -> tuple[Tensor, Placement]:
        """Returns the images (B, C, h, w), and where their pixels come from."""
        images, size = batch.images, self.preprocessing.size
        read = images.shape[-2], images.shape[-1]
        made, matrices = augment(images, batch.ids, self.policy, size=size, seed=self.seed, cropped=self.cropped)
        return self.preprocessing.normalise(made), place(batch.frames, read, matrices, size)


@dataclass(frozen=True)
class TaskInputs:
    """Makes the inputs of a supervised objective: images (B, C, h, w), their targets, moved with the pixels, mixed and smoothed,
    and, in a distillation, the outputs (B, K) of a teacher for the same images.
    """

    augmented: Augmented
    task: Task
    frozen: FrozenNetwork | None = None  # the teacher

    def __call__(self, batch: Batch) -> tuple[Tensor, ...]:
        images, placement = self.augmented(batch)
        targets = self.task.targets.move(batch.targets, placement)
        policy, seed = self.augmented.policy, self.augmented.seed
        ids = batch.lead if batch.lead is not None and policy.mix_each == "batch" else batch.ids
        images, targets = self.task.targets.mix(images, targets, ids, policy, seed=seed)
        parts = targets if isinstance(targets, tuple) else (targets,)
        # the halo has been mixed into its neighbour; it belongs to another part of the batch
        images, parts = images[batch.halo :], [to_device(part[batch.halo :], images.device) for part in parts]
        return images, *parts, *([] if self.frozen is None else [apply_in_chunks(self.frozen, images)])


@dataclass(frozen=True)
class ViewInputs:
    """Makes the inputs of an objective without labels: the views of each image, V times (B, C, h, w), the random tensors of the
    objective, and the output of a frozen network for the first view. The views of an image are neighbours in the batch.
    """

    augmented: Augmented
    objective: Objective
    frozen: FrozenNetwork | None = None  # which gives the targets

    def __call__(self, batch: Batch) -> tuple[Tensor, ...]:
        views = self.objective.views
        images, _ = self.augmented(batch)  # (B V, C, h, w)
        noise = self.objective.draw(batch.ids[::views], self.augmented.preprocessing.size, self.augmented.seed)
        parts = [images[view::views].contiguous() for view in range(views)]
        drawn = [to_device(tensor, images.device) for tensor in noise]
        targets = [] if self.frozen is None else [apply_in_chunks(self.frozen, parts[0])]
        return *parts, *drawn, *targets


@dataclass(frozen=True)
class FeatureInputs:
    """Makes the inputs of a supervised objective from features: (B, F), and their targets, smoothed by the policy."""

    targets: TargetKind
    policy: Augment
    frozen: None = None

    def __call__(self, batch: Batch) -> tuple[Tensor, ...]:
        features, targets = self.targets.mix(batch.images, batch.targets, batch.ids, self.policy, seed=0)
        return features, to_device(targets, features.device)


Inputs = TaskInputs | ViewInputs | FeatureInputs
