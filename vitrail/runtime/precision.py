"""The precision that a model computes in: what a device does fast, and the context that sets it."""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch

AUTOCAST = {"bf16": torch.bfloat16, "bf16-weights": torch.bfloat16, "fp16": torch.float16}


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
