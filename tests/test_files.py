"""Writing that is killed at any operation: what is read next is whole, old or new, and nothing is left beside it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import vitrail
from tests.forked import start_copy, wait_for_end
from tests.slow import slow_except
from tests.weights.kinds import a_model
from vitrail.checksums import sha256_of
from vitrail.files import replace_file, settle, settle_folder, stage_folder
from vitrail.inference.features import digest_of
from vitrail.verbs.convert import convert
from vitrail.weights import load
from vitrail.weights.native import save_model

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}  # events of sys.addaudithook
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked to be killed")


def run_and_kill(write: Callable[[], object], operation: int) -> bool:
    """Runs ``write`` in a process that is killed before its ``operation``-th change to the disk; False if it was done before."""
    passed = 0

    def count(event: str, arguments: tuple) -> None:
        nonlocal passed
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
        if event in CHANGES or writes:
            passed += 1
            if passed == operation:
                os.kill(os.getpid(), signal.SIGKILL)

    def act() -> None:
        sys.addaudithook(count)
        write()

    return wait_for_end(start_copy(act)) < 0


def model_of(temperature: float):
    model = a_model(depth=1)
    model.temperature = temperature
    return model


# a folder, a file with another beside it, and a file alone
@pytest.mark.slow
@pytest.mark.parametrize("name", slow_except(("model", "model.npz", "model.safetensors"), {"model"}))
def test_a_model_is_whole_whenever_its_writer_is_killed(tmp_path, name) -> None:
    old, new = (
        save_model(tmp_path / "sources" / word, model_of(value)) for word, value in (("old", 1.5), ("new", 2.5))
    )
    place = tmp_path / "here" / name
    layout = "google" if name.endswith("npz") else "native"
    convert(old, place, layout)
    found, kills = [], 0
    while run_and_kill(lambda: convert(new, place, layout), kills + 1):
        kills += 1
        found.append(load(place).temperature)
        convert(old, place, layout)
        left = [path.name for path in place.parent.iterdir() if path.name.startswith(".")]
        assert left == [], f"after {kills} operations"
    assert kills >= 5
    assert set(found) == {1.5, 2.5}
    assert found == sorted(found), "the new model stays once it is there"


def test_a_folder_between_its_two_renames_is_put_back(tmp_path) -> None:
    model = save_model(tmp_path / "run" / "model", model_of(1.5))
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    model.rename(model.with_name(f".model.replaced-{int(gone.stdout)}"))
    assert load(tmp_path / "run").temperature == 1.5
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["model"]


def test_files_of_a_running_process_or_another_machine_are_left_alone(tmp_path) -> None:
    parent, host = os.getppid(), socket.gethostname()
    names = [f".a.writing-{parent}@{host}", f".a.replaced-{parent}@{host}", ".a.moving-1@elsewhere", ".a.writing-note"]
    for name in names:
        (tmp_path / name).mkdir()
    settle(tmp_path / "a")
    settle_folder(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_a_predecessor_with_the_same_process_number_does_not_stop_a_writer(tmp_path) -> None:
    # in a container every process may have the number 7
    left = tmp_path / f".a.writing-{os.getpid()}@{socket.gethostname()}"
    left.mkdir()
    (left / "half").touch()
    with stage_folder(tmp_path / "a", {"file": b"whole"}) as staged:
        assert [path.name for path in staged.iterdir()] == ["file"]


@pytest.mark.slow
def test_reports_are_whole_whenever_their_writer_is_killed(tmp_path) -> None:
    pages = [f"<html>{count * word}</html>" for count, word in ((4000, "old "), (5000, "new "))]
    hashes = {sha256_of(page.encode()) for page in pages}

    def write(page: str) -> None:
        for name in ("report.html", "card.md"):
            replace_file(tmp_path / name, page)

    write(pages[0])
    kills = 0
    while run_and_kill(lambda: write(pages[1]), kills + 1):
        kills += 1
        assert {sha256_of((tmp_path / name).read_bytes()) for name in ("report.html", "card.md")} <= hashes
        settle_folder(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["card.md", "report.html"]
    assert kills >= 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "every"),
    [("train", 9), *(pytest.param(verb, 1, marks=pytest.mark.nightly) for verb in ("train", "pretrain"))],
)
def test_a_run_that_is_killed_at_a_change_to_the_disk_has_a_whole_model_and_ends_as_ever(tmp_path, verb, every) -> None:
    """At every ninth change to the disk, and in the nightly tests at each."""
    arrays = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 1), dtype=np.uint8), np.arange(30) % 3
    changes = "model.changes={width: 8, depth: 1, heads: 1, mlp_width: 8, patch_size: [4, 4]}"
    settings = ("model.name=vit-ti16", changes, "data.batch=8")

    def train(place: Path, steps: int) -> None:
        how = {"steps": steps, "settings": settings, "out": place, "quiet": True}
        vitrail.train(arrays, **how) if verb == "train" else vitrail.pretrain(arrays, objective="masked-patch", **how)

    train(tmp_path / "first", 2)
    shutil.copytree(tmp_path / "first", tmp_path / "whole")
    train(tmp_path / "whole", 3)
    known = {digest_of(load(tmp_path / name)): name for name in ("first", "whole")}
    found, kills = [], 0
    while True:
        place = shutil.copytree(tmp_path / "first", tmp_path / f"killed-{kills}")
        if not run_and_kill(partial(train, place, 3), every * kills + 1):
            break
        kills += 1
        found.append(known[digest_of(load(place))])
        train(place, 3)
        assert (place / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
        assert known[digest_of(load(place))] == "whole"
        names = {path.name for path in place.rglob(".*")}
        assert names == {".lock"}
        shutil.rmtree(place)
    assert kills * every > 50
    assert set(found) == {"first", "whole"}
    assert found == sorted(found)
