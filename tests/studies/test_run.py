"""`vitrail study` on the built-in digits with tiny networks: from the plan to the page, and through kills to the same figures."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

import vitrail
from tests.slow import few_or_nightly
from tests.studies.planned import POOL, make_study
from vitrail.cli import run
from vitrail.errors import ConfigError, DataError
from vitrail.files import read_checksummed
from vitrail.shared_work import Claims
from vitrail.studies.design import Pool, Study
from vitrail.studies.images import load_images, open_images
from vitrail.studies.plan import make_plan, read_plan, write_plan
from vitrail.studies.run import NetworkCost, keep_busy
from vitrail.studies.worker import WorkerPool, number_of, work_study

TINY = {
    "name": "tiny",
    "pool": {"source": "digits", "validation": 100},
    "base": {
        "schedule.steps": 12,
        "data.batch": 16,
        "data.micro_batch": 16,
        "augment.flip": 0.0,
        "save.every": 0.05,  # so that a cell that was killed goes on from its last steps
        "model.name": "vit-ti16",
        "model.changes": {"width": 16, "depth": 2, "heads": 2, "mlp_width": 32},
    },
    "experiments": [
        {
            "name": "patches",
            "arms": {"patch-4": {"model.changes.patch_size": [4, 4]}, "patch-2": {"model.changes.patch_size": [2, 2]}},
            "factors": {"data.limit": [200, None]},
            "seeds": 2,
            "rates": {"grid": [1e-3, 4e-3], "length": 0.5},
            "measure": ["heads", "positions", "shifts"],
        }
    ],
    "claims": ["smaller-patches"],
}


DIGITS = make_study(pool=Pool(source="digits", validation=100))


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


def silent(line: str) -> None: ...


def call(mine: Path, out: Path, **options: object) -> Any:
    return vitrail.study(config=mine, out=out, quiet=True, log=silent, **options)


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every network takes 10 ms a step."""

    cost = NetworkCost(step=0.01, image=1e-4)
    monkeypatch.setattr("vitrail.studies.run.measure_network", lambda run, splits: cost)


@pytest.mark.slow
def test_neighbours_compute_while_something_is_measured_and_end_with_it() -> None:
    def list_neighbours() -> list[str]:
        listed = subprocess.run(["ps", "-o", "stat=", "--ppid", str(os.getpid())], capture_output=True, text=True)
        return listed.stdout.split()

    before = len(list_neighbours())
    with keep_busy(1, "cpu"):
        assert len(list_neighbours()) == before + 1
    assert len(list_neighbours()) == before
    with keep_busy(0, "cpu"):
        assert len(list_neighbours()) == before


