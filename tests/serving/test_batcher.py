"""Micro-batches by themselves: what is worked on together, what is dropped, what fails alone."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest

from vitrail.serving.batcher import RECEIVING, Batcher, BatchTiming, name_work
from vitrail.serving.refusals import Refused


class Gate:
    """Work that doubles numbers, and waits until it is let go on."""

    def __init__(self) -> None:
        self.begun, self.open = threading.Event(), threading.Event()
        self.seen: list[list[int]] = []

    def __call__(self, items: list[int]) -> list[int]:
        self.seen.append(list(items))
        self.begun.set()
        assert self.open.wait(600)
        if any(item < 0 for item in items):
            raise ValueError("negative")
        return [2 * item for item in items]


def run(scenario, *, batch: int = 4, capacity: int = 64):
    """What ``scenario(batcher, gate)`` returns in a loop of its own; and the batches that there were."""
    sizes, gate = [], Gate()

    async def whole():
        batcher = Batcher(batch=batch, capacity=capacity, observe=lambda size, _: sizes.append(size))
        try:
            return await scenario(batcher, gate)
        finally:
            gate.open.set()
            await asyncio.to_thread(batcher.close)

    return asyncio.run(whole()), sizes, gate


def soon() -> float:
    return time.monotonic() + 600


async def until_begun(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.begun.wait, 600)


async def begin(batcher: Batcher, gate: Gate) -> asyncio.Future:
    """The answer to a first item, with which the network is busy."""
    first = asyncio.ensure_future(batcher.run(gate, 0, soon() + 10_000))
    await until_begun(gate)
    return first


async def finish(gate: Gate, *jobs: asyncio.Future) -> list:
    """What became of them once the network goes on."""
    await asyncio.sleep(0)
    gate.open.set()
    return await asyncio.gather(*jobs, return_exceptions=True)


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """The time of the batcher, ``clock.now``: it stands still, so that estimates are exact."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("vitrail.serving.batcher.time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_requests_that_wait_for_a_busy_network_are_answered_in_one_batch():
    async def scenario(batcher, gate):
        first = await begin(batcher, gate)
        others = [asyncio.ensure_future(batcher.run(gate, number, soon())) for number in range(1, 7)]
        return await finish(gate, first, *others)

    answers, sizes, gate = run(scenario)
    assert answers == [0, 2, 4, 6, 8, 10, 12]
    assert gate.seen == [[0], [1, 2, 3, 4], [5, 6]] and sizes == [1, 4, 2]


def test_work_of_two_kinds_is_never_mixed():
    async def scenario(batcher, gate):
        first = await begin(batcher, gate)

        def other(items):
            return [f"other {item}" for item in items]

        mixed = [asyncio.ensure_future(batcher.run(work, at, soon())) for at, work in enumerate([gate, other] * 2)]
        return await finish(gate, first, *mixed)

    answers, sizes, _ = run(scenario)
    assert answers == [0, 0, "other 1", 4, "other 3"] and sizes == [1, 2, 2]


def test_one_bad_item_of_a_batch_fails_alone():
    async def scenario(batcher, gate):
        first = await begin(batcher, gate)
        others = [asyncio.ensure_future(batcher.run(gate, number, soon())) for number in (1, -1, 2)]
        return await finish(gate, first, *others)

    answers, _, _ = run(scenario)
    assert answers[:2] == [0, 2] and answers[3] == 4
    assert isinstance(answers[2], ValueError)


def test_abandoned_requests_are_dropped_before_inference():
    async def scenario(batcher, gate):
        first = await begin(batcher, gate)
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
        with batcher.reserve(3, gate, soon()):
            batcher.forget(batcher.expect(time.monotonic(), soon()))
            with pytest.raises(Refused) as refused, batcher.reserve(2, gate, soon()):
                pass
            assert refused.value.status == 503 and int(refused.value.headers["Retry-After"]) >= 1
            with pytest.raises(ZeroDivisionError), batcher.reserve(1, gate, soon()):
                1 / 0
            with batcher.reserve(1, gate, soon()), pytest.raises(Refused):
                batcher.expect(time.monotonic(), soon())
            assert batcher.reserved == 3
        return batcher.reserved, batcher.backlog

    assert run(scenario, capacity=4)[0] == (0, 0)


