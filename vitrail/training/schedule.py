"""The learning rate of a step."""

from __future__ import annotations

import math

from vitrail.config.schema import ScheduleSettings


def learning_rate(schedule: ScheduleSettings, base: float, step: int, steps: int) -> float:
    """The rate of update ``step`` (from 0) of ``steps``: a linear warm-up multiplied onto the decay.

    The decay runs from the end of the warm-up to the last step (ViT, appendix B.1; ``rsqrt`` as in Zhai et al. 2022).
    """
    warmup = warmup_steps(schedule, steps)
    progress = min(max((step - warmup) / max(steps - warmup, 1), 0.0), 1.0)
    if schedule.kind == "cosine":
        rate = schedule.end + (base - schedule.end) * (1 + math.cos(math.pi * progress)) / 2
    elif schedule.kind == "linear":
        rate = schedule.end + (base - schedule.end) * (1 - progress)
    elif schedule.kind == "rsqrt":
        rate = base * math.sqrt(max(warmup, 1) / max(step + 1, warmup, 1))
    else:
        rate = base
    return rate * min(1.0, (step + 1) / warmup) if warmup else rate


def warmup_steps(schedule: ScheduleSettings, steps: int) -> int:
    """How many updates the warm-up takes; never more than the whole run."""
    asked = schedule.warmup_steps if schedule.warmup_steps is not None else round(schedule.warmup * steps)
    return min(asked, steps)
