"""The supervised objective: its loss is the task's, its gradient reaches every parameter, it measures as it goes."""

from __future__ import annotations

import pytest
import torch

from vitrail.errors import ConfigError
from vitrail.objectives import Supervised
from vitrail.tasks.classification.classifier import create_classifier, sigmoid_loss, softmax_loss, top1

SMALL = {"image_size": 32, "patch_size": 8, "width": 32, "depth": 2, "heads": 2, "mlp_width": 64}


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = create_classifier("vit-ti16", classes=5, **SMALL)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(6, 3, 32, 32, generator=generator), torch.randint(0, 5, (6,), generator=generator)


@pytest.mark.parametrize(("name", "function"), [("softmax", softmax_loss), ("sigmoid", sigmoid_loss)])
def test_the_loss_is_that_of_the_logits_and_its_gradient_reaches_every_parameter(model, batch, name, function):
    images, targets = batch
    loss, measured = Supervised(model, loss=name)(images, targets)
    logits = model(images)
    torch.testing.assert_close(loss, function(logits, targets))
    assert measured["top1"] == (logits.argmax(1) == targets).float().mean()
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    assert not measured["top1"].requires_grad


def test_the_backbone_is_what_is_kept_and_all_that_is_trained(model):
    objective = Supervised(model)
    assert objective.encoder is model.backbone
    names = [name for layer in objective.layers() for name in layer]
    assert sorted(names) == sorted(name for name, _ in objective.named_parameters())
    assert objective.no_decay() == {f"encoder.{name}" for name in model.backbone.no_decay()}


def test_binarise_is_handed_on(model, batch):
    images, _ = batch
    mixed = torch.tensor([[0.6, 0.4, 0, 0, 0]] * 6)
    loss, _ = Supervised(model, loss="sigmoid", binarise=True)(images, mixed)
    torch.testing.assert_close(loss, sigmoid_loss(model(images), mixed.ceil()))


def test_top1_takes_any_of_the_largest_of_a_soft_target():
    logits = torch.eye(4)
    assert top1(logits, torch.tensor([0, 1, 2, 0])) == 0.75
    soft = torch.tensor([[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0.9, 0, 0.1, 0], [0, 0, 0, 1.0]])
    assert top1(logits, soft) == 0.75


def test_an_unknown_loss_names_the_nearest(model):
    with pytest.raises(ConfigError, match="did you mean 'softmax'"):
        Supervised(model, loss="soft-max")
    with pytest.raises(ConfigError, match="belongs to the loss 'sigmoid'"):
        Supervised(model, binarise=True)
