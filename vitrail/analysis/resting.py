"""A model as it is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from vitrail.models import device_of


@contextmanager
def at_rest(model: nn.Module, *, gradients: bool = False) -> Iterator[torch.device]:
    """The model in evaluation mode, without gradients unless they are asked for, and afterwards as it was.

    Yields the device of its parameters.
    """
    was_training = {name: module.training for name, module in model.named_modules()}
    model.eval()
    try:
        # inside of somebody's inference mode no gradient could be had
        with torch.inference_mode(False) if gradients else nullcontext(), torch.set_grad_enabled(gradients):
            yield device_of(model)
    finally:
        for name, module in model.named_modules():
            module.training = was_training[name]
