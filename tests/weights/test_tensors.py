"""Reading safetensors from untrusted sources: damage is named, bombs are refused from their header, nothing else is read."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from tests.each_row import each_row
from vitrail.errors import CheckpointError
from vitrail.weights import tensors
from vitrail.weights.tensors import check_fit, parse_json, read_json, read_tensors


@pytest.fixture
def sound(tmp_path) -> Path:
    path = tmp_path / "sound.safetensors"
    path.write_bytes(save({"a": torch.arange(35.0).view(5, 7), "b": torch.tensor([0.5, -1, 2])}, {"k": "v"}))
    return path


def written(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_saved_tensors_and_metadata_are_read_back(sound):
    found, metadata = read_tensors(sound)
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {"a": (5, 7), "b": (3,)}
    assert found["a"].flatten().tolist() == list(range(35))
    assert found["b"].tolist() == [0.5, -1, 2]
    assert metadata == {"k": "v"}


def test_a_file_cut_anywhere_is_refused_with_both_sizes(sound):
    whole = sound.read_bytes()
    for length in range(len(whole)):
        sound.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=rf"sound\.safetensors has {length} bytes"):
            read_tensors(sound)
    sound.write_bytes(whole + b"x")
    with pytest.raises(CheckpointError, match=f"has {len(whole) + 1} bytes, but its header declares {len(whole)}"):
        read_tensors(sound)


def test_every_flipped_bit_of_a_hashed_file_is_found(sound):
    whole = sound.read_bytes()
    digest = hashlib.sha256(whole).hexdigest()
    assert read_tensors(sound, sha256=digest)[1] == {"k": "v"}
    for place in np.random.default_rng(0).integers(0, 8 * len(whole), 300):
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << (place % 8)
        sound.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            read_tensors(sound, sha256=digest)


@each_row(
    "header, words",
    [
        (b"[1, 2]", "header cannot be read"),
        (b"{", "header cannot be read"),
        (b"\xff\xfe", "header cannot be read"),
        (b"[" * 100_000, "header cannot be read"),
        ({"a": 1}, "header cannot be read"),
        ({"a": {"dtype": "F32", "shape": [1]}}, "header cannot be read"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, "4"]}}, "header cannot be read"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 10**15]}}, "header declares 1,000,000,000,0"),
        ({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 0]}}, "not a valid safetensors"),
        ({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 0]}}, "not a valid safetensors"),
        ({"a": {"dtype": "F99", "shape": [], "data_offsets": [0, 0]}}, "not a valid safetensors"),
        ({"a": {"dtype": "F32", "shape": [0], "data_offsets": [-4, 0]}}, "not a valid safetensors"),
        ({"__metadata__": {"k": 1}}, "holds 0 tensors"),
        ({str(n): {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(10_001)}, "10,001 tensors"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, header, words):
    with pytest.raises(CheckpointError, match=words):
        read_tensors(written(tmp_path / "lies.safetensors", header))


def test_a_header_too_long_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "long.safetensors"
    path.write_bytes(struct.pack("<Q", 2**60) + b"{}")
    with pytest.raises(
        CheckpointError, match="is not a safetensors file, or has a header of 1,152,921,504,606,846,976"
    ):
        read_tensors(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"gone\.safetensors cannot be read: No such file"):
        read_tensors(tmp_path / "gone.safetensors")


def test_all_that_does_not_fit_is_listed_at_once():
    needed = {"a": torch.zeros(2, 3), "b": torch.zeros(4), "c": torch.zeros(1)}
    given = {"a": torch.zeros(3, 2), "c": torch.zeros(1, dtype=torch.int64), "d": torch.zeros(5)}
    with pytest.raises(CheckpointError) as caught:
        check_fit(needed, given, Path("file"))
    assert "4 of its tensors" in caught.value.what
    assert caught.value.value.splitlines() == [
        "missing     b 4",
        "unexpected  d 5",
        "shape       a is 3x2, the model has 2x3",
        "type        c is torch.int64",
    ]
    check_fit(needed, needed, Path("file"))


def test_a_long_list_is_cut_at_twelve():
    with pytest.raises(CheckpointError) as caught:
        check_fit({str(n): torch.zeros(1) for n in range(50)}, {}, Path("file"))
    assert len(caught.value.value.splitlines()) == 13
    assert caught.value.value.endswith("and 38 more")


@each_row("content", [b"", b"[]", b"{", b"[" * 100_000, b'"text"', b"\xff"])
def test_json_that_is_no_object_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_json(tmp_path / "config.json")


def test_json_beyond_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tensors, "MAX_HEADER_BYTES", 10)
    with pytest.raises(CheckpointError, match="longer than 10 bytes"):
        parse_json('{"key": "value"}', "it")


def test_a_file_that_does_not_fit_into_memory_is_named(tmp_path, monkeypatch):
    path = tmp_path / "large.safetensors"
    path.write_bytes(tensors.encode_tensors({"a": torch.zeros(3)}, {}))

    def fail(content: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr(tensors, "from_bytes", fail)
    with pytest.raises(CheckpointError, match=r"not enough memory to read .*large\.safetensors"):
        tensors.read_tensors(path)


def test_the_same_tensors_and_metadata_are_the_same_bytes(tmp_path):
    metadata = {name: f'dö"gs\n\t\x01/{name}' for name in "zyxwvut"}
    given = {
        "a": torch.arange(3.0),
        "b": torch.ones(2, 2, dtype=torch.bfloat16),
        "c": torch.zeros(1, dtype=torch.uint8),
    }
    written = {tensors.encode_tensors(given, metadata) for _ in range(8)}
    assert len(written) == 1
    (tmp_path / "file.safetensors").write_bytes(written.pop())
    read, found = read_tensors(tmp_path / "file.safetensors")
    assert found == metadata
    assert all(torch.equal(read[name], tensor) for name, tensor in given.items())
