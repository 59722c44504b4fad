"""The precision that a model computes in: what a device does fast, and the context that sets it."""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch

AUTOCAST = {"bf16": torch.bfloat16, "bf16-weights": torch.bfloat16, "fp16": torch.float16}


def in_precision(precision: str, device: torch.device) -> torch.autocast:
    """A context in which operations run in ``precision``."""
    kind = AUTOCAST.get(precision)
    return torch.autocast(device.type, kind, enabled=kind is not None)


@cache
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
