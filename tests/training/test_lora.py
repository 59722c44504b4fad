"""Training of adapters: what moves, what is saved, and how a run goes on."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import vitrail
from tests.models.conftest import shaken
from tests.models.tiny import TINY
from tests.tasks.dense_models import create as create_dense
from tests.training.stopping import stopped_after
from vitrail.config.compose import compose_run
from vitrail.config.schema import AdapterSettings, ModelSettings
from vitrail.errors import ConfigError, DataError
from vitrail.models import Backbone
from vitrail.models.adapters import ADAPTER, add_adapters, has_adapters
from vitrail.objectives.supervised import Supervised
from vitrail.runs.folder import RunFolder
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.training.optimizer import Muon, find_head_names, select_trainable
from vitrail.training.prepare import Prepared, prepare
from vitrail.training.step import backward, take_step
from vitrail.weights.native import save_model

STEPS = 4
HOW: dict[str, Any] = {"lora": 2, "batch": 16, "lr": 3e-3, "quiet": True}
HOW["set"] = ["compute.tune=false", "save.evaluations=2", "save.log_every=1", "save.every=1000000", "compute.threads=1"]
CONFIG = replace(TINY["vit"], image_size=(8, 8), patch_size=(4, 4), in_channels=1, classes=10)


def write_base(path: Path, seed: int = 0) -> Path:
    model = create_classifier(CONFIG, classes=[f"class {label}" for label in range(10)])
    shaken(model.backbone, seed)
    return save_model(path, model)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("base") / "base.safetensors")


@pytest.fixture
def prepared(tmp_path, base):
    """Returns a function that prepares a training of adapters with random updates."""
    folders = []

    def make(*settings: str) -> Prepared:
        flags = {"data": {"source": "digits", "batch": 16}, "schedule": {"steps": STEPS}, "model": {"init": str(base)}}
        given = ("model.adapters.rank=2", "compute.tune=false", "compute.threads=1", "schedule.warmup=0", *settings)
        run, _ = compose_run(flags=flags, settings=given)
        folder = RunFolder(tmp_path / f"run-{len(folders)}")
        folder.open()
        folders.append(folder)
        found = prepare(run, folder, log=lambda line: None)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():  # zero adapters and a zero head would hide the layers before them
            for parameter in found.training.optimiser.parameters.values():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
        return found

    yield make
    for folder in folders:
        folder.close()


@pytest.mark.parametrize("optimiser", ["adamw", "muon", pytest.param("sgd", marks=pytest.mark.slow)])
def test_steps_change_the_adapters_and_the_head_only(prepared, optimiser):
    training = prepared(f"optim.name={optimiser}").training
    before = {name: tensor.clone() for name, tensor in training.objective.state_dict().items()}
    for step in range(3):
        take_step(training, next(training.batches(step, step + 1)))
    after = training.objective.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    expected = {name for name in before if ADAPTER in name} | {"encoder.head.weight", "encoder.head.bias"}
    assert moved == expected == training.optimiser.parameters.keys()
    # an orthogonal step would give the product of both matrices equal singular values
    matrices = [part for part in training.optimiser.parts if isinstance(part, Muon)]
    assert not any(group["params"] for part in matrices for group in part.param_groups)


def test_adapters_have_the_full_rate_in_every_layer_and_no_decay(prepared):
    training = prepared("optim.layer_decay=0.5", "optim.weight_decay=0.3").training
    groups = [group for part in training.optimiser.parts for group in part.param_groups]
    found = {name: (group["scale"], group["weight_decay"]) for group in groups for name in group["names"]}
    assert {found[name] for name in found if ADAPTER in name} == {(1.0, 0.0)}
    assert found["encoder.head.weight"] == (1.0, 0.3)


def test_micro_steps_add_up_to_the_batch(prepared):
    training = prepared("augment.mixup=0", "data.batch=8").training
    found = []
    for micro in (8, 2):
        training.run = replace(training.run, data=replace(training.run.data, micro_batch=micro))
        training.optimiser.zero_grad()
        backward(training, training.inputs(next(training.batches(0, 1))))
        found.append({name: p.grad.clone() for name, p in training.optimiser.parameters.items()})
    for name in found[0]:
        torch.testing.assert_close(found[1][name], found[0][name], rtol=1e-4, atol=1e-6)
        assert found[0][name].abs().max() > 0


def test_in_bf16_weights_the_compute_model_has_adapters_of_its_own(prepared):
    training = prepared("compute.precision=bf16-weights").training
    before = {name: parameter.detach().clone() for name, parameter in training.compute_model.named_parameters()}
    take_step(training, next(training.batches(0, 1)))
    moved = {name for name, p in training.compute_model.named_parameters() if not torch.equal(p, before[name])}
    assert any(ADAPTER in name for name in moved) and all(ADAPTER in name or ".head." in name for name in moved)


def test_a_stopped_run_resumes_bit_for_bit_from_adapters_alone(tmp_path, base):
    how = {**HOW, "init": base, "steps": STEPS, "set": [*HOW["set"], "optim.ema=0.9"]}
    whole = vitrail.train("digits", out=tmp_path / "whole", **how)
    with stopped_after(2):
        vitrail.train("digits", out=tmp_path / "cut", **how)
    (checkpoint,) = (tmp_path / "cut" / "checkpoints").iterdir()
    for group in ("objective", "average"):
        names = load_file(checkpoint / f"{group}.safetensors").keys()
        assert all(ADAPTER in name or name.startswith("encoder.head.") for name in names) and any(
            ADAPTER in name for name in names
        )
    cut = vitrail.train("digits", out=tmp_path / "cut", **how)
    ours, theirs = (run.load().state_dict() for run in (cut, whole))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_a_run_whose_base_has_changed_is_not_resumed(tmp_path, base):
    own = shutil.copy(base, tmp_path / "base.safetensors")
    how = {**HOW, "init": own, "steps": STEPS}
    with stopped_after(2):
        vitrail.train("digits", out=tmp_path / "run", **how)
    write_base(tmp_path / "base.safetensors", seed=5)
    with pytest.raises(DataError, match="init: other weights than then"):
        vitrail.train("digits", out=tmp_path / "run", **how)
    shutil.copy(base, own)
    vitrail.train("digits", out=tmp_path / "run", **how)


@pytest.mark.slow
def test_the_saved_model_is_merged_and_gives_the_same_predictions(tmp_path, base):
    class Keep(vitrail.Callback):
        def on_step(self, event: Any) -> bool:
            self.model = event.model
            self.path = vitrail.save(event.model, tmp_path / "live.safetensors")
            return False

    keep = Keep()
    run = vitrail.train("digits", init=base, out=tmp_path / "run", steps=STEPS, callbacks=[keep], **{**HOW, "lr": 0.05})
    assert "rank: 2" in (tmp_path / "run" / "config.yaml").read_text()
    merged, live, start = run.load(), vitrail.load(keep.path), vitrail.load(base)
    assert has_adapters(keep.model) and not has_adapters(merged) and not has_adapters(live)
    assert merged.state_dict().keys() == start.state_dict().keys()
    images = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = keep.model.eval()(images)
        assert (start.eval()(images) - expected).abs().max() > 1e-2
        for model in (merged, live):
            torch.testing.assert_close(model.eval()(images), expected, atol=1e-5, rtol=1e-4)


def test_the_head_learns_first_if_asked(prepared):
    training = prepared("model.head_first=0.5").training
    before = {name: p.detach().clone() for name, p in training.optimiser.parameters.items()}
    for step in range(STEPS):
        training.freeze_backbone()
        take_step(training, next(training.batches(step, step + 1)))
        moved = {name for name, p in training.optimiser.parameters.items() if not torch.equal(p, before[name])}
        assert any(ADAPTER in name for name in moved) == (step >= STEPS // 2)
        assert "encoder.head.weight" in moved


@pytest.mark.parametrize("task", ["detection", "segmentation", "instances"])
@pytest.mark.parametrize("blocks", [None, 1], ids=["all", "last"])
def test_dense_tasks_train_adapters_neck_and_head(task, blocks):
    model = create_dense(task)
    add_adapters(model.backbone, rank=2, blocks=blocks)
    objective = Supervised(model)
    trained = select_trainable(objective, ModelSettings(adapters=AdapterSettings(rank=2)))
    own = {f"own.{name}" for name, _ in model.own.named_parameters()}
    adapters = {name for name, _ in objective.named_parameters() if ADAPTER in name}
    assert trained.keys() == own | adapters and adapters
    assert find_head_names(objective) == own


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"init": None}, "no weights|none are given"),
        ({"head_only": True}, r"rank is 2 with model\.head_only"),
        ({"freeze_until": 1}, r"rank is 2 with model\.freeze_until"),
        ({"lora": -1}, r"rank is -1"),
        ({"lora": 17}, "rank 17 for blocks.0.attn.qkv, whose weight is 16 x 16"),
        ({"set": ["model.adapters.blocks=9"]}, "the last 9 blocks, and the network has 3"),
        ({"set": ["model.adapters.blocks=0"]}, "blocks is 0"),
        ({"set": ["model.adapters.alpha=0"]}, "alpha is 0"),
        ({"set": ["model.adapters.layers=[fc9]"]}, "no layer 'fc9'"),
        ({"set": ["model.adapters.slices=kq"]}, "slices is 'kq'"),
        ({"set": ["model.adapters.rnak=9"]}, r"unknown setting 'model\.adapters\.rnak'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path, base, options, message):
    with pytest.raises(ConfigError, match=message):
        vitrail.train("digits", out=tmp_path / "run", **{**HOW, "init": base, "steps": 2, **options})
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_adapters_of_a_convolutional_network_are_refused(tmp_path):
    model = create_classifier(
        replace(TINY["bit"], in_channels=1), classes=[str(label) for label in range(TINY["bit"].classes)]
    )
    assert isinstance(model.backbone, Backbone)
    with pytest.raises(ConfigError, match="no dense layers"):
        vitrail.train("digits", init=model, out=tmp_path / "run", **{**HOW, "steps": 2})
