"""Shards from elsewhere: fetched whole and once, verified, tried again, and removed where there is no room."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest

from vitrail.errors import ConfigError, DataError
from vitrail.shards import cache

CONTENTS = {name: name.encode() * 1000 for name in ("a", "b", "c")}
SHA = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENTS.items()}


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """A store in memory, an empty cache on a disk with room, and no waiting."""
    monkeypatch.setenv("VITRAIL_SHARDS", str(tmp_path / "cache"))
    monkeypatch.delenv("VITRAIL_SHARDS_GB", raising=False)
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda folder: SimpleNamespace(total=10**12, free=10**12))
    monkeypatch.setattr(cache, "BACK_OFF", 0.0)
    monkeypatch.setattr(cache, "_failed", {})
    store = fsspec.filesystem("memory")
    for name, content in CONTENTS.items():
        store.pipe_file(f"/bucket/{name}.tar", content)
    yield store
    store.rm("/bucket", recursive=True)


def fetch(name):
    return Path(cache.fetch_shard(f"memory://bucket/{name}.tar", SHA[name], len(CONTENTS[name])))


@pytest.fixture
def requests(bucket, monkeypatch):
    """What was asked of the store; the first answers can be replaced."""
    asked, answers = [], []
    read = cache._read

    def answer(system, path, **part):
        asked.append(part)
        answer = answers.pop(0) if answers else None
        if isinstance(answer, Exception):
            raise answer
        return read(system, path, **part) if answer is None else answer

    monkeypatch.setattr(cache, "_read", answer)
    return asked, answers


def test_a_shard_is_fetched_once_and_in_parts(requests, monkeypatch):
    monkeypatch.setattr(cache, "PART_BYTES", 300)
    path = fetch("a")
    assert path.read_bytes() == CONTENTS["a"]
    assert fetch("a") == path
    assert requests[0] == [{"start": start, "end": min(start + 300, 1000)} for start in (0, 300, 600, 900)]
    assert {each.suffix for each in path.parent.iterdir()} == {".tar", ""}


FAULTS = {
    "an error": ConnectionError("500 Internal Server Error"),
    "a stall": TimeoutError(),
    "a truncated answer": CONTENTS["a"][:500],
    "a flipped bit": b"b" + CONTENTS["a"][1:],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_store_is_tried_again(requests, fault):
    requests[1][:] = [FAULTS[fault]] * 2
    assert fetch("a").read_bytes() == CONTENTS["a"]
    assert len(requests[0]) == 3


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("an error", "ConnectionError: 500 Internal Server Error"),
        ("a stall", r"TimeoutError \(no answer in 60 s\)"),
        ("a truncated answer", "of bytes 0 to 1,000 only 500 came"),
        ("a flipped bit", f"its SHA-256 is {hashlib.sha256(b'b' + CONTENTS['a'][1:]).hexdigest()}, not {SHA['a']}"),
    ],
)
def test_after_three_tries_a_shard_is_given_up_by_name_for_a_while(requests, fault, words):
    requests[1][:] = [FAULTS[fault]] * 3
    for _ in range(2):
        with pytest.raises(
            cache.Unavailable, match=rf"memory://bucket/a\.tar could not be fetched in 3 tries: {words}"
        ):
            fetch("a")
    assert len(requests[0]) == 3
    assert not [path for path in cache.cache_folder().iterdir() if path.suffix]


def test_only_one_of_several_threads_retries_a_failed_shard(requests):
    requests[1][:] = [FAULTS["an error"]] * 99
    failed = []

    def want():
        with pytest.raises(cache.Unavailable):
            fetch("a")
        failed.append(1)

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(failed), len(requests[0])) == (4, 3)


def test_threads_that_want_the_same_shard_fetch_it_once(requests):
    threads = [threading.Thread(target=fetch, args=("a",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(requests[0]) == 1


def test_the_most_recently_used_shards_stay_in_a_full_cache(bucket, monkeypatch):
    monkeypatch.setenv("VITRAIL_SHARDS_GB", str(2500e-9))
    for age, name in ((30, "a"), (20, "b")):
        os.utime(fetch(name), (age, age))
    fetch("a")
    fetch("c")
    assert {path.stem for path in cache.cache_folder().glob("*.tar")} == {SHA["a"], SHA["c"]}


def test_a_shard_that_was_cut_off_in_the_cache_by_a_killed_process_is_not_taken_for_one(bucket):
    cache.cache_folder().mkdir(parents=True)
    (cache.cache_folder() / f"{SHA['a']}.part").write_bytes(CONTENTS["a"][:10])
    assert fetch("a").read_bytes() == CONTENTS["a"]


def test_small_files_are_there_or_not(bucket, requests):
    assert cache.fetch_file("memory://bucket/b.tar") == CONTENTS["b"]
    assert cache.fetch_file("memory://bucket/nothing") is None
    requests[1][:] = [PermissionError("Forbidden")] * 3
    with pytest.raises(DataError, match=r"memory://bucket/b\.tar cannot be read: PermissionError: Forbidden"):
        cache.fetch_file("memory://bucket/b.tar")


def test_a_limit_that_is_no_size_and_an_unknown_scheme_are_refused(bucket, monkeypatch):
    with pytest.raises(DataError, match="ftq:// cannot be read: Protocol not known"):
        cache.fetch_file("ftq://bucket/x")
    monkeypatch.setenv("VITRAIL_SHARDS_GB", "much")
    with pytest.raises(ConfigError, match="VITRAIL_SHARDS_GB is 'much'"):
        cache.cache_limit()
