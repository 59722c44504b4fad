"""Micro-batches by themselves: what is worked on together, what is dropped, what fails alone."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from vitrail.serving.batcher import Batcher
from vitrail.serving.refusals import Refused


class Told:
    """Keeps the sizes of batches."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def batch(self, size: int, seconds: float) -> None:
        self.sizes.append(size)


class Gate:
    """Work that doubles numbers, and waits until it is let go on."""

    def __init__(self) -> None:
        self.begun, self.open = threading.Event(), threading.Event()
        self.seen: list[list[int]] = []

    def __call__(self, items: list[int]) -> list[int]:
        self.seen.append(list(items))
        self.begun.set()
        assert self.open.wait(10)
        if any(item < 0 for item in items):
            raise ValueError("negative")
        return [2 * item for item in items]


def run(scenario, *, batch: int = 4, room: int = 64):
    """What ``scenario(batcher, gate)`` returns in a loop of its own; and the batches that there were."""
    told, gate = Told(), Gate()

    async def whole():
        batcher = Batcher(batch=batch, room=room, watcher=told)
        try:
            return await scenario(batcher, gate)
        finally:
            gate.open.set()
            await asyncio.to_thread(batcher.close)

    return asyncio.run(whole()), told, gate


def soon() -> float:
    return time.monotonic() + 10


async def until_begun(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.begun.wait, 10)


def test_what_waits_while_the_network_is_busy_is_answered_together_each_with_its_own():
    async def scenario(batcher, gate):
        first = asyncio.ensure_future(batcher.run(gate, 0, soon()))
        await until_begun(gate)
        others = [asyncio.ensure_future(batcher.run(gate, number, soon())) for number in range(1, 7)]
        await asyncio.sleep(0)
        gate.open.set()
        return await asyncio.gather(first, *others)

    answers, told, gate = run(scenario)
    assert answers == [0, 2, 4, 6, 8, 10, 12]
    assert gate.seen == [[0], [1, 2, 3, 4], [5, 6]] and told.sizes == [1, 4, 2]


def test_work_of_two_kinds_is_never_mixed():
    async def scenario(batcher, gate):
        first = asyncio.ensure_future(batcher.run(gate, 0, soon()))
        await until_begun(gate)

        def other(items):
            return [f"other {item}" for item in items]

        mixed = [asyncio.ensure_future(batcher.run(work, at, soon())) for at, work in enumerate([gate, other] * 2)]
        await asyncio.sleep(0)
        gate.open.set()
        return await asyncio.gather(first, *mixed)

    answers, told, _ = run(scenario)
    assert answers == [0, 0, "other 1", 4, "other 3"] and told.sizes == [1, 2, 2]


def test_one_bad_item_of_a_batch_fails_alone():
    async def scenario(batcher, gate):
        first = asyncio.ensure_future(batcher.run(gate, 0, soon()))
        await until_begun(gate)
        others = [asyncio.ensure_future(batcher.run(gate, number, soon())) for number in (1, -1, 2)]
        await asyncio.sleep(0)
        gate.open.set()
        return await asyncio.gather(first, *others, return_exceptions=True)

    answers, _, _ = run(scenario)
    assert answers[:2] == [0, 2] and answers[3] == 4
    assert isinstance(answers[2], ValueError)


def test_what_nobody_waits_for_any_more_is_dropped_before_the_network_sees_it():
    async def scenario(batcher, gate):
        first = asyncio.ensure_future(batcher.run(gate, 0, soon()))
        await until_begun(gate)
        left = asyncio.ensure_future(batcher.run(gate, 1, soon()))
        late = asyncio.ensure_future(batcher.run(gate, 2, time.monotonic() + 0.01))
        stays = asyncio.ensure_future(batcher.run(gate, 3, soon()))
        await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(Refused, match="deadline"):
            await late
        gate.open.set()
        return await asyncio.gather(first, stays)

    answers, _, gate = run(scenario)
    assert answers == [0, 6] and gate.seen == [[0], [3]]


def test_places_are_bounded_and_given_back_whatever_happens():
    async def scenario(batcher, gate):
        with batcher.places(3):
            assert not batcher.is_full
            with pytest.raises(Refused) as refused, batcher.places(2):
                pass
            assert refused.value.status == 503 and int(refused.value.headers["Retry-After"]) >= 1
            with pytest.raises(ZeroDivisionError), batcher.places(1):
                1 / 0
            assert batcher.taken == 3 and not batcher.is_full
        return batcher.taken

    assert run(scenario, room=4)[0] == 0


def test_closing_works_off_what_waits():
    async def scenario(batcher, gate):
        waiting = [asyncio.ensure_future(batcher.run(gate, number, soon())) for number in range(5)]
        await until_begun(gate)
        gate.open.set()
        await asyncio.to_thread(batcher.close)
        assert not batcher.alive
        return await asyncio.gather(*waiting)

    assert run(scenario)[0] == [0, 2, 4, 6, 8]
