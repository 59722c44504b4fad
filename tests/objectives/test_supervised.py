"""The supervised objective is the task's loss; distillation against sums written out, with one head and with DeiT's two."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.models.tiny import QUICK, TINY
from vitrail.errors import ConfigError
from vitrail.models import ViTConfig, create_backbone
from vitrail.objectives import Supervised
from vitrail.objectives.supervised import Distillation
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


TWO_TOKENS = ViTConfig(
    image_size=32, classes=7, patch_size=8, width=16, depth=2, heads=2, mlp_width=24, prefix=("cls", "dist")
)


def filled(config, seed: int = 0):
    torch.manual_seed(seed)
    encoder = create_backbone(config)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return encoder


@pytest.fixture
def taught_batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(6, 3, 32, 32), torch.randint(0, 7, (6,)), 3 * torch.randn(6, 7)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def test_hard_distillation_is_the_mean_of_two_cross_entropies(taught_batch):
    images, targets, answers = taught_batch
    encoder = filled(TWO_TOKENS)
    loss, measured = Distillation(encoder)(*taught_batch)
    heads = encoder.heads(encoder.features(images))
    own, taught = (log_softmax(heads[name].detach().double().numpy()) for name in ("cls", "dist"))
    best, rows = answers.argmax(1).numpy(), np.arange(6)
    expected = -0.5 * own[rows, targets.numpy()].mean() - 0.5 * taught[rows, best].mean()
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert float(measured["agreement"]) == pytest.approx((taught.argmax(1) == best).mean())
    assert float(measured["top1"]) == pytest.approx((own.argmax(1) == targets.numpy()).mean())


def test_soft_distillation_is_the_divergence_at_a_temperature_times_its_square(taught_batch):
    images, targets, answers = taught_batch
    encoder = filled(TINY["vit"])
    loss, _ = Distillation(encoder, "soft", weight=0.3, temperature=2.0)(*taught_batch)
    logits = encoder(images).detach().double().numpy()
    student, teacher = log_softmax(logits / 2), log_softmax(answers.double().numpy() / 2)
    divergence = (np.exp(teacher) * (teacher - student)).sum(1).mean()
    labels = -log_softmax(logits)[np.arange(6), targets.numpy()].mean()
    assert loss.item() == pytest.approx(0.7 * labels + 0.3 * 4 * divergence, rel=1e-5)


def test_the_class_token_learns_from_labels_and_the_distillation_token_from_the_teacher(taught_batch):
    for weight, silent in ((0.0, "dist"), (1.0, "cls")):
        encoder = filled(TWO_TOKENS)
        Distillation(encoder, weight=weight)(*taught_batch)[0].backward()
        gradients = {name: encoder.get_parameter(f"head.{name}.weight").grad for name in ("cls", "dist")}
        heard = {"cls", "dist"} - {silent}
        assert not gradients[silent].any() and all(gradients[name].any() for name in heard)


@pytest.mark.parametrize("name", QUICK)
def test_every_kind_of_architecture_learns_from_a_teacher(name):
    config = TINY[name]
    torch.manual_seed(2)
    encoder = create_backbone(config)
    objective = Distillation(encoder, "soft", weight=0.5)
    images, targets = torch.randn(4, 3, *config.image_size), torch.randint(0, 7, (4,))
    answers = 4 * torch.nn.functional.one_hot(targets, 7).float()
    optimiser = torch.optim.AdamW(objective.parameters(), lr=3e-3)
    losses = []
    for _ in range(4):
        loss, _ = objective(images, targets, answers)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert all(np.isfinite(losses)) and losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kind": "sof"}, "did you mean 'soft'"),
        ({"weight": 1.5}, "a number from 0 to 1"),
        ({"temperature": 0.0}, "above 0"),
        ({"loss": "sigmod"}, "did you mean 'sigmoid'"),
    ],
)
def test_invalid_options_are_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        Distillation(filled(TINY["vit"]), **given)
