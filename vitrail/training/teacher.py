"""The teacher of a distillation: a frozen classifier that sees the student's images with its own preprocessing.

B images, C channels, h x w pixels, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.data.imagenet import index_classes
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import ConfigError
from vitrail.models import device_of
from vitrail.models.cost import count_operations, on_meta
from vitrail.runtime.precision import in_precision
from vitrail.tasks import Task
from vitrail.training.inputs import renormalise


class Teacher:
    """Called with normalised images it gives its logits for the student's classes, in their order, without a gradient.

    The images were cropped for the student; they are scaled to the size that the teacher takes and normalised for it,
    in the precision of the training.

    Args:
        model: any architecture, on the student's device.
        classes: of the student.
        preprocessing: of the student.
        precision: in which it computes.

    Raises:
        ConfigError: the teacher has no head, does not know a class, gives several labels an image, or takes other channels.
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
            raise ConfigError(
                f"the teacher does not know {len(missing)} of the {len(classes)} classes: {shown}",
                remedy,
                value=knows,
            )
        if model.multi_label:
            raise ConfigError("the teacher gives every image several labels", "take one that chooses among the classes")
        if model.preprocessing.channels != preprocessing.channels:
            raise ConfigError(
                f"the teacher takes {model.preprocessing.channels} channels, the student {preprocessing.channels}",
                "give them images of as many, with data.channels",
            )
        self.model = model.eval().requires_grad_(False)
        self.preprocessing = preprocessing
        device = device_of(model)
        self.columns = torch.tensor([number[name] for name in classes], device=device)
        self.precision = precision

    @torch.no_grad()
    def operations(self, size: tuple[int, int]) -> int:
        """Of one image of any size: it is scaled to the teacher's."""
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
