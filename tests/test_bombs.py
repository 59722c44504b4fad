"""Inputs of less than 100 kB from untrusted sources are refused, for little memory and work, and reach nothing elsewhere."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.each_row import each_row
from tests.hostile_data import BOMBS, PATHS, Make, parts, said
from vitrail.errors import VitrailError
from vitrail.shards import index
from vitrail.shards.index import find_index

MAX_BYTES = 50e6  # of memory, beside what is there before
MAX_CALLS = 500_000  # of functions, in Python and in C
ROWS = [(name, *row) for name, row in (BOMBS | PATHS).items()]


def measure(act: Callable[[], Any]) -> tuple[Exception | None, int, int]:
    """What ``act`` raised, the peak of its memory in bytes, and the number of functions that it called."""
    calls, raised = 0, None

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    tracemalloc.start()
    sys.setprofile(count)
    try:
        act()
    except Exception as error:
        raised = error
    finally:
        sys.setprofile(None)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return raised, peak, calls


def list_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@each_row("name, make, kind, words", ROWS, quick=[row for row in ROWS if "deep" not in row[0]])
def test_a_small_hostile_input_is_refused_at_once(
    name: str, make: Make, kind: type[VitrailError], words: str, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.png").write_bytes(b"secret")
    (tmp_path / "given").mkdir()
    read, before = make(tmp_path / "given"), list_files(tmp_path)
    assert max(map(len, before.values())) < 100_000
    error, peak, calls = measure(read)
    assert type(error) is kind, repr(error)
    assert any(word in str(error) for word in words.split("|")), error
    assert len(str(error)) < 2_000
    assert peak < MAX_BYTES and calls < MAX_CALLS, (peak, calls)
    assert list_files(tmp_path).items() >= before.items()
    assert {path.relative_to(tmp_path).parts[0] for path in list_files(tmp_path)} == {"outside", "given"}


def test_a_record_of_a_part_that_names_other_files_is_no_record(tmp_path):
    stated = {"bytes": 0, "sha256": "0" * 64}
    for number, files in enumerate(({"/dev/zero": stated}, {"../x": stated}, 5, {"part-0000000.jsonl": 1})):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = parts(record={"files": files})(folder)()
        assert [part.state for part in found.parts] == ["missing", "missing"]


def test_an_index_is_read_from_the_urls_that_the_user_named(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRAIL_SHARDS", str(tmp_path / "cache"))
    said(root="https://example.org/images/set")(tmp_path)
    place = str(tmp_path / "shards")

    def is_read() -> bool:
        try:
            return find_index(place) is not None
        except VitrailError:
            return False

    with pytest.raises(VitrailError, match=r"set VITRAIL_SHARDS_FROM=https://example\.org/images/set"):
        find_index(place)
    for value, expected in (
        ("https://example.org/images/set", True),
        ("s3://other https://example.org/images/", True),
        ("https://example.org/image", False),
        ("https://example.or", False),
    ):
        monkeypatch.setenv(index.NAMED, value)
        assert is_read() is expected, value
    monkeypatch.delenv(index.NAMED)
    index.remember_root("https://example.org/images/set")
    assert is_read()


@pytest.mark.parametrize("root", ["https://example.org/images/../secret", "https://example.org/images/.."])
def test_a_url_that_leaves_the_one_that_was_named_is_another(tmp_path, monkeypatch, root):
    monkeypatch.setenv("VITRAIL_SHARDS", str(tmp_path / "cache"))
    monkeypatch.setenv(index.NAMED, "https://example.org/images")
    said(root=root)(tmp_path)
    with pytest.raises(VitrailError, match="only what you name is fetched"):
        find_index(str(tmp_path / "shards"))


def test_an_index_at_a_url_names_no_folder_of_this_machine():
    with pytest.raises(VitrailError, match="only what you name is fetched"):
        index.check_root("/etc", "https://example.org/index", "https://example.org")
