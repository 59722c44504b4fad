"""A run that is killed and resumed equals one that was never stopped: weights, average, optimiser and metrics, bit for bit."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from vitrail import cli, train
from vitrail.config.compose import request
from vitrail.errors import ConfigError, Preempted
from vitrail.runs.checkpoint import list_checkpoints, load_newest, step_of
from vitrail.runs.folder import RunFolder, find_unfinished
from vitrail.runtime import fault_injection
from vitrail.training import loop
from vitrail.training import train as training

STEPS = 24
# everything random is on: dropout, drop path, RandAugment, mixup and CutMix, averaging, two micro-steps
SETTINGS = (
    "model.changes={width: 32, depth: 3, heads: 2, mlp_width: 64, patch_size: [2, 2], dropout: 0.1, drop_path: 0.3}",
    "model.name=vit-ti16",
    "augment={layers: 2, magnitude: 9, mixup: 0.2, cutmix: 1.0, smoothing: 0.1, flip: 0.5, erase: 0.2}",
    "optim.ema=0.9",
    "data.batch=48",
    "data.micro_batch=24",
    "save.every=0.05",
    "save.evaluations=3",
    "save.log_every=5",
    "compute.threads=1",
)


def command(out: Path, *more: str, data: str = "digits") -> list[str]:
    words = [sys.executable, "-m", "vitrail", "train", data, "--steps", str(STEPS), "--out", str(out), "--quiet"]
    return [*words, *(word for setting in SETTINGS for word in ("--set", setting)), *more]


def run(out: Path, *more: str, data: str = "digits", fault: str = "") -> subprocess.CompletedProcess:
    environment = {**os.environ, fault_injection.VARIABLE: fault}
    return subprocess.run(command(out, *more, data=data), env=environment, capture_output=True, text=True)


def assert_same_run(one: Path, other: Path, steps: int = STEPS) -> None:
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    first, second = load_newest(one / "checkpoints"), load_newest(other / "checkpoints")
    assert first.step == second.step == steps
    assert first.state == second.state
    assert first.tensors.keys() == second.tensors.keys() == {"objective", "optimiser", "average"}
    for group, named in first.tensors.items():
        assert named.keys() == second.tensors[group].keys()
        assert all(torch.equal(tensor, second.tensors[group][name]) for name, tensor in named.items()), group
    models = [load_file(folder / "model" / "model.safetensors") for folder in (one, other)]
    assert all(torch.equal(tensor, models[1][name]) for name, tensor in models[0].items())


ARRAYS = np.random.default_rng(0).integers(0, 256, (120, 8, 8, 1), dtype=np.uint8), np.arange(120) % 3
train_briefly = partial(train, ARRAYS, settings=SETTINGS)


@pytest.fixture(scope="module")
def six_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run that was never stopped, in the process of the tests."""
    folder = tmp_path_factory.mktemp("six_steps") / "run"
    train_briefly(steps=6, out=folder, quiet=True)
    return folder


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "run"
    assert cli.run(command(folder)[3:]) == 0
    return folder


def test_a_run_that_is_told_to_stop_goes_on_as_if_it_never_had_been(tmp_path, six_steps, monkeypatch) -> None:
    parts = partial(train_briefly, steps=6, out=tmp_path / "run", quiet=True)
    take_step = loop.take_step

    def stopping(training, batch):
        loss = take_step(training, batch)
        if training.progress.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    monkeypatch.setattr(loop, "take_step", stopping)
    with pytest.raises(Preempted):
        parts()
    monkeypatch.undo()
    assert step_of(list_checkpoints(tmp_path / "run" / "checkpoints")[-1]) == 3
    parts()
    assert_same_run(six_steps, tmp_path / "run", 6)
    with pytest.raises(ConfigError, match=r"other settings[\s\S]*optim\.lr"):
        parts(lr=0.5)


@pytest.mark.slow
@pytest.mark.parametrize(("signal_name", "code"), [("term", 75), ("int", 130)])
def test_a_stop_signal_saves_and_the_same_command_goes_on(
    tmp_path, never_stopped: Path, signal_name: str, code: int
) -> None:
    out = tmp_path / "run"
    stopped = run(out, fault=f"run.after_metrics:{signal_name}:3")
    assert stopped.returncode == code, stopped.stderr
    assert "a checkpoint is saved" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert 0 < step_of(list_checkpoints(out / "checkpoints")[-1]) < STEPS
    assert run(out).returncode == 0
    assert_same_run(out, never_stopped)


@pytest.mark.slow
def test_ten_kills_at_random_moments_change_no_bit(tmp_path, never_stopped: Path) -> None:
    chance = random.Random(0)
    kills = runs = 0
    while kills < 10:
        out, runs = tmp_path / f"run-{runs}", runs + 1
        while kills < 10 and killed(out, after=chance.uniform(0.0, 0.6)):
            kills += 1
        assert run(out).returncode == 0
        assert_same_run(out, never_stopped)
    assert runs < 10, "most kills must hit a run that was killed before"


