"""Micro-batches: one thread has the network for itself and takes whatever waits when it is free, up to a full batch.

Nothing is held back to fill a batch: with one client an image is answered at once, and under load the batches grow by
themselves while the network is busy.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from vitrail.serving.refusals import Refused

Work = Callable[[list[Any]], Sequence[Any]]  # the items of a batch to an answer for each, in order
LAST = 1.0  # seconds for the last batch: its clients have had their reply already
HUNG = 120.0  # seconds in one batch after which the thread counts as dead


class Watcher(Protocol):
    """Observes every batch: `metrics.Metrics`."""

    def batch(self, size: int, seconds: float) -> None: ...


@dataclass(eq=False)
class Job:
    """One item, the work that it is for, and the future that waits for its answer."""

    work: Work
    item: Any
    deadline: float  # by time.monotonic
    answer: asyncio.Future[Any]

    @property
    def alive(self) -> bool:
        """Whether anybody still waits: not if the client has left or its time is over."""
        return not self.answer.done() and time.monotonic() < self.deadline


class Batcher:
    """A queue with room for so many images, and the thread that works through it.

    Args:
        batch: items at most that are worked on at one time; only those of the same work are.
        room: places for items, from when they are taken in until they are answered.
        watcher: observes every batch, in the thread.
    """

    def __init__(self, *, batch: int, room: int, watcher: Watcher) -> None:
        self.batch, self.room, self.watcher = batch, room, watcher
        self.taken = 0  # places, counted in the event loop alone
        self._pace = 0.05  # seconds that an item has taken lately
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._since: float | None = None  # when the batch began that the thread works on
        self._thread = threading.Thread(target=self._serve, name="network", daemon=True)
        self._thread.start()

    @contextmanager
    def places(self, count: int) -> Iterator[None]:
        """Room for ``count`` items for as long as the block lasts. Raises `Refused` where there is not enough."""
        if self.taken + count > self.room:
            raise self.queue_error()
        self.taken += count
        try:
            yield
        finally:
            self.taken -= count

    @property
    def is_full(self) -> bool:
        return self.taken >= self.room

    def queue_error(self) -> Refused:
        """The error for a client that finds no place in the queue."""
        wait = self.taken * self._pace
        return Refused("queue_full", "all places of the queue are taken", "try again later", retry_after=wait)

    async def run(self, work: Work, item: Any, deadline: float) -> Any:
        """The answer for ``item``; cancelled, or past its ``deadline``, it is dropped before the network sees it.

        Raises:
            Refused: the deadline has passed.
            Exception: what the work raised for this item alone.
        """
        loop = asyncio.get_running_loop()
        job = Job(work, item, deadline, loop.create_future())
        with self._changed:
            self._waiting.append(job)
            self._changed.notify()
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                return await job.answer
        except TimeoutError:
            raise deadline_error() from None

    @property
    def alive(self) -> bool:
        """Whether the thread works, and not on one batch for ever."""
        since = self._since
        return self._thread.is_alive() and (since is None or time.monotonic() - since < HUNG)

    def close(self) -> None:
        """Works off what waits and ends the thread; a batch that takes longer than `LAST` ends with the process."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(LAST)

    def _serve(self) -> None:
        while jobs := self._next():
            start = self._since = time.monotonic()
            answers = _run_work(jobs[0].work, [job.item for job in jobs])
            seconds = time.monotonic() - start
            self._since = None
            self._pace += 0.1 * (seconds / len(jobs) - self._pace)
            self.watcher.batch(len(jobs), seconds)
            _deliver(jobs, answers)

    def _next(self) -> list[Job]:
        """The jobs that have waited longest and can be worked on together; none when the queue is closed and empty."""
        with self._changed:
            while True:
                self._waiting = deque(job for job in self._waiting if job.alive)
                if self._waiting:
                    break
                if self._closed:
                    return []
                self._changed.wait()
            work = self._waiting[0].work
            chosen = [job for job in self._waiting if job.work == work][: self.batch]
            taken = set(map(id, chosen))
            self._waiting = deque(job for job in self._waiting if id(job) not in taken)
            return chosen


def deadline_error() -> Refused:
    """The error for a request whose deadline has passed."""
    return Refused("deadline", "the deadline passed before there was an answer", "try again later")


def _run_work(work: Work, items: list[Any]) -> Sequence[Any]:
    """The work's answers; where it fails on several items they are halved, so that only those fail that cannot be answered."""
    try:
        return work(items)
    except Exception as error:
        if len(items) == 1:
            return [error]
    middle = len(items) // 2
    return [*_run_work(work, items[:middle]), *_run_work(work, items[middle:])]


def _deliver(jobs: list[Job], answers: Sequence[Any]) -> None:
    """Hands the answers over to the event loop that waits for them."""

    def hand_over() -> None:
        for job, answer in zip(jobs, answers, strict=True):
            if job.answer.done():
                continue
            if isinstance(answer, Exception):
                job.answer.set_exception(answer)
            else:
                job.answer.set_result(answer)

    loop = jobs[0].answer.get_loop()
    if not loop.is_closed():  # after a second signal nobody waits any more
        loop.call_soon_threadsafe(hand_over)
