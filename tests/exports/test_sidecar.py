"""The SHA-256 beside an export: what was changed, cut off or lost is named."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.each_row import each_row
from vitrail.cli import run
from vitrail.errors import CheckpointError
from vitrail.exports.sidecar import sums_of, verify_sums, write_sums

FILES = {"a.onnx": b"graph", "a.onnx.data": b"weights"}


def make(folder: Path) -> Path:
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    write_sums(folder / "a.onnx", [folder / name for name in FILES])
    return folder / "a.onnx"


def test_the_sums_are_those_of_sha256sum_and_of_all_files(tmp_path):
    path = make(tmp_path)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    lines = [f"{digests[name]}  {name}\n" for name in ("a.onnx.data", "a.onnx")]
    assert sums_of(path).read_text() == "".join(lines)
    assert verify_sums(path) == digests


DAMAGE = [
    ("a.onnx", lambda content: content + b"\0", "was changed"),
    ("a.onnx.data", lambda content: content[:-1], "was changed"),
    ("a.onnx.sha256", lambda content: content.replace(b"  a.onnx.data", b"  a.onnx.datb"), "cannot be read"),
    ("a.onnx.sha256", lambda content: content.splitlines(keepends=True)[0], "is damaged"),
    ("a.onnx.sha256", lambda content: content[:-1], "is damaged"),
    ("a.onnx.sha256", lambda content: content.replace(b"  a.onnx\n", b"  ../a.onnx\n"), "is damaged"),
    ("a.onnx.sha256", lambda content: b"\xff" + content, "is damaged"),
    ("a.onnx.sha256", lambda content: b"", "is damaged"),
]


@each_row("file, damage, words", DAMAGE)
def test_damage_to_an_export_or_to_its_sums_is_named(file, damage, words, tmp_path):
    path = make(tmp_path)
    (tmp_path / file).write_bytes(damage((tmp_path / file).read_bytes()))
    with pytest.raises(CheckpointError, match=words):
        verify_sums(path)


def test_the_command_line_names_what_is_whole_and_ends_with_4_where_it_is_not(tmp_path, capsys):
    path = make(tmp_path)
    assert run(["check", str(path)]) == 0
    assert capsys.readouterr().out.count("whole    a.onnx") == 2
    path.write_bytes(b"grape")
    assert run(["check", str(path)]) == 4
    assert "was changed after vitrail wrote it" in capsys.readouterr().err
    sums_of(path).unlink()
    assert run(["check", str(path)]) == 4
