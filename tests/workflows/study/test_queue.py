"""Work that processes share over a folder: who takes what, and what becomes of it when they are killed."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import pytest

from vitrail.errors import DiskError, InUseError
from vitrail.workflows.study import queue as queues
from vitrail.workflows.study.queue import MOST_FAILURES, SILENCE, Queue, Work, boot_id, work

# a worker whose cells are files: it notes that it begins one, takes a moment, and puts the result in its place
WORKER = textwrap.dedent(
    """
    import os, sys, time
    from pathlib import Path
    from vitrail.files import replace_file
    from vitrail.workflows.study.queue import Queue, Work, work

    folder, keys, moment = Path(sys.argv[1]), sys.argv[2].split(), float(sys.argv[3])

    def is_done(key):
        return (folder / f"{key}.done").exists()

    def ready():
        return [key for key in keys if not is_done(key)] or None

    def compute(key, attempt):
        mine = folder / f"{key}.{os.getpid()}.busy"
        mine.touch()
        others = [path.name.split(".")[1] for path in folder.glob(f"{key}.*.busy") if path != mine]
        if any(Path("/proc", process).exists() for process in others):
            (folder / f"{key}.twice").touch()
        time.sleep(moment)
        with open(folder / "computed.txt", "a") as log:
            log.write(f"{key}\\n")
        replace_file(folder / f"{key}.done", key)
        mine.unlink()

    def give_up(key, error, attempts):
        replace_file(folder / f"{key}.done", error)

    work(Queue(folder), Work(ready=ready, is_done=is_done, compute=compute, give_up=give_up), poll=0.02)
    """
)
KEYS = [f"cell-{number}" for number in range(12)]


def start(folder: Path, moment: float) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", WORKER, str(folder), " ".join(KEYS), str(moment)])


def test_two_workers_that_start_at_once_compute_every_key_once(tmp_path: Path) -> None:
    workers = [start(tmp_path, 0.02) for _ in range(2)]
    assert [worker.wait(600) for worker in workers] == [0, 0]
    assert Counter((tmp_path / "computed.txt").read_text().split()) == dict.fromkeys(KEYS, 1)
    assert not list(tmp_path.glob("*.twice"))
    assert not list((tmp_path / "leases").glob("cell-*"))


def test_workers_that_are_killed_at_any_moment_lose_no_key_and_share_none(tmp_path: Path) -> None:
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
    assert all((tmp_path / f"{key}.done").read_text() == key for key in KEYS)
    assert not list(tmp_path.glob("*.twice"))


def serve(folder: Path, keys: list[str], compute) -> tuple[dict[str, str], int]:
    """The results of a worker in this process, and how many keys it took."""
    results: dict[str, str] = {}

    def ready() -> list[str] | None:
        return [key for key in keys if key not in results] or None

    def keep(key: str, attempt: int) -> None:
        results[key] = compute(key, attempt)

    def give_up(key: str, error: str, attempts: int) -> None:
        results[key] = f"failed {attempts}: {error}"

    count = work(Queue(folder), Work(ready=ready, is_done=results.__contains__, compute=keep, give_up=give_up), poll=0)
    return results, count


def test_three_errors_are_a_failure_by_name_and_the_others_go_on(tmp_path: Path) -> None:
    attempts = []

    def compute(key: str, attempt: int) -> str:
        attempts.append((key, attempt))
        if key == "bad":
            raise RuntimeError(f"attempt {attempt}")
        return "well"

    results, _ = serve(tmp_path, ["bad", "good"], compute)
    assert results == {"bad": "failed 3: RuntimeError: attempt 3", "good": "well"}
    assert [attempt for key, attempt in attempts if key == "bad"] == [1, 2, 3]
    assert MOST_FAILURES == 3


def test_an_error_that_does_not_come_back_is_no_failure(tmp_path: Path) -> None:
    def compute(key: str, attempt: int) -> str:
        if attempt < 3:
            raise RuntimeError("flaky")
        return "well"

    assert serve(tmp_path, ["cell"], compute)[0] == {"cell": "well"}


def test_a_full_disk_ends_the_worker_and_is_no_failure_of_the_key(tmp_path: Path) -> None:
    def compute(key: str, attempt: int) -> str:
        raise DiskError("the disk is full")

    with pytest.raises(DiskError):
        serve(tmp_path, ["cell"], compute)
    assert Queue(tmp_path).tries("cell") == {"failures": [], "deaths": 0}
    assert not Queue(tmp_path).is_held("cell")


def test_a_folder_in_use_is_left_to_whoever_works_there(tmp_path: Path) -> None:
    calls = []

    def compute(key: str, attempt: int) -> str:
        calls.append(attempt)
        if len(calls) < 5:
            raise InUseError("in use")
        return "well"

    assert serve(tmp_path, ["cell"], compute)[0] == {"cell": "well"}
    assert calls == [1, 1, 1, 1, 1]


def write_lease(folder: Path, **changes: object) -> Path:
    lease = Queue(folder).leases / "cell"
    holder = {"host": socket.gethostname(), "boot": boot_id(), "process": os.getppid(), **changes}
    lease.write_text(json.dumps(holder))
    return lease


def dead_process() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def is_free(folder: Path) -> bool:
    with Queue(folder).hold("cell") as held:
        return held


def test_the_lease_of_a_living_process_is_respected(tmp_path: Path) -> None:
    write_lease(tmp_path)
    assert not is_free(tmp_path)


def test_the_lease_of_a_process_that_is_gone_is_free_at_once_and_its_death_is_counted(tmp_path: Path) -> None:
    write_lease(tmp_path, process=dead_process())
    assert is_free(tmp_path)
    assert Queue(tmp_path).tries("cell")["deaths"] == 1


@pytest.mark.parametrize("changes", [{"host": "elsewhere"}, {"boot": "an earlier one"}])
def test_a_lease_from_elsewhere_is_free_only_after_three_minutes_of_silence(tmp_path: Path, changes: dict) -> None:
    lease = write_lease(tmp_path, process=dead_process(), **changes)
    assert not is_free(tmp_path)
    past = time.time() - SILENCE - 1
    os.utime(lease, (past, past))
    assert is_free(tmp_path)


def test_an_empty_lease_whose_writer_was_killed_is_free_after_three_minutes(tmp_path: Path) -> None:
    lease = Queue(tmp_path).leases / "cell"
    lease.touch()
    assert not is_free(tmp_path)
    os.utime(lease, (0, 0))
    assert is_free(tmp_path)


def test_a_lease_is_renewed_while_it_is_held_and_gone_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "HEARTBEAT", 0.01)
    queue = Queue(tmp_path)
    with queue.hold("cell") as held:
        assert held
        os.utime(queue.leases / "cell", (0, 0))
        deadline = time.monotonic() + 600
        while (queue.leases / "cell").stat().st_mtime == 0:
            assert time.monotonic() < deadline, "there was no sign of life"
            time.sleep(0.01)
    assert not (queue.leases / "cell").exists()


def test_a_lease_that_somebody_else_took_over_is_not_removed(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    with queue.hold("cell"):
        write_lease(tmp_path, host="elsewhere")
    assert (queue.leases / "cell").exists()
