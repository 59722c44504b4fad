"""Worker processes: what they answer, how they die, and that none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.prepare import Evaluated, Transformed
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.contents import Strings, UserDataset
from vitrail.data.workers import Workers, in_order, make_all
from vitrail.errors import ConfigError, DataError, LostProcessError

HANGS = 300  # seconds after which a process is said to hang
KEYS = [f"picture {number}" for number in range(20)]
# a user's script, with its dataset in it; it prints what a worker answers
SCRIPT = """
import numpy as np
from vitrail.data.prepare import Picture
from vitrail.data.workers import Workers

def make(epoch, sample, view):
    return Picture(np.full((1, 2, 2), sample, np.uint8))

def main():
    pool = Workers(make, 1, ["a", "b"])
    print(pool.processes[0].pid, flush=True)
    with pool.prepare(np.array([[0, 1, 0]])) as made:
        print(made[0].pixels.ravel().tolist(), flush=True)
    {then}
    pool.close()

{guard}
    main()
"""


@pytest.fixture
def shades(user_code):
    """A function that gives what makes plain pictures (3, 6, 8)."""

    def shades(**options):
        contents = UserDataset(user_code.Shades(20, **options), np.arange(20), Strings(KEYS), 3)
        return Evaluated(contents, Preprocessing(size=(6, 8), resize="none"))

    return shades


def rows(*samples):
    return np.array([(0, sample, 0) for sample in samples])


def take(pool, rows):
    """What workers have prepared, copied."""
    with pool.prepare(rows) as made:
        return [each if isinstance(each, str) else each._replace(pixels=each.pixels.copy()) for each in made]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] != "Z"
    except OSError:
        return False


def run_script(tmp_path, guard="if __name__ == '__main__':", then=""):
    script, pipes = tmp_path / "script.py", dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    script.write_text(SCRIPT.format(guard=guard, then=then))
    return subprocess.Popen([sys.executable, str(script)], **pipes, text=True)


@pytest.fixture
def pool_of():
    """A function that starts one worker, which ends with the test."""
    pools = []

    def start(make, count=1):
        pools.append(Workers(make, count, KEYS))
        return pools[-1]

    yield start
    for pool in pools:
        pool.close()


def test_a_worker_makes_what_this_process_makes_and_gives_the_reason_of_a_bad_image(shades, pool_of):
    make = shades(bad=(4,))
    with make_all(make, rows(3, 4, 5)) as here, pool_of(make).prepare(rows(3, 4, 5)) as there:
        assert np.array_equal(here[0].pixels, there[0].pixels)
        assert here[0][1:] == there[0][1:] == ((0, 0, 8, 6), (6, 8), None)
        assert here[1] == there[1] == "OSError: no picture 4"
        assert there[2].pixels.tolist() == np.full((3, 6, 8), 5).tolist()


def test_a_worker_that_dies_at_an_image_is_an_error_that_names_the_image(shades, pool_of):
    pool = pool_of(shades(fatal=7))
    with pytest.raises(LostProcessError, match=f"worker {pool.processes[0].pid} died .SIGKILL. at the image picture 7"):
        take(pool, rows(5, 6, 7, 8))


def test_a_worker_that_is_killed_between_batches_is_said_to_have_died_at_the_next_image(shades, pool_of):
    pool = pool_of(shades())
    take(pool, rows(1, 2, 3))
    os.kill(pool.processes[0].pid, signal.SIGKILL)
    with pytest.raises(LostProcessError, match=r"died .SIGKILL. at the image picture 5"):
        take(pool, rows(5, 6, 7))


def test_images_of_any_size_and_type_arrive_unchanged_batch_after_batch(user_code, pool_of):
    pool = pool_of(user_code.sized)
    for samples in [(1, 2), (19, 3, 18), (2, 1, 1, 1), (19,) * 9]:
        with pool.prepare(rows(*samples)) as made:
            for sample, there in zip(samples, made, strict=True):
                here = user_code.sized(0, sample, 0)
                assert (there.pixels.dtype, there.crop, there.full) == (here.pixels.dtype, here.crop, here.full)
                assert np.array_equal(there.pixels, here.pixels)
                assert (there.map is None) == (here.map is None)
                assert there.map is None or np.array_equal(there.map, here.map)
                assert not there.pixels.flags.writeable


def test_a_worker_takes_no_notice_of_sigterm_and_sigint(shades, pool_of):
    pool = pool_of(shades())
    take(pool, rows(1))
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(pool.processes[0].pid, number)
    assert take(pool, rows(2))[0].pixels.max() == 2


def test_transforms_that_cannot_be_pickled_are_refused_before_a_process_starts():
    with pytest.raises(ConfigError, match="cannot be sent to worker processes"):
        Workers(lambda epoch, sample, view: np.zeros(1), 1, KEYS)


def test_an_error_in_a_worker_is_raised_here_in_its_own_kind_or_with_the_traceback(user_code, pool_of):
    contents = UserDataset(user_code.Shades(20), np.arange(20), Strings(KEYS), 3)
    with pytest.raises(DataError, match="the transform failed on picture 3: KeyError: 'a mistake in the transform'"):
        take(pool_of(Transformed(contents, user_code.failing, (6, 8), 0, 3)), rows(3))
    with pytest.raises(ConfigError, match=r"\(3, 4, 4\) for picture 3"):
        take(pool_of(Transformed(contents, user_code.narrow, (6, 8), 0, 3)), rows(3))
    with pytest.raises(RuntimeError, match=r"(?s)user_code.py.*LookupError: a mistake"):
        take(pool_of(user_code.broken), rows(3))


def test_closing_ends_workers_that_are_busy_or_idle(shades):
    pool = Workers(shades(), 2, KEYS)
    results = in_order(partial(take, pool), [rows(1, 2)] * 9, threads=2, close=pool.close)
    next(results)
    results.close()
    assert [process.poll() for process in pool.processes] == [-signal.SIGKILL] * 2


def test_results_come_in_order_and_an_error_in_its_turn():
    is_done = [threading.Event() for _ in range(10)]

    def work(job):
        if job % 2 == 0:
            assert is_done[job + 1].wait(HANGS)  # an odd job ends before the even one ahead of it
        is_done[job].set()
        return 1 // (job - 5) + job

    results = in_order(work, range(10), threads=3)
    assert [next(results) for _ in range(5)] == [1 // (job - 5) + job for job in range(5)]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_no_more_is_made_ahead_than_twice_the_threads():
    taken = []

    def jobs():
        for job in range(100):
            taken.append(job)
            yield job

    results = in_order(lambda job: job, jobs(), threads=2)
    for job in range(5):
        assert next(results) == job
        assert len(taken) == job + 5  # the one that is given, and four of the next
    results.close()


def test_a_dataset_in_the_users_own_script_reaches_the_worker(tmp_path):
    output, errors = run_script(tmp_path).communicate(timeout=HANGS)
    assert output.splitlines()[1] == "[1, 1, 1, 1]", errors


def test_a_script_without_a_guard_is_told_to_have_one(tmp_path):
    _, errors = run_script(tmp_path, guard="if True:").communicate(timeout=HANGS)
    assert "put the code of the script under `if __name__ == '__main__':`" in errors


def test_a_worker_leaves_when_its_parent_is_killed(tmp_path):
    script = run_script(tmp_path, then="input()")
    worker = int(script.stdout.readline())
    assert script.stdout.readline() == "[1, 1, 1, 1]\n"
    assert is_running(worker)
    script.kill()
    script.communicate()
    deadline = time.monotonic() + HANGS
    while is_running(worker) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(worker)
