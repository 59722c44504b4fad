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
SIZES = ("width", "widths", "depth", "depths", "heads", "width_factor", "patch_size", "window", "stem", "prefix")


def test_the_layout_of_public_weights_is_read_as_the_model_that_lists_them():
    names = [
        (ours, name.removeprefix("timm/")) for ours, several in PUBLIC.items() for name in several if "timm/" in name
    ]
    # of repositories with one architecture and one size of pictures the last
    kinds = {(ours, name.partition(".")[0], timm.get_pretrained_cfg(name).input_size): name for ours, name in names}
    assert len(kinds) > 70
    wrong = []
    for (ours, architecture, size), name in kinds.items():
        with torch.device("meta"):
            model = timm.create_model(name)
        state = {each: torch.zeros(()).expand(tensor.shape) for each, tensor in model.state_dict().items()}
        held = read_timm(
            state, {"architecture": architecture, "pretrained_cfg": {"input_size": list(size)}}, Path(name)
        )
        shapes = {each: tensor.shape for each, tensor in sketch(held.config).state_dict().items()}
        found = [shapes, held.config.image_size, type(held.config)]
        expected = [{each: tensor.shape for each, tensor in held.tensors.items()}, tuple(size[1:]), type(MODELS[ours])]
        found += [getattr(held.config, field, None) for field in SIZES]
        expected += [getattr(MODELS[ours], field, None) for field in SIZES]
        if found != expected:
            wrong.append(name)
    assert not wrong
