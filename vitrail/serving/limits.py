"""Every bound of the server in one place: what it takes, how long it waits, how much it holds at one time."""

from __future__ import annotations

from dataclasses import dataclass, fields

from vitrail.data.decode import MAX_PIXELS
from vitrail.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """What a client may ask for, and what all of them together may.

    Args:
        body: bytes of one request's body.
        pixels: width x height of one image.
        images: in one request.
        queue: images that were taken in and not answered yet; one more request is told to come later.
        batch: images that the network sees at one time.
        held: bytes of bodies of all requests together.
        connections: at one time; more are cut without a word, a wall far out against floods.
        deadline: seconds until a request is answered with 504; a client may ask for fewer.
        header, idle: seconds until the head of a request must have come whole, and between two requests.
        receive, write: seconds until a body must have come whole, and until a client must have taken its reply.
        drain: seconds from the signal to stop until the process leaves, whatever is unanswered.
        linger: seconds at most for which new connections are taken after that signal, while clients still come.

    Raises:
        ConfigError: a bound that is not above zero.
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
                raise ConfigError(f"{field.name} is {getattr(self, field.name)}", "give a number above 0")
        if self.images > self.queue:
            what = f"a request may have {self.images} images and the queue holds {self.queue}"
            raise ConfigError(what, "let the queue hold a request of the most images")
