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
from safetensors.torch import save

from tests.each_row import each_row
from tests.weights.hostile_pickles import WIDE
from tests.weights.test_hostile import refused
from tests.weights.untrusted import CANARY, Call, sound, torch_legacy, torch_zip, touch
from vitrail.errors import CheckpointError
from vitrail.weights import pickled

WRAPPED = {
    "bare": (lambda state: state, ""),
    "under model": (lambda state: {"model": state, "epoch": 3, "optimizer": {"state": {0: torch.ones(2)}}}, "model."),
    "with momentum of an optimizer": (lambda state: {"net": state, "optimizer": {"momentum": state}}, "net."),
    "two deep": (lambda state: {"model": {"state_dict": state, "args": "x"}}, "model.state_dict."),
    "with arguments": (lambda state: {"model": state, "args": Namespace(lr=0.1)}, "model."),
    "with other things": (lambda state: {**state, "note": "x", 3: None}, ""),
}


@each_row("name, write", [*((name, torch_zip) for name in WRAPPED), ("under model", torch_legacy)])
def test_tensors_are_named_by_their_keys_in_nested_dicts(name, write, tmp_path, fast):
    wrap, prefix = WRAPPED[name]
    found = pickled.read_pickle(write(lambda folder: wrap(WIDE), "x.pth.tar")(tmp_path))
    assert found.keys() == {f"{prefix}{each}" for each in WIDE}
    assert all(torch.equal(found[f"{prefix}{each}"], tensor) for each, tensor in WIDE.items())


def test_a_tensor_of_several_names_is_written_once(tmp_path, fast):
    table = torch.arange(12.0).view(3, 4)
    held = {"model": {"a": table, "b": table}, "model_ema": {"a": table}, "teacher": {"a": table.T}}
    torch.save(held, tmp_path / "x.pt")
    found = pickled.read_pickle(tmp_path / "x.pt")
    assert found.keys() == {"model.a", "model.b", "model_ema.a", "teacher.a"}
    assert found["model_ema.a"] is found["model.a"] is found["model.b"]
    assert torch.equal(found["teacher.a"], table.T)


@pytest.mark.slow
@each_row(
    "held, words",
    [
        ({"model": {"a.b": torch.ones(1)}, "model.a": {"b": torch.ones(1)}}, "contains two tensors 'model.a.b'"),
        ({"a": dict.fromkeys(map(str, range(1_000_001)))}, "holds more than 1,000,000 values"),
        ({"optimizer": {"a": torch.ones(1)}}, "contains no named tensors but a dict of 1 other items"),
    ],
)
def test_a_checkpoint_without_distinct_named_tensors_is_refused(held, words, tmp_path, fast):
    torch.save(held, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=words):
        pickled.read_pickle(tmp_path / "x.pt")


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
    found = pickled.read_pickle(tmp_path / "x.pt")
    assert found.keys() == held.keys()
    for name, tensor in held.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


@pytest.mark.slow
def test_a_payload_is_refused_by_the_program_that_opens_pickles(tmp_path):
    path = torch_zip(lambda folder: {"model": {**sound(), "z": Call(os.system, touch(folder))}})(tmp_path)
    assert "would call 'posix.system'" in refused(path, tmp_path)


def test_unpickling_that_takes_too_long_is_terminated(tmp_path, monkeypatch):
    monkeypatch.setattr(pickled, "MIN_SECONDS", 0.05)
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
    told = (
        '{"aliases": {}}',
        '{"aliases": {"x": "y"}}',
        '{"aliases": []}',
        '{"what": "\\u001b[2J", "remedy": ["y"]}',
        "[" * 100_000,
        "",
    )
    held = save({"z": torch.ones(1)})
    for answer, tensors in [(told[0], b""), (told[0], pickle.dumps([])), *((each, held) for each in told[1:])]:
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
