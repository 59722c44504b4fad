"""HTTP/1.1 of uvicorn and h11 with additional timeouts: for the head and body of a request, and for writing the reply.

Without them, a client that sends a byte now and then keeps its connection open forever. A client may close its own direction
after a request and still gets the reply (RFC 9112, section 9.6).

`reject_fast` refuses a request by its head, before h11 and ASGI: under a flood, the time of refusals is taken from the model.
The reply is sent before the body has arrived. Only requests of the usual form are refused there, with the reply that
`admission.Admission` would give. All others, and those that are not refused by their head, take the way through h11 and the
application.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from vitrail.serving.admission import Admission, Reply
from vitrail.serving.limits import MAX_HEAD, ServerLimits
from vitrail.serving.refusals import Refused, head_error

# seconds between the probes of a half-closed connection; with the first they are four, and Go's client accepts up to five
PROBES = (0.02, 0.2, 2.0)
LARGE_BODY = 1 << 20  # bytes of a refused body that are still to come, above which the connection is not kept
LAST_DATA = struct.Struct("@52xI")  # milliseconds since data arrived, in Linux' struct tcp_info
Header = tuple[bytes, bytes]


@dataclass
class Refusal:
    """A request that is refused by its head. What comes of its body after the reply is discarded.

    Closing a connection with unread bytes resets it, and the client could lose the reply. A connection that is to be closed
    is therefore closed in the direction of the client first (RFC 9112, section 9.6).
    """

    left: int  # bytes that are still to be discarded
    encode: Callable[[list[Header]], bytes]  # the reply after these headers
    closes: bool  # whether the connection is closed after the body


Refuse = Callable[[bytes, dict[str, Any]], Refusal | None]


class BodyFlowControl(FlowControl):
    """Never pauses the reading of a body: `admission.Admission` reads it immediately, up to its own limit."""

    def __init__(self, transport: Any, connection: h11.Connection) -> None:
        super().__init__(transport)
        self._connection = connection

    def pause_reading(self) -> None:
        if self._connection.their_state is not h11.SEND_BODY:
            super().pause_reading()


class TimedProtocol(H11Protocol):
    """One connection. `make_protocol` derives a class with given `ServerLimits`."""

    limits = ServerLimits()
    refuse: Refuse

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)  # type: ignore[bad-argument-type]
        self.flow = BodyFlowControl(transport, self.conn)  # type: ignore[bad-argument-type]
        if len(self.connections) > self.limits.connections:
            transport.abort()
        self._receive_timer: asyncio.TimerHandle | None = None  # timeout of the head or body of a request
        self._write_timer: asyncio.TimerHandle | None = None  # timeout of the reply
        self._expected: Any = None
        self.app_state = dict(self.app_state)  # with "start" and "expected" of the request of this connection
        self._refusal: Refusal | None = None  # a request whose body is being discarded
        self._shutting_down = False
        self._is_half_closed = False  # whether the client has closed its direction
        self._start_receive_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_receive_timer()
        self._stop_write_timer()

    def data_received(self, data: bytes) -> None:
        begins = self._refusal is None and self._is_idle()
        age = compute_age(self.transport.get_extra_info("socket")) if begins else 0.0
        self.app_state |= {"start": time.monotonic() - age, "expected": None} if begins else {"start": None}
        self.app_state["client"] = self.client
        data = self._reject_fast(data)
        if data:
            super().data_received(data)
        if data or self._refusal is not None:
            self._start_receive_timer()

    def _is_idle(self) -> bool:
        """Whether the next byte is the first of a request, and no reply is owed."""
        return self.conn.our_state is self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]

    def _reject_fast(self, data: bytes) -> bytes:
        """Refuses the requests at the beginning of ``data`` if their heads are reason enough. Returns what follows."""
        while data and not self.transport.is_closing():
            if self._refusal is None:
                self._refusal = self.refuse(data, self.app_state) if self._is_idle() else None
                if self._refusal is None:
                    return data
                self._unset_keepalive_if_required()
                self.transport.write(self._refusal.encode(self.server_state.default_headers))
                if self._refusal.closes and self._refusal.left > len(data):
                    self.transport.write_eof()
            left = self._refusal.left
            data, self._refusal.left = data[left:], max(left - len(data), 0)
            if not self._refusal.left:
                self._end_refusal(self._refusal)
        return data if not self.transport.is_closing() else b""

    def _end_refusal(self, refusal: Refusal) -> None:
        self._refusal = None
        self._stop_receive_timer()
        super().on_response_complete()  # starts the keep-alive timeout
        if refusal.closes or self._shutting_down:
            self._close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keeps the connection open if a complete request waits for its reply.

        A client that has closed its direction looks like one that is gone, whose work is to be cancelled. `_probe` tells them
        apart, which HTTP/1.0 does not allow.
        """
        self._is_half_closed = self._awaits_reply() and self.scope["http_version"] == "1.1"
        if self._is_half_closed:
            self._probe()
        return self._is_half_closed

    def _awaits_reply(self) -> bool:
        """Whether a request was received completely and its reply has not begun."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_started

    def _probe(self, pauses: tuple[float, ...] = PROBES) -> None:
        """Sends "100 Continue" now and after these pauses, until the reply begins.

        The system of a client that is gone answers with a reset. The next write fails, and the connection is lost. Other
        clients ignore it (RFC 9110, section 15.2).
        """
        if self.transport.is_closing() or not self._awaits_reply():
            return
        event = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
        self.transport.write(self.conn.send(event) or b"")
        if pauses:
            self.loop.call_later(pauses[0], self._probe, pauses[1:])

    def on_response_complete(self) -> None:
        self._stop_receive_timer()  # uvicorn's keep-alive timeout applies until the next request
        super().on_response_complete()
        if self._is_half_closed:
            if self._awaits_reply():  # of a pipelined request
                self._probe()
            else:
                self._close()
        if self.conn.their_state is h11.SEND_BODY:  # of a pipelined request
            self._start_receive_timer()

    def _start_receive_timer(self) -> None:
        """Starts the timeout for the current head or body, unless it is running. Further bytes do not extend it."""
        state = h11.SEND_BODY if self._refusal is not None else self.conn.their_state
        allowed = {h11.IDLE: self.limits.header, h11.SEND_BODY: self.limits.receive}
        seconds = allowed.get(state)  # type: ignore[bad-argument-type]
        now = None if seconds is None else (state, self._refusal or self.cycle)  # which tells requests apart
        if now == self._expected:
            return
        self._stop_receive_timer()
        if seconds is not None and not self.transport.is_closing():
            self._expected = now
            self._receive_timer = self.loop.call_later(seconds, self._too_slow, seconds)

    def _stop_receive_timer(self) -> None:
        if self._receive_timer is not None:
            self._receive_timer.cancel()
        self._receive_timer = self._expected = None

    def _too_slow(self, seconds: float) -> None:
        """Closes the connection, after a reply 408 if a request had begun that has no reply."""
        self._stop_receive_timer()
        begun = self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]
        if begun and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._refuse(Refused("too_slow", f"the request was incomplete after {seconds:g} seconds", "send it faster"))
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._close()

    def shutdown(self) -> None:
        if self._refusal is None:
            super().shutdown()
        self._shutting_down = True

    def send_400_response(self, msg: str) -> None:
        """Replies to invalid HTTP in the format of all other errors."""
        received = self.conn.trailing_data[0]
        is_long = len(received) > MAX_HEAD and b"\r\n\r\n" not in received
        self._refuse(head_error() if is_long else Refused("bad_request", "this is not a valid HTTP/1.1 request"))
        self._close()

    def _refuse(self, refused: Refused) -> None:
        """Sends an error reply that does not come from the application."""
        body = refused.body("", "")
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
        response = h11.Response(status_code=refused.status, headers=list(headers.items()))
        with contextlib.suppress(h11.LocalProtocolError):  # another reply has begun
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._close()

    def pause_writing(self) -> None:
        """Starts the write timeout: the client does not read its reply."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.limits.write, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._write_timer = None

    def _close(self) -> None:
        """Closes the connection after pending writes, or aborts it after the write timeout."""
        self.transport.close()
        self.loop.call_later(self.limits.write, self.transport.abort)


