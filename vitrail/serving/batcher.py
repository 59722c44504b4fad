"""Dynamic batching: a single thread runs the model on the items that are queued, up to the batch size.

The thread never waits to fill a batch. A single client gets its answer without delay; under load, items queue while the
model is busy and batches grow. Items are admitted only if they can be answered before their deadline, by the measured time
of batches, and no batch is so large that the item with the earliest deadline would miss it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vitrail.serving.refusals import Refused

Work = Callable[[list[Any]], Sequence[Any]]  # maps the items of a batch to one answer each, in order
LAST = 1.0  # seconds to wait for the last batch when closing; its clients already have a reply
RECEIVING = 0.5  # seconds for which a request counts that is still being received
HUNG = 120.0  # seconds in one batch after which the thread counts as dead


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

    At most ``capacity`` items are queued or in progress. A batch has at most ``batch`` items, of the same work. After every one
    ``observe`` is called in the thread, with its size and its seconds.
    """

    def __init__(self, *, batch: int, capacity: int, observe: Callable[[int, float], None]) -> None:
        self.batch, self.capacity, self.observe = batch, capacity, observe
        self.reserved = 0  # reserved items; only changed in the event loop
        self._reserved_seconds = 0.0  # predicted seconds of all of them
        self.guess = 0.05  # seconds per item of a work that was not measured yet
        self.preparation = BatchTiming(0.0)  # of an item before it is queued, such as decoding an image
        self._timings: dict[str, BatchTiming] = defaultdict(lambda: BatchTiming(self.guess))  # by the name of the work
        self._expected: dict[object, float] = {}  # requests that are being received, and until when they count
        self._received: set[object] = set()  # requests that were received and have not reserved yet
        self._waiting: list[Job] = []
        self._changed = threading.Condition()
        self._closed = False
        self._current: tuple[float, float] | None = None  # start and predicted seconds of the batch that is computed
        self._thread = threading.Thread(target=self._serve, name="network", daemon=True)
        self._thread.start()

    @contextmanager
    def reserve(self, count: int, work: Work | str, deadline: float, expected: object = None) -> Iterator[None]:
        """Reserves capacity for ``count`` items within the block, until a ``deadline`` by time.monotonic.

        The ``work`` that will be done with them, or its name, tells how long it takes. ``expected``, the result of `expect` or
        `hold` for the request, no longer counts. Raises `Refused` if the queue is full, or the deadline could not be met.
        """
        timing, left = self._timings[name_work(work)], deadline - time.monotonic()
        self.forget(expected)
        seconds = self._estimate(timing, count)
        if self.reserved + count > self.capacity:
            raise self.queue_error()
        late = self.backlog + seconds + timing.margin - left
        if late > 0 and self.reserved:
            raise self.queue_error(late)
        if timing.bound(count) > left:  # an estimate alone may come from a busy machine: without others it is tried
            what = f"the model takes about {seconds:.2g} s, longer than the deadline leaves"
            raise Refused("deadline", what, "set a longer deadline, or send fewer images")
        self.reserved, self._reserved_seconds = self.reserved + count, self._reserved_seconds + seconds
        try:
            yield
        finally:
            self.reserved, self._reserved_seconds = self.reserved - count, self._reserved_seconds - seconds

    def expect(self, start: float, deadline: float, expected: object = None) -> object:
        """Counts a request that is being received as one item of the work that takes the least time.

        It counts until `hold` or `forget`, at most for `RECEIVING` seconds, and no more of them count than are received and
        queued, and a batch: slow clients must not keep others out. Without it a flood would be received before it is refused.
        ``start`` is when the request arrived; an earlier result ``expected`` for it is returned if it still counts.

        Raises `Refused` if such a request could not be answered before the deadline, but could be at another time.
        """
        now = time.monotonic()
        if expected in self._expected or expected in self._received:
            return expected
        self._expected = {each: until for each, until in self._expected.items() if until >= now}
        received = self.reserved + len(self._received)
        others = min(len(self._expected), received + self.batch)
        late, is_busy = self._lateness(others, deadline), received + others > 0
        if received + others >= self.capacity or (late > 0 and (is_busy or late <= now - start)):
            raise self.queue_error(late)
        self._expected[expected := object()] = now + RECEIVING
        return expected

    def hold(self, start: float, deadline: float, expected: object) -> object:
        """Returns the result of `expect` for a request that was received completely; it counts until `reserve` or `forget`.

        Raises `Refused` as `expect` does, or because the request came too late.
        """
        if deadline <= time.monotonic():
            raise deadline_error()
        if expected not in self._expected:
            expected = self.expect(start, deadline)
        del self._expected[expected]
        late, received = self._lateness(0, deadline), self.reserved + len(self._received)
        if received >= self.capacity or (late > 0 and received):
            raise self.queue_error(late)
        self._received.add(expected)
        return expected

    def forget(self, expected: object) -> None:
        """Stops counting a result of `expect` or `hold`; does nothing if it no longer counts."""
        self._expected.pop(expected, None)
        self._received.discard(expected)

    def _lateness(self, others: int, deadline: float) -> float:
        """Returns the seconds after the deadline at which another item would be answered, after ``others`` and those received.

        Items that have not reserved count as those of the work that takes the least time.
        """
        timings = list(self._timings.values()) or [BatchTiming(self.guess)]
        count = len(self._received) + others + 1
        least = min(self._estimate(timing, count) + timing.margin for timing in timings)
        return self.backlog + least - (deadline - time.monotonic())

    def _estimate(self, timing: BatchTiming, count: int) -> float:
        """Returns the seconds to prepare ``count`` items and to compute them, in batches of their own or with others."""
        computing = max(timing.predict(count), count * timing.predict(self.batch) / self.batch)
        return computing + count * self.preparation.predict(1)

    @property
    def backlog(self) -> float:
        """The predicted seconds until all reserved items are answered."""
        start, predicted = self._current or (0.0, 0.0)
        done = min(time.monotonic() - start, predicted)
        return max(self._reserved_seconds - done, 0.0)

    def queue_error(self, wait: float | None = None) -> Refused:
        """Returns the error for a full queue; ``wait`` is the estimated time until the request would be admitted."""
        seconds = self.backlog / 2 if wait is None else wait
        return Refused("queue_full", "the queue is full", "try again later", retry_after=seconds)

    async def run(self, work: Work, item: Any, deadline: float) -> Any:
        """Queues ``item`` and returns its answer. Cancelled or expired items are dropped before they reach the model.

        Raises `Refused` if the deadline has passed or cannot be met any more, and what the work raises for this item.
        """
        job = Job(work, item, deadline, asyncio.get_running_loop().create_future())
        with self._changed:
            self._waiting.append(job)
            self._changed.notify()
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                return await job.answer
        except TimeoutError:
            raise deadline_error() from None

    @property
    def is_healthy(self) -> bool:
        """Whether the thread is running and not stuck in one batch for more than `HUNG` seconds."""
        start, _ = self._current or (time.monotonic(), 0.0)
        return self._thread.is_alive() and time.monotonic() - start < HUNG

    def close(self) -> None:
        """Processes the remaining items and ends the thread, waiting at most `LAST` seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(LAST)

    def _serve(self) -> None:
        while jobs := self._next():
            timing = self._timings[name_work(jobs[0].work)]
            start = time.monotonic()
            self._current = start, timing.predict(len(jobs))
            answers = _run_work(jobs[0].work, [job.item for job in jobs])
            seconds = time.monotonic() - start
            self._current = None
            timing.add(len(jobs), seconds)
            self.observe(len(jobs), seconds)
            _deliver(jobs, answers)

    def _next(self) -> list[Job]:
        """Returns the next batch; empty if the queue is closed and empty."""
        with self._changed:
            while True:
                self._waiting = sorted((job for job in self._waiting if job.alive), key=lambda job: job.deadline)
                if self._waiting and (batch := self._choose(time.monotonic())):
                    return batch
                if not self._waiting:
                    if self._closed:
                        return []
                    self._changed.wait()

    def _choose(self, now: float) -> list[Job]:
        """Takes a batch from the queue, which is sorted by deadline; or drops its first job, whose deadline cannot be met.

        A batch has jobs of the same work as the first, and is small enough to meet the deadline of the first.
        """
        first = self._waiting[0]
        timing = self._timings[name_work(first.work)]
        left = first.deadline - now
        if timing.bound(1) > left:
            _deliver([self._waiting.pop(0)], [deadline_error()])
            return []
        chosen = [job for job in self._waiting if job.work == first.work][: self.batch]
        while len(chosen) > 1 and timing.predict(len(chosen)) + timing.margin > left:
            chosen.pop()
        taken = set(chosen)
        self._waiting = [job for job in self._waiting if job not in taken]
        return chosen


def name_work(work: Work | str) -> str:
    """Returns the name under which the times of this work are measured."""
    return work if isinstance(work, str) else getattr(work, "__name__", type(work).__name__)


def deadline_error() -> Refused:
    """Returns the error for a request past its deadline."""
    return Refused("deadline", "the request could not be processed before its deadline", "try again later")


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
            if not job.answer.done():
                deliver = job.answer.set_exception if isinstance(answer, Exception) else job.answer.set_result
                deliver(answer)

    loop = jobs[0].answer.get_loop()
    if not loop.is_closed():  # closed after a second signal
        loop.call_soon_threadsafe(hand_over)


FORGETS = 0.9  # weight of an observation after the next one
RISES = 1.02  # of the fastest time, with each batch: a machine may become slower


class BatchTiming:
    """Predicts the seconds of a batch of n items as a + b n, by least squares in which recent batches weigh more.

    ``guess`` are the seconds per item before the first batch.
    """

    def __init__(self, guess: float) -> None:
        self._guess = guess
        self._sums = [0.0] * 5  # over batches: of 1, n, the seconds, n^2, and n times the seconds
        self._error = 0.0  # mean absolute error of predictions
        self._fastest = 0.0  # seconds per item; until the first batch nothing is known

    def add(self, size: int, seconds: float) -> None:
        """Records a batch of ``size`` items."""
        if self._sums[0]:
            self._error += (1 - FORGETS) * (abs(seconds - self.predict(size)) - self._error)
        new = (1.0, size, seconds, size * size, size * seconds)
        self._sums = [FORGETS * before + added for before, added in zip(self._sums, new)]
        self._fastest = min(RISES * self._fastest, seconds / size) if self._fastest else seconds / size

    def predict(self, size: int) -> float:
        """Returns the seconds of a batch of ``size`` items."""
        weight, *sums = self._sums
        if not weight:
            return self._guess * size
        mean_size, mean_seconds, mean_square, mean_product = (each / weight for each in sums)
        variance = mean_square - mean_size**2
        covariance = mean_product - mean_size * mean_seconds
        most = mean_seconds / mean_size  # if nothing is fixed; batches of one size say no more
        slope = min(max(covariance / variance, 0.0), most) if variance > 1e-6 else most
        return mean_seconds + slope * (size - mean_size)

    @property
    def margin(self) -> float:
        """The error that a prediction may have, in seconds."""
        return 2 * self._error

    def bound(self, size: int) -> float:
        """Returns the least seconds that ``size`` items can take, by the fastest batch so far."""
        return self._fastest * size
