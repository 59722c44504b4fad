"""Ranks that are killed, stopped, asked to end, or lose their launcher: exit codes, nobody left running, and the same bits."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from tests.training import on_ranks
from vitrail.runs.folder import RunFolder

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("VITRAIL_KILLS", "2"))  # at each number of ranks
STEPS = 40 + 10 * KILLS
PATIENCE = 200  # seconds
WITHOUT_MEMORY = """
import os

import torch

from vitrail.cli import main
from vitrail.training import step

backward = step._backward


def fail(training, inputs, micro):
    if os.environ["RANK"] == "1" and training.progress.step == 3:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return backward(training, inputs, micro)


step._backward = fail
main()
"""


def words(out: Path, world: int, *more: str) -> list[str]:
    return [sys.executable, "-m", "vitrail", *training(out, *more), "--devices", str(world)]


def training(out: Path, *more: str) -> list[str]:
    given = on_ranks.settings("vit", "data.batch=12", "save.every=0.5", "optim.ema=0.9", "augment.mixup=0.8", *more)
    settings = [word for setting in given for word in ("--set", setting)]
    return ["train", "digits", "--steps", str(STEPS), "--out", str(out), *settings]


def torchrun(program: Sequence[str], *more: str) -> list[str]:
    """torch's own launcher, as on a machine of a cluster."""
    return [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", *more, *program]


def start(command: Sequence[str]) -> subprocess.Popen:
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def find_ranks(launcher: subprocess.Popen, world: int) -> list[int]:
    """The process ids of the ranks, once all of them are there."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        found = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        if len(found) == world:
            return sorted(map(int, found))
        time.sleep(0.05)
    raise AssertionError("the ranks did not start")


def wait_for_step(out: Path, launcher: subprocess.Popen, beyond: int = 0) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if len(RunFolder(out).metrics()) > beyond or launcher.poll() == 0:
            return
        time.sleep(0.02)
    raise AssertionError(f"no step was made: {launcher.communicate()[0]}")


def finish(launcher: subprocess.Popen) -> tuple[int, str]:
    told, _ = launcher.communicate(timeout=PATIENCE)
    return launcher.returncode, told


def assert_gone(ranks: Sequence[int], seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while left := [rank for rank in ranks if Path(f"/proc/{rank}").exists()]:
        assert time.monotonic() < until, f"{left} are still running"
        time.sleep(0.1)


@pytest.mark.parametrize("world", [2, 3])
def test_killed_ranks_cost_nothing_but_steps(tmp_path, world):
    """Random ranks at random moments, also before the first step; then the same bits as undisturbed."""
    assert subprocess.run(words(tmp_path / "whole", world), capture_output=True, timeout=PATIENCE).returncode == 0
    out, draw = tmp_path / "killed", random.Random(world)
    for _ in range(KILLS):
        launcher = start(words(out, world))
        ranks = find_ranks(launcher, world)
        if draw.random() < 0.7:
            before = len(RunFolder(out).metrics()) if out.exists() else 0
            wait_for_step(out, launcher, before)
        time.sleep(draw.uniform(0, 1))
        if launcher.poll() is not None:
            assert finish(launcher)[0] == 0
            break  # it was faster
        with suppress(ProcessLookupError):
            os.kill(draw.choice(ranks), signal.SIGKILL)
        code, told = finish(launcher)
        assert_gone(ranks)
        if code == 0:
            break  # killed after its work was done
        assert code == 7, told
        assert "was ended by SIGKILL" in told
    code, told = finish(start(words(out, world)))
    assert code == 0, told
    assert (out / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    found, whole = on_ranks.weights(out), on_ranks.weights(tmp_path / "whole")
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], whole[name]) for name in whole)


def test_a_run_goes_on_with_other_numbers_of_devices(tmp_path):
    """Stopped at four, two and three ranks, finished by one: the loss of every step is that of one process."""
    assert subprocess.run(words(tmp_path / "one", 1), capture_output=True, timeout=PATIENCE).returncode == 0
    out = tmp_path / "several"
    for world in (4, 2, 3):
        launcher = start(words(out, world))
        wait_for_step(out, launcher, len(RunFolder(out).metrics()) + 5 if out.exists() else 5)
        launcher.terminate()
        code, told = finish(launcher)
        assert code == 75, told
    code, told = finish(start(words(out, 1)))
    assert code == 0, told
    one, several = ([r["loss"] for r in RunFolder(path).metrics() if "loss" in r] for path in (tmp_path / "one", out))
    assert len(one) == STEPS
    assert several == pytest.approx(one, rel=1e-5)


@pytest.mark.parametrize(
    ("whom", "number", "code"), [("one rank", signal.SIGTERM, 75), ("the launcher", signal.SIGINT, 130)]
)
def test_a_signal_saves_on_all_ranks(tmp_path, whom, number, code):
    launcher = start(words(tmp_path, 2))
    ranks = find_ranks(launcher, 2)
    wait_for_step(tmp_path, launcher)
    os.kill(ranks[1] if whom == "one rank" else launcher.pid, number)
    found, told = finish(launcher)
    assert found == code, told
    assert told.count("a checkpoint is saved") == 1
    assert_gone(ranks)
    assert RunFolder(tmp_path).status()["state"] == {75: "preempted", 130: "interrupted"}[code]


def test_a_rank_that_hangs_is_lost_after_the_timeout(tmp_path):
    launcher = start(words(tmp_path, 2, "compute.timeout=8"))
    ranks = find_ranks(launcher, 2)
    wait_for_step(tmp_path, launcher)
    os.kill(ranks[1], signal.SIGSTOP)
    stopped = time.monotonic()
    try:
        time.sleep(0.5)
        while Path(f"/proc/{ranks[0]}").exists() and time.monotonic() < stopped + PATIENCE:
            time.sleep(0.1)
        assert time.monotonic() - stopped < 8 + 5 + 10
    finally:
        os.kill(ranks[1], signal.SIGCONT)  # the launcher's SIGTERM reaches it only now
    code, told = finish(launcher)
    assert code == 7, told
    assert "no answer from rank 1" in told
    assert_gone(ranks)


def test_ranks_end_with_their_launcher(tmp_path):
    launcher = start(words(tmp_path, 2))
    ranks = find_ranks(launcher, 2)
    wait_for_step(tmp_path, launcher)
    launcher.kill()
    launcher.communicate()
    assert_gone(ranks)
    assert RunFolder(tmp_path).status()["state"] == "preempted"


def test_a_machine_that_disappears_ends_the_training_on_the_other(tmp_path):
    """A launcher and its rank at once, so that nobody is told; the same command goes on from the newest checkpoint."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        place = f"localhost:{free.getsockname()[1]}"
    cluster = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-endpoint", place)
    program = ["-m", "vitrail", *training(tmp_path / "run", "schedule.steps=600")]
    machines = [start(torchrun(program, *cluster, "--node-rank", str(number))) for number in range(2)]
    wait_for_step(tmp_path / "run", machines[0])
    while not list((tmp_path / "run" / "checkpoints").glob("step-*")):
        time.sleep(0.05)
    host = next(machine for machine in machines if not is_first(machine))
    other = next(machine for machine in machines if machine is not host)
    left = find_ranks(other, 1)
    for process in (host.pid, *find_ranks(host, 1)):
        os.kill(process, signal.SIGKILL)
    code, told = finish(other)
    host.communicate()
    assert code == 1, told  # torchrun's own
    assert "another rank of this training ended" in told
    assert_gone(left)
    assert RunFolder(tmp_path / "run").status()["state"] == "failed"
    assert finish(start(words(tmp_path / "run", 1, "schedule.steps=600", "save.evaluations=1")))[0] == 0


def is_first(launcher: subprocess.Popen) -> bool:
    """Whether the rank of a launcher is the first one."""
    (rank,) = find_ranks(launcher, 1)
    return b"\0RANK=0\0" in b"\0" + Path(f"/proc/{rank}/environ").read_bytes()


def test_a_rank_without_memory_says_what_to_set_and_ends_all(tmp_path):
    (tmp_path / "program.py").write_text(WITHOUT_MEMORY)
    program = [str(tmp_path / "program.py"), *training(tmp_path / "run", "data.micro_batch=6")]
    code, told = finish(start(torchrun(program, "--nproc-per-node", "2", "--rdzv-endpoint", "localhost:0")))
    assert code == 1, told
    assert "rank 1: out of memory with micro-batches of 6 images" in told
    assert "resume with --set data.micro_batch=3" in told
    assert "rank 0: another rank of this training ended" in told
    assert RunFolder(tmp_path / "run").status()["state"] == "failed"


def test_restarts_go_on_by_themselves(tmp_path):
    launcher = start([*words(tmp_path, 2), "--restarts", "1"])
    ranks = find_ranks(launcher, 2)
    wait_for_step(tmp_path, launcher)
    while not list((tmp_path / "checkpoints").glob("step-*")):
        time.sleep(0.05)
    os.kill(ranks[0], signal.SIGKILL)
    code, told = finish(launcher)
    assert code == 0, told
    assert "a rank was lost; starting again" in told
    assert "resuming at step" in (tmp_path / "log.txt").read_text()
    assert RunFolder(tmp_path).status()["state"] == "finished"


def test_a_mistake_is_told_once_with_a_remedy(tmp_path):
    asked = ["train", "digits", "--devices", "2", "--batch", "1", "--out", str(tmp_path / "run")]
    found = subprocess.run([sys.executable, "-m", "vitrail", *asked], capture_output=True, text=True, timeout=PATIENCE)
    assert found.returncode == 2, found.stderr
    assert found.stderr.count("give at least one image for each") == 1
    assert "Traceback" not in found.stderr
    assert not (tmp_path / "run").exists()
