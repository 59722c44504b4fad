"""The 19 tasks of VTAB-1k (Zhai et al. 2019) in their groups, and the figures of Dosovitskiy et al. 2021, table 9.

The number of classes is that of the authors' code, `google-research/task_adaptation`. Which tasks are trained without flips or
crops, because these would change the label, is stated in appendix F of BiT (Kolesnikov et al. 2020), whose preprocessing the ViT
paper uses (appendix B.1.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TRAIN, VALIDATION = 800, 200  # images of the two parts of what a task is trained on


@dataclass(frozen=True)
class VtabTask:
    """A task: its name in folders and tables, its group, what is to be told, and whether training flips and crops."""

    name: str
    group: str
    classes: int
    about: str
    flips: bool = True
    crops: bool = True


_TASKS = (
    VtabTask("caltech101", "natural", 102, "Caltech101: objects and background"),
    VtabTask("cifar100", "natural", 100, "CIFAR-100: objects in 32 x 32 pixels"),
    VtabTask("dtd", "natural", 47, "Describable Textures Dataset: textures"),
    VtabTask("flowers102", "natural", 102, "Oxford Flowers-102: species"),
    VtabTask("pets", "natural", 37, "Oxford-IIIT Pets: breeds of cats and dogs"),
    VtabTask("sun397", "natural", 397, "SUN397: scenes"),
    VtabTask("svhn", "natural", 10, "Street View House Numbers: digits"),
    VtabTask("camelyon", "specialized", 2, "PatchCamelyon: metastases in tissue"),
    VtabTask("eurosat", "specialized", 10, "EuroSAT: land use from satellites"),
    VtabTask("resisc45", "specialized", 45, "RESISC45: scenes from the air"),
    VtabTask("retinopathy", "specialized", 5, "Diabetic Retinopathy: degree of the disease"),
    VtabTask("clevr-count", "structured", 8, "CLEVR: number of objects", crops=False),
    VtabTask("clevr-dist", "structured", 6, "CLEVR: distance of the closest object", crops=False),
    VtabTask("dmlab", "structured", 6, "DMLab: distance and kind of objects in a maze", crops=False),
    VtabTask("dsprites-loc", "structured", 16, "dSprites: horizontal position of a shape", flips=False, crops=False),
    VtabTask("dsprites-ori", "structured", 16, "dSprites: orientation of a shape", flips=False),
    VtabTask("kitti-dist", "structured", 4, "KITTI: distance of the closest vehicle", crops=False),
    VtabTask("snorb-azim", "structured", 18, "SmallNORB: azimuth of the camera", flips=False),
    VtabTask("snorb-elev", "structured", 9, "SmallNORB: elevation of the camera"),
)
TASKS: dict[str, VtabTask] = {task.name: task for task in _TASKS}
GROUPS = tuple(dict.fromkeys(task.group for task in _TASKS))


@dataclass(frozen=True, kw_only=True)
class PublishedTransfer:
    """Published accuracies by task in percent, and the standard deviation of their mean over three runs (table 2)."""

    accuracies: Mapping[str, float]
    std: float

    def mean(self, names: list[str]) -> float:
        """Returns the mean over some of the tasks."""
        return sum(self.accuracies[name] for name in names) / len(names)


def _published(std: float, *accuracies: float) -> PublishedTransfer:
    return PublishedTransfer(accuracies=dict(zip(TASKS, accuracies, strict=True)), std=std)


PUBLISHED: dict[str, PublishedTransfer] = {
    "ViT-H/14, JFT": _published(
        0.23, 95.3, 85.5, 75.2, 99.7, 97.2, 65.0, 88.9, 83.3, 96.7, 91.4, 76.6,
        91.7, 63.8, 53.1, 79.4, 63.3, 84.5, 33.2, 51.2,
    ),
    "ViT-L/16, JFT": _published(
        0.46, 95.4, 81.9, 74.3, 99.7, 96.7, 63.5, 87.4, 83.6, 96.5, 89.7, 77.1,
        86.4, 63.1, 49.7, 74.5, 60.5, 82.2, 36.2, 51.1,
    ),
    "ViT-L/16, ImageNet-21k": _published(
        0.21, 90.8, 84.1, 74.1, 99.3, 92.7, 61.0, 80.9, 82.5, 95.6, 85.2, 75.3,
        70.3, 56.1, 41.9, 74.7, 64.9, 79.9, 30.5, 41.7,
    ),
}  # fmt: skip
