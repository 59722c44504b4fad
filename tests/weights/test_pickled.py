"""Pickled checkpoints: found wherever they lie, rewritten as they are, in a process that can do nothing else."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from tests.each_row import each_row
from tests.weights.hostile_pickles import WIDE
from tests.weights.strangers import CANARY, Call, sound, torch_legacy, torch_zip, touch
from tests.weights.test_hostile import refused
from vitrail.weights import load, pickled

WRAPPED = {
    "bare": (lambda state: state, "20 tensors"),
    "under model": (lambda state: {"model": state, "epoch": 3, "optimizer": {}}, "20 tensors of 'model'"),
    "averaged": (
        lambda state: {"state_dict": {}, "model": state, "model_ema": state},
        "20 tensors of 'model_ema', not those of 'state_dict', 'model'",
    ),
    "two deep": (lambda state: {"model": {"state_dict": state, "args": "x"}}, "20 tensors of 'model.state_dict'"),
    "in parallel and compiled": (
        lambda state: {f"module._orig_mod.{name}": each for name, each in state.items()},
        "20 tensors, without the prefix 'module._orig_mod.'",
    ),
    "averaged by torch": (
        lambda state: {"n_averaged": torch.tensor(3), **{f"module.{name}": each for name, each in state.items()}},
        "20 tensors, without the prefix 'module.', 1 other entries dropped",
    ),
    "with arguments": (lambda state: {"model": state, "args": Namespace(lr=0.1)}, "20 tensors of 'model'"),
    "with other things": (lambda state: {**state, "note": "x", 3: None}, "20 tensors, 2 other entries dropped"),
}


@each_row("name, write", [*((name, torch_zip) for name in WRAPPED), ("under model", torch_legacy)])
def test_a_state_dict_is_found_wherever_it_lies(name, write, tmp_path, fast):
    wrap, words = WRAPPED[name]
    path = write(lambda folder: wrap(WIDE), "x.pth.tar")(tmp_path)
    lines: list[str] = []
    model = load(path, log=lines.append)
    assert lines[0] == f"read     x.pth.tar: {words}"
    assert torch.equal(model.backbone.state_dict()["norm.weight"], WIDE["norm.weight"])


def test_tensors_come_as_they_are_whatever_their_type_and_memory(tmp_path, fast):
    table = torch.arange(12.0).view(3, 4)
    held = {
        "turned": table.T,
        "shared": table,
        "row": table[1],
        "bf16": table.bfloat16(),
        "fp16": table.half(),
        "whole": torch.tensor([1, 2]),
        "parameter": torch.nn.Parameter(table + 1),
        "nothing": torch.zeros(0, 5),
    }
    torch.save(held, tmp_path / "x.pt")
    found = pickled.read_pickle(tmp_path / "x.pt", log=lambda line: None)
    assert found.keys() == held.keys()
    for name, tensor in held.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


@pytest.mark.slow
def test_a_payload_is_refused_by_the_program_that_opens_pickles(tmp_path):
    path = torch_zip(lambda folder: {"model": {**sound(), "z": Call(os.system, touch(folder))}})(tmp_path)
    assert "would call 'posix.system'" in refused(path, tmp_path)


def test_what_takes_too_long_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(pickled, "LEAST_SECONDS", 0.05)
    monkeypatch.setattr(pickled.pickle_sandbox, "__file__", str(tmp_path / "waits.py"))
    (tmp_path / "waits.py").write_text("import time\ntime.sleep(600)")
    path = torch_zip(lambda folder: sound())(tmp_path)
    assert "x.pt could not be read in 0.05 s" in refused(path, tmp_path)


def test_a_program_that_dies_is_told_by_its_signal(tmp_path, monkeypatch):
    monkeypatch.setattr(pickled.pickle_sandbox, "__file__", str(tmp_path / "dies.py"))
    (tmp_path / "dies.py").write_text("import os\nos.abort()")
    path = torch_zip(lambda folder: sound())(tmp_path)
    assert "x.pt ended the process that read it (SIGABRT)" in refused(path, tmp_path)


def test_a_program_that_was_taken_over_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setattr(pickled.pickle_sandbox, "__file__", str(tmp_path / "evil.py"))
    path = torch_zip(lambda folder: sound())(tmp_path)
    told = '{"read": "x"}', '{"what": "\\u001b[2J", "remedy": ["y"]}', "[" * 100_000, ""
    for answer, tensors in [(told[0], b""), (told[0], pickle.dumps([])), *((each, b"") for each in told[1:])]:
        program = f"open('answer.json', 'w').write({answer!r})\nopen('model.safetensors', 'wb').write({tensors!r})"
        (tmp_path / "evil.py").write_text(program)
        refused(path, tmp_path)


FORBIDDEN = """
import os, socket, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import pickle_sandbox
folder = Path(sys.argv[2])
sys.addaudithook(lambda event, arguments: pickle_sandbox.forbid(event, arguments, folder / "own"))
(folder / "own" / "allowed").write_text("")
attempts = [
    lambda: os.system(f"touch {folder}/ran"), lambda: subprocess.run(["touch", folder / "ran"]), os.fork,
    lambda: socket.create_connection(("127.0.0.1", 9)), lambda: open(folder / "ran", "w"), lambda: os.remove(folder / "x"),
]
for attempt in attempts:
    try:
        attempt()
    except PermissionError:
        print("forbidden")
"""


def test_the_program_that_opens_pickles_can_start_nothing_and_write_nowhere_else(tmp_path):
    (tmp_path / "own").mkdir()
    command = [sys.executable, "-I", "-c", FORBIDDEN, str(Path(pickled.__file__).parent), str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["forbidden"] * 6
    assert not (tmp_path / CANARY).exists()
    assert (tmp_path / "own" / "allowed").exists()
