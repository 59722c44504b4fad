"""Asynchronous copies from the host to a device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(values: Tensor | NDArray[Any], device: torch.device) -> Tensor:
    """Returns the tensor on the device, without waiting for what a GPU still computes, as `Tensor.to` would."""
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
