"""Ranks without an interpreter for each: processes that are started once and run one function after the other, and copies of
the process of the tests.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vitrail import cli

MOST = 3  # with two ranks alone, a wrong order of sums would not be seen
PATIENCE = 300  # seconds, so that a test that hangs ends


class Pool:
    """Runs functions of a module on the first two ranks, the first three, and so on."""

    def __init__(self, pipes: list[Connection]) -> None:
        self.pipes = pipes

    def __call__(self, world: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What ``function(ranks, *args)`` returns on each of ``world`` ranks; an error of one of them is raised."""
        for pipe in self.pipes[:world]:
            pipe.send((world, function, args))
        answers = []
        for rank, pipe in enumerate(self.pipes[:world]):
            assert pipe.poll(PATIENCE), f"rank {rank} does not answer"
            answers.append(pipe.recv())
        faults = [f"rank {rank}: {fault}" for rank, (fault, _) in enumerate(answers) if fault]
        assert not faults, "\n".join(faults)
        return [result for _, result in answers]


@contextmanager
def start_pool(folder: Path, most: int = MOST) -> Iterator[Pool]:
    """``most`` processes, which use ``folder`` to find one another."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.on_ranks", "vitrail.training.parallel"])
    pairs = [context.Pipe() for _ in range(most)]
    workers = [
        context.Process(target=_serve, args=(rank, most, str(folder / "store"), theirs), daemon=True)
        for rank, (_, theirs) in enumerate(pairs)
    ]
    for worker in workers:
        worker.start()
    try:
        yield Pool([ours for ours, _ in pairs])
    finally:
        for ours, _ in pairs:
            ours.send(None)
        for worker in workers:
            worker.join(10)
            worker.kill()


def _serve(rank: int, most: int, store: str, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    from vitrail.runtime.distributed import Ranks

    torch.set_num_threads(1)
    limit = timedelta(seconds=PATIENCE)
    dist.init_process_group("gloo", store=dist.FileStore(store, most), rank=rank, world_size=most, timeout=limit)
    joined = {}
    for world in range(2, most + 1):
        group, words, saving = (dist.new_group(list(range(world)), backend="gloo", timeout=limit) for _ in range(3))
        joined[world] = Ranks(rank, world, world, group, words, checkpoint_group=saving)
    while (job := pipe.recv()) is not None:
        world, function, args = job
        try:
            pipe.send(("", function(joined[world], *args)))
        except BaseException:
            pipe.send((traceback.format_exc(), None))
    os._exit(0)


class Process:
    """A copy of this process, which is spared the imports, in a session of its own; what it says is kept in a file."""

    def __init__(self, log: Path, act: Callable[[], object], **environment: str) -> None:
        self.log = log
        self.code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                self._become(environment)
                act()
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)

    def _become(self, environment: dict[str, str]) -> None:
        os.setsid()
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it ends with its parent
        for name in ("SIGTERM", "SIGINT"):
            signal.signal(signal.Signals[name], signal.SIG_DFL if name == "SIGTERM" else signal.default_int_handler)
        os.environ.update(environment)
        warnings.resetwarnings()
        file = open(self.log, "w", buffering=1)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.stdout = sys.stderr = file

    def poll(self) -> int | None:
        if self.code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if ended else None
        return self.code

    def finish(self) -> tuple[int, str]:
        """The exit code and what was said."""
        wait(lambda: self.poll() is not None, self)
        assert self.code is not None
        return self.code, self.log.read_text()

    def send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Starter:
    """Starts copies of this process in a context; at its end none of them is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Process] = []

    def __call__(self, act: Callable[[], object], **environment: str) -> Process:
        self.started.append(Process(self.folder / f"said-{len(self.started)}.txt", act, **environment))
        return self.started[-1]

    def ranks(self, world: int, act: Callable[[int], object]) -> list[Process]:
        """Processes as a launcher starts them, each of which calls ``act`` with its number."""
        place = {"WORLD_SIZE": f"{world}", "LOCAL_WORLD_SIZE": f"{world}"}
        place |= {"MASTER_ADDR": "localhost", "MASTER_PORT": f"{free_port()}"}
        numbers = [{"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"} for rank in range(world)]
        return [self(partial(act, rank), **place, **each) for rank, each in enumerate(numbers)]

    def __enter__(self) -> Starter:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.started:
            if process.poll() is None:
                process.send(signal.SIGCONT)
                process.send(signal.SIGKILL)
                process.finish()


def command(*words: str) -> Callable[[], None]:
    """The command line."""

    def act(*_: object) -> None:
        sys.argv = ["vitrail", *words]  # a launcher hands them on
        cli.main()

    return act


def wait(ready: Callable[[], object], process: Process | None = None) -> None:
    until = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < until, process and process.log.read_text()
        time.sleep(0.01)


def free_port() -> int:
    """One that nothing listens on, and that the system gives to nobody who asks for any."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with socket.socket() as place, suppress(OSError):
            place.bind(("localhost", port))
            return port
    raise AssertionError("no port is free")
