"""Processes that compute parts are killed at random moments: at the end every image is there once, with the right answer."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import vitrail
from tests.forked import start_copy
from tests.looked_at import picture, shaken
from tests.slow import few_or_nightly
from vitrail.weights.native import save_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked to be killed"),
]
IMAGES, BROKEN = 120, 7


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    save_model(folder / "model", shaken())
    (folder / "images").mkdir()
    for number in range(IMAGES):
        picture(40, 48, seed=number).save(folder / f"images/{number:03}.png")
    (folder / f"images/{BROKEN:03}.png").write_bytes(b"broken")
    how = {"quiet": True, "log": lambda line: None, "batch": 1, "out": folder / "table.jsonl"}
    vitrail.predict(folder / "model", folder / "images", **how)
    return folder


def predict(place: Path, out: Path) -> None:
    vitrail.predict(place / "model", place / "images", parts=out, part_size=1, format="jsonl", quiet=True)


def start(place: Path, out: Path) -> int:
    """A copy of this process that computes parts."""
    return start_copy(partial(predict, place, out))


def records(out: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in out.glob("_records/[0-9]*.json")]


def assert_whole(place: Path, out: Path) -> None:
    assert vitrail.check_parts(out, quiet=True).sound
    lines = [line for part in sorted(out.glob("part-*.jsonl")) for line in part.read_text().splitlines()]
    table = (place / "table.jsonl").read_text().splitlines()
    expected, found = ([json.loads(line) for line in each] for each in (table, lines))
    assert [row["path"] for row in found] == [row["path"] for row in expected]  # each once, in order
    for row, other in zip(found, expected, strict=True):
        assert (row["label"], row["error"]) == (other["label"], other["error"])
        assert row["score"] == (other["score"] and pytest.approx(other["score"], abs=2e-6))


def wait_for(out: Path, count: int, ended: Callable[[], object]) -> None:
    """Until so many parts are done, or whoever computes them has ended."""
    deadline = time.monotonic() + 600
    while len(list(out.glob("_records/[0-9]*.json"))) < count and ended() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("kills", few_or_nightly(4, 60))
def test_two_processes_at_a_time_are_killed_again_and_again(place, tmp_path, kills):
    """At random moments, until there are no parts left for another process."""
    out, draw = tmp_path / "out", random.Random(0)
    running = [start(place, out) for _ in range(2)]
    done = 0
    for _ in range(kills):
        done += draw.randint(1, IMAGES // kills or 1)
        wait_for(out, done, partial(os.waitid, os.P_PID, running[0], os.WEXITED | os.WNOHANG | os.WNOWAIT))
        time.sleep(draw.uniform(0, 0.03))  # somewhere in a part
        os.kill(running[0], signal.SIGKILL)
        os.waitpid(running[0], 0)
        done = len(records(out))
        running = [running[1], start(place, out)]
    assert [os.waitpid(child, 0)[1] for child in running] == [0, 0]
    assert_whole(place, out)


def test_ray_loses_an_actor_and_then_its_driver(place, tmp_path):
    """And another engine continues. When Ray starts actors, and how many, is its own affair."""
    pytest.importorskip("ray")
    out = tmp_path / "out"
    words = ["predict", str(place / "model"), str(place / "images"), "--parts", str(out), "--part-size", "1"]
    command = [sys.executable, "-m", "vitrail", *words, "--format", "jsonl", "--quiet", "--engine", "ray"]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(out, 1, driver.poll)
    assert records(out), "Ray ended without a part"
    actor = int(records(out)[0]["process"].split("@")[0])
    assert actor != driver.pid
    os.kill(actor, signal.SIGKILL)
    wait_for(out, len(records(out)) + 5, driver.poll)
    driver.kill()
    driver.wait()
    predict(place, out)
    assert_whole(place, out)
