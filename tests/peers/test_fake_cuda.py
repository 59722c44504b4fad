"""Networks and objectives on a GPU that is not there: tensors have shapes and a device, and no values.

A tensor on another device is an error of torch, and so is all for which a host would wait: a value that is read, a shape that
follows from values. Only a build of torch with CUDA can do it, as in the environment of the peers, and only forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from tests.models.tiny import TINY
from tests.tasks.dense_models import create, draw_images
from tests.training import on_ranks
from vitrail.config.compose import request
from vitrail.data.preprocessing import Preprocessing
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.objectives.supervised import Supervised
from vitrail.runs.folder import RunFolder
from vitrail.tasks.classification import create_classifier
from vitrail.training.objective import OBJECTIVES
from vitrail.training.prepare import prepare
from vitrail.weights.tokenizers import save_tokenizer

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA"),
]


@contextmanager
def on_gpu() -> Iterator[None]:
    with FakeTensorMode(), torch.no_grad():
        yield


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
    given = (
        *given,
        *([f"objective.tokenizer={tokenizer}"] if name == "beit" else []),
        "schedule.steps=1",
        "data.batch=8",
    )
    run, _ = request(flags={"data": {"source": "digits"}, "objective": {"name": name}}, settings=given)
    folder = RunFolder(tmp_path / "run")
    folder.open()
    try:
        training = prepare(run, folder, say=lambda line: None).training
        inputs = training.inputs(next(training.batches(0, 1)))
    finally:
        folder.close()
    with on_gpu():
        loss, measured = move(training.objective)(*like(inputs))
    assert {value.device.type for value in (loss, *measured.values())} == {"cuda"}


@pytest.mark.parametrize("task", ["detection", "segmentation"])
def test_the_outputs_of_dense_tasks(task):
    model = create(task)
    with on_gpu():
        found = move(model)(like(draw_images(model)))
    assert found.device.type == "cuda"


@pytest.mark.parametrize(
    "fault", [lambda x: x + torch.ones(x.shape[-1]), lambda x: x * float(x.sum()), lambda x: x[x > 0]]
)
def test_a_fault_is_an_error(fault):
    """A tensor on the CPU, a value that is read, a shape that follows from values."""
    with on_gpu(), pytest.raises((RuntimeError, DataDependentOutputException, DynamicOutputShapeException)):
        fault(torch.empty(2, 3, device="cuda"))
