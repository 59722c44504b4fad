"""Whatever is sent, the server refuses it in its own words: hostile requests by the thousand and all that its own description
allows leave no 5xx, no traceback, no crash and no memory behind, and it answers afterwards as before.

``VITRAIL_FUZZ`` is the number of hostile requests. With few of them memory still grows to what the largest of them need.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.serving.hostile_images import sound_files
from tests.serving.hostile_requests import Hostile, hostile_requests
from tests.serving.load import Address, Connection, Lost, Reply, closed_loop, read_reply
from tests.serving.process import Process, serve
from tests.serving.questions import model, photographs, questions
from vitrail.serving.refusals import STATUS
from vitrail.tasks.classification import Classifier
from vitrail.weights.native import save_model

COUNT = int(os.environ.get("VITRAIL_FUZZ", "20000"))
CLIENTS = 4
# of resident memory between the first half of the requests and the second: of 20,000, one kilobyte kept by each
GROWTH = 10 << 20
SECRETS = (b"Traceback", b"site-packages", b"vitrail/", b".py")


def faults(hostile: Hostile, reply: Reply) -> Iterator[str]:
    """What is wrong with a reply."""
    if reply.status not in hostile.allowed:
        yield f"{reply.status} {reply.body[:200]!r}"
    if any(secret in reply.body for secret in SECRETS):
        yield f"tells of the inside: {reply.body[:500]!r}"
    if hostile.framed and "x-request-id" not in reply.headers:
        yield "no X-Request-ID"
    if hostile.framed and reply.status >= 400:
        error = json.loads(reply.body)["error"]
        if "/v2/" not in hostile.content[:20].decode("latin-1") and STATUS.get(error["code"]) != reply.status:
            yield f"{reply.status} with code {error['code']}"


async def reply_to(connection: Connection, hostile: Hostile) -> Reply | None:
    """None where the framing was broken and the server hung up."""
    if hostile.framed:
        return await connection.ask(hostile.content)
    reader, writer = await asyncio.open_connection(*connection.address)
    try:
        async with asyncio.timeout(60):
            writer.write(hostile.content)
            writer.write_eof()
            return await read_reply(reader)
    except (OSError, asyncio.IncompleteReadError):
        return None
    finally:
        writer.close()


async def throw(address: Address, requests: Iterator[Hostile]) -> Counter[str]:
    """The faults found, by family, with how often."""
    found: Counter[str] = Counter()

    async def client() -> None:
        connection = Connection(address)
        for hostile in requests:
            try:
                reply = await reply_to(connection, hostile)
            except (Lost, TimeoutError) as error:
                found[f"{hostile.family}: lost, {error!r}"] += 1
                continue
            found.update(f"{hostile.family}: {fault}" for fault in (faults(hostile, reply) if reply else ()))
        connection.close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return found


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return model()


@pytest.fixture
def server(classifier: Classifier, tmp_path: Path) -> Iterator[Process]:
    """What is left of it after a test must still answer, end well and have said nothing bad."""
    path = save_model(tmp_path / "model.safetensors", classifier)
    with serve(path, tmp_path / "stderr.txt") as started:
        started.address()
        yield started
        tally = asyncio.run(closed_loop(started.address(), iter(questions(classifier, photographs(20))), clients=4))
        assert (tally.statuses, tally.wrong) == ({200: 20}, 0)
        assert started.end() == 0
    assert "Traceback" not in started.stderr


def test_the_same_seed_makes_the_same_hostile_requests_and_each_family_comes() -> None:
    once, again = list(hostile_requests(1, 300)), list(hostile_requests(1, 300))
    assert once == again
    assert {each.family.split(":")[0] for each in once} == {
        "image", "bomb", "several", "form", "json", "call", "framing",
    }  # fmt: skip
    assert len(sound_files()) == 29


@pytest.mark.slow
def test_hostile_requests_leave_no_5xx_no_traceback_and_no_memory_behind(server: Process) -> None:
    requests = hostile_requests(0, COUNT)
    first = asyncio.run(throw(server.address(), islice(requests, COUNT // 2)))
    held = server.resident()
    second = asyncio.run(throw(server.address(), requests))
    assert not first + second
    assert server.resident() - held < GROWTH


@pytest.mark.slow
def test_what_the_description_allows_is_answered_as_it_says(server: Process) -> None:
    import schemathesis
    from hypothesis import HealthCheck, given, settings
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    host, port = server.address()
    schema = schemathesis.openapi.from_url(f"http://{host}:{port}/openapi.json")
    operations = [each.ok() for each in schema.get_all_operations()]
    assert len(operations) >= 10
    for operation in operations:

        @settings(
            max_examples=30, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
        )
        @given(case=operation.as_strategy())
        def check(case: schemathesis.Case) -> None:
            case.call_and_validate(excluded_checks=[positive_data_acceptance])  # most bytes are no image

        check()
