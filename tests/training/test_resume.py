"""A run that is killed and resumed equals one that was never stopped: weights, average, optimiser and metrics, bit for bit."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.forked import start_copy, wait_for_end
from tests.slow import few_or_nightly
from tests.training.stopping import stopped_after
from vitrail import cli, train
from vitrail.config.compose import compose_run
from vitrail.errors import ConfigError
from vitrail.runs.checkpoint import list_checkpoints, load_newest, step_of
from vitrail.runs.folder import RunFolder, find_unfinished
from vitrail.runtime import fault_injection
from vitrail.training import train as training

STEPS = 6
# everything random is on: dropout, drop path, RandAugment, mixup and CutMix, averaging, two micro-steps
SETTINGS = (
    "model.changes={width: 32, depth: 3, heads: 2, mlp_width: 64, patch_size: [2, 2], dropout: 0.1, drop_path: 0.3}",
    "model.name=vit-ti16",
    "augment={layers: 2, magnitude: 9, mixup: 0.2, cutmix: 1.0, smoothing: 0.1, flip: 0.5, erase: 0.2}",
    "optim.ema=0.9",
    "data.batch=48",
    "data.micro_batch=24",
    "save.every=0.000001",
    "save.evaluations=3",
    "save.log_every=2",
    "compute.threads=1",
)
ARRAYS = np.random.default_rng(0).integers(0, 256, (120, 8, 8, 1), dtype=np.uint8), np.arange(120) % 3
train_briefly = partial(train, ARRAYS, steps=STEPS, settings=SETTINGS, quiet=True)


def command(out: Path, *more: str, data: str = "digits", steps: int = STEPS) -> list[str]:
    words = ["train", data, "--steps", str(steps), "--out", str(out), "--quiet"]
    return [*words, *(word for setting in SETTINGS for word in ("--set", setting)), *more]


def run_in_fork(act: Callable[[], object], fault: str) -> int:
    """How a copy of this process ends that acts with a fault."""
    return wait_for_end(start_copy(act, **{fault_injection.VARIABLE: fault}))


def run_with(monkeypatch: pytest.MonkeyPatch, fault: str, words: list[str]) -> int:
    """The exit code of the command in this process with a fault."""
    with monkeypatch.context() as patch:
        patch.setenv(fault_injection.VARIABLE, fault)
        patch.setattr(fault_injection, "_passed", {})
        return cli.run(words)


def assert_same_run(one: Path, other: Path) -> None:
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    first, second = load_newest(one / "checkpoints"), load_newest(other / "checkpoints")
    assert first.step == second.step == STEPS
    assert first.state == second.state
    assert first.tensors.keys() == second.tensors.keys() == {"objective", "optimiser", "average"}
    for group, named in first.tensors.items():
        assert named.keys() == second.tensors[group].keys()
        assert all(torch.equal(tensor, second.tensors[group][name]) for name, tensor in named.items()), group
    models = [load_file(folder / "model" / "model.safetensors") for folder in (one, other)]
    assert all(torch.equal(tensor, models[1][name]) for name, tensor in models[0].items())


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "run"
    train_briefly(out=folder)
    return folder


@pytest.mark.slow
def test_a_stopped_training_resumes_bit_for_bit(tmp_path, never_stopped) -> None:
    parts = partial(train_briefly, out=tmp_path / "run")
    with stopped_after(3):
        parts()
    assert step_of(list_checkpoints(tmp_path / "run" / "checkpoints")[-1]) == 3
    parts()
    assert_same_run(never_stopped, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"other settings[\s\S]*optim\.lr"):
        parts(lr=0.5)


def test_checkpoints_and_their_metrics_are_synced_before_a_checkpoint_has_its_name(tmp_path, monkeypatch) -> None:
    fsync, rename = os.fsync, os.rename
    synced: dict[int, int] = {}  # bytes by inode
    seen, missing = [], []

    def sync(handle: int) -> None:
        fsync(handle)
        status = os.fstat(handle)
        synced[status.st_ino] = status.st_size

    def name(source: Path, target: Path) -> None:
        if target.name.startswith("step-"):
            seen.append(target)
            missing.extend(path.name for path in (source, *source.iterdir()) if path.stat().st_ino not in synced)
            counted = json.loads((source / "state.json").read_text())["progress"]["metrics_bytes"]
            metrics = tmp_path / "run" / "metrics.jsonl"
            missing.extend(["metrics"] * (synced.get(metrics.stat().st_ino, -1) < counted))
            synced.pop(target.parent.stat().st_ino, None)
        rename(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", name)
    train_briefly(out=tmp_path / "run")
    assert len(seen) >= STEPS and missing == []
    assert (tmp_path / "run" / "checkpoints").stat().st_ino in synced, "the last name too"


@pytest.mark.slow
def test_a_signal_saves_and_the_same_command_resumes_until_the_run_is_finished(tmp_path, monkeypatch, capsys) -> None:
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert cli.run(command(whole)) == 0
    for fault, code in (("run.after_metrics:int:1", 130), ("run.after_metrics:term:1", 75)):
        assert run_with(monkeypatch, fault, command(out)) == code
        assert "a checkpoint is saved" in capsys.readouterr().err
        assert 0 < step_of(list_checkpoints(out / "checkpoints")[-1]) < STEPS
    before = (out / "config.yaml").read_bytes()
    assert cli.run(command(out, steps=2)) == 2
    assert "beyond the requested 2" in capsys.readouterr().err
    assert (out / "config.yaml").read_bytes() == before
    for _ in range(2):  # a finished run is not trained again
        assert cli.run(command(out)) == 0
        assert str(out / "report.html") in capsys.readouterr().out
        assert_same_run(whole, out)


@pytest.mark.slow
@pytest.mark.parametrize("kills", few_or_nightly(3, 60))
def test_kills_at_random_moments_change_no_bit(tmp_path, never_stopped: Path, kills: int) -> None:
    chance, out = random.Random(0), tmp_path / "run-0"
    for number in range(1, kills + 1):
        if not is_killed(partial(train_briefly, out=out), out, chance):  # it was faster
            assert_same_run(never_stopped, out)
            out = tmp_path / f"run-{number}"
    train_briefly(out=out)
    assert_same_run(never_stopped, out)


def newest_step(out: Path) -> int:
    return max(map(step_of, list_checkpoints(out / "checkpoints")), default=-1)


def is_killed(act: Callable[[], object], out: Path, chance: random.Random) -> bool:
    """Kills a copy of this process, soon after it saved or began; False where it was faster."""
    wanted = newest_step(out) + chance.randint(0, 3)
    child = start_copy(act)
    while newest_step(out) < wanted and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        time.sleep(0.001)
    time.sleep(chance.uniform(0, 0.05))
    os.kill(child, signal.SIGKILL)
    code = wait_for_end(child)
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked to be killed")
def test_kill_9_at_every_fault_point_changes_no_bit(tmp_path, never_stopped: Path) -> None:
    """One run, which is killed at one point after the other."""
    go_on = partial(train_briefly, out=tmp_path / "run")
    for fault in ("checkpoint.end:kill:2", *(f"{point}:kill" for point in fault_injection.POINTS)):
        assert run_in_fork(go_on, fault) == -signal.SIGKILL, fault
        assert load_newest(tmp_path / "run" / "checkpoints").refused == (), fault
    go_on()
    assert_same_run(never_stopped, tmp_path / "run")


@pytest.mark.slow
def test_photographs_read_by_another_number_of_workers_change_no_bit_and_others_are_refused(tmp_path, capsys) -> None:
    photos, once, resumed = photographs(tmp_path / "photos"), tmp_path / "once", tmp_path / "resumed"

    def words(out: Path, workers: int) -> list[str]:
        return command(out, "--size", "32", "--max-bad", "10%", "--workers", str(workers), data=str(photos))

    assert cli.run(words(once, 1)) == 0
    assert run_in_fork(lambda: cli.run(words(resumed, 2)), "run.after_metrics:kill:2") == -signal.SIGKILL
    assert list_checkpoints(resumed / "checkpoints")
    (photos / "bee" / "07.png").rename(photos / "bee" / "107.png")
    assert cli.run(words(resumed, 0)) == 3
    assert "are not those with which the run" in capsys.readouterr().err
    (photos / "bee" / "107.png").rename(photos / "bee" / "07.png")
    assert cli.run(words(resumed, 0)) == 0
    assert_same_run(once, resumed)
    assert (once / "bad_images.csv").read_text() == (resumed / "bad_images.csv").read_text()


def photographs(folder: Path) -> Path:
    """Two classes of 40 pictures, each of its own size, and a broken one."""
    draw = np.random.default_rng(0)
    for name in ("ant", "bee"):
        (folder / name).mkdir(parents=True)
        for count in range(40):
            picture = Image.fromarray(draw.integers(0, 256, (70 + count, 90, 3), dtype=np.uint8))
            picture.save(folder / name / f"{count:02}.png")
    (folder / "ant" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    return folder


def test_an_unfinished_run_on_the_same_data_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked, _ = compose_run(flags={"data": {"source": "digits"}})
    earlier = RunFolder(Path("runs/earlier"))
    earlier.path.mkdir(parents=True)
    gone = f"process {2**22 + 1} on {socket.gethostname()}"  # a number that no process has
    for state, lock, source, named in (
        ("interrupted", "", "digits", True),
        ("running", gone, "digits", True),
        ("running", f"process {os.getppid()} on {socket.gethostname()}", "digits", False),
        ("finished", "", "digits", False),
        ("interrupted", "", "photos", False),
    ):
        earlier.write_config(replace(asked, data=replace(asked.data, source=source)))
        earlier.write_status(state)
        (earlier.path / ".lock").write_text(lock)
        assert find_unfinished(asked) == (earlier.path if named else None), (state, lock, source)


def test_a_new_run_says_how_an_unfinished_one_is_continued(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "prepare", Mock(side_effect=KeyboardInterrupt))
    note = "note     runs/{0} is unfinished; continue it with: vitrail train --resume runs/{0}\n"
    earlier = RunFolder(Path("runs/earlier"))
    earlier.path.mkdir(parents=True)
    earlier.write_config(compose_run(flags={"data": {"source": "digits"}})[0])
    earlier.write_status("preempted")
    for out, said in ((None, True), (Path("runs/other"), False)):
        with pytest.raises(KeyboardInterrupt):
            train("digits", out=out)
        assert (note.format("earlier") in capsys.readouterr().err) is said


def test_a_run_can_be_made_longer_and_says_what_that_does(tmp_path, never_stopped, capsys) -> None:
    shutil.copytree(never_stopped, tmp_path / "run")
    train_briefly(steps=STEPS + 2, out=tmp_path / "run", quiet=False)
    said = capsys.readouterr().err
    assert f"resuming at step {STEPS} of {STEPS + 2}" in said
    assert "stretched" in said
