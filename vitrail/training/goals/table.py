"""Every goal, by the objectives that serve it."""

from __future__ import annotations

from vitrail.training.goals.classifier import ClassifierGoal
from vitrail.training.goals.encoder import EncoderGoal
from vitrail.training.goals.goal import Goal
from vitrail.training.goals.tokenizer import TokenizerGoal

GOALS: dict[str, Goal] = {
    "supervised": ClassifierGoal(),
    "masked-patch": EncoderGoal(),
    "mae": EncoderGoal(),
    "beit": EncoderGoal(),
    "moco": EncoderGoal(),
    "simclr": EncoderGoal(),
    "tokenizer": TokenizerGoal(),
}
