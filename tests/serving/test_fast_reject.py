"""Refusals by the head: as those of h11 and the application, without either."""

from __future__ import annotations

import asyncio
import functools
import http.client
import re
import socket
import sys
import time
from contextlib import closing

import pytest

from tests.serving.load import request
from tests.serving.test_protocol import serving, until_free
from vitrail.serving.admission import Admission
from vitrail.serving.limits import ServerLimits
from vitrail.serving.protocol import compute_age, reject_fast
from vitrail.serving.service import Service

TOKEN = "a-token-of-some-length"
BODY = b"x" * 300_000
BEHIND = request("GET", "/livez", Connection="close")
HEADERS = {"Authorization": f"Bearer {TOKEN}", "Content_Type": "image/png"}
OWN = re.compile(
    rb'(?<=date: )[^\r]+|(?<=x-request-id: )\w+|(?<="request_id": ")\w+'
)  # differs between any two replies


class App:
    """Answers with an empty reply, and counts."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, scope, receive, send) -> None:
        self.count += 1
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})


class Counted(Admission):
    """Counts the requests that come to it through h11."""

    count = 0

    async def __call__(self, scope, receive, send) -> None:
        self.count += 1
        await super().__call__(scope, receive, send)


def admission(*, full: bool = True, draining: bool = False) -> Counted:
    service = Service(None, ServerLimits(deadline=600))
    service.close()
    service.batcher.reserved, service.draining = service.batcher.capacity if full else 0, draining
    return Counted(App(), service, token=TOKEN, hosts=["127.0.0.1"])


async def exchange(door: Counted, parts: list[bytes], *, early: bool = True, **limits: float) -> bytes:
    """All that a client gets that sends these parts one after another and waits."""
    refuse = functools.partial(reject_fast, door) if early else lambda data, state: None
    async with serving(door, refuse=refuse, **limits) as (address, state), asyncio.timeout(120):
        reader, writer = await asyncio.open_connection(*address)
        for part in parts:
            writer.write(part)
            for _ in range(20):  # turns of the loop, in which the server takes in what has come
                await asyncio.sleep(0)
        received = await reader.read()
        writer.close()
        await until_free(state)
    return received


REFUSED = {
    "full": request("POST", "/v1/predict?top=3", BODY, **HEADERS),
    "full, by the other protocol": request("POST", "/v2/models/tiny/infer", b"{}", **HEADERS, Connection="keep-alive"),
    "no token": request("POST", "/v1/predict", BODY, Content_Type="image/png"),
    "another host": request("POST", "/v1/predict", BODY, **HEADERS).replace(b"127.0.0.1", b"evil.example"),
    "no time": request("POST", "/v1/predict", b"", **HEADERS, X_Deadline_Ms="0"),
    "no number": request("POST", "/v1/predict", BODY, **HEADERS, X_Deadline_Ms="soon"),
    "its own id": request("POST", "/v1/predict", BODY, **HEADERS, X_Request_Id="mine.1"),
}


@pytest.mark.parametrize("draining", [False, True], ids=["serving", "draining"])
def test_a_refusal_by_the_head_is_that_of_the_application(draining):
    for name, content in REFUSED.items():
        doors = [admission(draining=draining) for _ in range(2)]
        late, early = (asyncio.run(exchange(door, [content + BEHIND], early=door is doors[1])) for door in doors)
        assert OWN.sub(b"", early) == OWN.sub(b"", late), name
        assert early.count(b"HTTP/1.1 ") == (1 if draining else 2), name
        # the one behind is no refusal
        assert [door.count for door in doors] == ([1, 0] if draining else [2, 1]), name
        told = [door.service.metrics.text().partition(b"vitrail_requests_total{")[2].split(b"\n")[0] for door in doors]
        assert told[0] == told[1] != b"", name


PLAIN = REFUSED["full"]
USUAL = {
    "not full": (PLAIN, False),
    "another method": (PLAIN.replace(b"POST", b"GET"), True),
    "HTTP/1.0": (PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"), True),
    "an escaped path": (PLAIN.replace(b"predict", b"%70redict"), True),
    "half a head": (PLAIN[:60], True),
    "no host": (PLAIN.replace(b"Host: ", b"Most: "), True),
    "a name that is none": (PLAIN.replace(b"Host: ", b"(Host: "), True),
    "a name with a space": (PLAIN.replace(b"Host: ", b"Host : "), True),
    "a folded line": (PLAIN.replace(b"Host: ", b"X: 1\r\n Host: "), True),
    "a bare line feed": (PLAIN.replace(b"\r\nHost", b"\nHost"), True),
    "two lengths": (PLAIN.replace(b"Host: ", b"Content-Length: 9\r\nHost: "), True),
    "a signed length": (PLAIN.replace(b"Length: ", b"Length: +"), True),
    "chunks": (request("POST", "/", BODY, **HEADERS, Transfer_Encoding="chunked"), True),
    "another expectation": (request("POST", "/", BODY, **HEADERS, Expect="a miracle"), True),
    "its last request": (request("POST", "/", BODY, **HEADERS, Connection="close"), True),
}  # fmt: skip


def test_all_others_go_through_h11():
    taken = {
        name: reject_fast(admission(full=full), content, {}) is not None for name, (content, full) in USUAL.items()
    }
    assert taken == dict.fromkeys(USUAL, False)
    assert reject_fast(admission(), PLAIN, {}) is not None


def test_a_body_is_discarded_up_to_its_end_however_it_comes():
    door = admission()
    cut = len(PLAIN) - 2
    received = asyncio.run(exchange(door, [PLAIN[:300], PLAIN[300:cut], PLAIN[cut:] + PLAIN + BEHIND]))
    assert [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", received)] == [503, 503, 200]
    assert door.count == 1


def head(length: int, **headers: str) -> bytes:
    return request("POST", "/v1/predict", **HEADERS, **headers).replace(b"Length: 0", b"Length: %d" % length)


async def read_first(content: bytes, then: bytes = b"", **limits: float) -> tuple[bytes, bytes]:
    """The reply to the first part of a request, before more of it is sent, and what the server sends until it closes."""
    door = admission()
    async with serving(door, refuse=functools.partial(reject_fast, door), **limits) as (address, state):
        async with asyncio.timeout(120):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(content)
            start = await reader.readuntil(b"\r\n\r\n")
            writer.write(then)
            await writer.drain()
            rest = await reader.read()
            writer.close()
            await until_free(state)
    return start, rest


def test_the_reply_comes_before_the_body():
    start, rest = asyncio.run(read_first(PLAIN[:300], PLAIN[300:] + BEHIND))
    assert start.startswith(b"HTTP/1.1 503 ") and b"connection: close" not in start
    assert b"HTTP/1.1 200 " in rest


def test_a_refusal_takes_the_place_of_100_continue():
    start, rest = asyncio.run(read_first(head(9, Expect="100-continue")))
    assert start.startswith(b"HTTP/1.1 503 ") and b"connection: close" in start
    assert rest.endswith(b"}")


@pytest.mark.parametrize(("length", "status"), [(8 << 20, 503), (1 << 30, 413)])
def test_the_connection_of_a_large_body_is_closed_after_the_client_has_its_reply(length, status):
    start, rest = asyncio.run(read_first(head(length), bytes(4 << 20)))
    assert start.startswith(b"HTTP/1.1 %d " % status) and b"connection: close" in start
    assert rest.endswith(b"}")


def test_a_client_that_sends_its_whole_body_first_is_not_reset():
    def send_and_read(address: tuple[str, int]) -> int:
        with closing(http.client.HTTPConnection(*address, timeout=120)) as connection:
            connection.request("POST", "/v1/predict", bytes(8 << 20), {"Authorization": f"Bearer {TOKEN}"})
            return connection.getresponse().status

    async def both() -> int:
        door = admission()
        async with serving(door, refuse=functools.partial(reject_fast, door)) as (address, state):
            status = await asyncio.to_thread(send_and_read, address)
            await until_free(state)
        return status

    assert asyncio.run(both()) == 503


def test_a_refused_body_that_stands_still_is_ended():
    start, rest = asyncio.run(read_first(PLAIN[:300], receive=0.2))
    assert start.startswith(b"HTTP/1.1 503 ")
    assert b"HTTP/1.1 408 " not in rest


def test_a_server_that_shuts_down_waits_for_the_reply():
    async def shut_down() -> bytes:
        door = admission()
        async with serving(door, refuse=functools.partial(reject_fast, door)) as (address, state):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(PLAIN[:300])
            while not any(connection._refusal for connection in state.connections):
                await asyncio.sleep(0.01)
            for connection in state.connections:
                connection.shutdown()
            writer.write(PLAIN[300:])
            received = await reader.read()
            writer.close()
        return received

    assert asyncio.run(shut_down()).startswith(b"HTTP/1.1 503 ")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says when data arrived")
def test_the_deadline_includes_the_time_in_the_queue_of_the_socket():
    async def ask_while_busy(milliseconds: int) -> bytes:
        door = admission(full=False)
        content = request("POST", "/", b"x", **HEADERS, X_Deadline_Ms=str(milliseconds), Connection="close")
        async with serving(door, refuse=functools.partial(reject_fast, door)) as (address, state):
            reader, writer = await asyncio.open_connection(*address)
            while not state.connections:
                await asyncio.sleep(0.01)
            writer.write(content)
            time.sleep(0.3)  # the server is busy
            received = await reader.read()
            writer.close()
        return received

    assert asyncio.run(ask_while_busy(200)).startswith(b"HTTP/1.1 503 ")
    assert asyncio.run(ask_while_busy(600_000)).startswith(b"HTTP/1.1 200 ")


def test_the_age_of_data_is_unknown_for_other_sockets():
    one, other = socket.socketpair()
    with one, other:
        other.send(b"x")
        assert compute_age(one) == 0
