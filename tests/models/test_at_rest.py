"""A model that was looked at is as it was before."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vitrail.models.backbone import eval_mode


def test_each_part_is_in_the_mode_again_that_it_was_in():
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout(), nn.Linear(2, 2)))
    model.train()
    model[1].eval()
    with eval_mode(model) as device:
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled() and device.type == "cpu"
    assert model.training and model[0].training and not model[1].training and torch.is_grad_enabled()


def test_it_is_so_after_an_error_too():
    def look(model: nn.Module) -> None:
        with eval_mode(model, gradients=True):
            assert torch.is_grad_enabled()
            raise LookupError

    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(LookupError):
        look(model)
    assert model.training
