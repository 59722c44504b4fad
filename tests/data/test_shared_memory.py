"""Memory of two processes: arrays arrive, and what a hostile writer says about them is refused."""

from __future__ import annotations

import os
import sys

import numpy as np
import pytest

from vitrail.data.workers import HEAD, Reader, Writer, create_memory


@pytest.fixture
def memory():
    with create_memory() as file:
        yield file


def test_arrays_that_outgrow_the_memory_are_read_as_written_and_the_mark_is_kept(memory):
    writer, reader = Writer(memory), Reader(memory)
    draw = np.random.default_rng(0)
    arrays = [draw.integers(0, 256, (side, 7), np.uint8) for side in (3, 500, 90_000)]
    arrays.append(draw.random((2, 5, 3), np.float32).transpose(2, 0, 1))
    writer.mark(2**40)
    places = [writer.append(array) for array in arrays]
    assert [start % HEAD for start, _, _ in places] == [0, 0, 0, 0]
    for place, array in zip(places, arrays, strict=True):
        found = reader.view(*place)
        assert np.array_equal(found, array)
        with pytest.raises(ValueError, match="read-only"):
            found[...] = 0
    assert reader.marked() == 2**40
    writer.restart()
    assert reader.marked() == 0
    assert writer.append(arrays[0]) == places[0]


@pytest.mark.parametrize(
    ("start", "shape", "kind"),
    [
        (HEAD, [10**6], "|u1"),
        (HEAD, [2**40, 2**40], "|u1"),
        (HEAD, [-1, 4], "|u1"),
        (0, [4], "|u1"),
        (2**62, [4], "<f4"),
        (HEAD, [4], "|O"),
    ],
)
def test_an_array_outside_of_the_memory_or_of_another_type_is_refused(memory, start, shape, kind):
    Writer(memory).append(np.zeros(100, np.uint8))
    with pytest.raises(ValueError, match=r"not an array|too small|too big|negative"):
        Reader(memory).view(start, shape, kind)


@pytest.mark.skipif(sys.platform != "linux", reason="memfd and its seals are Linux's")
def test_a_writer_cannot_take_the_memory_away_from_a_reader(memory):
    with pytest.raises(PermissionError):
        os.ftruncate(memory.fileno(), 0)