def make_protocol(limits: ServerLimits, refuse: Refuse) -> type[TimedProtocol]:
    """Returns the protocol class with these limits; ``refuse`` is `reject_fast` for the application."""
    return type("LimitedProtocol", (TimedProtocol,), {"limits": limits, "refuse": staticmethod(refuse)})


def compute_age(connection: socket.socket) -> float:
    """Returns the seconds since the last data arrived at a TCP connection; 0 if unknown, as on other systems than Linux.

    A busy server leaves data waiting there, and the client counts this time.
    """
    if sys.platform != "linux":
        return 0.0
    try:
        (milliseconds,) = LAST_DATA.unpack(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, LAST_DATA.size))
    except (OSError, struct.error):  # no TCP
        return 0.0
    return milliseconds / 1000


NAME = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110, section 5.6.2
FIELD = re.compile(rb"(%s):[ \t]*([!-~]+(?:[ \t]+[!-~]+)*)[ \t]*\r\n" % NAME)
HEAD = re.compile(rb"POST (/[!-$&-~]*) HTTP/1\.1\r\n((?:%s:[\t -~]+\r\n)+)\r\n" % NAME)  # of a target without escapes
LENGTH = re.compile(rb"[0-9]{1,18}")
# they change the meaning of the body or of the connection
UNUSUAL = {b"http2-settings", b"te", b"trailer", b"transfer-encoding", b"upgrade"}


