"""What a GPU computes beside what a CPU computes from the same values: `make test-gpu`.

Without a GPU, as in CI, these tests compare a CPU with itself: a rehearsal, which shows that their code works and nothing more.
Those for which that would mean nothing are skipped there.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import vitrail
from tests.data.augment.test_apply import ids_of, photographs
from tests.models.conftest import shaken
from tests.models.tiny import SHALLOW, TINY
from tests.tasks.dense_models import create, draw_images
from tests.training import on_ranks
from tests.training.stopping import stopped_after
from tests.training.test_loop import SETTINGS as SMALL
from vitrail.config.compose import compose_run
from vitrail.data.augment.apply import augment
from vitrail.data.augment.policy import POLICIES
from vitrail.models.attention import attend
from vitrail.objectives import OBJECTIVES
from vitrail.objectives.supervised import Supervised
from vitrail.runs.checkpoint import list_checkpoints, step_of
from vitrail.runs.folder import RunFolder
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.training.prepare import prepare
from vitrail.training.step import take_step
from vitrail.weights.native import save_model

DEVICE = torch.device(os.environ.get("VITRAIL_TEST_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu"))
pytestmark = pytest.mark.gpu
only_cuda = pytest.mark.skipif(DEVICE.type != "cuda", reason="a CPU beside itself says nothing about this")
STEPS = 24
# one of each architecture, and what has kernels of its own
NAMES = [*SHALLOW, "vit, windows", "vit, stem", "beit, one table", "pvt v2, linear"]

if DEVICE.type == "cuda" and not torch.cuda.is_available():
    pytest.exit("there is no CUDA device here; `make test-gpu DEVICE=cpu` rehearses the tests", 2)


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """Convolutions in fp32, which torch computes in TF32 by default."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends.cudnn, "allow_tf32", False)
        yield


def assert_close(found: Tensor, expected: Tensor, share: float) -> None:
    """Within a share of the largest value."""
    assert found.device.type == DEVICE.type
    expected = expected.double()
    difference = (found.detach().cpu().double() - expected).abs().max()
    assert difference <= share * expected.abs().max().clamp(min=1e-6), (difference, expected.abs().max())


