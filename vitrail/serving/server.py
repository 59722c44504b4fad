"""The server process: its socket, its signals, and a shutdown that loses no request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import uvicorn

from vitrail.errors import ConfigError
from vitrail.serving.app import create_app
from vitrail.serving.protocol import make_protocol
from vitrail.serving.refusals import Refused
from vitrail.serving.service import Service

try:
    import resource
except ImportError:  # Windows has none
    resource = None  # type: ignore[assignment]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
QUIET = 1.0  # seconds without a request after which nobody seems to come any more
MOST_PORT = 65_535
MOST_HEAD = 64 << 10  # bytes of a request's head
SPARE_FILES = 256  # for all that is no connection
log = logging.getLogger("vitrail.serving")


class Server(uvicorn.Server):
    """uvicorn's server with a graceful shutdown: at the signal it first lets load balancers send new requests elsewhere.

    At the signal it is no longer ready and every reply closes its connection. It still takes connections until no request
    has come for `QUIET` seconds, at most `ServerLimits.linger`; then what is in its hands is answered, and it leaves. A second
    signal ends it at once.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service
        self._stop_time: float | None = None  # when the signal came
        self._reloads: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own sends the signal once more at the end, so that no server could exit with 0."""
        handlers = {signal.SIGTERM: self.handle_exit, signal.SIGINT: self.handle_exit}
        if hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = self._handle_reload
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._stop_time is not None:
            self.should_exit = self.force_exit = True
            return
        self._stop_time = time.monotonic()
        self.service.draining = True
        log.info("%s: not ready any more, answering what is there", signal.Signals(sig).name)

    def _handle_reload(self, sig: int, frame: FrameType | None) -> None:
        loop = asyncio.get_event_loop()
        loop.call_soon_threadsafe(self._reload)

    def _reload(self) -> None:
        async def reload_or_log() -> None:
            try:
                await self.service.reload()
            except Refused as refused:
                log.warning("SIGHUP changed nothing: %s", refused.message)

        task = asyncio.ensure_future(reload_or_log())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def on_tick(self, counter: int) -> bool:
        if self._stop_time is not None:
            now = time.monotonic()
            quiet = now - max(self._stop_time, self.service.last_request) >= QUIET and not self.server_state.tasks
            self.should_exit = self.should_exit or quiet or now - self._stop_time >= self.service.limits.linger
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Connections that the system has taken but nobody has looked at would be cut: they are taken over first."""
        kept = [bound.dup() for server in self.servers for bound in server.sockets]
        for server in self.servers:
            server.close()
        for listening in kept:
            await self._take_over(listening)
            listening.close()
        if self._stop_time is not None:  # the time for new connections is part of it
            left = self.service.limits.drain - (time.monotonic() - self._stop_time)
            self.config.timeout_graceful_shutdown = max(1, math.floor(left))
        await super().shutdown(sockets)

    async def _take_over(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        make = self.config.http_protocol_class
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # none is left
                return
            await loop.connect_accepted_socket(
                lambda: make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state),  # type: ignore[call-arg]
                connection,
            )


def check_reach(host: str, token: str | None) -> None:
    """Refuses a server that other machines could use without a token. Raises `ConfigError`."""
    if host not in LOOPBACK and token is None:
        what = f"--host {host} lets other machines in, and there is no token"
        raise ConfigError(what, "give --token-file FILE, or leave --host out to listen to this machine alone")


def bind(host: str, port: int) -> socket.socket:
    """The socket, before anything is loaded; nobody can connect to it yet. Raises `ConfigError` where it is not to be had."""
    if not 0 <= port <= MOST_PORT:
        raise ConfigError(f"--port {port} is none", f"give 1 to {MOST_PORT}, or 0 for a free one")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as undo:
            bound = undo.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            undo.pop_all()
    except OSError as error:
        raise ConfigError(f"{host}:{port} cannot be listened to: {error}", "choose another --port or --host") from error
    return bound


def run(
    service: Service, bound: socket.socket, *, token: str | None, hosts: tuple[str, ...], runs: Path | None
) -> None:
    """Serves until a signal stops it; with ``hosts`` empty a server of its own machine is called by that machine's names."""
    host, port, *_ = bound.getsockname()
    local = host in LOOPBACK
    known = hosts or (("127.0.0.1", "localhost", "[::1]") if local else None)
    app = create_app(service, token=token, hosts=known, runs=runs)
    limits = service.limits
    config = uvicorn.Config(
        app,
        http=make_protocol(limits),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=math.ceil(limits.idle),
        timeout_graceful_shutdown=math.ceil(limits.drain),
        h11_max_incomplete_event_size=MOST_HEAD,
    )
    _allow_files(limits.connections)
    bound.listen(config.backlog)  # whoever reads the line below may come at once
    shown = f"[{host}]" if ":" in host else host
    print(f"listening on http://{shown}:{port}", file=sys.stderr, flush=True)
    Server(config, service).run(sockets=[bound])
    service.close()


def _allow_files(connections: int) -> None:
    """As many open files as there may be connections, where the system lets us."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    if soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )
