"""Admission: the ASGI middleware that checks every request and sets the headers of every reply.

It runs before the routes and without a framework, because an overloaded server refuses most requests here at low cost.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from typing import Any

from vitrail.serving.batcher import deadline_error
from vitrail.serving.limits import MAX_HEAD
from vitrail.serving.refusals import Refused, head_error
from vitrail.serving.service import Service

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = ("/", "/docs", "/livez", "/readyz")  # routes without a token, in addition to the files of the page
CLIENT_CLOSED = 499  # status in the metrics if the client disconnected before its reply
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::[0-9]*)?")
REQUEST_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"permissions-policy", b"camera=(self), microphone=(), geolocation=()"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
MAX_LOGGED = 200  # characters of a header that a client chose
log, access = logging.getLogger("vitrail.serving"), logging.getLogger("vitrail.access")


class Admission:
    """Middleware that admits or refuses requests to the application ``app``; ``token`` and ``hosts`` as in `create_app`."""

    def __init__(self, app: App, service: Service, *, token: str | None, hosts: Iterable[str] | None) -> None:
        self.app, self.service, self.limits = app, service, service.limits
        self.token = None if token is None else token.encode()
        self.hosts = None if hosts is None else frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        reply = Reply(scope, self.service)

        async def send_complete(message: Message) -> None:
            await send(reply.complete(message))

        try:
            await self._answer(scope, receive, send_complete, reply)
        except Refused as refused:
            await reply.refuse(refused, send)
        except Exception:
            log.exception("request %s failed", reply.request_id)
            if not reply.code:
                await reply.refuse(Refused("internal", "internal server error", "see the server log"), send)
        finally:
            reply.count()

    async def _answer(self, scope: Scope, receive: Receive, send: Send, reply: Reply) -> None:
        headers = {bytes(name): bytes(value) for name, value in scope["headers"]}
        takes_body = _takes_body(scope)
        try:
            deadline, expected = self.check(scope, headers, reply.start)
        except Refused:
            waits = headers.get(b"expect", b"").lower() == b"100-continue"
            # of an ambiguous body a proxy in front may have seen another end; no further request is read from it
            reply.closes = takes_body and (waits or _is_ambiguous(headers))
            if takes_body and not waits:
                # closing a connection with unread bytes resets it, and the client could lose the reply
                await self._discard(receive)
            raise
        try:
            body = await self._read(headers, receive) if takes_body else b""
            if body is None:
                reply.code = CLIENT_CLOSED
                return
            if takes_body:
                expected = self.service.batcher.hold(reply.start, deadline, expected)
            state = {"body": body, "request_id": reply.request_id, "deadline": deadline, "expected": expected}
            scope["state"] = {**scope.get("state", {}), **state}
            await self._run(scope, receive, send, reply)
        finally:
            self.service.batcher.forget(expected)

    def check(self, scope: Scope, headers: dict[bytes, bytes], start: float) -> tuple[float, object | None]:
        """Returns the deadline of a request that started at ``start``, and the result of `Batcher.expect` if it has a body.

        Raises `Refused` for its head, or because it could not be answered before its deadline.
        """
        self._check_head(scope, headers)
        deadline = start + self._seconds(headers)
        if not _takes_body(scope):
            return deadline, None
        return deadline, self.service.batcher.expect(start, deadline, scope.get("state", {}).get("expected"))

    def _check_head(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Checks size, host, origin, token and Content-Length. Raises `Refused`."""
        # h11 limits a head that arrives in pieces
        target = len(scope["raw_path"]) + len(scope["query_string"])
        if target + sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEAD:
            raise head_error()
        host = headers.get(b"host", b"").decode("latin-1")
        # health probes connect by IP address
        path, probed = scope["path"], scope["path"] in ("/livez", "/readyz")
        # a malformed header matches no allowed name
        name = match[1] if (match := HOST.fullmatch(host)) else host
        if self.hosts is not None and not probed and name not in self.hosts:
            raise Refused("forbidden", "the Host header is not allowed", "start the server with --allow-host NAME")
        if self.token is None:
            origin = headers.get(b"origin", b"").decode("latin-1")
            if origin and origin.partition("://")[2] != host:
                raise Refused("forbidden", "cross-origin requests are not allowed", "open the server's own page")
        elif path not in OPEN and not path.startswith("/page/"):
            kind, _, shown = headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() != b"bearer" or not hmac.compare_digest(shown.strip(), self.token):
                remedy = "send the header 'Authorization: Bearer TOKEN'"
                raise Refused("unauthorised", "no valid token was sent", remedy)
        if _is_ambiguous(headers):
            what = "both Transfer-Encoding and Content-Length were sent"
            raise Refused("bad_request", what, "send one of the two headers")
        if _content_length(headers) > self.limits.body:
            raise self._too_large()

    def _too_large(self) -> Refused:
        return Refused("too_large", f"the body is over {self.limits.body:,} bytes", "send fewer or smaller images")

    def _seconds(self, headers: dict[bytes, bytes]) -> float:
        """Returns the seconds until the deadline: the server's limit or, if shorter, the client's."""
        text = headers.get(b"x-deadline-ms", b"").decode("latin-1")
        if not text:
            return self.limits.deadline
        if not re.fullmatch(r"[0-9]{1,9}", text):
            what = "X-Deadline-Ms is not an integer of milliseconds"
            raise Refused("bad_request", what, "send a non-negative integer")
        if not int(text):  # a queue, after which another try could help, is not the reason
            raise deadline_error()
        return min(int(text) / 1000, self.limits.deadline)

    async def _read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """Returns the complete body, or None if the client disconnected. Raises `Refused` above the limits."""
        expected = _content_length(headers)
        parts: list[bytes] = []
        size = 0
        try:
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                parts.append(message.get("body", b""))
                self.service.held += len(parts[-1])
                size += len(parts[-1])
                more = message.get("more_body", False)
                total = self.service.held + max(expected - size, 0)
                if size > self.limits.body or total > self.limits.held:
                    if more:
                        await self._discard(receive)
                    raise self._too_large() if size > self.limits.body else self.service.batcher.queue_error()
            return b"".join(parts)
        finally:
            self.service.held -= size

    async def _discard(self, receive: Receive) -> None:
        """Reads and discards the rest of a body, up to the size limit."""
        size = 0
        while size <= self.limits.body:
            message = await receive()
            size += len(message.get("body", b""))
            if message["type"] == "http.disconnect" or not message.get("more_body"):
                return

    async def _run(self, scope: Scope, receive: Receive, send: Send, reply: Reply) -> None:
        """Runs the application and cancels it if the client disconnects."""
        size = len(scope["state"]["body"])
        self.service.held += size
        answer = asyncio.ensure_future(self.app(scope, _receive_nothing, send))
        left = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            reply.code = reply.code or CLIENT_CLOSED
        finally:
            self.service.held -= size
            for task in (answer, left):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task


