"""The device and the precision that a model runs in."""

from __future__ import annotations

from typing import Literal

import torch

from vitrail.errors import ConfigError

AUTOCAST = {"bf16": torch.bfloat16, "bf16-weights": torch.bfloat16, "fp16": torch.float16}


def in_precision(precision: str, device: torch.device) -> torch.autocast:
    """A context in which operations run in ``precision``."""
    kind = AUTOCAST.get(precision)
    return torch.autocast(device.type, kind, enabled=kind is not None)


def find_device(name: str | None) -> torch.device:
    """The named device; by default the first of cuda, mps and cpu that is available. Raises `ConfigError`."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name is None:
        return torch.device(next(kind for kind, present in there.items() if present))
    if not there.get(name.split(":")[0], False):
        present = ", ".join(kind for kind, is_there in there.items() if is_there)
        raise ConfigError(f"the device {name!r} is not on this machine", f"choose one of: {present}")
    return torch.device(name)


def has_fast_bf16() -> bool:
    """Whether this processor multiplies bf16 natively."""
    return bool(torch.cpu.get_capabilities().get("avx512_bf16"))


def default_precision(device: torch.device, width: int) -> Literal["fp32", "bf16", "fp16"]:
    """bf16 where the hardware multiplies it natively and the network is wide enough to gain; see docs/decisions.md."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    if device.type == "cpu" and has_fast_bf16() and width >= 128:
        return "bf16"
    return "fp32"
