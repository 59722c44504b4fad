"""The limits of the server: sizes, counts, timeouts and memory."""

from __future__ import annotations

from dataclasses import dataclass, fields

from vitrail.errors import ConfigError
from vitrail.images.decode import MAX_PIXELS

MAX_HEAD = 64 << 10  # maximum size of a request's head in bytes


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Limits per request and for all requests together.

    Raises `ConfigError` if a limit is not positive, or ``images`` exceeds ``queue``.
    """

    body: int = 32 << 20  # maximum size of a request body in bytes
    pixels: int = MAX_PIXELS  # maximum width x height of an image
    images: int = 16  # maximum number of images per request
    queue: int = 64  # maximum number of images accepted and not yet answered; further requests get 503
    batch: int = 16  # maximum number of images per forward pass
    held: int = 512 << 20  # maximum size of all request bodies in memory, in bytes
    connections: int = 4096  # maximum number of open connections; further ones are closed without a reply
    deadline: float = 10.0  # seconds until a request is answered with 504; a client may request a shorter deadline
    header: float = 10.0  # timeout in seconds for the head of a request
    idle: float = 30.0  # seconds between two requests of a connection
    receive: float = 30.0  # timeout in seconds for receiving a body
    write: float = 30.0  # timeout in seconds for sending a reply
    drain: float = 25.0  # seconds from the stop signal until the process exits, even with unanswered requests
    linger: float = 5.0  # maximum seconds after the stop signal in which new connections are accepted

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ConfigError(f"{field.name} is {getattr(self, field.name)}", "give a positive number")
        if self.images > self.queue:
            what = f"{self.images} images per request exceed the queue of {self.queue}"
            raise ConfigError(what, "make the queue at least as large as the images per request")
