"""Every goal, by the objectives that serve it."""

from __future__ import annotations

from vitrail.training.goals.encoder import EncoderGoal
from vitrail.training.goals.goal import Goal
from vitrail.training.goals.supervised import SupervisedGoal
from vitrail.training.goals.tokenizer import TokenizerGoal

GOALS: dict[str, Goal] = {
    "supervised": SupervisedGoal(),
    "masked-patch": EncoderGoal(),
    "mae": EncoderGoal(),
    "beit": EncoderGoal(),
    "moco": EncoderGoal(),
    "simclr": EncoderGoal(),
    "tokenizer": TokenizerGoal(),
}
