"""Ranks that are killed, stopped, asked to end, or lose their launcher: exit codes, nobody left running, and the same bits."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from tests.slow import few_or_nightly
from tests.training import on_ranks
from tests.training.ranks import Process, Starter, command, free_port, start_pool, wait
from vitrail.runs.checkpoint import list_checkpoints, step_of
from vitrail.runs.folder import RunFolder
from vitrail.runtime.distributed import SINGLE
from vitrail.training import step

pytestmark = pytest.mark.slow
ENDLESS = 1_000_000  # steps of a run that is ended before


def settings(steps: int, *more: str) -> tuple[str, ...]:
    schedule = (f"schedule.steps={steps}", "schedule.kind=constant", "schedule.warmup=0", "save.every=0.000001")
    return on_ranks.settings("vit", *schedule, "data.batch=12", "optim.ema=0.9", "augment.mixup=0.8", *more)


def words(out: Path, steps: int, *more: str) -> list[str]:
    return ["train", "digits", "--out", str(out), *(w for each in settings(steps, *more) for w in ("--set", each))]


def find_ranks(launcher: Process, world: int, but: list[int] | None = None) -> list[int]:
    """The process ids of the ranks, once all of them are there; none where the launcher has ended before."""
    children, found = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children"), []

    def complete() -> bool:
        found[:] = map(int, children.read_text().split()) if launcher.poll() is None else []
        return launcher.code is not None or (len(found) == world and not {*found} & {*(but or [])})

    wait(complete, launcher)
    return sorted(found)


def wait_for_checkpoint(out: Path, process: Process, beyond: int = 0) -> None:
    """Until one after so many steps is there, or the process has ended."""

    def there() -> bool:
        steps = [step_of(path) for path in list_checkpoints(out / "checkpoints")]
        return process.poll() is not None or max(steps, default=0) > beyond

    wait(there, process)


def assert_gone(ranks: list[int]) -> None:
    wait(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks))


@pytest.fixture
def start(tmp_path) -> Iterator[Starter]:
    with Starter(tmp_path) as start:
        yield start


@pytest.mark.parametrize("kills", few_or_nightly(1, 20))
def test_a_launcher_starts_lost_ranks_again_and_no_bit_changes(tmp_path, start, kills):
    """Random ranks at random moments, also before their first step."""
    steps, out, draw = 10 * (kills + 1), tmp_path / "killed", random.Random(0)
    with start_pool(tmp_path, most=2) as pool:
        assert pool(2, on_ranks.run, tmp_path / "whole", settings(steps)) == [""] * 2
    launcher = start(command(*words(out, steps), "--devices", "2", "--restarts", str(kills)))
    running: list[int] = []
    for kill in range(kills):
        running = find_ranks(launcher, 2, but=running)
        if kill == 0 or draw.random() < 0.5:
            wait_for_checkpoint(out, launcher, 10 * kill)
        time.sleep(draw.uniform(0, 0.1))
        if launcher.poll() is not None:
            break  # it was faster
        with suppress(ProcessLookupError):
            os.kill(draw.choice(running), signal.SIGKILL)
    code, told = launcher.finish()
    assert code == 0, told
    if "was ended by SIGKILL" in told:
        assert "a process was lost; starting again" in told
        assert "resuming at step" in (out / "log.txt").read_text()
    assert_gone(running)
    assert RunFolder(out).status()["state"] == "finished"
    assert (out / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    found, whole = on_ranks.weights(out), on_ranks.weights(tmp_path / "whole")
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], whole[name]) for name in whole)


def test_a_rank_that_is_told_to_stop_saves_for_all_and_one_process_continues(tmp_path, start):
    out = tmp_path / "several"
    launcher = start(command(*words(out, ENDLESS), "--devices", "2"))
    ranks = find_ranks(launcher, 2)
    wait_for_checkpoint(out, launcher)
    os.kill(ranks[1], signal.SIGTERM)
    code, told = launcher.finish()
    assert code == 75, told
    assert told.count("a checkpoint is saved") == 1
    assert_gone(ranks)
    assert RunFolder(out).status()["state"] == "preempted"
    steps = step_of(list_checkpoints(out / "checkpoints")[-1]) + 5
    for place in (out, tmp_path / "one"):
        assert on_ranks.alone(place, settings(steps)) == ""
    one, several = ([r["loss"] for r in RunFolder(path).metrics() if "loss" in r] for path in (tmp_path / "one", out))
    assert len(one) == steps
    assert several == pytest.approx(one, rel=1e-5)


@pytest.mark.parametrize(("number", "state"), [(signal.SIGINT, "interrupted"), (signal.SIGKILL, "preempted")])
def test_ranks_end_with_their_launcher(tmp_path, start, number, state):
    """Ctrl-C is handed on; a launcher that is killed cannot do that."""
    launcher = start(command(*words(tmp_path / "run", ENDLESS), "--devices", "2"))
    ranks = find_ranks(launcher, 2)
    wait_for_checkpoint(tmp_path / "run", launcher)
    launcher.send(number)
    code, told = launcher.finish()
    assert code == {signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL}[number], told
    assert_gone(ranks)
    assert launcher.log.read_text().count("a checkpoint is saved") == 1
    assert RunFolder(tmp_path / "run").status()["state"] == state


@pytest.mark.parametrize("moments", few_or_nightly(1, 50))
def test_ranks_end_with_a_launcher_that_is_killed_while_they_start(tmp_path, start, moments):
    """At the first moment at which both are there, and so many tenths of a second later."""
    for tenths in range(moments):
        launcher = start(command(*words(tmp_path / "run", ENDLESS), "--devices", "2"))
        ranks = find_ranks(launcher, 2)
        time.sleep(tenths / 10)
        launcher.send(signal.SIGKILL)
        assert launcher.finish()[0] == -signal.SIGKILL
        assert_gone(ranks)


def test_a_rank_that_hangs_is_lost_after_the_timeout(tmp_path, start):
    given = words(tmp_path / "run", ENDLESS, "compute.timeout=15")
    first, hanging = start.ranks(2, command(*given))
    wait_for_checkpoint(tmp_path / "run", first)
    hanging.send(signal.SIGSTOP)
    code, told = first.finish()
    assert code == 7, told
    assert "no answer from rank 1" in told
    hanging.send(signal.SIGCONT)
    assert hanging.finish()[0] == 7


def test_a_machine_that_disappears_ends_the_training_on_the_other(tmp_path, start):
    """A launcher of torch and its rank at once, so that nobody is told; the same run goes on from the newest checkpoint."""
    out = tmp_path / "run"
    cluster = ("--rdzv-backend", "c10d", "--nnodes", "2", "--rdzv-endpoint", f"localhost:{free_port()}")

    def launch(number: int) -> Callable[[], None]:
        def act() -> None:
            from torch.distributed.run import main as torchrun

            torchrun([*cluster, "--node-rank", str(number), "-m", "vitrail", *words(out, ENDLESS)])

        return act

    machines = [start(launch(number)) for number in range(2)]
    wait_for_checkpoint(out, machines[0])
    host, other = sorted(machines, key=is_first)  # the first rank, which writes, stays
    left = find_ranks(other, 1)
    for process in (host.pid, *find_ranks(host, 1)):
        os.kill(process, signal.SIGKILL)
    code, told = other.finish()
    assert code == 1, told  # torchrun's own
    assert "another rank of this training ended" in told
    assert_gone(left)
    assert RunFolder(out).status()["state"] == "failed"
    newest = step_of(list_checkpoints(out / "checkpoints")[-1])
    ended = on_ranks.run_with(SINGLE, "term", 0, newest + 1, out, settings(ENDLESS), "digits")
    assert ended.startswith("Preempted"), ended
    assert f"resuming at step {newest} of" in (out / "log.txt").read_text()


def is_first(launcher: Process) -> bool:
    """Whether the rank of a launcher is the first one."""
    (rank,) = find_ranks(launcher, 1)
    return b"\0RANK=0\0" in b"\0" + Path(f"/proc/{rank}/environ").read_bytes()


def test_a_rank_without_memory_says_what_to_set_and_ends_all(tmp_path, start):
    backward = step._backward

    def fail(training, inputs, micro):
        if training.progress.step == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return backward(training, inputs, micro)

    def act(rank: int) -> None:
        if rank == 1:
            step._backward = fail
        command(*words(tmp_path / "run", ENDLESS, "data.micro_batch=6"))()

    (code, told), (own, reason) = [each.finish() for each in start.ranks(2, act)]
    assert (code, own) == (7, 2), told + reason
    assert "rank 1: out of memory with micro-batches of 6 images" in reason
    assert "resume with --set data.micro_batch=3" in reason
    assert "rank 0: another rank of this training ended" in told
    assert RunFolder(tmp_path / "run").status()["state"] == "failed"


def test_a_mistake_is_told_once_with_a_remedy(tmp_path, start):
    asked = command("train", "digits", "--devices", "2", "--batch", "1", "--out", str(tmp_path / "run"))
    codes, told = zip(*(each.finish() for each in start.ranks(2, asked)))
    assert codes == (2, 2), told
    assert "".join(told).count("give at least one image for each") == 1
    assert "Traceback" not in "".join(told)
    assert not (tmp_path / "run").exists()
