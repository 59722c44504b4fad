"""Measuring what a training takes: short, whatever the batch and the data, and right where times are proportional."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from PIL import Image

import vitrail
from vitrail.config.compose import request
from vitrail.runs.folder import RunFolder
from vitrail.training.cost import measure_cost
from vitrail.training.monitors import read_options
from vitrail.training.prepare import prepare

TINY = ["model.changes={width: 32, depth: 1, heads: 2, mlp_width: 32, patch_size: [4, 4]}", "model.name=vit-ti16"]


class Clock:
    """Time that passes only when `spend` is called."""

    def __init__(self) -> None:
        self.now = 0.0

    def spend(self, seconds: float) -> None:
        self.now += seconds


class SlowMonitor:
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


@pytest.mark.parametrize(("image", "update"), [(0.05, 2.0), (5.0, 0.1), (0.0001, 0.01)])
def test_a_long_step_and_evaluation_are_scaled_from_a_part(tmp_path, monkeypatch, image, update):
    clock, measured = Clock(), []
    run, _ = request(
        flags={"data": {"source": "digits", "batch": 256, "micro_batch": 64}, "schedule": {"steps": 1000}},
        settings=[*TINY, "compute.threads=1"],
    )
    folder = RunFolder(tmp_path / "run")
    folder.open()
    training = prepare(run, folder, say=lambda line: None).training
    training.monitor = monitor = SlowMonitor(clock)

    def backward(training, inputs):
        measured.append(len(inputs[0]))
        clock.spend(image * len(inputs[0]))

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
    assert monitor.read < 1000
    assert max(measured) == (256 if image == 0.0001 else 16 if image == 0.05 else 2)


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
        tmp_path / "photos", epochs=1, batch=8, workers=0, set=TINY, dry_run=True, say=lines.append, quiet=True
    )
    assert plan == "\n".join(lines)
    assert "102 train, 18 val" in plan
    assert "13 steps" in plan  # of all the images, not of those that were decoded
    assert all(word in plan for word in ("speed", "takes", "slowest"))
    assert len(decoded) == 20  # ten of each split
    assert not list(tmp_path.glob("runs*"))
