"""The worker of a study on cells that are not trained, and the processes that are started and replaced."""

from __future__ import annotations

import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.studies.planned import POOL, fake_result, make_study
from vitrail.errors import DiskError, VitrailError
from vitrail.studies.plan import Plan, Trial, make_plan, read_plan, read_result, write_plan, write_result
from vitrail.studies.worker import WorkerPool, compute_trials


def begin(folder: Path) -> Plan:
    plan = make_plan(make_study(), POOL, device="cpu", request="a", price=lambda trial: 1.0, budget=None)
    write_plan(folder, plan)
    return plan


@pytest.mark.slow
def test_a_worker_tunes_each_arm_and_trains_its_cells_at_the_rate_that_was_found(tmp_path: Path) -> None:
    plan = begin(tmp_path)
    rates: dict[str, float] = {}

    def compute(trial: Trial, rate: float, attempt: int) -> None:
        rates[trial.key] = rate
        # the best rate lies beyond the grid: 1.6e-2, of which two rates further are tried
        best = {"validation": {"accuracy": 0.5, "nll": abs(rate - 1.6e-2)}}
        write_result(tmp_path, fake_result(trial, rate, **best))

    assert compute_trials(tmp_path, compute) == 24 + 3 * (3 + 2)
    tuned = [rates[key] for key, trial in plan.trials.items() if trial.search is not None]
    assert set(tuned) == {1.6e-2}
    assert {rates[key] for key, trial in plan.trials.items() if trial.search is None} == {1e-4}
    assert compute_trials(tmp_path, compute) == 0


@pytest.mark.slow
def test_an_arm_all_of_whose_rates_diverged_fails_by_name(tmp_path: Path) -> None:
    plan = begin(tmp_path)

    def compute(trial: Trial, rate: float, attempt: int) -> None:
        lost = {"state": "diverged", "validation": {}} if trial.run.model.changes["width"] == 64 else {}
        write_result(tmp_path, fake_result(trial, rate, **lost))

    compute_trials(tmp_path, compute)
    wide = {trial.key for place, trial in plan.places["width"].items() if place.arm == "wide"}
    failed = {key: result for key, result in plan.read_results(tmp_path).items() if result.state == "failed"}
    assert set(failed) == wide
    assert {result.error for result in failed.values()} == {"every learning rate that was tried diverged or failed"}


def test_a_cell_that_fails_three_times_is_kept_as_a_failure_with_its_error(tmp_path: Path) -> None:
    plan = begin(tmp_path)
    bad = list(plan.trials)[5]

    def compute(trial: Trial, rate: float, attempt: int) -> None:
        if trial.key == bad:
            raise ValueError("no such image")
        write_result(tmp_path, fake_result(trial, rate))

    compute_trials(tmp_path, compute)
    result = read_result(tmp_path, bad)
    assert result is not None
    assert (result.state, result.error, result.attempts) == ("failed", "ValueError: no such image", 3)


# kills itself until there is a third file beside its log, then ends with the code that it is given
SUICIDE = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    folder, code = Path(sys.argv[1]), int(sys.argv[2])
    (folder / f"{os.getpid()}.began").touch()
    if len(list(folder.glob("*.began"))) < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    print("nothing can be written" if code else "done")
    sys.exit(code)
    """
)


def pool(folder: Path, code: int) -> WorkerPool:
    return WorkerPool(folder, 1, (sys.executable, "-c", SUICIDE, str(folder), str(code)))


def test_workers_that_are_killed_are_replaced(tmp_path: Path) -> None:
    working, seen = pool(tmp_path, 0), []
    working.wait(lambda: seen.append(working.started), every=0.01)
    assert working.started == seen[-1] == 3


def test_workers_are_not_waited_for_beyond_the_time_at_which_a_call_ends(tmp_path: Path) -> None:
    working = WorkerPool(tmp_path, 1, (sys.executable, "-c", "import time; time.sleep(600)"))
    working.wait(lambda: None, ends=time.monotonic() + 0.2, every=0.05)
    assert [process.poll() for process in working.logs] == [None]
    working.stop()


@pytest.mark.parametrize(("code", "kind"), [(6, DiskError), (3, VitrailError)])
def test_a_worker_that_cannot_work_ends_the_study_in_its_own_words(tmp_path: Path, code: int, kind: type) -> None:
    working = pool(tmp_path, code)
    with pytest.raises(kind, match="nothing can be written"):
        working.wait(lambda: None, every=0.01)
    working.stop()


@pytest.mark.slow
def test_a_plan_survives_the_workers(tmp_path: Path) -> None:
    plan = begin(tmp_path)
    compute_trials(tmp_path, lambda trial, rate, attempt: write_result(tmp_path, fake_result(trial, rate)))
    assert read_plan(tmp_path)[0].sha256 == plan.sha256
