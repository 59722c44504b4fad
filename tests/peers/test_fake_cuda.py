"""Networks and objectives on a GPU that is not there: tensors have shapes and a device, and no values.

A tensor on another device is an error of torch, and so is all for which a host would wait: a value that is read, a shape that
follows from values. Only a build of torch with CUDA can do it, as in the environment of the peers, and only forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.data.augment.test_apply import KINDS
from tests.models.tiny import TINY
from tests.tasks.dense_models import create, draw_images
from tests.training import on_ranks
from vitrail.config.compose import compose_run
from vitrail.data.augment.apply import augment
from vitrail.data.augment.mixing import mix
from vitrail.data.augment.operations import PASSES
from vitrail.data.augment.placement import Frames, place
from vitrail.data.augment.policy import POLICIES
from vitrail.data.preprocessing import Preprocessing
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.objectives import OBJECTIVES
from vitrail.objectives.supervised import Supervised
from vitrail.runs.folder import RunFolder
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.training.prepare import prepare
from vitrail.weights.native import save_model
from vitrail.weights.tokenizers import save_tokenizer

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA"),
]


@contextmanager
def on_gpu() -> Iterator[None]:
    with FakeTensorMode(), torch.no_grad(), NoWaiting():
        yield


class NoWaiting(TorchDispatchMode):
    """Refuses a copy from the host for which it would wait, until the GPU has done all that it was given before."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and args[0].device.type == "cpu" and not kwargs.get("non_blocking"):
            device = torch.device(kwargs.get("device") or "cpu")
            assert device.type == "cpu", f"the host waits for a copy of {tuple(args[0].shape)} to the GPU"
        return func(*args, **kwargs)


@pytest.fixture(autouse=True)
def nothing_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinning takes the driver of a GPU."""
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)


def move(module: nn.Module) -> nn.Module:
    """``module`` with parameters and buffers on the GPU."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(like(parameter), requires_grad=parameter.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = like(buffer)
    return module


def like(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty(value.shape, dtype=value.dtype, device="cuda")
    return tuple(map(like, value)) if isinstance(value, tuple) else value


@pytest.mark.parametrize("name", TINY)
def test_every_architecture(name):
    """The loss of a batch, and the features and answers of an evaluation."""
    config = TINY[name]
    objective = Supervised(create_classifier(config, classes=5))
    with on_gpu():
        move(objective)
        images = torch.empty(3, config.in_channels, *config.image_size, device="cuda")
        loss, measured = objective(images, torch.empty(3, 5, device="cuda"))
        model = objective.eval().encoder
        found = (loss, *measured.values(), model(images), model.features(images))
    assert {value.device.type for value in found} == {"cuda"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer") / "model"
    save_tokenizer(
        folder,
        Tokenizer(TokenizerConfig(in_channels=1, patch_size=(8, 8), width=12, levels=(4, 4))),
        Preprocessing.paper((32, 32), channels=1),
    )
    return str(folder)


@pytest.mark.parametrize("name", ["supervised", *OBJECTIVES])
def test_every_objective(tokenizer, tmp_path, name):
    changes = "model.changes={patch_size: [8, 8], width: 12, depth: 1, levels: [4, 4]}"
    given = ("model.size=[32, 32]", changes, *on_ranks.PLAIN) if name == "tokenizer" else on_ranks.settings("vit")
    if name == "distil":
        save_model(tmp_path / "teacher", create_classifier(TINY["vit"], classes=(), in_channels=1))
    read = {"beit": f"objective.tokenizer={tokenizer}", "distil": f"objective.teacher={tmp_path / 'teacher'}"}
    given = (
        *given,
        *([read[name]] if name in read else []),
        "schedule.steps=1",
        "data.batch=8",
        "augment.pad_mode=reflect",  # zeros take the values of matrices, which are on the host
    )
    run, _ = compose_run(flags={"data": {"source": "digits"}, "objective": {"name": name}}, settings=given)
    folder = RunFolder(tmp_path / "run")
    folder.open()
    try:
        training = prepare(run, folder, log=lambda line: None).training
        batch = next(training.batches(0, 1))
    finally:
        folder.close()
    with on_gpu():
        batch = replace(batch, images=like(batch.images), targets=like(batch.targets))
        if name == "beit":
            move(training.inputs.frozen.tokenizer)
        if name == "distil":
            move(training.inputs.frozen.model)
        inputs = training.inputs(batch)
        loss, measured = move(training.objective)(*inputs)
    assert {value.device.type for value in (loss, *measured.values())} == {"cuda"}


@pytest.mark.parametrize("policy", KINDS)
def test_every_policy(policy, monkeypatch):
    """Augmentation as it comes from workers and of arrays, with mixing."""
    monkeypatch.setitem(PASSES, "blur", lambda images, _: images.clone())  # reads its deviations, which are on the host
    policy = replace(POLICIES[policy], mixup=0.8, cutmix=1.0, erase=0.5, pad_mode="reflect")
    ids = np.stack([np.zeros(9), np.arange(9), np.zeros(9)], axis=1).astype(np.int64)
    with on_gpu():
        images = torch.empty(9, 3, 48, 60, dtype=torch.uint8, device="cuda")
        for cropped in (True, False):
            made, _ = augment(images, ids, policy, size=(48, 60), seed=0, cropped=cropped)
            mixed, targets = mix(made.float(), torch.empty(9, 5, device="cuda"), ids, policy, seed=0)
            assert {made.device.type, mixed.device.type, targets.device.type} == {"cuda"}


@pytest.mark.parametrize("task", ["detection", "segmentation", "instances"])
def test_the_outputs_of_dense_tasks(task):
    model = create(task)
    with on_gpu():
        found = move(model)(like(draw_images(model)))
    assert found.device.type == "cuda"


def test_the_loss_of_a_segmenter():
    """A detector takes the boxes of a batch back to the host, where they are moved."""
    model, size = create("segmentation"), (32, 32)
    placement = place(Frames.whole(2, size), size, np.tile(np.eye(3), (2, 1, 1)), size)
    with on_gpu():
        targets = model.targets.move(torch.empty(2, *size, dtype=torch.uint8, device="cuda"), placement)
        loss = model.loss(move(model)(like(draw_images(model))), targets)
    assert {part.device.type for part in (*targets, loss)} == {"cuda"}


@pytest.mark.parametrize(
    "fault",
    [
        lambda x: x + torch.ones(x.shape[-1]),
        lambda x: x * float(x.sum()),
        lambda x: x[x > 0],
        lambda x: x + torch.ones(x.shape[-1]).to(x.device),
    ],
)
def test_a_fault_is_an_error(fault):
    """A tensor on the CPU, a value that is read, a shape that follows from values, a copy for which the host waits."""
    errors = (RuntimeError, DataDependentOutputException, DynamicOutputShapeException, AssertionError)
    with on_gpu(), pytest.raises(errors):
        fault(torch.empty(2, 3, device="cuda"))
