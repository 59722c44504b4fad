"""Whatever is sent, the server refuses it in its own words: hostile requests by the thousand and all that its own description
allows leave no 5xx, no traceback, no crash and no memory behind, and it answers afterwards as before.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from random import Random

import pytest

from tests.serving.hostile_images import sound_files
from tests.serving.hostile_requests import FRAMES, REFUSED_AT_ONCE, Hostile, hostile_requests
from tests.serving.load import Address, Connection, Lost, Reply, read_reply, upload
from tests.serving.process import Process
from tests.serving.questions import photographs
from tests.slow import few_or_nightly
from vitrail.serving.refusals import STATUS

CLIENTS = 4
ROUNDS = 4  # in which the same requests come: the first fills the allocator with what the largest of them need
KEPT, NOISE = 1 << 10, 1 << 18  # bytes of resident memory: for each request of a round, and for all of them
MORE, WAITS = 1.1, 60  # times the memory after the first round, and seconds until it is no more than that
REFUSALS = {b"400", b"403", b"413", b"431"}
REPLIES = REFUSALS | {b"", b"100", b"200", b"404", b"422"}  # "" where the server hung up
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
        async with asyncio.timeout(120):
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


def test_the_same_seed_makes_the_same_hostile_requests_and_each_family_comes() -> None:
    once, again = list(hostile_requests(1, 300)), list(hostile_requests(1, 300))
    assert once == again
    assert {each.family.split(":")[0] for each in once} == {
        "image", "bomb", "several", "form", "json", "call", "odd", "framing",
    }  # fmt: skip
    assert len(sound_files()) == 29


@pytest.mark.slow
@pytest.mark.parametrize("count", few_or_nightly(600, 25_000))
def test_hostile_requests_leave_no_5xx_no_traceback_and_no_memory_behind(server: Process, count: int) -> None:
    requests, found, held = list(hostile_requests(0, count)), Counter[str](), []
    for _ in range(ROUNDS):
        found += asyncio.run(throw(server.address(), iter(requests)))
        held.append(server.resident())
    assert not found
    # what is kept of each request grows in every round, what the allocator keeps does not
    assert min(after - before for before, after in pairwise(held)) < NOISE + KEPT * count
    assert falls_to(server, MORE * held[0])


def falls_to(server: Process, size: float) -> bool:
    """Whether a server holds no more bytes than that, once it has given back what it freed, which it does every ten seconds."""
    for _ in range(WAITS):
        if server.resident() <= size:
            return True
        time.sleep(1)
    return False


async def converse(address: Address, content: bytes, *, end: str) -> bytes:
    """All that comes back until the server closes; the client waits for that, closes its direction, leaves or resets."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        async with asyncio.timeout(120):  # a server that waits for more says 408 after 10 s, or hangs up
            writer.write(content)
            if end == "close":
                return b""
            if end == "reset":
                writer.transport.abort()
                return b""
            if end == "half-close":
                writer.write_eof()
            return await reader.read()
    except ConnectionError:
        return b""
    except TimeoutError:
        return b"HTTP/1.1 kept open"
    finally:
        writer.close()


@pytest.mark.slow
def test_broken_framing_is_refused_and_closed_without_a_line_in_the_log(server: Process) -> None:
    before, sound = server.stderr, upload("/v1/predict", photographs(1)[0])

    async def talk() -> dict[str, bytes]:
        named = {name: make(Random(0), sound) for name, make in FRAMES.items()}
        at_once = {name: await converse(server.address(), named[name], end="wait") for name in REFUSED_AT_ONCE}
        later = {name: await converse(server.address(), content, end="half-close") for name, content in named.items()}
        assert {name: reply[:12] for name, reply in later.items() if reply[9:12] not in REPLIES} == {}
        return at_once

    assert {name: reply[:12] for name, reply in asyncio.run(talk()).items() if reply[9:12] not in REFUSALS} == {}
    assert server.stderr == before


@pytest.mark.slow
def test_a_request_that_ends_at_any_byte_leaves_no_line_in_the_log(server: Process) -> None:
    before, sound = server.stderr, upload("/v1/predict", photographs(1)[0])
    places = [*range(sound.index(b"\r\n\r\n") + 5), *range(len(sound) - 5, len(sound))]

    async def talk() -> set[bytes]:
        for end in ("close", "reset"):
            for place in [*places, len(sound)]:
                await converse(server.address(), sound[:place], end=end)
        return {await converse(server.address(), sound[:place], end="half-close") for place in places}

    assert asyncio.run(talk()) == {b""}
    assert asyncio.run(converse(server.address(), sound, end="half-close")).count(b"HTTP/1.1 200 OK") == 1
    assert server.stderr == before


@pytest.mark.slow
@pytest.mark.parametrize("examples", few_or_nightly(10, 200))
def test_requests_that_the_schema_allows_get_replies_of_the_schema(server: Process, examples: int) -> None:
    import schemathesis
    from hypothesis import HealthCheck, given, settings
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    host, port = server.address()
    schema = schemathesis.openapi.from_url(f"http://{host}:{port}/openapi.json")
    operations = [each.ok() for each in schema.get_all_operations()]
    assert len(operations) >= 10
    for operation in operations:

        @settings(
            max_examples=examples,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def check(case: schemathesis.Case) -> None:
            case.call_and_validate(excluded_checks=[positive_data_acceptance])  # most bytes are no image

        check()
