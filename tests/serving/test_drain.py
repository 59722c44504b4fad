"""Leaving: SIGTERM in the middle of a load, many times over. Clients behave as behind a balancer, which sends no more once
/readyz says no; every request that was sent is answered, and the process ends by itself with exit code 0.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

import pytest

from tests.serving.load import Connection, Lost, Question, Tally, Unreachable, request
from tests.serving.process import PATIENT, Process, serve
from tests.serving.questions import model, photographs, questions
from tests.slow import few_or_nightly
from vitrail.serving.limits import ServerLimits
from vitrail.serving.server import QUIET
from vitrail.weights.native import save_model

pytestmark = pytest.mark.slow
TOGETHER = 5  # servers at one time: what a stop takes is mostly waiting
CLIENTS = 16


class Stop:
    """One server that is told to end under load, and what became of the requests to it.

    A server may close an idle connection once nothing was asked for `QUIET` seconds, or a while after its signal. A request
    that comes later, from clients that a busy machine has held up, may be lost.
    """

    def __init__(self, server: Process, after: int) -> None:
        self.server, self.after = server, after
        self.address, self.tally, self.left = server.address(), Tally(), asyncio.Event()
        self.asked = time.monotonic()  # when the last request was about to be sent
        self.signalled = float("inf")
        self.late = 0  # requests that were lost after the server might have left
        self.silent = False  # whether it left before the balancer could have seen it

    async def client(self, asked: Iterator[Question], pause: float) -> None:
        """Asks on one connection until that is closed or the balancer has seen the server leave."""
        connection = Connection(self.address)
        while not self.left.is_set():
            before, self.asked, lost = self.asked, time.monotonic(), self.tally.lost
            reply = await self.tally.ask(connection, next(asked))
            if self.tally.lost > lost and self.is_late(connection.written, before):
                self.late += 1
            if reply is None or reply.closes:
                break
            await asyncio.sleep(pause)
        connection.close()

    def is_late(self, written: float, before: float) -> bool:
        return written - before >= QUIET or written - self.signalled >= ServerLimits().linger

    async def balancer(self) -> None:
        """Looks at /readyz, on a connection of its own each time, until it says no or nobody is there."""
        while not self.left.is_set():
            connection, self.asked = Connection(self.address), time.monotonic()
            try:
                ready = (await connection.ask(request("GET", "/readyz"))).status == 200
            except (Unreachable, Lost):
                ready, self.silent = False, time.monotonic() - self.signalled < QUIET
            connection.close()
            if not ready:
                self.left.set()
            await asyncio.sleep(0.05)

    async def run(self, asked: Iterator[Question]) -> None:
        async with asyncio.timeout(300), asyncio.TaskGroup() as tasks:
            for number in range(CLIENTS):  # half of them without a break, half with idle connections now and then
                tasks.create_task(self.client(asked, pause=0.01 * (number % 2)))
            tasks.create_task(self.balancer())
            while self.tally.sent < self.after:
                await asyncio.sleep(0.001)
            self.signalled = time.monotonic()
            self.server.child.send_signal(signal.SIGTERM)


async def stop_all(stops: list[Stop], asked: Iterator[Question]) -> None:
    await asyncio.gather(*(stop.run(asked) for stop in stops))


@pytest.mark.parametrize("count", few_or_nightly(3, 50))
def test_stops_under_load_lose_no_request_and_end_well(tmp_path: Path, count: int) -> None:
    classifier = model()
    path = save_model(tmp_path / "model.safetensors", classifier)
    asked = cycle(questions(classifier, photographs(20)))
    chance = random.Random(0)
    for first in range(0, count, TOGETHER):
        with ExitStack() as stack:
            logs = [tmp_path / f"{number}.txt" for number in range(first, min(first + TOGETHER, count))]
            servers = [stack.enter_context(serve(path, log, *PATIENT)) for log in logs]
            stops = [Stop(server, after=chance.randrange(1, 300)) for server in servers]
            asyncio.run(stop_all(stops, asked))
            codes = [server.child.wait(120) for server in servers]
        said = [server.stderr for server in servers]
        assert codes == [0] * len(servers), said
        assert not any("Traceback" in each for each in said), said
        for stop in stops:
            tally = stop.tally
            assert tally.statuses.get(200) and not stop.silent
            assert tally.statuses.keys() <= {200, 503}
            assert (tally.lost - stop.late, tally.wrong, tally.hasty) == (0, 0, 0), (first, tally.statuses)