@pytest.mark.usefixtures("unmeasured")
def test_a_dry_run_prints_the_plan_and_writes_nothing(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["study", "--config", str(mine), "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    printed = capsys.readouterr().err
    assert "patches" in printed
    assert "smaller-patches" in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("unmeasured")
def test_a_budget_that_is_too_small_is_refused_before_anything_is_trained(mine: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="of one core at least"):
        call(mine, tmp_path / "out", budget="1s")
    assert not (tmp_path / "out" / "plan.json").exists()


def test_a_claim_that_the_study_lacks_is_refused_with_the_nearest(mine: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'smaller-patches'"):
        call(mine, tmp_path / "out", claims="smaller-patch")


def test_an_arm_that_no_network_can_be_is_refused_before_anything_is_trained(mine: Path, tmp_path: Path) -> None:
    wrong = {**TINY, "base": {**TINY["base"], "model.changes.wdith": 3}}
    mine.write_text(yaml.safe_dump(wrong))
    with pytest.raises(ConfigError, match=r"an arm of the study cannot be trained: .*wdith"):
        call(mine, tmp_path / "out")


@pytest.mark.usefixtures("unmeasured")
def test_the_folder_of_another_study_is_refused(mine: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    write_plan(out, make_plan(make_study(), POOL, device="cpu", request="a", price=lambda trial: 1.0, budget=None))
    with pytest.raises(ConfigError, match="holds the study 'small', not 'tiny'"):
        call(mine, out)


def test_data_that_cannot_carry_a_study_are_refused(tmp_path: Path) -> None:
    one = write_photos(tmp_path / "photos")
    shutil.rmtree(tmp_path / "photos" / "b")
    with pytest.raises(DataError, match="two classes or more"):
        open_images(one)
    with pytest.raises(ConfigError, match="no images in memory"):
        vitrail.study((np.zeros((40, 8, 8), np.uint8), np.arange(40) % 2))


def test_the_images_are_split_once_and_come_back_from_the_folder_of_the_study(tmp_path: Path) -> None:
    splits, facts = open_images(DIGITS)
    assert facts.training + facts.validation + facts.test == 1797
    assert facts.test == pytest.approx(1797 / 5, abs=6)
    assert facts.validation == pytest.approx(100, abs=6)
    again = load_images(tmp_path, DIGITS, facts)
    for name in ("train", "val", "test"):
        part, other = getattr(splits, name), getattr(again, name)
        assert list(part.keys) == list(other.keys)
        assert np.array_equal(part.images, other.images)
        assert np.array_equal(part.labels, other.labels)


def write_photos(folder: Path, *, moved: int = 0) -> Study:
    """A study of small images in two folders, of which so many lie in the wrong one."""
    draw = np.random.default_rng(0)
    for number in range(60):
        label = "ab"[(number % 2) ^ (number < moved)]
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / label / f"{number}.png")
    return make_study(pool=Pool(source=str(folder), validation=6))


def test_small_images_are_decoded_once_and_damaged_ones_again(tmp_path: Path) -> None:
    study = write_photos(tmp_path / "photos")
    splits, facts = open_images(study, tmp_path / "data")
    images = splits.train.images.copy()
    stored = sorted((tmp_path / "data").glob("*.npy"))
    assert len(stored) == 3
    content = stored[0].read_bytes()
    stored[0].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert np.array_equal(load_images(tmp_path, study, facts).train.images, images)
    assert stored[0].read_bytes() == content


def test_another_label_is_another_fingerprint_which_a_worker_refuses(tmp_path: Path) -> None:
    _, facts = open_images(write_photos(tmp_path / "photos"))
    assert open_images(write_photos(tmp_path / "again" / "photos"))[1] == facts
    with pytest.raises(DataError, match="are not those of the plan"):
        load_images(tmp_path, write_photos(tmp_path / "moved" / "photos", moved=2), facts)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The definition of a study, in a folder with all that one call made of it, and what the call returned."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "mine.yaml").write_text(yaml.safe_dump(TINY))
    return folder, call(folder / "mine.yaml", folder / "out", budget="10m", jobs=1)


@pytest.mark.slow
def test_a_study_ends_with_its_page_and_its_figures(finished: tuple[Path, Any]) -> None:
    folder, studied = finished
    out = folder / "out"
    assert studied.report.read_text().startswith("<!doctype html>")
    assert [row["claim"] for row in studied.to_rows()] == ["smaller-patches"]
    assert studied.to_rows()[0]["verdict"] != "not asked"
    numbers = json.loads((out / "numbers.json").read_text())
    assert {arm["limit"] for arm in numbers["arms"]} == {200, numbers["data"]["training"]}
    assert all(arm["seeds"] == 2 for arm in numbers["arms"])
    assert len((out / "trials.csv").read_text().splitlines()) > 1 + 8
    assert len(json.loads((out / "costs.json").read_text())["trials"]) >= 8
    assert not (out / "runs").exists()
    progress = read_checksummed(out / "progress.json")
    assert progress is not None and progress["state"] == "finished" and progress["done"] == progress["trials"] == 12


@pytest.mark.slow
def test_the_same_call_again_trains_nothing_and_keeps_the_plan(
    finished: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, whole = finished[0] / "mine.yaml", finished[0] / "out"
    out = shutil.copytree(whole, tmp_path / "out")
    monkeypatch.setattr("vitrail.studies.worker.WorkerPool.start", lambda pool: pytest.fail("a worker starts"))
    for budget in ("10m", "11m"):  # which leaves out nothing more or less: the same plan
        call(mine, out, budget=budget, jobs=1)
        assert read_plan(out)[1] == []
        assert (out / "numbers.json").read_bytes() == (whole / "numbers.json").read_bytes()


@pytest.mark.slow
@pytest.mark.usefixtures("unmeasured")
def test_a_call_that_stops_at_a_time_evaluates_what_is_there(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)")
    monkeypatch.setattr("vitrail.studies.run.WorkerPool", lambda folder, count: WorkerPool(folder, count, waiting))
    lines: list[str] = []
    studied = vitrail.study(config=mine, out=tmp_path / "out", jobs=1, until="0.1s", quiet=True, log=lines.append)
    assert [line for line in lines if line.startswith("stopped  with 0 of 8 trials")]
    assert studied.report.exists()
    assert not any(row["verdict"] in ("held", "did not hold") for row in studied.to_rows())


def start(out: Path) -> ForkServerProcess:
    """A worker of the study, forked from a process that has imported what it needs."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["vitrail.studies.trial", "vitrail.studies.worker"])
    worker = context.Process(target=work_study, args=(out,))
    worker.start()
    return worker


def kill_at_work(worker: ForkServerProcess, out: Path, pause: float) -> None:
    """Kills a worker so many seconds after it or another one took a trial, unless it has ended because there is none left."""
    plan, _ = read_plan(out)
    claims = Claims(out / "claims")

    def is_taken(number: int) -> bool:
        is_free = claims.take(number)
        if is_free:
            claims.release(number)
        return not is_free

    while worker.is_alive() and not any(is_taken(number_of(trial)) for trial in plan.foreseen()):
        time.sleep(0.02)
    time.sleep(pause)
    worker.kill()
    worker.join()


@pytest.mark.slow
@pytest.mark.parametrize("kills", few_or_nightly(2, 30))
def test_a_study_that_was_stopped_and_whose_workers_were_killed_has_the_same_figures_to_the_bit(
    finished: tuple[Path, Any], tmp_path: Path, kills: int
) -> None:
    mine, whole, out = finished[0] / "mine.yaml", finished[0] / "out", tmp_path / "out"
    out.mkdir()
    for name in ("plan.json", "run.json"):
        shutil.copy(whole / name, out)

    words = ["study", "--config", str(mine), "--out", str(out), "--budget", "10m", "--jobs", "1"]
    stopped = subprocess.Popen([sys.executable, "-m", "vitrail", *words], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 600
    while not list(out.glob("trials/*.json")):
        assert time.monotonic() < deadline, "no trial was computed"
        assert stopped.poll() is None
        time.sleep(0.05)
    stopped.send_signal(signal.SIGINT)
    said = stopped.communicate(timeout=600)[1]
    assert stopped.returncode == 130, said
    assert "run the same command to continue" in said
    done = {path.name for path in (out / "trials").iterdir()}

    draw, workers = random.Random(0), [start(out) for _ in range(2)]
    for _ in range(kills):
        victim = draw.randrange(2)
        kill_at_work(workers[victim], out, draw.uniform(0, 0.5))
        workers[victim] = start(out)
    for worker in workers:
        worker.join(600)
    assert [worker.exitcode for worker in workers] == [0, 0]

    assert run([*words, "--quiet"]) == 0
    assert {path.name for path in (out / "trials").iterdir()} > done
    assert (out / "numbers.json").read_bytes() == (whole / "numbers.json").read_bytes()