def reject_fast(admission: Admission, data: bytes, state: dict[str, Any]) -> Refusal | None:
    """Returns the refusal of the request whose head is at the beginning of ``data``.

    None if the request is not refused by its head, or is not of the usual form. ``state`` is the ASGI state of the request,
    with the time of its arrival as "start"; the result of `Batcher.expect` for one that is not refused is added as "expected".
    """
    end = data.find(b"\r\n\r\n", 0, MAX_HEAD) + 4
    head = HEAD.fullmatch(data, 0, end)
    if head is None:
        return None
    target, fields = head.groups()
    pairs = [(name.lower(), value) for name, value in FIELD.findall(fields)]
    headers = dict(pairs)
    length = headers.get(b"content-length", b"")
    keeps = headers.get(b"connection", b"keep-alive").lower() == b"keep-alive"
    expect = headers.get(b"expect", b"").lower()
    is_usual = keeps and expect in (b"", b"100-continue") and b"host" in headers and not UNUSUAL & headers.keys()
    if not is_usual or not LENGTH.fullmatch(length) or len(headers) < fields.count(b"\r\n"):
        return None
    path, _, query = target.partition(b"?")
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": path.decode(), "raw_path": path}
    scope |= {"query_string": query, "headers": pairs, "state": state, "client": state.get("client")}
    reply = Reply(scope, admission.service)
    try:
        _, state["expected"] = admission.check(scope, headers, reply.start)
    except Refused as refused:
        left = end + min(int(length), admission.limits.body)
        # a client that asked whether to send the body may send it or not
        reply.closes = bool(expect) or end + int(length) - len(data) > LARGE_BODY
        return Refusal(left, functools.partial(_encode, reply, refused), reply.closes or admission.service.draining)
    return None


def _encode(reply: Reply, refused: Refused, headers: list[Header]) -> bytes:
    """Returns the whole reply, which begins with these headers."""
    start, body = reply.refusal(refused)
    reply.count()
    lines = [b"%s: %s\r\n" % header for header in (*headers, *start["headers"])]
    status = b"HTTP/1.1 %d %s\r\n" % (refused.status, STATUS_PHRASES[refused.status])
    return b"".join([status, *lines, b"\r\n", body["body"]])
