"""Load: every reply belongs to its own image whatever batch it was answered in; what is too much is refused with the time to
come again, nothing is lost, and afterwards all is as before. Times are in the records of benchmarks/serving.
"""

from __future__ import annotations

import asyncio
import signal
from itertools import cycle, islice

import pytest

from tests.serving.load import Connection, Question, Tally, closed_loop
from tests.serving.process import Process
from tests.serving.questions import model, photographs, questions
from tests.slow import few_or_nightly

pytestmark = pytest.mark.slow
FLOOD = 400  # requests at once, for a queue of 64 images


@pytest.mark.parametrize("count", few_or_nightly(1_000, 10_000))
def test_each_reply_is_that_of_its_own_image(server: Process, count: int) -> None:
    asked, anew = cycle(questions(model(), photographs(100))), count // 10
    kept = asyncio.run(closed_loop(server.address(), islice(asked, count - anew), clients=64))
    closed = asyncio.run(closed_loop(server.address(), islice(asked, anew), clients=32, keep_alive=False))
    assert (kept.statuses, kept.wrong, kept.lost) == ({200: count - anew}, 0, 0)
    assert (closed.statuses, closed.wrong, closed.lost) == ({200: anew}, 0, 0)


async def flood(server: Process, asked: list[Question]) -> Tally:
    """What becomes of requests that a server finds all together: it stands still until each of them has been sent."""
    tally, connections = Tally(), [Connection(server.address()) for _ in range(FLOOD)]
    server.child.send_signal(signal.SIGSTOP)
    try:
        async with asyncio.TaskGroup() as tasks:
            for connection, question in zip(connections, cycle(asked)):
                tasks.create_task(tally.ask(connection, question))
            while not all(connection.written for connection in connections):
                await asyncio.sleep(0.01)
            server.child.send_signal(signal.SIGCONT)
    finally:
        server.child.send_signal(signal.SIGCONT)
    for connection in connections:
        connection.close()
    return tally


@pytest.mark.parametrize("floods", few_or_nightly(1, 25))
def test_a_flood_is_refused_with_the_time_to_come_again_and_leaves_nothing_behind(
    server: Process, asked: list[Question], floods: int
) -> None:
    for _ in range(floods):
        tally = asyncio.run(flood(server, asked))
        assert tally.statuses.keys() == {200, 503}
        assert tally.sent == sum(tally.statuses.values()) == FLOOD
        assert (tally.hasty, tally.wrong, tally.lost, tally.unreachable) == (0, 0, 0, 0)
    calm = asyncio.run(closed_loop(server.address(), iter(asked), clients=8))
    assert (calm.statuses, calm.wrong) == ({200: len(asked)}, 0)