def learned(batcher: Batcher, work, seconds: float) -> None:
    """Lets the batcher know what a batch of this work takes: 0.1 s and ``seconds`` for each item."""
    for size in (1, 2, 4, 2, 1):
        batcher._timings[name_work(work)].add(size, 0.1 + seconds * size)


def test_only_what_can_be_answered_in_time_is_admitted(clock):
    async def scenario(batcher, gate):
        learned(batcher, gate, 1.0)  # 4.1 s for a batch of four, so at least 1.025 s an item
        now = clock.now
        with pytest.raises(Refused, match=r"about 1\.1 s, longer than the deadline") as too_short:
            batcher.reserve(1, gate, now + 0.5).__enter__()
        with batcher.reserve(3, gate, now + 4):  # 3.1 s
            with pytest.raises(Refused) as full:
                batcher.reserve(1, gate, now + 4).__enter__()
            with batcher.reserve(1, gate, now + 5):  # 3.1 and 1.1 s
                with pytest.raises(Refused):
                    batcher.expect(now, now + 5.2)
                batcher.expect(now, now + 5.5)  # and another 1.1 s
        return too_short.value, full.value

    (too_short, full), *_ = run(scenario)
    assert too_short.status == 504
    assert full.status == 503 and full.retry_after == pytest.approx(3.1 + 1.1 - 4, abs=0.02)  # and a margin


def test_requests_that_are_being_received_have_places_for_a_moment(clock):
    async def scenario(batcher, gate):
        learned(batcher, gate, 1.0)
        now = clock.now
        with batcher.reserve(2, gate, now + 10):  # 2.1 s
            first = batcher.expect(now, now + 4)  # 2.1 and 1.1 s
            batcher.expect(now, now + 5)  # 2.1 and 2.1 s
            with pytest.raises(Refused):
                batcher.expect(now, now + 5)  # 2.1 and 3.1 s
            assert batcher.expect(now, now + 5, first) is first
            batcher.forget(first)
            batcher.expect(now, now + 5)
            clock.now += 1.01 * RECEIVING
            batcher.expect(now, clock.now + 4)

    run(scenario)


def test_slow_clients_count_as_a_batch_and_as_many_as_are_queued(clock):
    async def scenario(batcher, gate):
        learned(batcher, gate, 1.0)
        now = clock.now
        for _ in range(100):  # slow clients, on an idle server
            batcher.expect(now, now + 6)  # 4.1 s for a batch of them, and 1.0 s
        with batcher.reserve(1, gate, now + 10):  # 1.1 s
            batcher.expect(now, now + 8)  # and 5.1 s, and 1.0 s
            with pytest.raises(Refused):
                batcher.expect(now, now + 7)

    run(scenario)


def test_a_flood_on_an_empty_queue_is_refused_beyond_what_can_be_answered(clock):
    async def scenario(batcher, gate):
        learned(batcher, gate, 1.0)
        return [admitted(batcher, clock.now, clock.now + seconds) for seconds in [3.5] * 50]

    assert run(scenario)[0] == [True] * 3 + [False] * 47  # 3.1 s, and 4.1 s


def admitted(batcher: Batcher, start: float, deadline: float) -> bool:
    """Whether a request with its whole body is admitted."""
    try:
        batcher.hold(start, deadline, batcher.expect(start, deadline))
    except Refused:
        return False
    return True


def test_received_requests_count_in_full_until_they_have_places(clock):
    async def scenario(batcher, gate):
        learned(batcher, gate, 1.0)
        start, deadline = clock.now, clock.now + 100
        kept = [batcher.hold(start, deadline, batcher.expect(start, deadline)) for _ in range(5)]
        clock.now += 2 * RECEIVING
        with pytest.raises(Refused):
            batcher.expect(clock.now, clock.now + 5.5)  # 6.1 s
        with batcher.reserve(1, gate, deadline, kept.pop()), pytest.raises(Refused):
            batcher.expect(clock.now, clock.now + 5.5)
        batcher.expect(clock.now, clock.now + 5.5)  # 5.1 s
        for each in kept:
            batcher.forget(each)
        return batcher._received

    assert run(scenario)[0] == set()


