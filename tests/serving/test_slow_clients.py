"""Clients that drip, say nothing or never read: the others are answered as if they were not there, and each of the slow ones
is ended by the server in its time. What this costs the others in time is in the record of benchmarks/serving.
"""

from __future__ import annotations

import asyncio
from itertools import cycle
from pathlib import Path

import pytest

from tests.serving.load import Connection, Question, Tally
from tests.serving.process import Process
from tests.serving.questions import model, photographs, questions
from tests.serving.slow import crowd, keep_dripping
from tests.slow import few_or_nightly
from vitrail.weights.native import save_model

pytestmark = pytest.mark.slow
GOOD = 4
# the limits of a server that ends slow clients after seconds in place of half a minute; the command line does not have them
SERVE = """
import sys
from vitrail.inference.options import InferenceOptions
from vitrail.serving.limits import ServerLimits
from vitrail.serving.server import start

limits = ServerLimits(header=5, receive=5, write=5, deadline=600)
more = dict.fromkeys(("name", "token_file", "runs"))
start(sys.argv[1], limits, options=InferenceOptions(), host="127.0.0.1", port=0, hosts=(), access_log=False, **more)
"""


async def among_the_slow(server: Process, asked: list[Question], count: int) -> Tally:
    """The tally of good clients, which ask for as long as the server holds slow ones."""
    address, tally, over = server.address(), Tally(), asyncio.Event()
    kept = Connection(address)
    await tally.ask(kept, asked[0])
    held = server.sockets()  # that connection, and what the server always holds

    async def good() -> None:
        connection, questions = Connection(address), cycle(asked)
        while not over.is_set():
            await tally.ask(connection, next(questions))
            await asyncio.sleep(0.05)
        connection.close()

    clients = await crowd(address, count)
    async with asyncio.timeout(300), asyncio.TaskGroup() as tasks:
        dripping = tasks.create_task(keep_dripping(clients))
        for _ in range(GOOD):
            tasks.create_task(good())
        # connections are accepted in their order: when all that listen are ended, none of the deaf is still to come
        while any(client.kind != "deaf" and client.socket.fileno() >= 0 for client in clients):
            await asyncio.sleep(0.05)
        while server.sockets() > held + GOOD:
            await asyncio.sleep(0.05)
        over.set()
        dripping.cancel()
    kept.close()
    return tally


@pytest.mark.parametrize("count", few_or_nightly(99, 999))  # the last of them listens
def test_slow_clients_take_nothing_from_the_others_and_are_ended(tmp_path: Path, count: int) -> None:
    classifier = model()
    path = save_model(tmp_path / "model.safetensors", classifier)
    with Process(["-c", SERVE, str(path)], tmp_path / "stderr.txt") as server:
        tally = asyncio.run(among_the_slow(server, questions(classifier, photographs(20)), count))
        assert server.end() == 0
    assert (tally.statuses, tally.wrong, tally.lost, tally.unreachable) == ({200: tally.sent}, 0, 0, 0)
    assert "Traceback" not in server.stderr
