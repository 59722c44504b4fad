"""Connections over real sockets, to an application that needs no model: each is ended in its time, whatever it has sent."""

from __future__ import annotations

import asyncio
import http.client
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing

import pytest
import uvicorn
from uvicorn.server import ServerState

from vitrail.serving.limits import ServerLimits
from vitrail.serving.protocol import Refuse, make_protocol

ASK = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LARGE = 1 << 20  # bytes of a reply


async def reply(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE)]})
    await send({"type": "http.response.body", "body": bytes(LARGE)})


async def reply_when_told(scope, receive, send):
    """Replies after the event "go" of the server's state; a client that is gone before is noted in its list "gone"."""
    facts = scope["state"]
    await receive()
    gone, told = asyncio.ensure_future(receive()), asyncio.ensure_future(facts["go"].wait())
    await asyncio.wait({gone, told}, return_when=asyncio.FIRST_COMPLETED)
    if not told.done():
        told.cancel()
        facts["gone"].append(gone.result()["type"])
        return
    gone.cancel()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE)]})
    await send({"type": "http.response.body", "body": scope["path"].encode().ljust(LARGE)})


@asynccontextmanager
async def serving(
    app, facts=None, refuse: Refuse = lambda data, state: None, **limits: float
) -> AsyncIterator[tuple[tuple[str, int], ServerState]]:
    """The address of a server of an application, and its connections and tasks."""
    config = uvicorn.Config(app, loop="asyncio", lifespan="off", log_config=None, timeout_keep_alive=1)
    config.load()
    state, make = ServerState(), make_protocol(ServerLimits(**limits), refuse)
    server = await asyncio.get_running_loop().create_server(lambda: make(config, state, facts or {}), "127.0.0.1", 0)
    yield server.sockets[0].getsockname(), state
    server.close()


async def until_free(state: ServerState) -> None:
    """Waits until the server holds neither a connection nor a task for one."""
    while state.connections or state.tasks:
        await asyncio.sleep(0.01)


async def until_ended(sent: bytes, *, listens: bool) -> None:
    """Ends when the server has taken the connection, and holds nothing of it any more."""
    async with serving(reply, header=0.2, receive=0.2, write=0.2, idle=0.2) as (address, state):
        loop, client = asyncio.get_running_loop(), socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.setblocking(False)
        await loop.sock_connect(client, address)
        await loop.sock_sendall(client, sent)
        async with asyncio.timeout(120):
            while listens and await loop.sock_recv(client, 1 << 20):
                pass
            while not (listens or state.total_requests):
                await asyncio.sleep(0.01)
            await until_free(state)
        client.close()


STILL = {
    "whole": (ASK, True),
    "half": (HALF, True),
    "half behind whole": (ASK + HALF, True),
    "a head behind whole": (ASK + ASK[:9], True),
    "deaf": (20 * ASK, False),
    "deaf with half": (20 * ASK + HALF, False),
}


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "listens"), STILL.values(), ids=STILL)
def test_a_connection_that_stands_still_is_ended(sent, listens):
    asyncio.run(until_ended(sent, listens=listens))


async def exchange(sent: bytes) -> bytes:
    """All that a client gets that closes its own direction after it has sent; replies begin after two probes."""
    go, received = asyncio.Event(), b""
    async with serving(reply_when_told, {"go": go, "gone": []}) as (address, state), asyncio.timeout(120):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(sent)
        writer.write_eof()
        while data := await reader.read(1 << 16):
            received += data
            if received.count(CONTINUE) >= 2:
                go.set()
        writer.close()
        await until_free(state)
    return received


def ask(path: str, version: str = "1.1") -> bytes:
    return ASK.replace(b"/ HTTP/1.1", f"{path} HTTP/{version}".encode())


def test_a_half_closed_client_gets_its_reply_and_the_connection_is_closed():
    received = asyncio.run(exchange(ask("/one")))
    assert 2 <= received.count(CONTINUE) <= 4
    head, _, body = received.removeprefix(CONTINUE * received.count(CONTINUE)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert body == b"/one".ljust(LARGE)


def test_a_half_closed_client_gets_the_replies_to_all_complete_requests_in_their_order():
    for behind in (b"", HALF, ASK[:20]):
        received = asyncio.run(exchange(ask("/one") + ask("/two") + behind)).replace(CONTINUE, b"")
        bodies = [each.partition(b"\r\n\r\n")[2] for each in received.split(b"HTTP/1.1 200 OK")[1:]]
        assert bodies == [b"/one".ljust(LARGE), b"/two".ljust(LARGE)], behind


def test_a_half_closed_client_that_may_get_no_probe_or_has_not_asked_is_hung_up_on():
    for sent in (ask("/", "1.0"), HALF, ASK[:20]):
        assert asyncio.run(exchange(sent)) == b"", sent


def test_a_client_of_the_standard_library_passes_over_the_probes():
    def talk(address: tuple[str, int], go: Callable[[], None]) -> tuple[int, int]:
        with closing(http.client.HTTPConnection(*address, timeout=120)) as connection:
            connection.request("GET", "/")
            connection.sock.shutdown(socket.SHUT_WR)
            while len(connection.sock.recv(2 * len(CONTINUE), socket.MSG_PEEK)) < 2 * len(CONTINUE):
                time.sleep(0.01)
            go()
            answer = connection.getresponse()
            return answer.status, len(answer.read())

    async def both() -> tuple[int, int]:
        go, loop = asyncio.Event(), asyncio.get_running_loop()
        async with serving(reply_when_told, {"go": go, "gone": []}) as (address, _):
            return await asyncio.to_thread(talk, address, lambda: loop.call_soon_threadsafe(go.set))

    assert asyncio.run(both()) == (200, LARGE)


def test_a_client_that_is_gone_is_noticed_before_its_reply():
    async def leave() -> list[str]:
        gone: list[str] = []
        facts = {"go": asyncio.Event(), "gone": gone}
        async with serving(reply_when_told, facts) as (address, state), asyncio.timeout(120):
            _, writer = await asyncio.open_connection(*address)
            writer.write(ASK)
            while not state.tasks:
                await asyncio.sleep(0.01)
            writer.close()
            while not gone:
                await asyncio.sleep(0.01)
            await until_free(state)
        return gone

    assert asyncio.run(leave()) == ["http.disconnect"]


def test_a_head_that_does_not_end_is_too_large():
    for head in (b"a" * 70_000, b"GET / HTTP/1.1\r\nX-A: " + b"a" * 70_000):
        assert asyncio.run(exchange(head)).startswith(b"HTTP/1.1 431 "), head[:20]
