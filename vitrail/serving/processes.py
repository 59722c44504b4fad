"""Several processes of one server, which accept connections of the same socket.

Parsing HTTP and decoding images hold Python's lock, so one process uses about one core besides those of the model. Each process
has its own copy of the model and its own queue. The first one starts alone: its errors are those of the command, and what it
measures is in the cache for the others. Their metrics are added by prometheus_client through files of a temporary folder.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

import torch
from prometheus_client.multiprocess import mark_process_dead

from vitrail.errors import LostProcessError, VitrailError
from vitrail.runtime.process import cores, explain_bus_errors, handle_signals, keep_large_buffers, use_one_arena

METRICS = "PROMETHEUS_MULTIPROC_DIR"  # read by prometheus_client when it is imported
Event = Literal["ready", "reloaded"]
Notify = Callable[[Event], None]
Work = Callable[[socket.socket, Notify, int], None]  # called with the number of threads that a process may use
PAUSE = 30.0  # seconds after a process that could not start
log = logging.getLogger("vitrail.serving")


class Worker:
    """A process that serves. It ends with its parent."""

    def __init__(self, work: Work, bound: socket.socket, prepare: Callable[[], None], share: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.events, sender = context.Pipe(duplex=False)
        self.process = context.Process(target=_serve, args=(work, bound, prepare, sender, share))
        # Ctrl-C in a terminal reaches all processes: the supervisor alone acts on it, and sends SIGTERM to the others
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        sender.close()  # the process has the other end, so that `events` ends with it
        self.has_served = self.is_stale = False

    def read_event(self) -> Event | VitrailError | None:
        """Waits for the next event, or the error that ended the process. None at its end."""
        try:
            event = self.events.recv()
        except EOFError:
            return None
        if event == "ready":
            self.has_served = True
            if self.is_stale:
                self.send(signal.SIGHUP)
        return event

    def reload(self) -> None:
        """Makes the process read the model again, at once or when it serves: before, the signal would end it."""
        if self.has_served:
            self.send(signal.SIGHUP)
        else:
            self.is_stale = True

    def send(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, number)


class Supervisor:
    """Runs ``work`` in ``count`` processes until a signal stops it, and replaces those that end.

    Each process calls ``prepare`` first, and ``work`` with the socket ``bound``. Both functions are pickled.
    """

    def __init__(self, count: int, work: Work, bound: socket.socket, *, prepare: Callable[[], None]) -> None:
        self.count, self.work, self.bound, self.prepare = count, work, bound, prepare
        self.workers: list[Worker] = []
        self._is_stopping = False
        self._reload_count = 0
        self._next_start = 0.0  # by time.monotonic

    def run(self, announce: Callable[[], None]) -> None:
        """Serves; calls ``announce`` once the first process is ready.

        Raises the error of the first process if that cannot load the model, and `LostProcessError` if it ended before it served.
        """
        handlers = dict.fromkeys((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), self._handle)
        with handle_signals(handlers), _collect_metrics():
            try:
                self._start()
                if problem := self._follow(self.workers[0]):
                    raise problem
                if not self._is_stopping:
                    announce()
                while self.workers or not self._is_stopping:
                    self._tend()
            finally:
                for worker in self.workers:
                    worker.process.kill()

    def _tend(self) -> None:
        """Starts what is missing, and acts on the events of a second."""
        if self._is_stopping:
            self.bound.close()  # what connects once the workers have closed it is refused, not left waiting
        elif len(self.workers) < self.count and time.monotonic() >= self._next_start:
            self._start()
        ready = wait([worker.events for worker in self.workers], timeout=1.0)
        for worker in [each for each in self.workers if each.events in ready]:
            if problem := self._follow(worker):
                log.error("%s; another is started in %.0f seconds", problem, PAUSE)
                self._next_start = time.monotonic() + PAUSE

    def _start(self) -> None:
        reload_count = self._reload_count
        self.workers.append(Worker(self.work, self.bound, self.prepare, self.count))
        # a signal that came before the worker was in the list has not reached it
        if self._is_stopping:
            self.workers[-1].send(signal.SIGTERM)
        elif self._reload_count != reload_count:
            self.workers[-1].reload()

    def _follow(self, worker: Worker) -> VitrailError | None:
        """Acts on the next event of a worker. Returns why it could not start."""
        event = worker.read_event()
        if event == "reloaded":
            for other in self.workers:
                if other is not worker:
                    other.reload()
        if event is not None and not isinstance(event, VitrailError):
            return None
        worker.process.join()
        self.workers.remove(worker)
        mark_process_dead(worker.process.pid)  # counts remain, gauges do not
        if self._is_stopping or isinstance(event, VitrailError):
            return event
        what = f"process {worker.process.pid} of the server ended with exit code {worker.process.exitcode}"
        if worker.has_served:
            log.error("%s; another is started", what)
            return None
        remedy = "see the log; if memory ran out give fewer --processes; in a script call it under `if __name__ == '__main__'`"
        return LostProcessError(f"{what} before it was ready", remedy)

    def _handle(self, number: int, frame: Any) -> None:
        self._is_stopping |= number != signal.SIGHUP
        self._reload_count += number == signal.SIGHUP
        for worker in self.workers:
            if number == signal.SIGHUP:
                worker.reload()
            else:
                worker.send(signal.SIGTERM)


def _serve(work: Work, bound: socket.socket, prepare: Callable[[], None], events: Connection, share: int) -> None:
    """Calls ``work`` in a process of its own, with one of ``share`` equal shares of the cores."""
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    keep_large_buffers()
    explain_bus_errors()
    use_one_arena()
    prepare()
    threads = max(cores() // share, 1)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads)
    try:
        work(bound, events.send, threads)
    except VitrailError as error:
        events.send(error)
        sys.exit(error.code)


def _stop_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _collect_metrics() -> Iterator[None]:
    """Within the block, processes that are started keep their metrics in files of a temporary folder."""
    before = os.environ.get(METRICS)
    with tempfile.TemporaryDirectory(prefix="vitrail-metrics-") as folder:
        os.environ[METRICS] = folder
        try:
            yield
        finally:
            os.environ.pop(METRICS)
            if before is not None:
                os.environ[METRICS] = before
