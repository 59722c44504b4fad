"""The limits of the server: sizes, counts, timeouts and memory."""

from __future__ import annotations

from dataclasses import dataclass, fields

from vitrail.errors import ConfigError
from vitrail.images.decode import MAX_PIXELS

MOST_HEAD = 64 << 10  # maximum size of a request's head in bytes


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Limits per request and for all requests together.

    Args:
        body: maximum size of a request body in bytes.
        pixels: maximum width x height of an image.
        images: maximum number of images per request.
        queue: maximum number of images accepted and not yet answered; further requests get 503.
        batch: maximum number of images per forward pass.
        held: maximum size of all request bodies in memory, in bytes.
        connections: maximum number of open connections; further ones are closed without a reply.
        deadline: seconds until a request is answered with 504; a client may request a shorter deadline.
        header, idle: timeouts in seconds for the head of a request, and between two requests of a connection.
        receive, write: timeouts in seconds for receiving a body and for sending a reply.
        drain: seconds from the stop signal until the process exits, even with unanswered requests.
        linger: maximum seconds after the stop signal in which new connections are accepted.

    Raises:
        ConfigError: a limit is not positive, or ``images`` exceeds ``queue``.
    """

    body: int = 32 << 20
    pixels: int = MAX_PIXELS
    images: int = 16
    queue: int = 64
    batch: int = 16
    held: int = 512 << 20
    connections: int = 4096
    deadline: float = 10.0
    header: float = 10.0
    idle: float = 30.0
    receive: float = 30.0
    write: float = 30.0
    drain: float = 25.0
    linger: float = 5.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ConfigError(f"{field.name} is {getattr(self, field.name)}", "give a positive number")
        if self.images > self.queue:
            what = f"{self.images} images per request exceed the queue of {self.queue}"
            raise ConfigError(what, "make the queue at least as large as the images per request")
