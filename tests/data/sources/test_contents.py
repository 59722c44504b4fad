"""What a source reads from: the compact table of strings, files that must not block, and the user's own items."""

from __future__ import annotations

import os
import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.sources.contents import Arrays, Files, Strings, normalise_path, read_file, read_head, to_array
from vitrail.images.decode import BadImage

TEXTS = ["", "a", "Käse/é.jpg", "x" * 300, "蜜蜂\u00a0.png", "\U0001f41d", "a"]


def test_the_table_of_strings_is_a_sequence():
    strings = Strings(TEXTS)
    assert len(strings) == 7
    assert list(strings) == TEXTS
    assert [strings[index] for index in range(-7, 7)] == TEXTS + TEXTS
    assert strings[1:5:2] == TEXTS[1:5:2]
    assert list(strings.take(np.array([6, 0, 2]))) == ["a", "", "Käse/é.jpg"]
    assert "a" in strings
    with pytest.raises(IndexError):
        strings[7]


def test_tables_of_strings_join_and_pickle():
    joined = Strings.join([Strings(TEXTS), Strings(), Strings(["end"])])
    assert list(pickle.loads(pickle.dumps(joined))) == [*TEXTS, "end"]
    assert list(Strings.join([])) == []


def test_a_million_names_pickle_to_little_more_than_their_letters():
    strings = Strings(f"n0/{number}.jpg" for number in range(10_000))
    assert len(pickle.dumps(strings)) < len(strings.blob) + 8 * 10_000 + 1_000


def test_many_names_are_taken_in_memory_of_their_letters():
    names = [f"n{number % 7}/{number}é.jpg" for number in range(50_000)]
    strings, rows = Strings(names), np.random.default_rng(0).permutation(50_000)[:40_000]
    tracemalloc.start()
    try:
        taken = strings.take(rows)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert list(taken) == [names[row] for row in rows]
    assert taken.ends[-1] == len(taken.blob)
    assert peak < 150 * len(rows)  # lists of strings take 300
    assert list(strings.take(np.array([], int))) == []


def test_a_path_below_the_root_gets_its_plain_form_and_one_that_leads_out_is_refused():
    plain = {"a/b.jpg": "a/b.jpg", "./a/../b.jpg": "b.jpg", "/data/x.jpg": "/data/x.jpg", "..a": "..a"}
    assert {path: normalise_path(path) for path in plain} == plain
    for path in ("..", "../x.jpg", "a/../../etc/passwd"):
        with pytest.raises(ValueError, match="points outside"):
            normalise_path(path)


def test_a_pipe_never_blocks(tmp_path):
    os.mkfifo(tmp_path / "x.jpg")
    with pytest.raises(BadImage, match="not a regular file"):
        read_file(tmp_path / "x.jpg")
    assert read_head(tmp_path / "x.jpg", 16) == b""


@pytest.mark.parametrize(
    ("name", "reason"), [("", "not a regular file"), ("none.jpg", "No such file"), ("a\0b", "null")]
)
def test_what_cannot_be_read_has_its_reason(tmp_path, name, reason):
    with pytest.raises(BadImage, match=reason):
        read_file(f"{tmp_path}/{name}")


def test_a_file_of_a_gigabyte_is_not_read(tmp_path):
    with open(tmp_path / "x.tif", "wb") as file:
        file.truncate(2**30)
    with pytest.raises(BadImage, match=r"1,073,741,824 bytes, over the limit"):
        read_file(tmp_path / "x.tif")


def test_reading_bad_files_leaves_none_open(tmp_path):
    before = len(os.listdir("/dev/fd"))
    for _ in range(20):
        with pytest.raises(BadImage):
            read_file(tmp_path)
    assert len(os.listdir("/dev/fd")) == before


def test_files_of_equal_bytes_have_equal_fingerprints(tmp_path):
    contents = {"a": b"x" * 9000, "b": b"x" * 9000, "c": b"x" * 8999 + b"y", "d": b"short", "e": b"x" * 9000}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    prints = Files(str(tmp_path), Strings(["a", "b", "c", "d", "e", "gone", "lost"])).fingerprints()
    assert prints[0] == prints[1] == prints[4]
    assert len(set(prints)) == 5


def test_arrays_of_equal_values_have_equal_fingerprints():
    images = np.zeros((3, 2, 2, 1), np.uint8)
    images[1] = 1
    first, second, third = Arrays(images, Strings("abc")).fingerprints()
    assert first == third != second


def test_pictures_arrays_and_tensors_become_arrays_alike():
    array = np.random.default_rng(0).integers(0, 256, (4, 6, 3)).astype(np.uint8)
    for image in (array, Image.fromarray(array), torch.from_numpy(array).permute(2, 0, 1)):
        np.testing.assert_array_equal(to_array(image, 3), array)
    assert to_array(Image.fromarray(array), 1).shape == (4, 6, 1)
    assert to_array(array[..., 0], 3).shape == (4, 6, 1)
    floats = to_array(torch.from_numpy(array).permute(2, 0, 1).double() / 255, 3)
    assert floats.dtype == np.float32
    np.testing.assert_allclose(floats, array / 255, atol=1e-6)


@pytest.mark.parametrize("value", [-0.5, 1.5, np.nan])
def test_floats_outside_zero_to_one_are_told_from_pictures(value):
    with pytest.raises(BadImage, match="before normalisation"):
        to_array(np.full((2, 2, 3), value, np.float32), 3)


@pytest.mark.parametrize("item", [np.zeros(3, np.uint8), np.zeros((2, 2, 3), np.int64), "text"])
def test_what_is_no_picture_is_a_bad_image(item):
    with pytest.raises(BadImage, match="not an image of uint8 or float"):
        to_array(item, 3)
