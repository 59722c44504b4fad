"""Error replies: an HTTP status, an error code, and a message without paths of this machine."""

from __future__ import annotations

import json
import math
from typing import Any

from vitrail.serving.limits import MAX_HEAD


class Refused(Exception):
    """A request that is refused with an error reply: a key of `STATUS`, what is wrong, and how to fix it.

    The client should retry after ``retry_after`` seconds.
    """

    def __init__(self, code: str, message: str, remedy: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.remedy, self.retry_after = code, message, remedy, retry_after

    @property
    def status(self) -> int:
        return STATUS[self.code]

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self.retry_after is None else {"Retry-After": str(max(1, math.ceil(self.retry_after)))}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.code == "unauthorised" else {})

    @property
    def fault(self) -> dict[str, str]:
        """The error as in replies of ``/v1``."""
        return {"code": self.code, "message": self.message, "remedy": self.remedy}

    def body(self, path: str, request_id: str) -> bytes:
        """Returns the body of the reply, in the format of the API that the path belongs to."""
        content: dict[str, Any] = {"error": self.message + (f"; {self.remedy}" if self.remedy else "")}
        if not path.startswith("/v2"):
            content = {"error": self.fault, "request_id": request_id}
        return json.dumps(content).encode()


def head_error() -> Refused:
    """Returns the error for a request whose head has more than `MAX_HEAD` bytes."""
    return Refused("head_too_large", f"the head of the request is over {MAX_HEAD:,} bytes", "send fewer headers")


STATUS = {
    "bad_request": 400,
    "unauthorised": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "too_slow": 408,
    "conflict": 409,
    "too_large": 413,
    "unsupported_media_type": 415,
    "bad_image": 422,
    "invalid": 422,
    "cannot_explain": 422,
    "no_head": 422,
    "head_too_large": 431,
    "internal": 500,
    "queue_full": 503,
    "not_ready": 503,
    "deadline": 504,
}
