"""Dynamic batching: a single thread runs the model on the items that are queued, up to the batch size.

The thread never waits to fill a batch. A single client gets its answer without delay; under load, items queue while the
model is busy and batches grow.
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

Work = Callable[[list[Any]], Sequence[Any]]  # maps the items of a batch to one answer each, in order
LAST = 1.0  # seconds to wait for the last batch when closing; its clients already have a reply
HUNG = 120.0  # seconds in one batch after which the thread counts as dead


class Watcher(Protocol):
    """Observer of batches, implemented by `metrics.Metrics`."""

    def batch(self, size: int, seconds: float) -> None: ...


@dataclass(eq=False)
class Job:
    """One item, the work to apply to it, and the future for its answer."""

    work: Work
    item: Any
    deadline: float  # by time.monotonic
    answer: asyncio.Future[Any]

    @property
    def alive(self) -> bool:
        """Whether a client still waits: False after a disconnect or past the deadline."""
        return not self.answer.done() and time.monotonic() < self.deadline


class Batcher:
    """A bounded queue of items and the thread that processes it.

    Args:
        batch: maximum number of items per batch; a batch contains items of the same work only.
        room: maximum number of items that are queued or in progress.
        watcher: called in the thread after every batch.
    """

    def __init__(self, *, batch: int, room: int, watcher: Watcher) -> None:
        self.batch, self.room, self.watcher = batch, room, watcher
        self.taken = 0  # reserved places; only changed in the event loop
        self._pace = 0.05  # seconds per item, moving average
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._since: float | None = None  # start time of the current batch
        self._thread = threading.Thread(target=self._serve, name="network", daemon=True)
        self._thread.start()

    @contextmanager
    def places(self, count: int) -> Iterator[None]:
        """Reserves places for ``count`` items within the block. Raises `Refused` if the queue is full."""
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
        """Returns the error for a full queue, with the estimated time until it is empty."""
        wait = self.taken * self._pace
        return Refused("queue_full", "the queue is full", "try again later", retry_after=wait)

    async def run(self, work: Work, item: Any, deadline: float) -> Any:
        """Queues ``item`` and returns its answer. Cancelled or expired items are dropped before they reach the model.

        Raises:
            Refused: the deadline has passed.
            Exception: raised by the work for this item.
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
        """Whether the thread is running and not stuck in one batch for more than `HUNG` seconds."""
        since = self._since
        return self._thread.is_alive() and (since is None or time.monotonic() - since < HUNG)

    def close(self) -> None:
        """Processes the remaining items and ends the thread, waiting at most `LAST` seconds."""
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
        """Returns the oldest jobs of the same work, up to a batch; empty if the queue is closed and empty."""
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
    """Returns the error for a request past its deadline."""
    return Refused("deadline", "the deadline passed before the request was processed", "try again later")


def _run_work(work: Work, items: list[Any]) -> Sequence[Any]:
    """Returns an answer or an exception for each item. A batch that fails is split in half, to isolate the failing items."""
    try:
        return work(items)
    except Exception as error:
        if len(items) == 1:
            return [error]
    middle = len(items) // 2
    return [*_run_work(work, items[:middle]), *_run_work(work, items[middle:])]


def _deliver(jobs: list[Job], answers: Sequence[Any]) -> None:
    """Sets the futures of the jobs in their event loop."""

    def hand_over() -> None:
        for job, answer in zip(jobs, answers, strict=True):
            if job.answer.done():
                continue
            if isinstance(answer, Exception):
                job.answer.set_exception(answer)
            else:
                job.answer.set_result(answer)

    loop = jobs[0].answer.get_loop()
    if not loop.is_closed():  # closed after a second signal
        loop.call_soon_threadsafe(hand_over)
