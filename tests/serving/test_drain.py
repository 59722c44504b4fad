"""Leaving: SIGTERM in the middle of a load, many times over. Clients behave as behind a balancer, which sends no more once
/readyz says no; every request that was sent is answered, and the process ends by itself with exit code 0 within 30 s.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle, repeat
from pathlib import Path

import pytest

from tests.serving.load import Address, Connection, Lost, Question, Tally, Unreachable, request
from tests.serving.process import Process, serve
from tests.serving.questions import model, photographs, questions
from vitrail.weights.native import save_model

pytestmark = pytest.mark.slow
STOPS = int(os.environ.get("VITRAIL_STOPS", "20"))  # 50 is the full count
TOGETHER = 5  # servers at one time: what a stop takes is mostly waiting
CLIENTS = 16


async def client(address: Address, asked: Iterator[Question], tally: Tally, left: asyncio.Event, pause: float) -> None:
    """Asks on one connection until that is closed or the balancer has seen the server leave."""
    connection = Connection(address)
    while not left.is_set():
        reply = await tally.ask(connection, next(asked))
        if reply is None or reply.closes:
            break
        await asyncio.sleep(pause)
    connection.close()


async def balancer(address: Address, left: asyncio.Event) -> None:
    """Looks at /readyz, on a connection of its own each time, until it says no or nobody is there."""
    while not left.is_set():
        connection = Connection(address)
        try:
            ready = (await connection.ask(request("GET", "/readyz"))).status == 200
        except (Unreachable, Lost):
            ready = False
        connection.close()
        if not ready:
            left.set()
        await asyncio.sleep(0.05)


async def stop_under_load(server: Process, address: Address, asked: Iterator[Question], after: float) -> Tally:
    tally, left = Tally(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for number in range(CLIENTS):  # half of them without a break, half with idle connections now and then
            tasks.create_task(client(address, asked, tally, left, pause=0.01 * (number % 2)))
        tasks.create_task(balancer(address, left))
        await asyncio.sleep(after)
        server.child.send_signal(signal.SIGTERM)
    return tally


def stop_together(servers: list[Process], asked: Iterator[Question], chance: random.Random) -> list[Tally]:
    addresses = [server.address() for server in servers]  # waits until all have started

    async def stop_all() -> list[Tally]:
        waits = [chance.uniform(0.05, 0.5) for _ in servers]
        return await asyncio.gather(*(stop_under_load(*each) for each in zip(servers, addresses, repeat(asked), waits)))

    return asyncio.run(stop_all())


def test_stops_under_load_lose_no_request_and_end_well(tmp_path: Path) -> None:
    classifier = model()
    path = save_model(tmp_path / "model.safetensors", classifier)
    asked = cycle(questions(classifier, photographs(20)))
    chance = random.Random(0)
    for turn in range(STOPS // TOGETHER):
        with ExitStack() as stack:
            logs = [tmp_path / f"{turn}-{number}.txt" for number in range(TOGETHER)]
            servers = [stack.enter_context(serve(path, log)) for log in logs]
            tallies = stop_together(servers, asked, chance)
            codes = [server.child.wait(30) for server in servers]
        said = [server.stderr for server in servers]
        assert codes == [0] * TOGETHER, said
        assert not any("Traceback" in each for each in said), said
        for tally in tallies:
            assert tally.statuses.get(200), "nothing was answered before the stop"
            assert tally.statuses.keys() <= {200, 503}
            assert (tally.lost, tally.wrong, tally.hasty) == (0, 0, 0), (turn, tally.statuses)
