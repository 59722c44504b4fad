"""Connections over real sockets, to an application that needs no model: each is ended in its time, whatever it has sent."""

from __future__ import annotations

import asyncio
import socket

import pytest
import uvicorn
from uvicorn.server import ServerState

from vitrail.serving.limits import ServerLimits
from vitrail.serving.protocol import make_protocol

ASK = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
LARGE = 1 << 20  # bytes of a reply


async def reply(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE)]})
    await send({"type": "http.response.body", "body": bytes(LARGE)})


async def until_ended(sent: bytes, *, listens: bool) -> None:
    """Ends when the server holds neither the connection nor a task for it any more."""
    limits = ServerLimits(header=0.2, receive=0.2, write=0.2, idle=0.2)
    config = uvicorn.Config(reply, loop="asyncio", lifespan="off", log_config=None, timeout_keep_alive=1)
    config.load()
    state, loop = ServerState(), asyncio.get_running_loop()
    make = make_protocol(limits)
    server = await loop.create_server(lambda: make(config, state, {}), "127.0.0.1", 0)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.setblocking(False)
    await loop.sock_connect(client, server.sockets[0].getsockname())
    await loop.sock_sendall(client, sent)
    async with asyncio.timeout(20):
        while listens and await loop.sock_recv(client, 1 << 20):
            pass
        await asyncio.sleep(0.05)
        while state.connections or state.tasks:
            await asyncio.sleep(0.05)
    client.close()
    server.close()


@pytest.mark.parametrize(
    ("sent", "listens"),
    [(ASK, True), (HALF, True), (ASK + HALF, True), (ASK + ASK[:9], True), (20 * ASK, False), (20 * ASK + HALF, False)],
    ids=["whole", "half", "half behind whole", "a head behind whole", "deaf", "deaf with half"],
)
def test_a_connection_that_stands_still_is_ended(sent, listens):
    asyncio.run(until_ended(sent, listens=listens))
