"""A classifier whose answers are known by hand, and one of every architecture with numbers of some size in every tensor."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitrail.data.preprocessing import Preprocessing
from vitrail.models import Backbone, Config, ViTConfig
from vitrail.tasks.classification.classifier import Classifier, create_classifier


class Weighing(Backbone):
    """The softmax of its logits is (1 - p, p), where p is the sum of all pixels times their weights, (C, H, W)."""

    def __init__(self, weight: Tensor) -> None:
        channels, height, width = weight.shape
        super().__init__(ViTConfig(image_size=(height, width), patch_size=8, in_channels=channels, classes=2, pad=True))
        self.weight = nn.Parameter(weight)

    def forward(self, images: Tensor) -> Tensor:
        share = (images * self.weight).sum((1, 2, 3))
        return torch.stack([(1 - share).log(), share.log()], 1)


def weighing(weight: Tensor, *, multi_label: bool = False) -> Classifier:
    height, width = weight.shape[1:]
    preprocessing = Preprocessing.paper((height, width), channels=len(weight))
    return Classifier(Weighing(weight), ["other", "this"], preprocessing, multi_label=multi_label)


def weights(channels: int = 3, height: int = 16, width: int = 24, total: float = 0.8) -> Tensor:
    """Random ones above 0 with this sum: p of an image of ones."""
    drawn = torch.rand(channels, height, width, generator=torch.Generator().manual_seed(2)) + 0.01
    return drawn * total / drawn.sum()


def pictures(batch: int, channels: int, height: int, width: int, seed: int = 3) -> Tensor:
    """Random pixels in [0, 1), so that p of a `Weighing` is a probability."""
    return torch.rand(batch, channels, height, width, generator=torch.Generator().manual_seed(seed))


def shaken(config: Config) -> Classifier:
    generator = torch.Generator().manual_seed(4)
    model = create_classifier(config, classes=config.classes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=generator)
    return model


class Counting:
    """How many images a model is shown at each call."""

    def __init__(self, model: Classifier) -> None:
        self.shown: list[int] = []
        model.register_forward_pre_hook(lambda _, given: self.shown.append(len(given[0])))
