"""The operations of a training against those computed by hand, and the time of its steps and evaluations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

import vitrail
from tests.slow import slow_except
from vitrail.config.compose import compose_run
from vitrail.config.schema import Run
from vitrail.data.preprocessing import Preprocessing
from vitrail.models import ViTConfig, cost_of
from vitrail.models.cost import count_operations, on_meta, step_operations
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.objectives import OBJECTIVES
from vitrail.reports.facts import describe_compute
from vitrail.runs.folder import RunFolder
from vitrail.runtime.progress import log_nothing
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.text import large
from vitrail.training.cost import measure_cost, run_operations
from vitrail.training.dry_run import dry_run
from vitrail.training.prepare import prepare
from vitrail.training.state import Training
from vitrail.training.validation import read_options
from vitrail.weights.native import save_model
from vitrail.weights.tokenizers import save_tokenizer

# N tokens of P x P pixels in images of 8 x 8 with one channel, width D, L blocks, MLP of width M, K classes
P, N, D, L, M, K = 4, 4, 24, 3, 40, 10
NETWORK = (
    "model.name=vit-ti16",
    f"model.changes={{width: {D}, depth: {L}, heads: 2, mlp_width: {M}, patch_size: [{P}, {P}], pool: gap, prefix: [],"
    " gelu: exact, positions: sincos2d, patch_dropout: 0.0}",
)
QUICK = ("compute.threads=1", "compute.tune=false", "save.evaluations=1", "save.watched=30")
STEPS, BATCH = 4, 12
EMBEDDING = N * D * P * P
BLOCKS = L * (4 * N * D * D + 2 * N * N * D + 2 * N * D * M)
HEAD = D * K
# a product of the forward pass is two in the backward pass, but for that which makes the gradient of the images
SUPERVISED = 2 * (2 * EMBEDDING + 3 * BLOCKS + 3 * HEAD)
HEAD_ONLY = 2 * (EMBEDDING + BLOCKS + 2 * HEAD)


def count(out: Path, *more: str, objective: str = "supervised", **flags) -> float:
    """The operations of a short run, for each image."""
    given = (*QUICK, f"schedule.steps={STEPS}", f"data.batch={BATCH}", *(() if objective == "tokenizer" else NETWORK))
    asked = {"data": {"source": "digits"}, "objective": {"name": objective, **flags}}
    run, _ = compose_run(flags=asked, settings=(*given, *more))
    with prepared(run, out) as training:
        operations = run_operations(training)
        assert operations is not None and run_operations(training) == operations
    return operations / STEPS / BATCH


@contextmanager
def prepared(run: Run, out: Path) -> Iterator[Training]:
    """A training before its first step."""
    folder = RunFolder(out)
    folder.open()
    try:
        yield prepare(run, folder, log=log_nothing).training
    finally:
        folder.close()


@pytest.mark.slow
def test_those_of_a_vit_are_its_matrix_products_computed_by_hand(tmp_path):
    assert count(tmp_path / "whole") == SUPERVISED
    assert count(tmp_path / "parts", "data.micro_batch=4") == SUPERVISED
    assert count(tmp_path / "head", "model.head_only=true") == HEAD_ONLY
    assert (
        count(tmp_path / "first", "model.head_first=0.3") == (HEAD_ONLY * 2 + SUPERVISED * 2) / 4
    )  # ceil(0.3 x 4) steps


def test_the_token_that_alone_is_read_costs_less_than_all(tmp_path):
    changes = "model.changes={width: 24, depth: 3, heads: 2, mlp_width: 40, patch_size: [4, 4], patch_dropout: 0.0}"
    counted = count(tmp_path / "run", changes)
    n = N + 1
    block, embedding = 4 * n * D * D + 2 * n * n * D + 2 * n * D * M, N * D * P * P
    assert counted < 2 * (2 * embedding + 3 * L * block + 3 * HEAD)  # by 6 x multiply-adds it would be this
    assert counted > 2 * (2 * embedding + 3 * (L - 1) * block + 3 * HEAD)


def test_a_teacher_adds_a_forward_pass_of_its_own(tmp_path):
    sizes = {"patch_size": P, "width": D, "depth": L, "heads": 2, "mlp_width": M}
    config = ViTConfig(**sizes, pool="gap", prefix=(), positions="sincos2d", image_size=8, in_channels=1, classes=K)
    teacher = save_model(tmp_path / "teacher", create_classifier(config, classes=[str(digit) for digit in range(K)]))
    assert count(tmp_path / "run", teacher=str(teacher)) == SUPERVISED + 2 * cost_of(config).multiply_adds
    assert cost_of(config).multiply_adds == EMBEDDING + BLOCKS + HEAD


@pytest.mark.slow
def test_a_batch_that_is_compared_in_parts_computes_its_features_twice(tmp_path):
    given = (*NETWORK, *QUICK, f"data.batch={BATCH}", "schedule.steps=1")
    run, _ = compose_run(flags={"data": {"source": "digits"}, "objective": {"name": "simclr"}}, settings=given)
    with prepared(run, tmp_path / "views") as training:
        objective, part = on_meta(training.objective), torch.empty(BATCH, 1, 8, 8, device="meta")
        views = count_operations(lambda: objective.features(part, part)) / BATCH
    whole = count(tmp_path / "whole", objective="simclr")
    assert count(tmp_path / "parts", "data.micro_batch=6", objective="simclr") == whole + views
    assert views == 2 * 2 * (EMBEDDING + BLOCKS)


@pytest.mark.parametrize("objective", slow_except(OBJECTIVES, {"mae", "simclr", "beit"}))
def test_every_objective_is_counted(tmp_path, objective):
    codes = Tokenizer(TokenizerConfig(in_channels=1, patch_size=(4, 4), width=8, depth=1, levels=(4, 4)))
    tokenizer = save_tokenizer(tmp_path / "codes", codes, Preprocessing(size=(8, 8), mean=(0.5,), std=(0.5,)))
    encoded = SUPERVISED - 6 * HEAD
    least = {"masked-patch": encoded, "moco": 3 * SUPERVISED / 1.5, "simclr": 2 * encoded, "beit": encoded}
    config = ViTConfig(image_size=8, patch_size=2, in_channels=1, width=16, depth=1, heads=2, mlp_width=24)
    save_model(tmp_path / "teacher", create_classifier(config, classes=()))
    others = {"beit": {"tokenizer": str(tokenizer)}, "distil": {"teacher": str(tmp_path / "teacher")}}
    counted = count(tmp_path / objective, objective=objective, **others.get(objective, {}))
    assert counted > least.get(objective, 0)


def test_an_objective_that_reads_values_is_reported_as_not_countable():
    class Looks(torch.nn.Linear):
        def forward(self, images):
            return (super().forward(images).mean() * float(images.sum()),)

    with pytest.raises(RuntimeError, match="meta"):
        step_operations(Looks(3, 2), [torch.ones(4, 3)])


def test_counting_changes_no_bit_of_the_module_and_needs_no_memory_for_it():
    class Loss(torch.nn.Linear):
        def forward(self, images):
            return (super().forward(images).square().mean(),)

    module = Loss(3, 2).eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert (
        step_operations(module, [torch.ones(4, 3)]) == 2 * 2 * 4 * 3 * 2
    )  # the product, and that of the weights' gradient
    assert step_operations(module, [torch.ones(4, 3)], frozen=["weight"]) == 2 * 4 * 3 * 2
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.weight.grad is None
    assert not module.training


@pytest.mark.slow
def test_a_run_says_its_operations_before_the_first_step_and_everywhere_after(tmp_path, capsys):
    run = vitrail.train("digits", steps=STEPS, batch=BATCH, out=tmp_path / "run", set=(*NETWORK, *QUICK), quiet=True)
    total = SUPERVISED * STEPS * BATCH
    words = large(total, "FLOP")
    lines = (run.folder / "log.txt").read_text().splitlines()
    said = [row for row, line in enumerate(lines) if f"cost     {words} in all, " in line]
    assert said and said[0] < next(row for row, line in enumerate(lines) if f"training {STEPS} steps" in line)
    status = RunFolder(run.folder).status()
    assert status["operations"] == total
    assert status["device_hours"] > 0
    assert f"{words} in all training steps" in (run.folder / "card.md").read_text()
    assert f"{words} in all training steps" in (run.folder / "report.html").read_text()
    described = json.loads((run.folder / "model" / "config.json").read_text())
    assert described["provenance"]["operations"] == total
    vitrail.evaluate(run.folder, "digits", out=tmp_path / "evaluated")
    assert f"trained  {words} in all steps" in capsys.readouterr().err
    assert f"{words} in all training steps" in (tmp_path / "evaluated" / "report.html").read_text()


def test_a_plan_says_them_too():
    lines = []
    given = (*NETWORK, *QUICK, f"schedule.steps={STEPS}", f"data.batch={BATCH}")
    dry_run(compose_run(flags={"data": {"source": "digits"}}, settings=given)[0], log=lines.append)
    assert f"cost     {large(SUPERVISED * STEPS * BATCH, 'FLOP')} in all steps" in lines


def test_large_numbers_of_operations_have_a_prefix():
    assert [large(value, "FLOP") for value in (3.2e15, 4.56e18)] == ["3.2\u202fPFLOP", "4.56\u202fEFLOP"]
    assert describe_compute(None, None) == ""
    assert describe_compute(2e18, 12.345) == "2\u202fEFLOP in all training steps, 12.3 device-hours"


TINY = ["model.changes={width: 32, depth: 1, heads: 2, mlp_width: 32, patch_size: [4, 4]}", "model.name=vit-ti16"]


class Clock:
    """Time that passes only when `spend` is called."""

    def __init__(self) -> None:
        self.now = 0.0

    def spend(self, seconds: float) -> None:
        self.now += seconds


class SlowValidator:
    """An evaluation of 1,000 images in batches, which takes 0.1 s an image."""

    images = 1000

    def __init__(self, clock: Clock) -> None:
        self.clock, self.read = clock, 0

    def count_images(self, ranks):
        return self.images

    def __call__(self, run, stopped, ranks):
        batch = read_options(run).batch
        for _ in range(0, self.images, batch):
            self.clock.spend(0.1 * batch)
            self.read += batch
            if stopped():
                return None
        return {}


@pytest.mark.parametrize(
    ("image", "update", "start"), [(0.05, 2.0, 0.0), (5.0, 0.1, 0.0), (0.0001, 0.01, 0.0), (0.05, 0.1, 3.0)]
)
def test_a_long_step_and_evaluation_are_scaled_from_a_part(tmp_path, monkeypatch, image, update, start):
    """The first gradient takes ``start`` seconds longer, which the others do not."""
    clock, measured = Clock(), []
    run, _ = compose_run(
        flags={"data": {"source": "digits", "batch": 256, "micro_batch": 64}, "schedule": {"steps": 1000}},
        settings=[*TINY, "compute.threads=1"],
    )
    folder = RunFolder(tmp_path / "run")
    folder.open()
    training = prepare(run, folder, log=lambda line: None).training
    training.validator = validator = SlowValidator(clock)

    def backward(training, inputs):
        clock.spend(image * len(inputs[0]) + (0.0 if measured else start))
        measured.append(len(inputs[0]))

    monkeypatch.setattr("vitrail.training.cost.time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr("vitrail.training.cost.backward", backward)
    monkeypatch.setattr(training.optimiser, "step", lambda: clock.spend(update))
    monkeypatch.setattr(
        "vitrail.training.cost.take_step", lambda training, batch: clock.spend(image * len(batch) + update) or 0.0
    )
    cost = measure_cost(training)
    folder.close()
    assert cost.step == pytest.approx(256 * image + update)
    assert cost.evaluation == pytest.approx(100)
    assert clock.now < 35, "a measurement takes seconds"
    assert validator.read < 1000
    assert start or max(measured) == (256 if image == 0.0001 else 16 if image == 0.05 else 2)


def test_a_dry_run_reads_few_of_many_small_images_and_gives_the_plan_first(tmp_path, monkeypatch):
    for number in range(120):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (number, 0, 0)).save(path)
    monkeypatch.setattr("vitrail.training.dry_run.SAMPLE", 10)
    decoded, lines = [], []

    def decode(content, **options):
        decoded.append(content)
        return Image.new("RGB", (16, 16))

    def measure(training):
        assert any(line.startswith("length") for line in lines)
        return measure_cost(training)

    monkeypatch.setattr("vitrail.data.decoded_cache.decode", decode)
    monkeypatch.setattr("vitrail.training.dry_run.measure_cost", measure)
    plan = vitrail.train(
        tmp_path / "photos", epochs=1, batch=8, workers=0, set=TINY, dry_run=True, log=lines.append, quiet=True
    )
    assert plan == "\n".join(lines)
    assert "102 train, 18 val" in plan
    assert "13 steps" in plan  # of all the images, not of those that were decoded
    assert all(word in plan for word in ("speed", "takes", "slowest"))
    assert len(decoded) == 20  # ten of each split
    assert not list(tmp_path.glob("runs*"))
