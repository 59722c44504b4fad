"""Every timm model of the table of public weights: timm makes it, and vitrail reads its layout as the model named there."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch

from vitrail.models import MODELS, sketch
from vitrail.weights.public import PUBLIC
from vitrail.weights.timm import read_timm

pytestmark = pytest.mark.peers
TIMMS = [
    (model, repository.removeprefix("timm/"))
    for model, repositories in PUBLIC.items()
    for repository in repositories
    if repository.startswith("timm/")
]
SIZES = ("width", "widths", "depth", "depths", "heads", "width_factor", "patch_size", "window", "stem", "prefix")


@pytest.mark.parametrize(("ours", "theirs"), TIMMS, ids=[name for _, name in TIMMS])
def test_the_layout_of_public_weights_is_read_as_the_model_that_lists_them(ours, theirs):
    with torch.device("meta"):
        model = timm.create_model(theirs)
    state = {name: torch.zeros(()).expand(tensor.shape) for name, tensor in model.state_dict().items()}
    size = list(model.pretrained_cfg["input_size"])
    described = {"architecture": theirs.partition(".")[0], "pretrained_cfg": {"input_size": size}}
    held = read_timm(state, described, Path(theirs))
    shapes = {name: tensor.shape for name, tensor in sketch(held.config).state_dict().items()}
    assert shapes == {name: tensor.shape for name, tensor in held.tensors.items()}
    assert held.config.image_size == tuple(size[1:])
    assert type(held.config) is type(MODELS[ours])
    assert {name: getattr(held.config, name, None) for name in SIZES} == {
        name: getattr(MODELS[ours], name, None) for name in SIZES
    }