def gradients(objective: Supervised, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The loss and the gradient of every parameter, in one vector each."""
    loss, _ = objective(images, labels)
    loss.backward()
    return {"loss": loss} | {
        name: parameter.grad for name, parameter in objective.named_parameters() if parameter.grad is not None
    }


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_gradients_of_every_architecture(name: str) -> None:
    config = TINY[name]
    objective = Supervised(create_classifier(config, classes=5)).eval()
    shaken(objective)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(3, config.in_channels, *config.image_size, generator=generator)
    labels = torch.tensor([0, 4, 2])
    moved = copy.deepcopy(objective).to(DEVICE)
    expected, found = gradients(objective, images, labels), gradients(moved, images.to(DEVICE), labels.to(DEVICE))
    largest = max(value.abs().max() for value in expected.values())
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        assert (found[key].cpu() - value).abs().max() <= 1e-4 * max(value.abs().max(), 1e-3 * largest), key
    with torch.no_grad(), torch.autocast(DEVICE.type, torch.bfloat16):
        logits = moved.encoder(images.to(DEVICE))
    assert_close(logits, objective.encoder(images).detach(), 0.15)


@only_cuda
@pytest.mark.parametrize("name", NAMES)
def test_every_architecture_compiled(name: str) -> None:
    config = TINY[name]
    model = shaken(create_classifier(config, classes=5)).to(DEVICE).eval()
    images = torch.randn(3, config.in_channels, *config.image_size, device=DEVICE)
    with torch.inference_mode():
        assert_close(torch.compile(model)(images), model(images).cpu(), 1e-4)


@pytest.mark.parametrize("tokens", [5, 197])
def test_both_ways_of_attention(tokens: int) -> None:
    q, k, v = torch.randn(3, 2, 3, tokens, 64)
    expected = attend(q.double(), k.double(), v.double(), path="plain")
    for path in ("plain", "fused"):
        assert_close(attend(q.to(DEVICE), k.to(DEVICE), v.to(DEVICE), path=path), expected, 1e-4)


@pytest.mark.parametrize("task", ["detection", "segmentation", "instances"])
def test_the_outputs_of_dense_tasks(task: str) -> None:
    model = create(task)
    images = draw_images(model)
    with torch.inference_mode():
        expected = model(images)
        assert_close(copy.deepcopy(model).to(DEVICE)(images.to(DEVICE)), expected, 1e-3)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_augmentation(policy: str) -> None:
    images, ids = photographs(), ids_of()
    work = partial(augment, ids=ids, policy=POLICIES[policy], size=(32, 40), seed=3, cropped=False)
    (expected, _), (found, _) = work(images), work(images.to(DEVICE))
    assert found.device.type == DEVICE.type
    off = (found.cpu().int() - expected.int()).abs() > 1
    assert off.float().mean() < 0.002  # a place that falls on a boundary may be rounded to either side


def train(out: Path, *settings: str, steps: int = STEPS) -> None:
    vitrail.train("digits", out=out, device=str(DEVICE), steps=steps, settings=(*SMALL, *settings), quiet=True)


@pytest.mark.parametrize(
    "settings",
    [
        ("compute.precision=fp32",),
        (
            "compute.precision=bf16",
            "data.micro_batch=8",
            "optim.ema=0.9",
            "augment={mixup: 0.2, cutmix: 1.0, layers: 2}",
        ),
        ("compute.precision=bf16-weights", "optim.name=adamw"),
        pytest.param(("compute.precision=fp16", "optim.clip=1.0"), marks=only_cuda),
        pytest.param(("compute.compile=true", "compute.precision=bf16"), marks=only_cuda),
    ],
    ids=lambda settings: settings[0],
)
def test_a_training_is_stopped_resumed_and_evaluated_on_a_cpu(tmp_path: Path, settings) -> None:
    settings = ("compute.compile=false", *settings)
    with stopped_after(STEPS // 2):
        train(tmp_path / "run", *settings)
    assert step_of(list_checkpoints(tmp_path / "run" / "checkpoints")[-1]) == STEPS // 2
    train(tmp_path / "run", *settings)
    rows = RunFolder(tmp_path / "run").metrics()
    assert rows[-1]["step"] == STEPS
    evaluated = [
        vitrail.evaluate(tmp_path / "run", "digits", device=device, precision="fp32", quiet=True).figures
        for device in ("cpu", str(DEVICE))
    ]
    assert evaluated[0]["nll"] == pytest.approx(evaluated[1]["nll"], rel=1e-3)
    assert evaluated[0]["nll"] < np.log(10)  # it has learnt something


@pytest.mark.parametrize("name", ["supervised", *sorted(set(OBJECTIVES) - {"beit", "tokenizer"})])
def test_two_steps_of_every_objective(tmp_path: Path, name: str) -> None:
    given = ("schedule.steps=2", "data.batch=8", "compute.compile=false", f"compute.device={DEVICE}")
    objective = {"name": name}
    if name == "distil":
        save_model(tmp_path / "teacher", create_classifier(TINY["vit"], classes=list("abcdefg")))
        objective["teacher"] = str(tmp_path / "teacher")
    flags = {"data": {"source": "digits"}, "objective": objective}
    run, _ = compose_run(flags=flags, settings=(*on_ranks.settings("vit"), *given))
    folder = RunFolder(tmp_path / "run")
    folder.open()
    try:
        training = prepare(run, folder, log=lambda line: None).training
        for batch in training.batches(0, 2):
            take_step(training, batch)
        moved = training.objective.state_dict()
    finally:
        folder.close()
    assert {value.device.type for value in moved.values()} == {DEVICE.type}
    assert all(value.isfinite().all() for value in moved.values())


@only_cuda
@pytest.mark.parametrize("optimiser", ["adamw", "muon", "sgd"])
def test_a_step_makes_the_host_wait_for_nothing(tmp_path: Path, optimiser: str) -> None:
    given = (
        "augment.mixup=0.8",
        "optim.clip=1.0",
        "optim.ema=0.9",
        f"optim.name={optimiser}",
        f"compute.device={DEVICE}",
    )
    flags = {"data": {"source": "digits"}, "schedule": {"steps": 8}}
    run, _ = compose_run(flags=flags, settings=(*SMALL, *given, "compute.compile=false"))
    folder = RunFolder(tmp_path / "run")
    folder.open()
    try:
        training = prepare(run, folder, log=lambda line: None).training
        batches = training.batches(0, 4)
        take_step(training, next(batches))  # allocates
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(3):
            take_step(training, next(batches))
    finally:
        torch.cuda.set_sync_debug_mode("default")
        folder.close()


@only_cuda
def test_out_of_memory_makes_the_micro_batch_smaller(tmp_path: Path) -> None:
    free, total = torch.cuda.mem_get_info()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(2**30, free // 2) / total)
    try:
        pictures = np.zeros((512, 64, 64, 3), np.uint8), np.arange(512) % 2
        settings = (
            "model.changes={patch_size: [4, 4]}",
            "data.batch=256",
            "compute.compile=false",
            "compute.precision=fp32",
        )
        how = {"device": str(DEVICE), "steps": 2, "quiet": True, "model": "vit-s16"}
        vitrail.train(pictures, out=tmp_path / "run", settings=settings, **how)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    micro = RunFolder(tmp_path / "run").read_config().data.micro_batch
    assert micro is not None and micro < 256


def test_predictions_and_explanations(tmp_path: Path) -> None:
    model = shaken(create_classifier(TINY["vit"], classes=("ant", "bee", "cat")))
    save_model(tmp_path / "model", model.eval())
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 48, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    images = sorted(tmp_path.glob("*.png"))
    for device in ("cpu", str(DEVICE)):
        how = {"device": device, "precision": "fp32", "quiet": True}
        out = tmp_path / device
        vitrail.predict(tmp_path / "model", images, out=out.with_suffix(".jsonl"), **how)
        vitrail.embed(tmp_path / "model", images, out=out.with_suffix(".npy"), **how)
    rows = [(tmp_path / f"{device}.jsonl").read_text().splitlines() for device in ("cpu", DEVICE)]
    assert [line.split('"score"')[0] for line in rows[0]] == [line.split('"score"')[0] for line in rows[1]]
    vectors = [np.load(tmp_path / f"{device}.npy") for device in ("cpu", DEVICE)]
    np.testing.assert_allclose(vectors[1], vectors[0], atol=1e-3 * np.abs(vectors[0]).max())
