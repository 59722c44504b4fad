"""Connections over real sockets, to an application that needs no model: each is ended in its time, whatever it has sent."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest
import uvicorn
from uvicorn.server import ServerState

from vitrail.serving.limits import ServerLimits
from vitrail.serving.protocol import Refuse, make_protocol

ASK = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
LARGE = 1 << 20  # bytes of a reply


async def reply(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE)]})
    await send({"type": "http.response.body", "body": bytes(LARGE)})


async def reply_late(scope, receive, send):
    """Replies after half a second; a client that is gone before is noted in the list "gone" of the server's state."""
    await receive()
    gone = asyncio.ensure_future(receive())
    done, _ = await asyncio.wait({gone}, timeout=0.5)
    if done:
        scope["state"]["gone"].append(gone.result()["type"])
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


async def until_ended(sent: bytes, *, listens: bool) -> None:
    """Ends when the server holds neither the connection nor a task for it any more."""
    async with serving(reply, header=0.2, receive=0.2, write=0.2, idle=0.2) as (address, state):
        loop, client = asyncio.get_running_loop(), socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.setblocking(False)
        await loop.sock_connect(client, address)
        await loop.sock_sendall(client, sent)
        async with asyncio.timeout(20):
            while listens and await loop.sock_recv(client, 1 << 20):
                pass
            await asyncio.sleep(0.05)
            while state.connections or state.tasks:
                await asyncio.sleep(0.05)
        client.close()


@pytest.mark.parametrize(
    ("sent", "listens"),
    [(ASK, True), (HALF, True), (ASK + HALF, True), (ASK + ASK[:9], True), (20 * ASK, False), (20 * ASK + HALF, False)],
    ids=["whole", "half", "half behind whole", "a head behind whole", "deaf", "deaf with half"],
)
def test_a_connection_that_stands_still_is_ended(sent, listens):
    asyncio.run(until_ended(sent, listens=listens))


async def exchange(sent: bytes) -> bytes:
    """All that a client gets that closes its own direction after it has sent."""
    async with serving(reply_late) as (address, state), asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(sent)
        writer.write_eof()
        received = await reader.read()
        writer.close()
        while state.connections or state.tasks:
            await asyncio.sleep(0.01)
    return received


def ask(path: str, version: str = "1.1") -> bytes:
    return ASK.replace(b"/ HTTP/1.1", f"{path} HTTP/{version}".encode())


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def test_a_half_closed_client_gets_its_reply_and_the_connection_is_closed():
    received = asyncio.run(exchange(ask("/one")))
    assert 1 <= received.count(CONTINUE) <= 4
    head, _, body = received.removeprefix(CONTINUE * received.count(CONTINUE)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert body == b"/one".ljust(LARGE)


@pytest.mark.parametrize("behind", [b"", HALF, ASK[:20]], ids=["nothing", "half a body", "half a head"])
def test_it_gets_the_replies_to_all_complete_requests_in_their_order(behind):
    received = asyncio.run(exchange(ask("/one") + ask("/two") + behind)).replace(CONTINUE, b"")
    replies = received.split(b"HTTP/1.1 200 OK")[1:]
    assert [each.partition(b"\r\n\r\n")[2] for each in replies] == [b"/one".ljust(LARGE), b"/two".ljust(LARGE)]


@pytest.mark.parametrize("sent", [ask("/", "1.0"), HALF, ASK[:20]], ids=["HTTP/1.0", "half a body", "half a head"])
def test_a_half_closed_client_that_may_get_no_probe_or_has_not_asked_is_hung_up_on(sent):
    assert asyncio.run(exchange(sent)) == b""


def test_a_client_of_the_standard_library_passes_over_the_probes():
    def talk(address: tuple[str, int]) -> tuple[int, int]:
        with closing(http.client.HTTPConnection(*address, timeout=20)) as connection:
            connection.request("GET", "/")
            connection.sock.shutdown(socket.SHUT_WR)
            answer = connection.getresponse()
            return answer.status, len(answer.read())

    async def both() -> tuple[int, int]:
        async with serving(reply_late) as (address, _):
            return await asyncio.to_thread(talk, address)

    assert asyncio.run(both()) == (200, LARGE)


def test_a_client_that_is_gone_is_noticed_before_its_reply():
    async def leave() -> list[str]:
        gone: list[str] = []
        async with serving(reply_late, {"gone": gone}) as (address, state), asyncio.timeout(20):
            _, writer = await asyncio.open_connection(*address)
            writer.write(ASK)
            await asyncio.sleep(0.05)
            writer.close()
            while state.connections or state.tasks or not gone:
                await asyncio.sleep(0.01)
        return gone

    assert asyncio.run(leave()) == ["http.disconnect"]


@pytest.mark.parametrize("head", [b"a" * 70_000, b"GET / HTTP/1.1\r\nX-A: " + b"a" * 70_000], ids=["path", "header"])
def test_a_head_that_does_not_end_is_too_large(head):
    assert asyncio.run(exchange(head)).startswith(b"HTTP/1.1 431 ")
