"""Refusing a request by its head, before h11 and ASGI: under a flood, the time of refusals is taken from the model.

Only requests of the usual form are refused here, with the reply that `admission.Admission` would give. All others, and those that
are not refused by their head, take the way through h11 and the application.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from uvicorn.protocols.http.h11_impl import STATUS_PHRASES

from vitrail.serving.admission import Admission, Reply
from vitrail.serving.limits import MOST_HEAD
from vitrail.serving.protocol import Header, Refusal
from vitrail.serving.refusals import Refused

NAME = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110, section 5.6.2
FIELD = re.compile(rb"(%s):[ \t]*([!-~]+(?:[ \t]+[!-~]+)*)[ \t]*\r\n" % NAME)
HEAD = re.compile(rb"POST (/[!-$&-~]*) HTTP/1\.1\r\n((?:%s:[\t -~]+\r\n)+)\r\n" % NAME)  # of a target without escapes
LENGTH = re.compile(rb"[0-9]{1,18}")
# they change the meaning of the body or of the connection
UNUSUAL = {b"expect", b"http2-settings", b"te", b"trailer", b"transfer-encoding", b"upgrade"}


def reject_fast(admission: Admission, data: bytes, state: dict[str, Any]) -> Refusal | None:
    """Returns the refusal of the request whose head is at the beginning of ``data``.

    None if the request is not refused by its head, or is not of the usual form. ``state`` is the ASGI state of the request,
    with the time of its arrival as "start"; the result of `Batcher.expect` for one that is not refused is added as "expected".
    """
    end = data.find(b"\r\n\r\n", 0, MOST_HEAD) + 4
    head = HEAD.fullmatch(data, 0, end)
    if head is None:
        return None
    target, fields = head.groups()
    pairs = [(name.lower(), value) for name, value in FIELD.findall(fields)]
    headers = dict(pairs)
    length = headers.get(b"content-length", b"")
    keeps = headers.get(b"connection", b"keep-alive").lower() == b"keep-alive"
    is_usual = keeps and b"host" in headers and not UNUSUAL & headers.keys() and LENGTH.fullmatch(length)
    if not is_usual or len(headers) < fields.count(b"\r\n"):
        return None
    path, _, query = target.partition(b"?")
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": path.decode(), "raw_path": path}
    scope |= {"query_string": query, "headers": pairs, "state": state}
    reply = Reply(scope, admission.service)
    try:
        _, state["expected"] = admission.check(scope, headers, reply.start)
    except Refused as refused:
        if int(length) <= admission.limits.body:
            return Refusal(end + int(length), functools.partial(_encode, reply, refused), reply.count)
    return None


def _encode(reply: Reply, refused: Refused, headers: list[Header]) -> tuple[bytes, bool]:
    """Returns the whole reply, which begins with these headers, and whether the connection is closed after it."""
    start, body = reply.refusal(refused)
    reply.count()
    lines = [b"%s: %s\r\n" % header for header in (*headers, *start["headers"])]
    status = b"HTTP/1.1 %d %s\r\n" % (refused.status, STATUS_PHRASES[refused.status])
    return b"".join([status, *lines, b"\r\n", body["body"]]), reply.service.draining
