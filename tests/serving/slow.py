"""Clients that hold a connection and give little: they drip a request byte by byte, say nothing, or never read."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator

from tests.serving.load import Address, request, upload

ENDLESS = b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Word: " + b"a" * 4096
HUGE = upload("/v1/predict", b"\xff\xd8\xff" + bytes(4096))
START = HUGE.index(b"\r\n\r\n") + 4
DEAF = request("GET", "/openapi.json") * 3  # replies that no buffer of so small a socket holds
# what each kind sends at once, and what it then drips
KINDS = {"headers": (b"", ENDLESS), "body": (HUGE[:START], HUGE[START:]), "silent": (b"", b""), "deaf": (DEAF, b"")}


class Slow:
    """One such client, over a socket that takes in as little as a socket can."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.first, drops = KINDS[kind]
        self.drops: Iterator[int] = iter(drops)
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self.socket.setblocking(False)

    async def start(self, address: Address) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.socket, address)
        await loop.sock_sendall(self.socket, self.first)

    def drip(self) -> None:
        """One byte more, where it has one; who is not deaf listens too, and hangs up when the server does."""
        try:
            if (drop := next(self.drops, None)) is not None:
                self.socket.send(bytes([drop]))
            if self.kind != "deaf" and not self.socket.recv(1 << 16):
                self.socket.close()
        except BlockingIOError:
            pass
        except OSError:
            self.socket.close()


async def crowd(address: Address, count: int) -> list[Slow]:
    """``count`` slow clients, of all kinds in turns, connected."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(now, min(most, 2 * count + 1024)), most))
    kinds = list(KINDS)
    clients = [Slow(kinds[number % len(kinds)]) for number in range(count)]
    for client in clients:
        await client.start(address)
    return clients


async def keep_dripping(clients: list[Slow], *, pause: float = 0.5) -> None:
    """Until cancelled: in each pause every client that is still there drips once, spread over the pause."""
    try:
        while True:
            for place, client in enumerate(clients):
                if place % 50 == 0:
                    await asyncio.sleep(pause * 50 / len(clients))
                if client.socket.fileno() >= 0:
                    client.drip()
    finally:
        for client in clients:
            client.socket.close()
