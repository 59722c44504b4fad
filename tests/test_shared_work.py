"""Work that processes share over a folder: who takes what, and what becomes of it when they are killed."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import pytest

from vitrail.errors import DiskError, InUseError
from vitrail.shared_work import MAX_DEATHS, MAX_FAILURES, Attempts, Claims, Tries, work_through

# a worker whose pieces are files: it notes that it begins one, takes a moment, and puts the result in its place
WORKER = textwrap.dedent(
    """
    import os, sys, time
    from functools import partial
    from pathlib import Path
    from vitrail.files import replace_file
    from vitrail.shared_work import Attempts, Claims, work_through

    folder, moment = Path(sys.argv[1]), float(sys.argv[2])
    claims, attempts = Claims(folder / "claims"), Attempts(folder / "attempts")

    def is_done(number):
        return (folder / f"{number}.done").exists()

    def compute(number, attempt):
        mine = folder / f"{number}.{os.getpid()}.busy"
        mine.touch()
        others = [path.name.split(".")[1] for path in folder.glob(f"{number}.*.busy") if path != mine]
        if any(Path("/proc", process).exists() for process in others):
            (folder / f"{number}.twice").touch()
        time.sleep(moment)
        with open(folder / "computed.txt", "a") as log:
            log.write(f"{number}\\n")
        replace_file(folder / f"{number}.done", str(number))
        mine.unlink()

    def give_up(number, error, attempts):
        replace_file(folder / f"{number}.done", error)

    def take(number):
        if not claims.take_open(number, partial(is_done, number)):
            return False
        attempts.run(str(number), partial(compute, number), partial(give_up, number))
        claims.release(number)
        return True

    work_through(lambda: [n for n in range(12) if not is_done(n)] or None, lambda ns: any(map(take, ns)), poll=0.02)
    """
)


def start(folder: Path, moment: float) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", WORKER, str(folder), str(moment)])


def test_two_workers_that_start_at_once_compute_every_piece_once(tmp_path: Path) -> None:
    workers = [start(tmp_path, 0.02) for _ in range(2)]
    assert [worker.wait(600) for worker in workers] == [0, 0]
    assert Counter(map(int, (tmp_path / "computed.txt").read_text().split())) == dict.fromkeys(range(12), 1)
    assert not list(tmp_path.glob("*.twice"))
    assert not list((tmp_path / "attempts").iterdir())


def test_workers_that_are_killed_at_any_moment_lose_no_piece_and_share_none(tmp_path: Path) -> None:
    draw, workers = random.Random(0), [start(tmp_path, 0.1) for _ in range(2)]
    for _ in range(6):
        victim = draw.randrange(2)
        worker = workers[victim]
        while worker.poll() is None and not list(tmp_path.glob(f"*.{worker.pid}.busy")):
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.1))
        worker.kill()
        worker.wait()
        workers[victim] = start(tmp_path, 0.1)
    assert [worker.wait(600) for worker in workers] == [0, 0]
    assert all((tmp_path / f"{number}.done").read_text() == str(number) for number in range(12))
    assert not list(tmp_path.glob("*.twice"))


def test_a_kill_ends_the_claim_at_once_and_counts_as_a_death(tmp_path: Path) -> None:
    worker = start(tmp_path, 600)
    while not list(tmp_path.glob(f"0.{worker.pid}.busy")):
        time.sleep(0.01)
    claims = Claims(tmp_path / "claims")
    assert not claims.take(0)
    assert claims.take(1)
    worker.kill()
    worker.wait()
    assert claims.take(0)
    assert Attempts(tmp_path / "attempts").read("0") == Tries(begun=1)
    assert Tries(begun=1).deaths == 1


def attempt_until_done(folder: Path, compute) -> tuple[str, int]:
    """The result of a piece of work and how many attempts were made; ``compute`` returns it from the number of an attempt."""
    attempts, results = Attempts(folder), []
    for count in range(1, 100):
        attempts.run(
            "piece",
            lambda number: results.append(compute(number)),
            lambda error, made: results.append(f"failed {made}: {error}"),
        )
        if results:
            return results[0], count
    raise AssertionError("it never ended")


def test_three_errors_are_a_failure_by_name(tmp_path: Path) -> None:
    def compute(number: int) -> str:
        raise RuntimeError(f"attempt {number}")

    assert attempt_until_done(tmp_path, compute) == ("failed 3: RuntimeError: attempt 3", MAX_FAILURES + 1)


def test_an_error_that_does_not_recur_is_not_a_failure(tmp_path: Path) -> None:
    def compute(number: int) -> str:
        if number < 3:
            raise RuntimeError("flaky")
        return "well"

    assert attempt_until_done(tmp_path, compute) == ("well", 3)


def test_many_deaths_are_a_failure(tmp_path: Path) -> None:
    attempts, given_up = Attempts(tmp_path), []
    attempts._write("piece", Tries(begun=MAX_DEATHS + 1, failures=("ValueError: bad",)))
    attempts.run("piece", pytest.fail, lambda error, made: given_up.append((error, made)))
    assert given_up == [("its process was killed 20 times", 21)]


@pytest.mark.parametrize("error", [DiskError("the disk is full"), InUseError("in use")])
def test_an_error_of_all_pieces_is_not_a_failure_of_one(tmp_path: Path, error: Exception) -> None:
    def compute(number: int) -> None:
        raise error

    with pytest.raises(type(error)):
        Attempts(tmp_path).run("piece", compute, pytest.fail)
    assert Attempts(tmp_path).read("piece") == Tries()


def test_a_worker_that_waits_for_others_logs_it_once() -> None:
    lists, waits = [[1, 2], [2], [2], [2], None], []
    computed = work_through(lambda: lists.pop(0), lambda pieces: len(pieces) - 1, poll=0, on_wait=waits.append)
    assert (computed, waits) == (1, [[2]])