def test_a_body_that_comes_too_late_is_refused(clock):
    async def scenario(batcher, gate):
        learned(batcher, gate, 1.0)
        start, deadline = clock.now, clock.now + 10
        slow, slower = batcher.expect(start, deadline), batcher.expect(start, deadline)
        clock.now += 8
        with batcher.reserve(1, gate, clock.now + 10), pytest.raises(Refused) as full:
            batcher.hold(start, deadline, slow)  # 2.2 s, of 2 s
        clock.now += 3
        with pytest.raises(Refused) as late:
            batcher.hold(start, deadline, slower)
        return full.value.status, late.value.status

    assert run(scenario)[0] == (503, 504)


def test_preparing_an_item_counts_as_time(clock):
    async def scenario(batcher, gate):
        learned(batcher, gate, 1.0)
        batcher.preparation.add(1, 2.0)
        with batcher.reserve(1, gate, clock.now + 10):  # 3.1 s
            with pytest.raises(Refused):
                batcher.expect(clock.now, clock.now + 6)  # and 3.1 s
            batcher.expect(clock.now, clock.now + 6.5)

    run(scenario)


def test_a_request_that_waited_too_long_is_refused_and_one_that_takes_too_long_is_tried(clock):
    async def scenario(batcher, gate):
        learned(batcher, gate, 1.0)  # 1.1 s for one
        with pytest.raises(Refused) as refused:
            batcher.expect(clock.now - 2, clock.now + 0.5)
        batcher.expect(clock.now, clock.now + 0.5)
        return refused.value.status

    assert run(scenario)[0] == 503


def test_an_estimate_from_a_busy_machine_is_tried_again_when_nothing_waits():
    async def scenario(batcher, gate):
        learned(batcher, gate, 0.01)
        for _ in range(10):
            batcher._timings[name_work(gate)].add(1, 10_000.0)
        gate.open.set()
        with batcher.reserve(1, gate, soon()):
            return await batcher.run(gate, 21, soon())

    assert run(scenario)[0] == 42


def test_a_batch_is_no_larger_than_the_earliest_deadline_allows(clock):
    async def scenario(batcher, gate):
        first = await begin(batcher, gate)

        def slow(items):
            return gate(items)

        learned(batcher, slow, 100.0)
        deadlines = {1: 6000, 2: 300, 3: 50, 4: 6000, 5: 6000}  # of which 2 comes first, and 3 cannot be met
        jobs = [asyncio.ensure_future(batcher.run(slow, item, clock.now + left)) for item, left in deadlines.items()]
        return await finish(gate, first, *jobs)

    answers, _, gate = run(scenario)
    assert [answer if isinstance(answer, int) else answer.status for answer in answers] == [0, 2, 4, 504, 8, 10]
    assert gate.seen[1] == [2, 1], "200.1 s are in time for the earliest deadline, 300.1 s would not be"
    assert gate.seen[2] == [4, 5]


def test_the_time_of_a_batch_is_learned_as_a_line_through_recent_batches():
    timing = BatchTiming(guess=0.5)
    assert timing.predict(4) == 2.0
    timing.add(4, 1.0)
    assert timing.predict(8) == pytest.approx(2.0), "one size says nothing of a fixed part"
    for size in (1, 2, 4, 8, 16) * 4:
        timing.add(size, 0.2 + 0.05 * size)
    assert timing.predict(1) == pytest.approx(0.25, abs=0.03)
    assert timing.predict(16) == pytest.approx(1.0, abs=0.03)
    for size in (1, 2, 4, 8, 16) * 10:
        timing.add(size, 2 * (0.2 + 0.05 * size))
    assert timing.predict(16) == pytest.approx(2.0, rel=0.02), "the machine is slower now"
    for size in (1, 16) * 20:
        timing.add(size, 1.0 if size == 1 else 0.5)
    assert 0 < timing.predict(16) <= timing.predict(32), "a batch of more items is never predicted to be shorter"


def test_closing_works_off_what_waits():
    async def scenario(batcher, gate):
        waiting = [asyncio.ensure_future(batcher.run(gate, number, soon())) for number in range(5)]
        await until_begun(gate)
        gate.open.set()
        await asyncio.to_thread(batcher.close)
        while batcher.is_healthy:  # it was told to end, and is not waited for any longer
            await asyncio.sleep(0.01)
        return await asyncio.gather(*waiting)

    assert run(scenario)[0] == [0, 2, 4, 6, 8]