def killed(out: Path, *, after: float) -> bool:
    """Starts the run and kills it some seconds after it took its folder over; False where it was faster."""
    process = subprocess.Popen(command(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_start(out, process)
    time.sleep(after)
    process.kill()
    return process.wait() == -signal.SIGKILL


def run_in_fork(out: Path, fault: str) -> int:
    """The exit code of the command in a copy of this process, which spares it the imports."""
    child = os.fork()
    if child == 0:
        os.environ[fault_injection.VARIABLE] = fault
        try:
            os._exit(cli.run(command(out)[3:]))
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked to be killed")
@pytest.mark.parametrize("point", fault_injection.POINTS)
def test_kill_9_at_every_fault_point_changes_no_bit(tmp_path, never_stopped: Path, point: str) -> None:
    out = tmp_path / "run"
    assert run_in_fork(out, f"{point}:kill:{1 if point.startswith('run.') else 2}") == -signal.SIGKILL
    assert cli.run(command(out)[3:]) == 0
    assert_same_run(out, never_stopped)


@pytest.mark.slow
def test_photographs_read_by_another_number_of_workers_change_no_bit(tmp_path) -> None:
    photos, once, resumed = str(photographs(tmp_path / "photos")), tmp_path / "once", tmp_path / "resumed"
    how = ("--size", "32", "--max-bad", "10%")
    done = run(once, *how, "--workers", "1", data=photos)
    assert done.returncode == 0, done.stderr
    killed = run(resumed, *how, "--workers", "2", data=photos, fault="run.after_metrics:kill:2")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert list_checkpoints(resumed / "checkpoints")
    again = run(resumed, *how, "--workers", "0", data=photos)
    assert again.returncode == 0, again.stderr
    assert_same_run(once, resumed)
    assert (once / "bad_images.csv").read_text() == (resumed / "bad_images.csv").read_text()


def photographs(folder: Path) -> Path:
    """Two classes of 40 pictures, each of its own size, and a broken one."""
    draw = np.random.default_rng(0)
    for name in ("ant", "bee"):
        (folder / name).mkdir(parents=True)
        for count in range(40):
            Image.fromarray(draw.integers(0, 256, (70 + count, 90, 3), dtype=np.uint8)).save(
                folder / name / f"{count:02}.png"
            )
    (folder / "ant" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    return folder


@pytest.mark.slow
def test_a_finished_run_is_not_trained_again(never_stopped: Path, capsys) -> None:
    before = (never_stopped / "metrics.jsonl").stat().st_mtime_ns
    assert cli.run(command(never_stopped)[3:]) == 0
    assert str(never_stopped / "report.html") in capsys.readouterr().out
    assert (never_stopped / "metrics.jsonl").stat().st_mtime_ns == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "lock", "source", "named"),
    [
        ("interrupted", "", "digits", True),
        ("running", f"process {2**22 + 1} on {socket.gethostname()}", "digits", True),  # a number that no process has
        ("running", f"process {os.getppid()} on {socket.gethostname()}", "digits", False),
        ("finished", "", "digits", False),
        ("interrupted", "", "photos", False),
    ],
)
def test_an_unfinished_run_on_the_same_data_is_named(tmp_path, monkeypatch, state, lock, source, named) -> None:
    monkeypatch.chdir(tmp_path)
    asked, _ = request(flags={"data": {"source": "digits"}})
    earlier = RunFolder(Path("runs/earlier"))
    earlier.path.mkdir(parents=True)
    earlier.write_config(replace(asked, data=replace(asked.data, source=source)))
    earlier.write_status(state)
    (earlier.path / ".lock").write_text(lock)
    assert find_unfinished(asked) == (earlier.path if named else None)


def test_a_new_run_says_how_an_unfinished_one_is_continued(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "prepare", Mock(side_effect=KeyboardInterrupt))
    note = "note     runs/{0} is unfinished; continue it with: vitrail train --resume runs/{0}\n"
    earlier = RunFolder(Path("runs/earlier"))
    earlier.path.mkdir(parents=True)
    earlier.write_config(request(flags={"data": {"source": "digits"}})[0])
    earlier.write_status("preempted")
    for out, said in ((None, True), (Path("runs/other"), False)):
        with pytest.raises(KeyboardInterrupt):
            train("digits", out=out)
        assert (note.format("earlier") in capsys.readouterr().err) is said


def test_a_run_can_be_made_longer_and_says_what_that_does(tmp_path, six_steps, capsys) -> None:
    shutil.copytree(six_steps, tmp_path / "run")
    train_briefly(steps=8, out=tmp_path / "run")
    said = capsys.readouterr().err
    assert "resuming at step 6 of 8" in said
    assert "stretched" in said


@pytest.mark.slow
def test_a_refused_request_leaves_the_run_as_it_was(tmp_path) -> None:
    out = tmp_path / "run"
    assert run(out, fault="run.after_metrics:term:3").returncode == 75
    before = (out / "config.yaml").read_bytes()
    words = command(out)
    words[words.index("--steps") + 1] = "2"
    refused = subprocess.run(words, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "beyond the requested 2" in refused.stderr
    assert (out / "config.yaml").read_bytes() == before
    assert run(out).returncode == 0


@pytest.mark.slow
def test_a_run_is_not_resumed_on_other_images(tmp_path) -> None:
    photos, out = photographs(tmp_path / "photos"), tmp_path / "run"
    how = ("--size", "32", "--max-bad", "10%", "--workers", "0")
    assert run(out, *how, data=str(photos), fault="run.after_metrics:term:1").returncode == 75
    (photos / "bee" / "07.png").rename(photos / "bee" / "107.png")
    refused = run(out, *how, data=str(photos))
    assert refused.returncode == 3
    assert "are not those with which the run" in refused.stderr
    (photos / "bee" / "107.png").rename(photos / "bee" / "07.png")
    assert run(out, *how, data=str(photos)).returncode == 0


def wait_for_start(out: Path, process: subprocess.Popen) -> None:
    """Until this child has taken the run over, or has ended."""
    marks = (f'"pid": {process.pid}', '"state": "running"')
    status = out / "status.json"
    wait(lambda: status.exists() and all(mark in status.read_text() for mark in marks), process)


def wait(ready, process: subprocess.Popen, seconds: float = 60.0) -> None:
    limit = time.monotonic() + seconds
    while not ready() and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.01)
