"""The server process: options, socket, signals and graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import math
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from vitrail.errors import ConfigError
from vitrail.inference.options import InferenceOptions
from vitrail.runtime.libtiff import redirect_libtiff
from vitrail.runtime.process import cores, handle_signals, release_memory
from vitrail.serving.admission import Admission
from vitrail.serving.app import create_app
from vitrail.serving.limits import MAX_HEAD, ServerLimits
from vitrail.serving.loaded_model import LoadedModel, load_model
from vitrail.serving.processes import Notify, Supervisor
from vitrail.serving.protocol import make_protocol, reject_fast
from vitrail.serving.refusals import Refused
from vitrail.serving.service import Service

try:
    import resource
except ImportError:  # Windows has none
    resource = None  # type: ignore[assignment]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
QUIET = 1.0  # seconds without a request after which a stopping server closes its socket
MAX_PORT = 65_535
TICKS = 100  # of uvicorn's, 0.1 s each, between two times when freed memory is given back to the system
SPARE_FILES = 256  # open files that are not connections
TOKEN = re.compile(r"[!-~]{16,256}")  # printable ASCII without spaces
log = logging.getLogger("vitrail.serving")


def start(
    model: str | None,
    limits: ServerLimits,
    *,
    options: InferenceOptions,
    name: str | None,
    host: str,
    port: int,
    token_file: Path | None,
    hosts: tuple[str, ...],
    runs: Path | None,
    access_log: bool,
    log_format: str = "text",
    processes: int = 1,
) -> None:
    """Serves until a signal stops it.

    Raises `ConfigError` for an invalid address or number of processes, and the errors of `vitrail.load` and `Supervisor.run`.
    """
    if processes < 1 or (processes > 1 and not hasattr(signal, "SIGHUP")):
        raise ConfigError(f"--processes {processes} is not possible", "give 1 or more; Windows supports 1 only")
    configure_logging = functools.partial(_configure_logging, access_log, log_format)
    configure_logging()
    token = read_token(token_file)
    check_reach(host, token)
    load = None
    if model is not None:
        options = replace(options, batch=limits.batch)
        load = functools.partial(load_model, model, name=name, options=options, log=log.info)
    with bind(host, port) as bound:
        make_app = functools.partial(create_app, token=token, hosts=hosts or default_hosts(bound), runs=runs)
        serve = functools.partial(_serve, load, limits, make_app)
        announce = functools.partial(_log_address, bound)
        if processes == 1:
            serve(bound, lambda event: announce() if event == "ready" else None, cores())
        else:
            Supervisor(processes, serve, bound, prepare=configure_logging).run(announce)


def _serve(
    load: Callable[[], LoadedModel] | None,
    limits: ServerLimits,
    make_app: Callable[[Service], Admission],
    bound: socket.socket,
    notify: Notify,
    threads: int,
) -> None:
    """Loads the model and serves in this process until a signal stops it."""
    # exits while the model loads: the first process of a container has no default handler
    with handle_signals({signal.SIGTERM: lambda *_: sys.exit(0)}), redirect_libtiff(log.warning):
        service = Service(load, limits, threads=threads, announce_reload=functools.partial(notify, "reloaded"))
        if load is not None:
            log.info("serving %s %s", service.served.name, service.served.version)
        run(make_app(service), bound, notify)


def read_token(file: Path | None) -> str | None:
    """Returns the token from a file or the environment, or None. Raises `ConfigError` for an invalid or short token."""
    source = str(file) if file is not None else "VITRAIL_TOKEN"
    try:
        token = file.read_text().strip() if file is not None else os.environ.get("VITRAIL_TOKEN")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the token of {file}: {error}", "give a file with one line of text") from error
    if token is not None and not TOKEN.fullmatch(token):
        what = f"the token of {source} has {len(token)} characters, or contains spaces"
        made = "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        raise ConfigError(what, f"use 16 to 256 printable characters, such as: {made}")
    return token


class JsonFormatter(logging.Formatter):
    """Each record as one line of JSON: time (UTC), level, message, what a request is logged with, and a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "message": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _configure_logging(access_log: bool, log_format: str) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(message)s", level=logging.WARNING)
    if log_format == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())
    log.setLevel(logging.INFO)
    logging.getLogger("vitrail.access").setLevel(logging.INFO if access_log else logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # invalid requests are counted, not logged
    logging.getLogger("PIL").setLevel(logging.CRITICAL)  # what is wrong with an image is in the reply


class Server(uvicorn.Server):
    """uvicorn's server with a graceful shutdown that gives load balancers time to redirect new requests.

    After the first signal the server is not ready and every reply closes its connection. It accepts connections until no
    request has arrived for `QUIET` seconds, at most for `ServerLimits.linger`. It then answers the accepted requests and
    exits. A second signal stops it immediately.
    """

    def __init__(self, config: uvicorn.Config, service: Service, announce: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self.service, self.announce = service, announce
        self._stop_time: float | None = None  # time of the first signal
        self._reloading: Future[None] | None = None  # kept, or it could be collected before it ends

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Replaces uvicorn's handling, which raises the signal again at the end and so prevents exit status 0."""
        handlers = {signal.SIGTERM: self.handle_exit, signal.SIGINT: self.handle_exit}
        if hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = self._handle_reload
        return handle_signals(handlers)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._stop_time is not None:
            self.should_exit = self.force_exit = True
            return
        self._stop_time = time.monotonic()
        self.service.draining = True
        log.info("%s: draining, answering the accepted requests", signal.Signals(sig).name)

    def _handle_reload(self, sig: int, frame: FrameType | None) -> None:
        self._reloading = asyncio.run_coroutine_threadsafe(self._reload(), asyncio.get_event_loop())

    async def _reload(self) -> None:
        try:
            await self.service.reload()
        except Refused as refused:
            log.warning("reload on SIGHUP failed: %s", refused.message)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.announce()

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS == 0:
            self.service.decoders.submit(release_memory)
        self.service.update_gauges()
        if self._stop_time is not None:
            now = time.monotonic()
            quiet = now - max(self._stop_time, self.service.last_request) >= QUIET and not self.server_state.tasks
            self.should_exit = self.should_exit or quiet or now - self._stop_time >= self.service.limits.linger
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts the connections that are still in the backlog, which would otherwise be reset, and shuts down."""
        kept = [bound.dup() for server in self.servers for bound in server.sockets]
        for server in self.servers:
            server.close()
        for listening in kept:
            await self._take_over(listening)
            listening.close()
        if self._stop_time is not None:  # the drain timeout includes the time since the signal
            left = self.service.limits.drain - (time.monotonic() - self._stop_time)
            self.config.timeout_graceful_shutdown = max(1, math.floor(left))
        await super().shutdown(sockets)

    async def _take_over(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        make: Any = self.config.http_protocol_class
        given = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # the backlog is empty
                return
            await loop.connect_accepted_socket(lambda: make(**given), connection)


def check_reach(host: str, token: str | None) -> None:
    """Raises `ConfigError` if other machines could connect without a token."""
    if host not in LOOPBACK and token is None:
        what = f"--host {host} accepts connections from other machines, which requires a token"
        raise ConfigError(what, "give --token-file FILE, or leave --host out to listen on this machine only")


def default_hosts(bound: socket.socket) -> tuple[str, ...] | None:
    """Returns the host names of requests that are accepted: those of the loopback interface, or None for any."""
    return ("127.0.0.1", "localhost", "[::1]") if bound.getsockname()[0] in LOOPBACK else None


def bind(host: str, port: int) -> socket.socket:
    """Binds the socket before the model is loaded, without listening. Raises `ConfigError` if that is not possible."""
    if not 0 <= port <= MAX_PORT:
        raise ConfigError(f"--port {port} is out of range", f"give 1 to {MAX_PORT}, or 0 for any free port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as undo:
            bound = undo.enter_context(socket.socket(family, kind, protocol))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            undo.pop_all()
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}", "choose another --port or --host") from error
    return bound


def _log_address(bound: socket.socket) -> None:
    host, port, *_ = bound.getsockname()
    log.info("listening on http://%s:%s", f"[{host}]" if ":" in host else host, port)


def run(app: Admission, bound: socket.socket, notify: Notify) -> None:
    """Serves until a signal stops it."""
    limits = app.limits
    config = uvicorn.Config(
        app,
        http=make_protocol(limits, functools.partial(reject_fast, app)),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=math.ceil(limits.idle),
        timeout_graceful_shutdown=math.ceil(limits.drain),
        h11_max_incomplete_event_size=MAX_HEAD,
    )
    _allow_files(limits.connections)
    Server(config, app.service, functools.partial(notify, "ready")).run(sockets=[bound])
    app.service.close()


def _allow_files(connections: int) -> None:
    """Raises the limit of open files to the number of connections, if the system allows it."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    if soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
