"""A task that the project does not have: where in a picture the bright spot is, as one number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from vitrail.tasks import Metric, Task
from vitrail.tasks.answer import Answer
from vitrail.tasks.targets import TargetKind


@dataclass(frozen=True)
class Position(Answer):
    """The spot's distance from the left edge, in pixels of the picture."""

    x: float

    def row(self):
        return {"x": round(self.x, 3)}


class MeanError(Metric):
    """How far answers are off, on average, as a share of the picture's width."""

    higher_is_better = False

    def __init__(self, task):
        self.task, self.keys, self.errors = task, [], []

    def update(self, outputs, targets, keys, frames=None):
        answers = torch.tensor([answer.x for answer in self.task.decode(outputs, frames)])
        self.errors += ((answers - targets[:, 0].cpu()).abs() / torch.from_numpy(frames.pictures[:, 1])).tolist()
        self.keys += keys

    def merge(self, other):
        self.errors += other.errors
        self.keys += other.keys

    def compute(self):
        return {"mean_error": float(np.mean(self.errors))}

    def samples(self):
        return np.array(self.errors)


class Points(TargetKind):
    """Points (n, 2), of whose x a model learns the share of the width of the image."""

    def move(self, targets, placement):
        points = placement.move(targets[:, None].cpu().double().numpy())[:, 0]
        return torch.from_numpy(points[:, 0] / placement.size[1]).float()


class SpotFinder(Task):
    """Of the spot's x, from 0 to 1 across the image; the head is the task's own."""

    name = "spot"
    has_own_head = True
    targets = Points()

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.own["head"] = nn.Linear(self.backbone.width, 1)

    @classmethod
    def read_source(cls, train):
        return {"classes": ("x",)}

    def forward(self, images):
        return self.own["head"](self.backbone.features(images)).sigmoid()[:, 0]  # (B,)

    def loss(self, outputs, targets):
        return F.mse_loss(outputs.float(), targets.to(outputs.device))

    def metric(self, source=None):
        return MeanError(self)

    def decode(self, outputs, frames=None, *, top=5):
        height, width = self.preprocessing.size
        points = np.stack([outputs.double().cpu().numpy() * width, np.zeros(len(outputs))], -1)[:, None]
        return [Position(float(x)) for x in frames.move(points, (height, width))[:, 0, 0]]
