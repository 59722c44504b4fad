"""A load generator for one core: HTTP/1.1 clients over plain streams that check every reply and count what became of it.

Requests are whole bytes made beforehand, so that a client does little but send and compare. The slow tests of this
folder use it, and `benchmarks/serving.py`; it knows nothing of vitrail.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from secrets import token_hex

PATIENCE = 120.0  # seconds until a reply that does not come counts as lost
TOLERANCE = 1e-3  # between a score and the same score computed offline, in another batch
Address = tuple[str, int]
Top = Sequence[tuple[str, float]]  # labels with their scores, best first


@dataclass(frozen=True)
class Reply:
    """What a server said; the names of headers in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def closes(self) -> bool:
        return self.headers.get("connection", "").lower() == "close"


@dataclass(frozen=True)
class Question:
    """A whole request, and whether a reply of status 200 is the answer to it."""

    content: bytes
    is_answer: Callable[[Reply], bool]


class Unreachable(Exception):
    """The server took no connection; nothing was sent."""


class Lost(Exception):
    """The connection ended, or nothing came, between a request and the end of its reply."""


class Connection:
    """One connection, for one request at a time; opened when it is first needed, and again after the server closed it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.written = 0.0  # by time.monotonic: when the last request was on its way, at the latest
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, content: bytes) -> Reply:
        """Sends while it listens, since a server may refuse before it has read. Raises `Unreachable` or `Lost`."""
        reader, writer = await self._open()
        try:
            async with asyncio.timeout(PATIENCE):
                writer.write(content)
                self.written = time.monotonic()
                reply = await read_reply(reader)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            self.close()
            raise Lost(str(error)) from error
        if reply.closes:
            self.close()
        return reply

    def close(self) -> None:
        if self._ends is not None:
            self._ends[1].close()
            self._ends = None

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._ends is None or self._ends[0].at_eof() or self._ends[1].is_closing():
            self.close()
            try:
                self._ends = await asyncio.open_connection(*self.address, limit=2**20)
            except OSError as error:
                raise Unreachable(str(error)) from error
        return self._ends


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    """One reply whose length its header states, or which ends with the connection; "100 Continue" is passed over."""
    head = await reader.readuntil(b"\r\n\r\n")
    while head.startswith(b"HTTP/1.1 100"):
        head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = headers.get("content-length")
    body = await (reader.read() if length is None else reader.readexactly(int(length)))
    return Reply(int(first.split()[1]), headers, body)


@dataclass
class Tally:
    """What became of the requests that were sent. Seconds run from the sending, a connect included, to the whole reply."""

    sent: int = 0
    lost: int = 0
    wrong: int = 0  # 200, with the answer to another question
    hasty: int = 0  # 503 that does not say when to come again
    unreachable: int = 0  # no connection: not sent
    seconds: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))  # by status
    lateness: list[float] = field(default_factory=list)  # seconds that an open loop lagged behind its own plan

    async def ask(self, connection: Connection, question: Question) -> Reply | None:
        """The reply to a question, counted; None where none came."""
        started = time.perf_counter()
        try:
            reply = await connection.ask(question.content)
        except Unreachable:
            self.unreachable += 1
            return None
        except Lost:
            self.sent += 1
            self.lost += 1
            return None
        self.sent += 1
        self.seconds[reply.status].append(time.perf_counter() - started)
        self.wrong += reply.status == 200 and not question.is_answer(reply)
        self.hasty += reply.status == 503 and "retry-after" not in reply.headers
        return reply

    @property
    def statuses(self) -> dict[int, int]:
        return {status: len(each) for status, each in sorted(self.seconds.items())}

    def milliseconds(self, status: int, share: float) -> float:
        """The quantile of the time to a reply of this status; 0.5 is the median."""
        return 1000 * quantile(self.seconds[status], share)


def quantile(values: Sequence[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(int(share * len(ranked)), len(ranked) - 1)]


async def closed_loop(
    address: Address, questions: Iterator[Question], *, clients: int, keep_alive: bool = True
) -> Tally:
    """As many clients as asked share the questions; each asks its next one when it has its reply."""
    tally = Tally()

    async def client() -> None:
        connection = Connection(address)
        for question in questions:
            await tally.ask(connection, question)
            if not keep_alive:
                connection.close()
        connection.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return tally


async def open_loop(address: Address, questions: Iterator[Question], *, rate: float, seconds: float) -> Tally:
    """``rate`` questions a second whatever the server does, on kept connections where one is idle, else on new ones."""
    tally, idle = Tally(), list[Connection]()
    clock = asyncio.get_running_loop().time

    async def ask(question: Question) -> None:
        connection = idle.pop() if idle else Connection(address)
        await tally.ask(connection, question)
        idle.append(connection)

    started = clock()
    async with asyncio.TaskGroup() as tasks:
        for number in range(round(rate * seconds)):
            due = started + number / rate
            await asyncio.sleep(max(0.0, due - clock()))
            tally.lateness.append(clock() - due)
            tasks.create_task(ask(next(questions)))
    for connection in idle:
        connection.close()
    return tally


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """A whole request; an underscore in a header's name stands for a hyphen."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def form(parts: Sequence[tuple[bytes, bytes]], boundary: str | None = None) -> tuple[bytes, str]:
    """A multipart body of (header lines, content), and its Content-Type."""
    boundary = boundary or token_hex(16)
    mark = b"--" + boundary.encode("latin-1")
    pieces = [mark + b"\r\n" + head + b"\r\n\r\n" + content + b"\r\n" for head, content in parts]
    return b"".join([*pieces, mark + b"--\r\n"]), f"multipart/form-data; boundary={boundary}"


def upload(path: str, image: bytes, name: str = "picture.jpg", **headers: str) -> bytes:
    """A request with one image as a browser's form sends it."""
    head = f'Content-Disposition: form-data; name="file"; filename="{name}"\r\nContent-Type: image/jpeg'.encode()
    body, kind = form([(head, image)])
    return request("POST", path, body, Content_Type=kind, **headers)


def agree(top: Top, other: Top) -> bool:
    """The same labels in the same order, with scores within `TOLERANCE`."""
    return len(top) == len(other) and all(
        label == its_label and abs(score - its_score) <= TOLERANCE
        for (label, score), (its_label, its_score) in zip(top, other)
    )


def is_prediction(top: Top) -> Callable[[Reply], bool]:
    """Whether the one prediction of a reply agrees with this one."""

    def is_answer(reply: Reply) -> bool:
        (given,) = json.loads(reply.body)["predictions"]
        return agree(top, [(each["label"], each["score"]) for each in given["top"]])

    return is_answer
