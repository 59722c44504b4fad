"""`vitrail.save`: what a person trained is read again as it is, and what no file can describe is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vitrail
from tests.each_row import each_row
from vitrail.errors import ConfigError

SMALL: dict[str, Any] = {"image_size": 32, "depth": 1, "width": 24, "heads": 2, "mlp_width": 40}
TASKS: dict[str, dict[str, Any]] = {
    "classification": {},
    "segmentation": {"arguments": {"head": "linear"}},
    "detection": {"arguments": {"threshold": 0.3}},
}


def create(task: str = "classification") -> Any:
    return vitrail.create_model("vit-ti16", task=task, classes=["a", "b"], **SMALL, **TASKS[task])


def train(model: nn.Module) -> None:
    """One step of a loop of one's own, which moves every tensor."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


@each_row("task, name", [(task, name) for task in TASKS for name in ("folder", "one.safetensors")])
def test_a_model_trained_in_any_way_is_read_again(tmp_path, task, name):
    model = create(task)
    train(model)
    path = tmp_path / task / name
    assert vitrail.save(model, path, metrics={"top1": 0.5}) == path
    again = vitrail.load(path)
    assert type(again) is type(model) and again.classes == model.classes
    ours, theirs = model.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert model.save(str(path)) == path  # an earlier model is replaced


def test_a_backbone_is_saved_as_a_classifier_of_numbers(tmp_path):
    backbone = create().backbone
    train(backbone)
    again = vitrail.load(vitrail.save(backbone, tmp_path / "model"))
    assert again.classes == ("0", "1")
    assert all(torch.equal(tensor, again.backbone.state_dict()[name]) for name, tensor in backbone.state_dict().items())


class OtherMlp(nn.Module):
    """An MLP of the same tensors with another activation, which no config describes."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.__dict__.update(mlp.__dict__)


def replace_mlp(model: Any) -> Any:
    model.backbone.blocks[0].mlp = OtherMlp(model.backbone.blocks[0].mlp)
    return model


def wrap_head(model: Any) -> Any:
    model.backbone.head = nn.Sequential(model.backbone.head)
    return model


def widen_head(model: Any) -> Any:
    model.backbone.head.bias = nn.Parameter(torch.zeros(3))
    return model


@each_row(
    "change, words",
    [
        (replace_mlp, r"backbone\.blocks\.0\.mlp is OtherMlp, and the config of the model describes Mlp"),
        (wrap_head, r"backbone\.head is Sequential, and the config of the model describes Head"),
        (widen_head, r"backbone\.head\.bias is \(3,\), and the config of the model describes \(2,\)"),
        (lambda model: model.backbone.blocks, "a ModuleList is not a model of vitrail"),
        (lambda model: torch.compile(model, backend="eager"), "a OptimizedModule is not a model of vitrail"),
    ],
)
def test_a_network_that_no_file_can_describe_is_refused_and_nothing_is_written(tmp_path, change, words):
    with pytest.raises(ConfigError, match=words):
        vitrail.save(change(create()), tmp_path / "model")
    assert not list(Path(tmp_path).iterdir())
