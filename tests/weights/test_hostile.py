"""Weights from strangers: whatever a file claims, one message names it, nothing of it runs, and no memory is taken for it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.slow import slow_except
from tests.weights.hostile_files import ARCHIVES, FOLDERS, SAFETENSORS
from tests.weights.hostile_graphs import GRAPHS
from tests.weights.hostile_pickles import PICKLES, WIDE
from tests.weights.hostile_resnets import BIT, HYBRID, RESNETS
from tests.weights.strangers import (
    CANARY,
    Call,
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

MOST_LINES, MOST_LETTERS, MOST_BYTES = 15, 2_000, 100 * 2**20
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
    assert memory("VmHWM") - before < MOST_BYTES
    message = str(caught.value)
    assert folder.name in message, "the file is named"
    assert "try: " in message
    assert len(message.splitlines()) <= MOST_LINES
    assert len(message) < MOST_LETTERS
    assert all(line.isprintable() for line in message.splitlines())
    assert not (folder / CANARY).exists(), "the payload ran"
    assert not Path(CANARY).exists(), "the payload ran"
    return message


@pytest.mark.parametrize("name", slow_except(HOSTILE, HOSTILE.keys() - {"pickle: 10,001 tensors"}))
def test_a_hostile_file_is_refused_in_one_message_and_nothing_of_it_runs(name, tmp_path, fast, fast_trial):
    make, words = HOSTILE[name]
    message = refused(make(tmp_path), tmp_path)
    assert words in message


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


@pytest.mark.parametrize(
    "make",
    [
        timm_folder(),
        native_folder(),
        google(),
        google(HYBRID),
        google(BIT),
        sharded(),
        torch_zip(lambda folder: WIDE),
    ],
)
def test_the_same_files_without_their_lie_are_read(make, tmp_path, fast):
    said(make(tmp_path))


def test_the_payload_runs_where_it_is_let(tmp_path):
    pickle.loads(pickle.dumps(Call(os.system, touch(tmp_path))))
    assert (tmp_path / CANARY).exists()


@pytest.mark.parametrize(
    "make", [native_folder(), google(), torch_zip(lambda f: {"a": torch.ones(40)})], ids=["own", "npz", "pt"]
)
def test_a_file_cut_at_any_64th_is_refused(make, tmp_path, fast):
    path = make(tmp_path)
    path = path / "model.safetensors" if path.is_dir() else path
    whole = path.read_bytes()
    for part in range(64):
        path.write_bytes(whole[: len(whole) * part // 64])
        assert path.name in refused(path, tmp_path)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_load_with_a_warning(number, tmp_path):
    tensors = changed(sound(), norm__weight=torch.full((24,), number))
    path = timm_folder(tensors=tensors)(tmp_path)
    assert said(path)[-1] == (
        f"warning  {path.name}: NaN or infinity in 1 tensors, such as norm.weight: its predictions are meaningless"
    )


@pytest.mark.parametrize("names", [["a", "a", "a"], [[], [], []], [1, 2, 3], {"a": 1}, ["a"]])
def test_names_that_name_nothing_are_left_out_and_missed(names, tmp_path):
    assert "carries no class names" in said(timm_folder(label_names=names)(tmp_path))[0]


@pytest.mark.parametrize("verb", ["predict", "evaluate"])
@pytest.mark.parametrize("name", ["safetensors: 10^12 numbers", "npz: an array of objects", "folder: heads in words"])
def test_a_verb_leaves_with_4_and_one_message(verb, name, tmp_path, capsys):
    path = HOSTILE[name][0](tmp_path)
    Image.new("RGB", (40, 40)).save(tmp_path / "x.png")
    assert run([verb, str(path), str(tmp_path / "x.png") if verb == "predict" else "digits"]) == 4
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("error: ") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["os.system", "4 numbers that stand for 10^12"])
def test_the_command_line_leaves_with_4_and_no_traceback(name, tmp_path):
    path = PICKLES[name][0](tmp_path)
    Image.new("RGB", (40, 40)).save(tmp_path / "x.png")
    command = [sys.executable, "-m", "vitrail", "predict", str(path), str(tmp_path / "x.png")]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 4, found.stderr
    assert found.stderr.startswith(f"error: {path} ")
    assert "Traceback" not in found.stderr
    assert found.stdout == ""
    assert not (tmp_path / CANARY).exists()


@pytest.mark.parametrize("name", ["a\0b.pt", "a" * 5000, "a/" * 3000 + "x.safetensors"])
def test_a_path_that_cannot_be_is_a_mistake_of_the_command(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load(name)
    assert len(str(caught.value)) < MOST_LETTERS