class Reply:
    """The reply to one request, with a request id and security headers."""

    ids = random.Random()  # request ids are not secrets; os.urandom is slower

    def __init__(self, scope: Scope, service: Service) -> None:
        self.scope, self.service = scope, service
        service.last_request = time.monotonic()
        self.start: float = scope.get("state", {}).get("start") or service.last_request
        requested = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
        self.request_id = requested if REQUEST_ID.fullmatch(requested) else f"{self.ids.getrandbits(64):016x}"
        self.code = 0
        self.closes = False  # whether the connection is closed after the reply

    def complete(self, message: Message) -> Message:
        """Returns the message with the headers that every reply has, if it is the start of the reply."""
        if message["type"] != "http.response.start":
            return message
        self.code = message["status"]
        own = {name.lower() for name, _ in message["headers"]}
        added = [header for header in SECURITY if header[0] not in own]
        added.append((b"x-request-id", self.request_id.encode()))
        if b"cache-control" not in own:
            added.append((b"cache-control", b"no-store"))
        if self.service.draining or self.closes:
            added.append((b"connection", b"close"))
        return {**message, "headers": [*message["headers"], *added]}

    def refusal(self, refused: Refused) -> list[Message]:
        """Returns the messages of a refusal."""
        body = refused.body(self.scope["path"], self.request_id)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **refused.headers}
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        start = {"type": "http.response.start", "status": refused.status, "headers": raw}
        return [self.complete(start), {"type": "http.response.body", "body": body}]

    async def refuse(self, refused: Refused, send: Send) -> None:
        for message in self.refusal(refused):
            await send(message)

    def count(self) -> None:
        route, code = getattr(self.scope.get("route"), "path", "none"), self.code or CLIENT_CLOSED
        seconds = time.monotonic() - self.start
        self.service.metrics.request(route, code, seconds)
        if access.isEnabledFor(logging.INFO):
            method, path, (client, _) = self.scope["method"], self.scope["path"], self.scope.get("client") or ("-", 0)
            fields = {"client": client, "method": method, "path": path, "route": route, "status": code}
            fields |= {"ms": round(1000 * seconds, 1), "request_id": self.request_id}
            forwarded = dict(self.scope["headers"]).get(b"x-forwarded-for", b"")
            fields |= {"forwarded_for": bytes(forwarded).decode("latin-1")[:MAX_LOGGED]} if forwarded else {}
            record = client, method, path, code, 1000 * seconds, self.request_id
            access.info("%s %s %r %d in %.1f ms, %s", *record, extra={"fields": fields})


async def _receive_nothing() -> Message:
    """Never returns: the application has the body already and is cancelled if the client disconnects."""
    return await asyncio.Event().wait()  # type: ignore[return-value]


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _takes_body(scope: Scope) -> bool:
    return scope["method"] not in ("GET", "HEAD", "OPTIONS")


def _is_ambiguous(headers: dict[bytes, bytes]) -> bool:
    """Whether the length of the body is stated in two ways, as in request smuggling (RFC 9112, section 6.1)."""
    return b"transfer-encoding" in headers and b"content-length" in headers


def _content_length(headers: dict[bytes, bytes]) -> int:
    text = headers.get(b"content-length", b"0")
    if not re.fullmatch(rb"[0-9]{1,18}", text):
        raise Refused("bad_request", "Content-Length is not an integer of bytes", "send a non-negative integer")
    return int(text)
