"""SIGTERM and Ctrl-C: as requests that the training loop reads between two steps, so that no step is interrupted, or as errors
that end at once what can be done again.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from vitrail.errors import Interrupted, Preempted


class StopRequests:
    """While entered, the first SIGTERM or SIGINT is noted in `asked`; a second Ctrl-C interrupts at once.

    Python delivers signals to the main thread only; elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self.asked = 0  # the number of the signal
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.asked == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = number


def stopped_by(number: int, where: str) -> Preempted | Interrupted:
    """Returns the error to raise for a signal once the state is saved; ``where`` says how to continue."""
    if number == signal.SIGTERM:
        return Preempted("stopped by SIGTERM; a checkpoint is saved", where)
    return Interrupted("stopped by Ctrl-C; a checkpoint is saved", where)


@contextmanager
def end_at_once(remedy: str) -> Iterator[None]:
    """Inside, SIGTERM raises `Preempted` and Ctrl-C `Interrupted`, wherever the main thread is; ``remedy`` says how to go on."""

    def preempt(number: int, frame: FrameType | None) -> None:
        raise Preempted("stopped by SIGTERM", remedy)

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, preempt) if in_main else None
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("stopped by Ctrl-C", remedy) from None
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
