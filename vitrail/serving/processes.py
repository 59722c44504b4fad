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
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

import torch
from prometheus_client.multiprocess import mark_process_dead

from vitrail.errors import LostProcessError, VitrailError
from vitrail.runtime.process import cores, handle_signals, use_one_arena

METRICS = "PROMETHEUS_MULTIPROC_DIR"  # read by prometheus_client when it is imported
Event = Literal["ready", "reloaded"]
Notify = Callable[[Event], None]
Work = Callable[[Notify, int], None]  # called with the number of threads that a process may use
log = logging.getLogger("vitrail.serving")


class Worker:
    """A process that serves. It ends with its parent."""

    def __init__(self, work: Work, prepare: Callable[[], None], share: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.events, sender = context.Pipe(duplex=False)
        self.process = context.Process(target=_serve, args=(work, prepare, sender, share))
        self.process.start()
        sender.close()  # the process has the other end, so that `events` ends with it
        self.has_served = False

    def read_event(self) -> Event | VitrailError | None:
        """Waits for the next event, or the error that ended the process. None at its end."""
        try:
            event = self.events.recv()
        except EOFError:
            return None
        self.has_served |= event == "ready"
        return event

    def send(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, number)


class Supervisor:
    """Runs ``work`` in ``count`` processes until a signal stops it, and replaces those that end.

    Each process calls ``prepare`` first. ``work`` and ``prepare`` are pickled.
    """

    def __init__(self, count: int, work: Work, *, prepare: Callable[[], None]) -> None:
        self.count, self.work, self.prepare = count, work, prepare
        self.workers: list[Worker] = []
        self._stopping = False

    def run(self, announce: Callable[[], None]) -> None:
        """Serves; calls ``announce`` once the first worker is ready.

        Raises the error of a worker that could not start, and `LostProcessError` for one that ended before it served.
        """
        handlers = dict.fromkeys((signal.SIGTERM, signal.SIGINT, signal.SIGHUP), self._handle)
        with handle_signals(handlers), _collect_metrics():
            try:
                self._start()
                self._follow(self.workers[0])
                if self.workers:
                    announce()
                while len(self.workers) < self.count and not self._stopping:
                    self._start()
                while self.workers:
                    ready = wait([worker.events for worker in self.workers])
                    for worker in [each for each in self.workers if each.events in ready]:
                        self._follow(worker)
            finally:
                for worker in self.workers:
                    worker.process.kill()

    def _start(self) -> None:
        self.workers.append(Worker(self.work, self.prepare, self.count))
        if self._stopping:  # since the worker was asked for
            self.workers[-1].send(signal.SIGTERM)

    def _follow(self, worker: Worker) -> None:
        """Acts on the next event of a worker."""
        event = worker.read_event()
        if isinstance(event, VitrailError):
            raise event
        if event == "reloaded":
            for other in self.workers:
                if other is not worker:
                    other.send(signal.SIGHUP)
        if event is None:
            self._replace(worker)

    def _replace(self, worker: Worker) -> None:
        """Removes a worker that has ended, and starts another unless the server stops."""
        worker.process.join()
        self.workers.remove(worker)
        mark_process_dead(worker.process.pid)  # counts remain, gauges do not
        if self._stopping:
            return
        what = f"process {worker.process.pid} of the server ended with exit code {worker.process.exitcode}"
        if not worker.has_served:
            raise LostProcessError(
                f"{what} before it was ready", "see the log; give fewer --processes if memory ran out"
            )
        log.error("%s; another is started", what)
        self._start()

    def _handle(self, number: int, frame: Any) -> None:
        self._stopping |= number != signal.SIGHUP
        for worker in self.workers:
            worker.send(signal.SIGHUP if number == signal.SIGHUP else signal.SIGTERM)


def _serve(work: Work, prepare: Callable[[], None], events: Connection, share: int) -> None:
    """Calls ``work`` in a process of its own, with one of ``share`` equal shares of the cores."""
    os.setpgrp()  # Ctrl-C in a terminal reaches the supervisor alone, which sends SIGTERM
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    prepare()
    use_one_arena()
    threads = max(cores() // share, 1)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads)
    try:
        work(events.send, threads)
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
