"""The step: micro-steps add up to the batch, bad numbers are never applied, weights in bf16 have fp32 masters."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch

from tests.slow import slow_except
from vitrail.config.compose import compose_run
from vitrail.errors import ConfigError, DivergedError
from vitrail.inference import outputs
from vitrail.objectives.mae import MAE
from vitrail.runs.checkpoint import Checkpoint
from vitrail.runs.folder import RunFolder
from vitrail.training.prepare import prepare
from vitrail.training.state import Training, restore, snapshot
from vitrail.training.step import backward, take_step

SMALL = "model.changes={width: 32, depth: 2, heads: 2, mlp_width: 64, patch_size: [2, 2], pool: cls, prefix: [cls]}"


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run folders hold a lock; each test gives back those that it took."""
    opened: list[RunFolder] = []
    take = RunFolder.open
    monkeypatch.setattr(RunFolder, "open", lambda folder: (opened.append(folder), take(folder)))
    yield
    for folder in opened:
        folder.close()


def training(folder: Path, *settings: str, recipe: str = "small-data") -> Training:
    run, _ = compose_run(
        recipe=recipe, flags={"data": {"source": "digits"}, "schedule": {"steps": 4}}, settings=settings
    )
    place = RunFolder(folder)
    place.open()
    found = prepare(run, place, log=lambda line: None).training
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # a zero head would hide what the layers before it do
        for parameter in found.objective.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return found


def gradients(found: Training, micro: int) -> dict[str, torch.Tensor]:
    found.run = replace(found.run, data=replace(found.run.data, micro_batch=micro))
    backward(found, found.inputs(next(found.batches(0, 1))))
    return {name: p.grad.clone() for name, p in found.objective.named_parameters() if p.grad is not None}


def unlabelled(folder: Path, objective: str, changes: str, *settings: str, micro: int) -> Training:
    """Learning without labels in steps of 32 images, ``micro`` at a time."""
    small = SMALL.replace("cls, prefix: [cls]", "gap, prefix: []")
    words = [small, "model.name=vit-ti16", f"objective.changes={changes}", *settings]
    flags = {"data": {"source": "digits", "batch": 32, "micro_batch": micro}, "schedule": {"steps": 4}}
    run, _ = compose_run(flags={**flags, "objective": {"name": objective}}, settings=words)
    place = RunFolder(folder)
    place.open()
    return prepare(run, place, log=lambda line: None).training


def contrastive(folder: Path, micro: int) -> dict[str, torch.Tensor]:
    """The gradients of one batch of 32 whose images are compared with one another, in pieces of ``micro``."""
    found = unlabelled(folder, "moco", "{hidden: 16, out: 8}", "compute.precision=fp32", micro=micro)
    backward(found, found.inputs(next(found.batches(0, 1))))
    return {name: p.grad.clone() for name, p in found.objective.named_parameters() if p.grad is not None}


def assert_equal_to(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], tolerance: float) -> None:
    assert one.keys() == other.keys()
    scale = max(float(gradient.abs().max()) for gradient in one.values())
    worst = max(float((one[name] - other[name]).abs().max()) for name in one)
    assert worst <= tolerance * max(scale, 1.0), f"differs by {worst:.2g} of {scale:.2g}"


