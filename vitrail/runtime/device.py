"""The device that a model runs on, and the precision that it computes in."""

from __future__ import annotations

from typing import Literal

import torch

from vitrail.errors import ConfigError
from vitrail.runtime.distributed import SINGLE, Ranks

AUTOCAST = {"bf16": torch.bfloat16, "bf16-weights": torch.bfloat16, "fp16": torch.float16}


def find_device(name: str | None, ranks: Ranks = SINGLE) -> torch.device:
    """Returns the named device; by default the first of cuda, mps and cpu that is available. Raises `ConfigError`.

    Of several ranks each takes the GPU that it joined with.
    """
    backends = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    available = [backend for backend, is_available in backends.items() if is_available]
    name = name or available[0]
    if name.split(":")[0] not in available:
        raise ConfigError(f"the device {name!r} is not on this machine", f"choose one of: {', '.join(available)}")
    if name == "cuda" and not ranks.is_single:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(name)


def in_precision(precision: str, device: torch.device) -> torch.autocast:
    """Returns a context in which operations run in ``precision``."""
    dtype = AUTOCAST.get(precision)
    return torch.autocast(device.type, dtype, enabled=dtype is not None)


def default_precision(device: torch.device) -> Literal["fp32", "bf16", "fp16"]:
    """Returns bf16 for a GPU that has it and fp16 for others; fp32 elsewhere, where only a measurement tells what is fast."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "fp32"
