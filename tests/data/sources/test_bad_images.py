"""The policy for bad images: each named once, counted, written down, and an end where there are too many."""

from __future__ import annotations

import csv

import pytest

from tests.each_row import each_row
from vitrail.data.sources.bad_images import BadImages, count_damaged_rows, read_bad_images
from vitrail.errors import ConfigError, DataError
from vitrail.text import escape_formula


def written(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_bad_images_are_recorded_once_each(tmp_path):
    bad = BadImages("skip", 0.1, tmp_path / "bad.csv", total=100)
    for _ in range(3):
        bad("a.jpg", "truncated")
    bad('odd "name",\n.jpg', "empty")
    assert len(bad) == 2
    rows = [["path", "reason"], ["a.jpg", "truncated"], ['odd "name",\n.jpg', "empty"]]
    assert [row[:2] for row in written(tmp_path / "bad.csv")] == rows


def test_a_restarted_run_resumes_with_the_same_list(tmp_path):
    path = tmp_path / "bad.csv"
    BadImages("skip", 0.02, path, total=100)("a.jpg", "truncated")
    again = BadImages("skip", 0.02, path, total=100)
    again("a.jpg", "truncated")
    again("b.jpg", "truncated")
    assert len(written(path)) == 3
    with pytest.raises(DataError, match="3 of 100 images are bad"):
        again("c.jpg", "empty")


def test_too_many_are_an_end_that_names_the_last(tmp_path):
    bad = BadImages("skip", 0.01, tmp_path / "bad.csv", total=200)
    bad("a.jpg", "empty")
    bad("b.jpg", "empty")
    with pytest.raises(DataError, match=r"3 of 200 images are bad, more than 1 %; the last: c\.jpg: empty") as error:
        bad("c.jpg", "empty")
    assert "bad.csv" in error.value.remedy


def test_stop_ends_with_the_first_and_still_writes_it_down(tmp_path):
    bad = BadImages("stop", 0.5, tmp_path / "bad.csv", total=100)
    with pytest.raises(DataError, match=r"the image a\.jpg is bad: empty"):
        bad("a.jpg", "empty")
    assert written(tmp_path / "bad.csv")[1][:2] == ["a.jpg", "empty"]


def test_nothing_is_written_where_nothing_is_bad(tmp_path):
    BadImages("skip", 0.01, tmp_path / "bad.csv", total=10)
    assert not (tmp_path / "bad.csv").exists()
    BadImages("skip", 1.0, total=1)("a.jpg", "empty")


@pytest.mark.parametrize("key", ["=cmd()", "+1.jpg", "-x", "@sum", "\tx", "'=already", "plain.jpg", "bad\udcff.jpg"])
def test_no_name_becomes_a_formula_and_every_name_comes_back(tmp_path, key):
    path = tmp_path / "bad.csv"
    BadImages("skip", 1.0, path, total=1)(key, "-reason")
    assert read_bad_images(path) == {key: "-reason"}
    assert escape_formula(key)[0] not in "=+-@\t\r"


def test_a_line_cut_short_by_a_crash_is_left_out(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("path,reason\na.jpg,empty\nb.jp")
    assert read_bad_images(path) == {"a.jpg": "empty"}


DAMAGE = [
    (b"b.jpg", b"\xe2.jpg"),
    (b"b.jpg", b"c.jpg"),
    (b",empty", b',"mpty'),
    (b"crc32\n", b'crc32"\n'),
    (b"path", b'"ath'),
    (b"empty,", b"empty"),
    (b"\n", b""),
]


@each_row("old, new", DAMAGE)
def test_damaged_rows_are_left_out_counted_and_removed(old, new, tmp_path):
    path = tmp_path / "bad.csv"
    bad = BadImages("skip", 1.0, path, total=9)
    for key in ("a.jpg", "b.jpg", "d\udcff.jpg"):
        bad(key, "empty")
    before, content = read_bad_images(path), path.read_bytes()
    path.write_bytes(content.replace(old, new, 1) if new else content[:-1])
    found = read_bad_images(path)
    assert found.items() <= before.items()
    assert found == before or count_damaged_rows(path)
    again = BadImages("skip", 1.0, path, total=9)
    again("e.jpg", "empty")
    assert count_damaged_rows(path) == 0
    assert read_bad_images(path) == {**found, "e.jpg": "empty"}


def test_a_list_of_an_earlier_version_is_continued(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("path,reason\na.jpg,empty\n")
    BadImages("skip", 1.0, path, total=9)("b.jpg", "empty")
    assert read_bad_images(path) == {"a.jpg": "empty", "b.jpg": "empty"}
    assert count_damaged_rows(path) == 0


def test_an_unknown_policy_is_refused():
    with pytest.raises(ConfigError, match="'skip'"):
        BadImages("skipp", total=1)
