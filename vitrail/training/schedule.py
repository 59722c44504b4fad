"""The learning rate of each step: warm-up and decay."""

from __future__ import annotations

import math

from vitrail.config.schema import ScheduleSettings
from vitrail.errors import ConfigError
from vitrail.runtime.progress import LogFunction


def learning_rate(schedule: ScheduleSettings, base: float, step: int, steps: int) -> float:
    """Returns the rate of update ``step`` (from 0) of ``steps``: a linear warm-up multiplied onto the decay.

    The decay runs from the end of the warm-up to the end of the run, ``step == steps``, where the rate is ``schedule.end``
    (ViT, appendix B.1; ``rsqrt`` as in Zhai et al. 2022).
    """
    warmup = min(warmup_steps(schedule, steps), steps)
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
    """Returns the number of warm-up updates of a run of ``steps``."""
    if schedule.warmup_steps is None:
        return round(schedule.warmup * steps)
    if schedule.recipe_steps is None:
        return schedule.warmup_steps
    return round(schedule.warmup_steps * min(1.0, steps / schedule.recipe_steps))


def check_warmup(schedule: ScheduleSettings, steps: int, log: LogFunction, *, begun: bool) -> None:
    """Says by how much the warm-up of a recipe is shortened, and refuses one that leaves nothing for the decay.

    A run that has ``begun``, with an earlier version, keeps such a warm-up, and a warning says so.

    Raises `ConfigError`.
    """
    warmup = warmup_steps(schedule, steps)
    if warmup >= steps:
        what = f"the warm-up of {warmup:,} steps takes the whole run of {steps:,}"
        if not begun:
            raise ConfigError(what, "train for longer, or give a shorter warm-up, e.g. --set schedule.warmup=0.05")
        log(f"warning  {what}: its learning rate only rises; it goes on as it began")
    elif schedule.warmup_steps is not None and warmup < schedule.warmup_steps:
        own = f"{schedule.warmup_steps:,} of {schedule.recipe_steps:,}"
        log(f"warm-up  {warmup:,} of {steps:,} steps: the recipe's {own}, scaled to the length of this run")
