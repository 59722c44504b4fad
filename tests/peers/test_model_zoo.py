"""Every timm model that the page of public weights names: timm makes it, and vitrail reads its layout as the page says."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch

from tests.test_model_zoo import ROWS
from vitrail.models import MODELS, sketch
from vitrail.weights.timm import read_timm

pytestmark = pytest.mark.peers


@pytest.mark.parametrize(("theirs", "ours", "pixels"), [row[:3] for row in ROWS], ids=[row[0] for row in ROWS])
def test_the_layout_of_a_public_model_is_read_as_the_page_says(theirs, ours, pixels):
    with torch.device("meta"):
        model = timm.create_model(theirs)
    state = {name: torch.zeros(()).expand(tensor.shape) for name, tensor in model.state_dict().items()}
    described = {
        "architecture": theirs.partition(".")[0],
        "pretrained_cfg": {"input_size": list(model.pretrained_cfg["input_size"])},
    }
    held = read_timm(state, described, Path(theirs))
    shapes = {name: tensor.shape for name, tensor in sketch(held.config).state_dict().items()}
    assert shapes == {name: tensor.shape for name, tensor in held.tensors.items()}
    assert held.config.image_size == (int(pixels), int(pixels))
    assert type(held.config) is type(MODELS[ours])
    for field in ("width", "widths", "depth", "depths", "heads", "width_factor", "window", "stem", "prefix"):
        assert getattr(held.config, field, None) == getattr(MODELS[ours], field, None), field
