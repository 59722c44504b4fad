"""Processes that compute parts are killed at random moments: at the end every image is there once, with the right answer."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import vitrail
from tests.looked_at import picture, shaken
from vitrail.weights.native import save_model

pytestmark = pytest.mark.slow
IMAGES, BROKEN = 240, 7


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


def start(place: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    how = ["--part-size", "1", "--format", "jsonl", "--quiet", *more]
    command = [sys.executable, "-m", "vitrail", "predict", str(place / "model"), str(place / "images")]
    return subprocess.Popen([*command, "--parts", str(out), *how], stderr=subprocess.PIPE, text=True)


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


def wait_for(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Until so many parts are done."""
    deadline = time.monotonic() + 600
    while len(list(out.glob("_records/[0-9]*.json"))) < count:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)


def test_two_processes_at_a_time_are_killed_again_and_again(place, tmp_path):
    out, draw = tmp_path / "out", random.Random(0)
    running = [start(place, out) for _ in range(2)]
    done = 0
    for _ in range(6):
        done += draw.randint(1, 30)
        wait_for(out, done, running[0])
        time.sleep(draw.uniform(0, 0.03))  # somewhere in a part
        running[0].kill()
        running[0].communicate()
        done = len(records(out))
        running = [running[1], start(place, out)]
    for process in running:
        process.communicate(timeout=600)
        assert process.returncode == 0
    assert_whole(place, out)
    assert len({record["process"] for record in records(out)}) > 2


def test_ray_loses_an_actor_and_then_its_driver(place, tmp_path):
    pytest.importorskip("ray")
    out = tmp_path / "out"
    driver = start(place, out, "--engine", "ray")
    wait_for(out, 1, driver)
    actor = int(records(out)[0]["process"].split("@")[0])
    assert actor != driver.pid
    os.kill(actor, signal.SIGKILL)
    wait_for(out, len(records(out)) + 5, driver)
    driver.kill()
    driver.wait()  # Ray's own processes hold its stderr for a minute
    driver.stderr.close()
    others = {record["process"] for record in records(out)} - {f"{actor}@{socket.gethostname()}"}
    assert others  # one or more: Ray decides how many it starts
    assert len(records(out)) < IMAGES
    again = start(place, out)  # the engine may change
    _, said = again.communicate(timeout=600)
    assert again.returncode == 0, said
    assert_whole(place, out)
