"""The device that a model runs on."""

from __future__ import annotations

import torch

from vitrail.errors import ConfigError
from vitrail.runtime.distributed import SINGLE, Ranks


def find_device(name: str | None, ranks: Ranks = SINGLE) -> torch.device:
    """Returns the named device; by default the first of cuda, mps and cpu that is available. Raises `ConfigError`.

    Of several ranks each takes the GPU that it joined with.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name is None:
        name = next(kind for kind, present in there.items() if present)
    if not there.get(name.split(":")[0], False):
        present = ", ".join(kind for kind, is_there in there.items() if is_there)
        raise ConfigError(f"the device {name!r} is not on this machine", f"choose one of: {present}")
    if name == "cuda" and not ranks.is_single:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(name)
