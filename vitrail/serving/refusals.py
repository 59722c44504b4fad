"""What a client is told when it gets no answer: a status, a code for programs, words for people, and no path."""

from __future__ import annotations

import json
import math
from typing import Any


class Refused(Exception):
    """A request that is not answered.

    Args:
        code: one of `STATUS`.
        message: what is wrong, with the offending value in it.
        remedy: what to do about it.
        retry_after: seconds after which it is worth trying again.
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

    def told(self, request_id: str) -> dict[str, Any]:
        """The body of the reply."""
        return {
            "error": {"code": self.code, "message": self.message, "remedy": self.remedy},
            "request_id": request_id,
        }

    def body(self, request_id: str) -> bytes:
        return json.dumps(self.told(request_id)).encode()


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
    "internal": 500,
    "queue_full": 503,
    "not_ready": 503,
    "deadline": 504,
}
