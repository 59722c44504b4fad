"""What a run leaves open is measured once: for its first steps, not when it is resumed, and once on a machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vitrail
from tests.training import on_ranks
from vitrail.config.compose import compose_run
from vitrail.config.schema import ComputeSettings
from vitrail.files import read_checksummed, write_checksummed
from vitrail.runs.folder import RunFolder
from vitrail.runtime import tuning
from vitrail.runtime.progress import log_nothing
from vitrail.runtime.tuning import PRECISIONS, Choice, ExecutionPlan
from vitrail.training.prepare import prepare


@pytest.fixture
def measured(monkeypatch, tmp_path) -> list[Sequence[ExecutionPlan]]:
    """The plans that were measured each time; the second is said to be the fastest."""
    asked: list[Sequence[ExecutionPlan]] = []

    def choose(network: Any, image: Sequence[int], plans: Sequence[ExecutionPlan], *, batch: int, **how: Any) -> Choice:
        assert how == {"gradient": True, "images": math.inf} and batch == 12
        return choose_second(network, image, plans)

    def choose_second(
        network: Any, image: Sequence[int], plans: Sequence[ExecutionPlan] = PRECISIONS, *, gradient: bool = True
    ) -> Choice:
        assert gradient
        assert network.config.width == 16 and all(parameter.is_meta for parameter in network.parameters())
        assert tuple(image) == (1, 32, 32)
        asked.append(plans)
        return Choice(plans[1], {plan: 1.0 + number for number, plan in enumerate(plans)}, 0.5)

    monkeypatch.setattr(tuning, "choose_plan", choose)
    monkeypatch.setattr(tuning, "choose_precision", choose_second)
    monkeypatch.setattr("vitrail.training.prepare.NARROW", 1)
    monkeypatch.setattr("vitrail.training.prepare.has_bf16", lambda: True)
    monkeypatch.setattr("vitrail.training.prepare.cores", lambda: 1)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    return asked


def given(*settings: str, steps: int = 1) -> tuple[str, ...]:
    words = on_ranks.settings("vit", f"schedule.steps={steps}", "data.batch=12", *settings)
    return tuple(word for word in words if word not in ("compute.threads=1", "compute.tune=false") or word in settings)


def run(out: Path, steps: int, *settings: str) -> RunFolder:
    assert on_ranks.alone(out, given(*settings, steps=steps)) == ""
    return RunFolder(out)


def plan(out: Path, *settings: str) -> ComputeSettings:
    """How a training would compute."""
    asked, _ = compose_run(flags={"data": {"source": "digits"}}, settings=given(*settings))
    return prepare(asked, RunFolder(out), log=log_nothing).training.run.compute


@pytest.mark.slow
def test_a_choice_is_kept_for_the_run_and_for_the_machine(measured, tmp_path):
    first = run(tmp_path / "first", steps=1)
    compute = first.read_config().compute
    assert (compute.precision, compute.threads) == ("bf16", 1)
    assert (
        "tuned    bf16; ms of an image, forward and backward on one thread: fp32 1e+03, bf16 2e+03 (measured in 0.5 s)"
        in (first.path / "log.txt").read_text()
    )
    run(tmp_path / "first", steps=2)  # resumed
    assert measured == [PRECISIONS]
    second = run(tmp_path / "second", steps=1)
    assert measured == [PRECISIONS]
    assert second.read_config().compute.precision == "bf16"
    assert "(measured before)" in (second.path / "log.txt").read_text()
    (name,), (words,) = zip(*vitrail.doctor(tune="show").items())
    assert name.startswith("vit-ti16, 32 x 32 x 1, batch 196, torch ") and words.startswith("bf16; ms")
    assert vitrail.doctor(tune="clear") == {"removed": 1}
    plan(tmp_path / "third")
    assert measured == [PRECISIONS] * 2


def test_images_of_a_size_that_is_hardly_meant_are_not_measured_and_warned_of(measured, monkeypatch, tmp_path):
    monkeypatch.setattr("vitrail.training.prepare.HUGE", 1)
    log = (run(tmp_path / "huge", steps=1).path / "log.txt").read_text()
    assert not measured
    assert "warning  an image of 32 x 32 pixels keeps" in log


def test_given_settings_are_not_measured(measured, monkeypatch, tmp_path):
    rows = (
        (("compute.precision=fp32",), 1, None),
        (("compute.tune=false",), 8, None),
        (("compute.threads=2",), 2, [PRECISIONS]),
        (("compute.precision=bf16",), 4, [counts := [ExecutionPlan("bf16", 4), ExecutionPlan("bf16", 2)]]),
        ((), 4, [PRECISIONS, counts]),
    )
    for number, (settings, cores, plans) in enumerate(rows):
        measured.clear()
        monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / f"cache-{number}"))
        monkeypatch.setattr("vitrail.training.prepare.cores", lambda cores=cores: cores)
        compute = plan(tmp_path / f"run-{number}", *settings)
        assert measured == (plans or []), settings
        taken = plans[-1][1] if plans else ExecutionPlan("fp32", cores)
        taken = replace(taken, threads=cores) if taken in PRECISIONS else taken
        assert (compute.precision, compute.threads) == (taken.precision, taken.threads), settings


def test_fp32_is_taken_without_a_measurement_on_a_processor_without_bf16(measured, monkeypatch, tmp_path):
    monkeypatch.setattr("vitrail.training.prepare.has_bf16", lambda: False)
    assert plan(tmp_path / "first").precision == "fp32"
    assert plan(tmp_path / "second", "compute.precision=bf16").precision == "bf16"
    assert not measured


def test_a_damaged_choice_is_measured_again(measured, tmp_path):
    plan(tmp_path / "first")
    (kept,) = (tmp_path / "cache" / "tuning").iterdir()
    kept.write_text(kept.read_text().replace("bf16", "bf61"))
    plan(tmp_path / "second")
    assert measured == [PRECISIONS] * 2
    assert len(vitrail.doctor(tune="show")) == 1


def test_a_choice_of_before_inference_was_measured_is_still_listed(measured, tmp_path):
    plan(tmp_path / "first")
    (kept,) = (tmp_path / "cache" / "tuning").iterdir()
    content = read_checksummed(kept)
    assert content is not None and content.pop("gradient")
    for kept_plan in (content["way"], *(measured_plan for measured_plan, _ in content["seconds"])):
        del kept_plan["channels_last"]
    write_checksummed(kept, content)
    (words,) = vitrail.doctor(tune="show").values()
    assert words.startswith("bf16; ms of an image, forward and backward on one thread: fp32 1e+03, bf16 2e+03")


@pytest.mark.slow
@pytest.mark.parametrize(("measured_seconds", "asked_again"), [(1e-9, True), (1.0, False)])
def test_a_number_of_threads_is_measured_again_after_a_run_that_took_twice_as_long(
    measured, measured_seconds, asked_again, monkeypatch, tmp_path
):
    choose = tuning.choose_plan

    def choose_with_seconds(*given: Any, **how: Any) -> Choice:
        choice = choose(*given, **how)
        return replace(choice, seconds=dict.fromkeys(choice.seconds, measured_seconds))

    monkeypatch.setattr("vitrail.training.prepare.cores", lambda: 4)
    monkeypatch.setattr(tuning, "choose_plan", choose_with_seconds)
    logs = []
    for name in ("first", "second"):
        logs.append((run(tmp_path / name, 2, "compute.precision=fp32").path / "log.txt").read_text())
    assert len(measured) == 1 + asked_again
    assert all((": the next command measures again" in log) is asked_again for log in logs)


def test_a_choice_that_other_work_disturbed_is_taken_and_not_kept(measured, monkeypatch, tmp_path):
    choose = tuning.choose_plan
    monkeypatch.setattr("vitrail.training.prepare.cores", lambda: 4)
    monkeypatch.setattr(tuning, "choose_plan", lambda *given, **how: replace(choose(*given, **how), disturbed=True))
    for name in ("first", "second"):
        measured.clear()
        assert plan(tmp_path / name, "compute.precision=bf16").threads == 2
        assert len(measured) == 1 and not vitrail.doctor(tune="show")


def test_ranks_threads_and_batch_do_not_decide_the_precision(measured, monkeypatch, tmp_path):
    assert plan(tmp_path / "first").precision == "bf16"
    monkeypatch.setattr("vitrail.training.prepare.cores", lambda: 3)
    for number, settings in enumerate((("compute.threads=2",), ("data.batch=24",), ("data.micro_batch=4",))):
        assert plan(tmp_path / f"run-{number}", *settings).precision == "bf16"
    assert measured == [PRECISIONS]  # what was kept is taken