def test_four_micro_steps_give_the_gradient_of_the_whole_batch(tmp_path) -> None:
    mixed = ("data.batch=128", "augment.mixup=0.4", "augment.smoothing=0.1", "compute.precision=fp32")
    found = training(tmp_path, SMALL, *mixed, "model.name=vit-ti16")
    assert_equal_to(gradients(found, 128), gradients(found, 32), 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("objective", slow_except(["dino", "ibot"], {"dino"}))
@pytest.mark.parametrize("further", ["", ", koleo: 0.1, centring: sinkhorn, anchor: 1"], ids=["means", "compared"])
def test_centres_and_weights_move_alike_in_micro_steps(tmp_path, objective, further) -> None:
    """Eight images at a time or four: the centre of an update is that of the updates before."""
    changes = f"{{prototypes: 20, hidden: 16, bottleneck: 8, local_views: 2, freeze_last: 0.0{further}}}"
    states = []
    for micro in (8, 4, 32):
        found = unlabelled(
            tmp_path / f"{micro}", objective, changes, "compute.precision=fp32", "optim.name=sgd", micro=micro
        )
        for batch in islice(found.batches(0, 2), 2):
            take_step(found, batch)
        states.append(found.objective.state_dict())
    whole = states.pop()
    assert float(whole["centre"].norm()) > 0.01 and float(whole["share"]) == 0.5
    for state in states:
        for name, tensor in state.items():
            torch.testing.assert_close(tensor, whole[name], rtol=1e-4, atol=1e-6, msg=name)


def test_the_centre_is_copied_to_weights_in_bf16(tmp_path) -> None:
    changes = "{prototypes: 20, hidden: 16, bottleneck: 8}"
    found = unlabelled(tmp_path, "ibot", changes, "compute.precision=bf16-weights", micro=32)
    take_step(found, next(found.batches(0, 1)))
    copied, own = found.compute_model, found.trained
    for name in ("centre", "patch_centre", "share"):
        value = getattr(own, name)
        assert value.dtype == torch.float32 and value.any() and torch.equal(getattr(copied, name), value.bfloat16()), (
            name
        )


def test_the_t4_recipe_accumulates_the_gradient_of_128_images(tmp_path) -> None:
    found = training(tmp_path, SMALL, "compute.precision=fp32", "model.size=[16, 16]", recipe="t4")
    assert (found.run.data.batch, found.run.accumulate) == (128, 4)
    assert_equal_to(gradients(found, 128), gradients(found, 32), 1e-6)


def test_a_loss_that_is_not_finite_is_not_applied_and_its_batch_is_named(tmp_path) -> None:
    found = training(tmp_path, SMALL, "model.name=vit-ti16")
    batch = next(found.batches(0, 1))
    with torch.no_grad():
        next(iter(found.objective.encoder.layers()[-1].values())).fill_(float("nan"))
    before = {name: tensor.clone() for name, tensor in found.objective.state_dict().items()}
    with pytest.raises(DivergedError, match="not applied"):
        take_step(found, batch)
    for name, tensor in found.objective.state_dict().items():
        assert torch.equal(tensor.nan_to_num(7.0), before[name].nan_to_num(7.0))
    facts = json.loads((tmp_path / "diverged.json").read_text())
    assert (facts["step"], facts["keys"]) == (0, list(batch.keys))


def test_a_gradient_that_is_not_finite_is_not_applied(tmp_path) -> None:
    found = training(tmp_path, SMALL, "model.name=vit-ti16")
    before = {name: tensor.clone() for name, tensor in found.objective.state_dict().items()}
    next(found.objective.parameters()).register_hook(lambda gradient: gradient * torch.inf)
    with pytest.raises(DivergedError, match=r"the gradient's norm (inf|nan) at step 0; this update was not applied"):
        take_step(found, next(found.batches(0, 1)))
    assert math.isfinite(found.loss)
    assert all(torch.equal(tensor, before[name]) for name, tensor in found.objective.state_dict().items())


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-weights"])
def test_every_precision_learns_and_keeps_fp32_weights(tmp_path, precision: str) -> None:
    found = training(tmp_path, SMALL, f"compute.precision={precision}", "model.name=vit-ti16", "optim.name=adamw")
    batch = next(found.batches(0, 1))
    losses = [take_step(found, batch) for _ in range(4)]
    assert losses[-1] < losses[0]
    assert {parameter.dtype for parameter in found.objective.parameters()} == {torch.float32}


def test_a_snapshot_put_back_undoes_steps_to_the_bit(tmp_path) -> None:
    found = training(tmp_path, SMALL, "model.name=vit-ti16", "optim.ema=0.9")
    batches = [batch for batch, _ in zip(found.batches(0, 3), range(3))]
    take_step(found, batches[0])
    kept = Checkpoint(1, *snapshot(found), path=tmp_path)
    first = [take_step(found, batch) for batch in batches[1:]]
    after = snapshot(found)
    restore(found, kept)
    assert [take_step(found, batch) for batch in batches[1:]] == first
    again = snapshot(found)
    assert again[1] == after[1]
    for group, named in after[0].items():
        assert all(torch.equal(tensor, again[0][group][name]) for name, tensor in named.items())


def with_memory_for(most: int, whole: Callable) -> Callable:
    """The step of a device that is full beyond ``most`` images."""

    def step(images: torch.Tensor, targets: torch.Tensor) -> object:
        if len(images) > most:
            raise torch.OutOfMemoryError("the device is full")
        return whole(images, targets)

    return step


def test_out_of_memory_halves_the_micro_batch_and_gives_the_same_gradient(tmp_path, monkeypatch) -> None:
    settings = (SMALL, "model.name=vit-ti16", "compute.precision=fp32", "data.batch=64")
    expected = gradients(training(tmp_path / "whole", *settings), 64)
    found = training(tmp_path / "halved", *settings)
    monkeypatch.setattr(found, "compiled", with_memory_for(16, found.compiled))
    assert_equal_to(expected, gradients(found, 64), 1e-6)
    assert found.run.data.micro_batch == 16
    assert "no longer bit-comparable" in (tmp_path / "halved" / "log.txt").read_text()


def test_after_running_out_of_memory_evaluation_and_config_see_the_smaller_micro_batch(tmp_path, monkeypatch) -> None:
    found = training(tmp_path, SMALL, "model.name=vit-ti16", "data.batch=64")
    monkeypatch.setattr(found, "compiled", with_memory_for(16, found.compiled))
    sizes, read = [], outputs.eval_batches
    monkeypatch.setattr(
        outputs, "eval_batches", lambda *given, batch, **more: sizes.append(batch) or read(*given, batch=batch, **more)
    )
    found.evaluate(lambda: False)
    take_step(found, next(found.batches(0, 1)))
    found.evaluate(lambda: False)
    assert sizes == [64, 16]
    assert found.folder.read_config().data.micro_batch == 16


def test_out_of_memory_finds_a_divisor_of_any_batch(tmp_path, monkeypatch) -> None:
    found = training(tmp_path, SMALL, "model.name=vit-ti16", "data.batch=100", "data.micro_batch=25")
    monkeypatch.setattr(found, "compiled", with_memory_for(7, found.compiled))
    take_step(found, next(found.batches(0, 1)))
    assert found.run.data.micro_batch == 5
    assert "20 micro-steps of 5 images" in (tmp_path / "log.txt").read_text()


def test_a_failed_attempt_leaves_nothing_in_the_compute_copy(tmp_path) -> None:
    settings = (SMALL, "model.name=vit-ti16", "compute.precision=bf16-weights", "data.batch=32")
    expected = gradients(training(tmp_path / "clean", *settings), 32)
    found = training(tmp_path / "left", *settings)
    for parameter in found.compute_model.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert_equal_to(expected, gradients(found, 32), 1e-6)


@pytest.mark.parametrize("name", ["blocks.0.mlp.fc1.weight", "patch_embed.proj.weight"])
def test_an_overflow_in_one_part_of_fp16_moves_no_weight_and_halves_the_scale(tmp_path, name: str) -> None:
    found = training(tmp_path, SMALL, "compute.precision=fp32", "model.name=vit-ti16")  # Muon and AdamW, a part each
    found.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    batches = found.batches(0, 2)
    before = {name: tensor.clone() for name, tensor in found.objective.state_dict().items()}
    overflow = found.objective.encoder.get_parameter(name).register_hook(lambda gradient: gradient * float("inf"))
    take_step(found, next(batches))
    assert found.scaler.get_scale() == 2.0**9
    assert all(torch.equal(tensor, before[name]) for name, tensor in found.objective.state_dict().items())
    overflow.remove()
    take_step(found, next(batches))
    moved = found.objective.state_dict()
    assert all(tensor.isfinite().all() for tensor in moved.values())
    assert any(not torch.equal(tensor, before[name]) for name, tensor in moved.items())


def test_with_all_but_the_head_frozen_muon_has_nothing_to_do(tmp_path) -> None:
    found = training(tmp_path, SMALL, "model.name=vit-ti16", "model.head_only=true")
    before = {name: tensor.clone() for name, tensor in found.objective.encoder.state_dict().items()}
    take_step(found, next(found.batches(0, 1)))
    after = found.objective.encoder.state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"head.weight", "head.bias"}


