"""Weights from untrusted sources: whatever a file claims, one message names it, nothing of it runs, and it takes no memory."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.each_row import each_row
from tests.weights.hostile_files import ARCHIVES, FOLDERS, SAFETENSORS
from tests.weights.hostile_graphs import GRAPHS
from tests.weights.hostile_pickles import PICKLES, WIDE
from tests.weights.hostile_resnets import BIT, HYBRID, RESNETS
from tests.weights.untrusted import (
    CANARY,
    Call,
    Maker,
    changed,
    google,
    native_folder,
    sharded,
    sound,
    timm_folder,
    torch_zip,
    touch,
)
from vitrail.cli import run
from vitrail.errors import CheckpointError, ConfigError
from vitrail.weights import load

MAX_LINES, MAX_LETTERS, MAX_BYTES = 15, 2_000, 100 * 2**20
TABLES = {
    "pickle": PICKLES,
    "safetensors": SAFETENSORS,
    "npz": ARCHIVES,
    "ResNet": RESNETS,
    "folder": FOLDERS,
    "ONNX": GRAPHS,
}
HOSTILE = {f"{kind}: {name}": case for kind, cases in TABLES.items() for name, case in cases.items()}


def refused(path: Path, folder: Path) -> str:
    """The message with which `load` refuses; holds for every hostile file what none may break."""
    before = memory("VmRSS")
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert memory("VmHWM") - before < MAX_BYTES
    message = str(caught.value)
    assert folder.name in message, "the file is named"
    assert "hint: " in message
    assert len(message.splitlines()) <= MAX_LINES
    assert len(message) < MAX_LETTERS
    assert all(line.isprintable() for line in message.splitlines())
    assert not (folder / CANARY).exists(), "the payload ran"
    assert not Path(CANARY).exists(), "the payload ran"
    return message


def check_refused(case: tuple[Maker, str], folder: Path) -> None:
    make, words = case
    assert words in refused(make(folder), folder)


@pytest.mark.slow
@each_row("name, case", PICKLES.items())
def test_a_hostile_pickle_is_refused_in_one_message_and_nothing_of_it_runs(name, case, tmp_path, fast):
    check_refused(case, tmp_path)


@pytest.mark.slow
@each_row("name, case", GRAPHS.items())
def test_a_hostile_graph_is_refused_in_one_message(name, case, tmp_path, fast_trial):
    check_refused(case, tmp_path)


FILES = [row for row in HOSTILE.items() if not row[0].startswith(("pickle: ", "ONNX: "))]


@each_row("name, case", FILES, quick=FILES[::3])
def test_a_hostile_file_or_folder_is_refused_in_one_message_and_nothing_of_it_runs(name, case, tmp_path, fast):
    check_refused(case, tmp_path)


def test_there_are_enough_hostile_files():
    assert len(HOSTILE) >= 200


def memory(kind: str) -> int:
    """Bytes of this process: those in use, from which its peak is then counted anew, or the peak. 0 where no one tells."""
    if sys.platform != "linux":
        return 0
    if kind == "VmRSS":
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{kind}:"))


def said(path: Path) -> list[str]:
    lines: list[str] = []
    load(path, log=lines.append)
    return lines


@each_row(
    "make",
    [timm_folder(), native_folder(), google(), google(HYBRID), google(BIT), sharded(), torch_zip(lambda folder: WIDE)],
)
def test_the_same_files_without_their_lie_are_read(make, tmp_path, fast):
    said(make(tmp_path))


def test_the_payload_runs_where_it_is_let(tmp_path):
    pickle.loads(pickle.dumps(Call(os.system, touch(tmp_path))))
    assert (tmp_path / CANARY).exists()


@each_row("make, parts", [(native_folder(), 64), (google(), 64), (torch_zip(lambda f: {"a": torch.ones(40)}), 16)])
def test_a_file_cut_anywhere_is_refused(make, parts, tmp_path, fast):
    path = make(tmp_path)
    path = path / "model.safetensors" if path.is_dir() else path
    whole = path.read_bytes()
    for part in range(parts):
        path.write_bytes(whole[: len(whole) * part // parts])
        assert path.name in refused(path, tmp_path)


@each_row("number", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_load_with_a_warning(number, tmp_path):
    tensors = changed(sound(), norm__weight=torch.full((24,), number))
    path = timm_folder(tensors=tensors)(tmp_path)
    assert said(path)[-1] == (
        f"warning  {path.name}: NaN or infinity in 1 tensors, such as norm.weight: its predictions are meaningless"
    )


@each_row("names", [["a", "a", "a"], [[], [], []], [1, 2, 3], {"a": 1}, ["a"]])
def test_names_that_name_nothing_are_left_out_and_missed(names, tmp_path):
    assert "carries no class names" in said(timm_folder(label_names=names)(tmp_path))[0]


@each_row(
    "name, verb",
    [
        ("safetensors: 10^12 numbers", "predict"),
        ("npz: an array of objects", "evaluate"),
        ("folder: heads in words", "evaluate"),
        ("pickle: os.system", "predict"),
        ("pickle: 4 numbers that stand for 10^12", "evaluate"),
    ],
)
def test_a_verb_leaves_with_4_and_one_message(name, verb, tmp_path, fast, capsys):
    path = HOSTILE[name][0](tmp_path)
    Image.new("RGB", (40, 40)).save(tmp_path / "x.png")
    assert run([verb, str(path), str(tmp_path / "x.png") if verb == "predict" else "digits"]) == 4
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert str(tmp_path) in told.err.splitlines()[0]
    assert told.err.count("error: ") == 1
    assert "Traceback" not in told.err
    assert not (tmp_path / CANARY).exists()


@each_row("name", ["a\0b.pt", "a" * 5000, "a/" * 3000 + "x.safetensors"])
def test_a_path_that_cannot_be_is_a_mistake_of_the_command(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load(name)
    assert len(str(caught.value)) < MAX_LETTERS
