"""Leaving: SIGTERM in the middle of a load, fifty times over. Clients behave as behind a balancer, which sends no more once
/readyz says no; every request that was sent is answered, and the process ends by itself with exit code 0 within 30 s.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from tests.serving.load import Address, Connection, Lost, Question, Tally, Unreachable, request
from tests.serving.process import Process, serve
from tests.serving.questions import model, photographs, questions
from vitrail.weights.native import save_model

pytestmark = pytest.mark.slow
STOPS = 50
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


async def stop_under_load(server: Process, asked: Iterator[Question], after: float) -> Tally:
    address, tally, left = server.address(), Tally(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for number in range(CLIENTS):  # half of them without a break, half with idle connections now and then
            tasks.create_task(client(address, asked, tally, left, pause=0.01 * (number % 2)))
        tasks.create_task(balancer(address, left))
        await asyncio.sleep(after)
        server.child.send_signal(signal.SIGTERM)
    return tally


def test_fifty_stops_under_load_lose_no_request_and_end_well(tmp_path: Path) -> None:
    classifier = model()
    path = save_model(tmp_path / "model.safetensors", classifier)
    asked = cycle(questions(classifier, photographs(20)))
    chance = random.Random(0)
    for number in range(STOPS):
        with serve(path, tmp_path / f"{number}.txt") as server:
            tally = asyncio.run(stop_under_load(server, asked, after=chance.uniform(0.05, 0.5)))
            assert server.child.wait(30) == 0, server.stderr
        assert tally.statuses.get(200), "nothing was answered before the stop"
        assert tally.statuses.keys() <= {200, 503}, tally.statuses
        assert (tally.lost, tally.wrong, tally.hasty) == (0, 0, 0), f"stop {number}: {tally}"
        assert "Traceback" not in server.stderr
