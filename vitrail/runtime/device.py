"""The device that a model runs on, and the precision that it computes in."""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch

from vitrail.errors import ConfigError
from vitrail.runtime.distributed import SINGLE, Ranks

AUTOCAST = {"bf16": torch.bfloat16, "bf16-weights": torch.bfloat16, "fp16": torch.float16}


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


def in_precision(precision: str, device: torch.device) -> torch.autocast:
    """Returns a context in which operations run in ``precision``."""
    kind = AUTOCAST.get(precision)
    return torch.autocast(device.type, kind, enabled=kind is not None)


@cache
def has_bf16() -> bool:
    """Whether this processor has instructions for bf16; how fast they are is another matter (`vitrail.runtime.tuning`)."""
    return bool(torch.cpu.get_capabilities().get("avx512_bf16"))


def default_precision(device: torch.device) -> Literal["fp32", "bf16", "fp16"]:
    """bf16 on a GPU that has it and fp16 on one that has not; fp32 elsewhere, where only a measurement tells what is fast."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "fp32"
