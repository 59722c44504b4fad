"""A thousand clients that drip, say nothing or never read: the others are answered as if they were not there, and each of the
thousand is ended by the server in its time. What this costs the others in time is in the record of benchmarks/serving.
"""

from __future__ import annotations

import asyncio
from itertools import cycle, takewhile
from pathlib import Path

import pytest

from tests.serving.load import Question, Tally, closed_loop
from tests.serving.process import Process, serve
from tests.serving.questions import model, photographs, questions
from tests.serving.slow import crowd, keep_dripping
from vitrail.weights.native import save_model

pytestmark = pytest.mark.slow
SLOW = 1000


async def among_the_slow(server: Process, asked: list[Question]) -> Tally:
    """The tally of eight good clients for as long as the server holds slow ones."""
    address, gone = server.address(), asyncio.Event()
    await closed_loop(address, iter(asked), clients=1)  # from now on it holds what it always holds
    before = server.sockets()
    clients = await crowd(address, SLOW)
    async with asyncio.timeout(300), asyncio.TaskGroup() as tasks:
        dripping = tasks.create_task(keep_dripping(clients))
        while server.sockets() < before + SLOW // 2:  # the silent ones may already have been ended
            await asyncio.sleep(0.01)
        good = tasks.create_task(closed_loop(address, takewhile(lambda _: not gone.is_set(), cycle(asked)), clients=8))
        while server.sockets() > before + 8:
            await asyncio.sleep(0.5)
        gone.set()
        tally = await good
        dripping.cancel()
    return tally


def test_a_thousand_slow_clients_take_nothing_from_the_others_and_are_ended(tmp_path: Path) -> None:
    classifier = model()
    path = save_model(tmp_path / "model.safetensors", classifier)
    asked = questions(classifier, photographs(20))
    with serve(path, tmp_path / "stderr.txt") as server:
        tally = asyncio.run(among_the_slow(server, asked))
        assert server.end() == 0
    assert (tally.statuses, tally.wrong, tally.lost, tally.unreachable) == ({200: tally.sent}, 0, 0, 0)
    assert "Traceback" not in server.stderr
