"""Networks, losses, metrics and objectives of the user's own: found by name, equal to what they compute, safe to resume."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import vitrail
from tests.slow import slow_except
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import ARCHITECTURES, MODELS, create_backbone
from vitrail.objectives import Objective
from vitrail.objectives.supervised import Supervised
from vitrail.tasks import create_classifier

pytestmark = pytest.mark.usefixtures("registries")

HOW: dict[str, Any] = {"batch": 16, "steps": 4, "quiet": True, "set": ("compute.tune=false", "save.evaluations=2")}
MODULE = """
import numpy as np, vitrail
from tests.training.test_registered import Map, squared, balanced
vitrail.register_model("map", Map, image_size=(8, 8))
vitrail.register_loss("squared", squared)
vitrail.register_metric("balanced", balanced)
"""


class Map(nn.Sequential):
    """To a map of 12 features, with running statistics and a table that is not saved."""

    def __init__(self, in_channels: int, image_size: tuple[int, int]) -> None:
        super().__init__(
            nn.Conv2d(in_channels, 8, 2, stride=2),
            nn.BatchNorm2d(8),
            nn.GELU(),
            nn.Conv2d(8, 12, 3, padding=1),
            Scale(),
            nn.GELU(),
        )


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.linspace(0.5, 2, 12)[:, None, None], persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Vector(nn.Sequential):
    def __init__(self, in_channels: int, image_size: tuple[int, int]) -> None:
        super().__init__(nn.Flatten(), nn.Linear(in_channels * image_size[0] * image_size[1], 10), nn.Tanh())


class Turned(Objective):
    about = "whether an image is turned"

    def __init__(self, encoder: Any, hidden: int = 4) -> None:
        super().__init__(encoder)
        self.outputs = nn.Sequential(nn.Linear(encoder.width, hidden), nn.Linear(hidden, 2))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        turned = torch.arange(len(images), device=images.device) % 2
        logits = self.outputs(
            self.encoder.features(torch.where(turned[:, None, None, None] == 1, images.flip(2), images))
        )
        return F.cross_entropy(logits.float(), turned), {"accuracy": (logits.argmax(1) == turned).float().mean()}


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    targets = F.one_hot(targets, outputs.shape[1]).float() if targets.ndim == 1 else targets
    return (outputs - targets).square().sum(1).mean()


def balanced(probabilities: np.ndarray, targets: np.ndarray) -> float:
    right = probabilities.argmax(1) == targets
    return float(np.mean([right[targets == label].mean() for label in np.unique(targets)]))


@pytest.fixture(params=[Map, Vector], ids=["map", "vector"])
def build(request: pytest.FixtureRequest) -> Any:
    vitrail.register_model("own", request.param, image_size=(8, 8))
    return request.param


def randomise(model: nn.Module) -> None:
    for number, (name, tensor) in enumerate(sorted(model.state_dict().items())):
        if tensor.is_floating_point():
            values = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(number)) / 3
            tensor.copy_(values.square() + 0.5 if "var" in name else values)


@pytest.mark.parametrize("channels", [1, 5])
def test_a_registered_network_gives_the_mean_of_its_map_to_a_linear_head(build, channels):
    backbone = create_backbone("own", classes=3, in_channels=channels, image_size=(8, 12)).eval()
    randomise(backbone)
    images = torch.randn(2, channels, 8, 12, generator=torch.Generator().manual_seed(1))
    module = build(in_channels=channels, image_size=(8, 12)).eval()
    weights = {name.removeprefix("module."): tensor for name, tensor in backbone.state_dict().items()}
    module.load_state_dict({name: tensor for name, tensor in weights.items() if not name.startswith("head.")})
    features = module(images)
    features = features if features.ndim == 2 else features.mean((2, 3))
    expected = F.linear(features, backbone.head.weight, backbone.head.bias)
    torch.testing.assert_close(backbone(images), expected, rtol=1e-5, atol=1e-6)
    (last,) = backbone.feature_maps(images)
    assert last.shape == (2, backbone.config.width, *backbone.config.grid)
    with pytest.raises(ConfigError, match="records no attention"):
        backbone.forward_with_attention(images)


@pytest.mark.parametrize("suffix", ["", ".safetensors"])
def test_a_registered_network_is_saved_and_loaded(build, tmp_path, suffix):
    model = create_classifier("own", classes=["a", "b"], in_channels=2, image_size=(8, 12)).eval()
    randomise(model)
    loaded = vitrail.load(model.save(tmp_path / f"model{suffix}"))
    images = torch.randn(3, 2, 8, 12)
    assert torch.equal(loaded(images), model(images))
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for registry in (MODELS, ARCHITECTURES):
        del registry["own"]
    with pytest.raises(CheckpointError, match=r"architecture 'own'(.|\n)*register_model"):
        vitrail.load(tmp_path / f"model{suffix}")


@pytest.mark.slow
@pytest.mark.parametrize("build", slow_except([Map, Vector], {Vector}), indirect=True)
def test_a_registered_network_is_trained_and_resumed_to_the_same_bits(build, tmp_path):
    class Stop(vitrail.Callback):
        def on_step(self, event: Any) -> bool:
            if event.step == 2:
                raise KeyboardInterrupt
            return False

    whole = vitrail.train("digits", model="own", out=tmp_path / "whole", freeze_until=0, **HOW)
    with pytest.raises(KeyboardInterrupt):
        vitrail.train("digits", model="own", out=tmp_path / "cut", callbacks=[Stop()], **HOW)
    cut = vitrail.train("digits", model="own", out=tmp_path / "cut", **HOW)
    ours, theirs = (run.load().state_dict() for run in (cut, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert "own" in whole.report.read_text()
    assert vitrail.train("digits", init=whole.folder, out=tmp_path / "head", freeze_until=1, **HOW).figures["top1"] >= 0


def test_a_class_is_a_network_by_its_own_name(tmp_path):
    run = vitrail.train("digits", model=Map, out=tmp_path / "run", **HOW)
    assert run.load().config.architecture == "Map"
    assert vitrail.train("digits", model=Map, out=tmp_path / "run", **HOW).figures == run.figures
    again = vitrail.train("digits", model=run.load(), out=tmp_path / "again", **HOW)
    assert (again.folder / "init.safetensors").exists()
    for options, message in (
        ({"model": Map(1, (8, 8))}, "give the class or a function that builds it"),
        (
            {"model": lambda in_channels, image_size: Map(in_channels, image_size)},
            "must be able to build its network anew",
        ),
        ({"model": run.load(), "init": run.folder}, "init is given too"),
    ):
        with pytest.raises(ConfigError, match=message):
            vitrail.train("digits", out=tmp_path / "no", **HOW | options)


@pytest.mark.slow
@pytest.mark.parametrize("build", slow_except([Map, Vector], {Map}), indirect=True)
def test_a_registered_network_is_exported(build, tmp_path):
    model = create_classifier("own", classes=["a", "b"]).eval()
    randomise(model)
    vitrail.export(model.save(tmp_path / "model"), tmp_path / "model.onnx", quiet=True)
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(vitrail.load(tmp_path / "model.onnx")(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda in_channels, image_size: nn.Flatten(0), r"returned \(384,\) for two images"),
        (lambda in_channels, image_size: nn.Linear(3, 3), "fails on images"),
        (lambda: nn.Flatten(), "in_channels"),
    ],
)
def test_a_module_that_gives_no_features_is_refused(build, message):
    vitrail.register_model("own", build, image_size=8)
    with pytest.raises(ConfigError, match=message):
        create_backbone("own")


@pytest.mark.parametrize("name", ["vit-b16", "vit"])
def test_names_of_vitrail_are_not_taken(name):
    with pytest.raises(ConfigError, match=f"{name!r} is a model of vitrail"):
        vitrail.register_model(name, Map)


def test_running_statistics_and_bf16_weights_exclude_each_other(tmp_path):
    vitrail.register_model("own", Map, image_size=(8, 8))
    with pytest.raises(ConfigError, match="batch norms"):
        vitrail.train("digits", model="own", out=tmp_path, precision="bf16-weights", **HOW)


def test_a_registered_loss_takes_the_place_of_the_task_s():
    vitrail.register_loss("squared", squared)
    model = create_classifier("vit-ti16", classes=["a", "b", "c"], depth=1, image_size=16)
    randomise(model)
    images, targets = torch.randn(4, 3, 16, 16), torch.tensor([0, 2, 1, 2])
    loss, measured = Supervised(model.eval(), "squared")(images, targets)
    torch.testing.assert_close(loss, squared(model(images), targets))
    assert measured.keys() == {"top1"}


@pytest.mark.slow
def test_parameters_of_a_loss_are_trained(tmp_path):
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(10))

        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return squared(outputs * self.scale, targets)

    loss, seen = Weighted(), []

    class Watch(vitrail.Callback):
        def on_step(self, event: Any) -> None:
            seen.append(event.figures["loss"])

    run = vitrail.train("digits", loss=loss, out=tmp_path / "run", callbacks=[Watch()], **HOW)
    assert "loss: Weighted" in (run.folder / "config.yaml").read_text()
    assert torch.equal(loss.scale, torch.ones(10))  # a copy is trained
    (checkpoint,) = sorted((run.folder / "checkpoints").glob("*"))[-1:]
    assert any("criterion.scale" in path.read_bytes().decode("latin-1") for path in checkpoint.rglob("*.safetensors"))
    with pytest.raises(ConfigError, match="other settings"):
        vitrail.train("digits", out=tmp_path / "run", **HOW | {"set": (*HOW["set"], "objective.loss=softmax")})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "squered"}, "there is no loss 'squered'; did you mean|there is no loss 'squered'"),
        ({"loss": lambda outputs, targets: outputs.sum()}, "which has no name"),
        ({"metrics": {"not a name": balanced}}, "the metric is called 'not a name'"),
        ({"metrics": ["unknown"]}, "there is no metric 'unknown'"),
        ({"metrics": {"top1": balanced}}, "'top1' is a metric of vitrail"),
        ({"metrics": {"balanced_low": balanced}}, "as the end of an interval"),
        ({"callbacks": [vitrail.Callback]}, "callbacks has <class"),
        ({"callbacks": [lambda event: None]}, "give a list of objects of classes derived from vitrail.Callback"),
        ({"callbacks": vitrail.Callback()}, "callbacks is <vitrail"),
        ({"set": ("optim.groups={haed.*: {lr: 10}}",)}, "no parameter matches 'haed"),
        ({"set": ("optim.groups={head.*: {rate: 10}}",)}, "optim.groups gives 'head"),
        ({"set": ("optim.groups={head.*: {lr: -1}}",)}, "optim.groups gives 'head"),
    ],
)
def test_mistakes_are_refused_before_a_run_begins(tmp_path, options, message):
    vitrail.register_loss("squared", squared)
    with pytest.raises(ConfigError, match=message):
        vitrail.train("digits", out=tmp_path / "run", **HOW | options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda outputs, targets: outputs.sum(1), r"'mine' returned a tensor of shape \(4,\)"),
        (lambda outputs, targets: 1.0, "'mine' returned a float"),
        (lambda outputs, targets: outputs.detach().sum(), "'mine' has no gradient"),
    ],
)
def test_a_loss_that_is_no_scalar_with_a_gradient_is_refused(loss, message):
    vitrail.register_loss("mine", loss)
    model = create_classifier("vit-ti16", classes=["a", "b"], depth=1, image_size=16)
    with pytest.raises(ConfigError, match=message):
        Supervised(model, "mine")(torch.randn(4, 3, 16, 16), torch.tensor([0, 1, 1, 0]))


def test_a_metric_that_returns_no_number_is_named(tmp_path):
    with pytest.raises(ConfigError, match="the metric 'rows' returned"):
        vitrail.train("digits", metrics={"rows": lambda p, t: p.max(1)}, out=tmp_path / "run", **HOW)


@pytest.mark.slow
def test_a_metric_is_in_the_history_the_figures_and_the_report(tmp_path):
    run = vitrail.train("digits", metrics={"balanced": balanced}, out=tmp_path / "run", **HOW)
    again = vitrail.evaluate(run.folder, "digits", metrics=["balanced"], quiet=True, log=lambda line: None)
    probabilities = run.load().probabilities(torch.zeros(1, 10))
    assert probabilities.shape == (1, 10)
    table, counted = again.metric.table()[1], again.figures["balanced"]
    assert counted == pytest.approx(np.mean([float(row[2]) for row in table]) / 100, abs=1e-3)  # the mean recall
    assert run.figures["balanced"] == pytest.approx(counted)
    assert "val_balanced" in run.history[-1]
    assert "balanced" in run.report.read_text().lower()


@pytest.mark.slow
def test_an_objective_of_ones_own_is_pretrained_resumed_and_fine_tuned(tmp_path):
    vitrail.register_objective("turned", Turned)
    changes = {"set": (*HOW["set"], "objective.changes={hidden: 3}")}
    run = vitrail.pretrain("digits", objective="turned", out=tmp_path / "run", **HOW | changes)
    assert run.figures["loss"] > 0
    assert "whether an image is turned" in run.report.read_text()
    assert vitrail.pretrain("digits", objective="turned", out=tmp_path / "run", **HOW | changes).figures == run.figures
    assert vitrail.train("digits", init=run.folder, out=tmp_path / "tuned", **HOW).figures["top1"] >= 0
    with pytest.raises(ConfigError, match=r"there is no objective 'turnd'(.|\n)*turned"):
        vitrail.pretrain("digits", objective="turnd", out=tmp_path / "other", **HOW)
    with pytest.raises(ConfigError, match="a class derived from"):
        vitrail.register_objective("function", squared)  # type: ignore[bad-argument-type]


@pytest.mark.slow
def test_the_command_line_finds_what_plugins_register(tmp_path):
    (tmp_path / "own_plugin.py").write_text(MODULE)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "VITRAIL_PLUGINS": "own_plugin", "PYTHONPATH": path}
    command = [
        sys.executable,
        "-m",
        "vitrail",
        "train",
        "digits",
        "--model",
        "map",
        "--loss",
        "squared",
        "--steps",
        "2",
    ]
    command += ["--set", "save.metrics=[balanced]", "--set", "compute.tune=false", "--out", "run", "--json", "--quiet"]
    shell = functools.partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True, check=False)
    trained = shell(command, env=environment)
    assert trained.returncode == 0, trained.stderr
    assert "balanced" in json.loads(trained.stdout.splitlines()[-1])
    evaluate = [sys.executable, "-m", "vitrail", "evaluate", "run", "digits", "--quiet"]
    assert shell(evaluate, env=environment).returncode == 0
    unknown = shell(evaluate, env={**environment, "VITRAIL_PLUGINS": ""})
    assert unknown.returncode != 0
    assert "VITRAIL_PLUGINS" in unknown.stderr
    missing = shell(evaluate, env={**environment, "VITRAIL_PLUGINS": "nowhere"})
    assert "the module 'nowhere' in VITRAIL_PLUGINS cannot be imported" in missing.stderr