def test_the_first_blocks_are_frozen_and_the_rest_is_trained(tmp_path) -> None:
    found = training(tmp_path, SMALL, "model.name=vit-ti16", "model.changes.depth=3", "model.freeze_until=2")
    before = {name: tensor.clone() for name, tensor in found.objective.encoder.state_dict().items()}
    take_step(found, next(found.batches(0, 1)))
    after = found.objective.encoder.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert {name.split(".")[1] for name in moved if name.startswith("blocks.")} == {"2"}
    assert {name.split(".")[0] for name in moved} == {"blocks", "norm", "head"}
    with pytest.raises(ConfigError, match=r"model\.freeze_until is 4, and the network has 3 blocks"):
        training(tmp_path / "other", SMALL, "model.name=vit-ti16", "model.changes.depth=3", "model.freeze_until=4")


def test_images_that_are_compared_give_the_gradient_of_the_whole_batch_in_any_pieces(tmp_path) -> None:
    whole = contrastive(tmp_path / "whole", 32)
    assert_equal_to(whole, contrastive(tmp_path / "parts", 8), 1e-5)
    assert {name.split(".")[0] for name in whole} == {"encoder", "projector", "predictor"}


def test_a_working_copy_in_bf16_learns_from_images_that_nobody_rounded(tmp_path, monkeypatch) -> None:
    sizes = "{decoder_width: 16, decoder_depth: 1, decoder_heads: 2}"
    found = unlabelled(tmp_path, "mae", sizes, "compute.precision=bf16-weights", micro=32)
    targets, cut = [], MAE._cut
    monkeypatch.setattr(MAE, "_cut", lambda self, images: targets.append(cut(self, images)) or targets[-1])
    inputs = found.inputs(next(found.batches(0, 1)))
    backward(found, inputs)
    assert next(found.compute_model.parameters()).dtype == torch.bfloat16
    assert torch.equal(targets[0], cut(found.objective, inputs[0]))
    assert not torch.equal(targets[0], targets[0].bfloat16())
