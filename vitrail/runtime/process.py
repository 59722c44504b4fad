"""Global state of a process: malloc, signal handlers, torch's threads and random generators. Importing this loads no torch.

It belongs to the user: a library call restores what it changes; only the command line, whose process is its own, changes it for
good. SIGTERM and Ctrl-C become requests that the training loop reads between two steps, or errors that end repeatable work.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from vitrail.errors import DiskError, Interrupted, Preempted

BUS_ERROR = (
    b"error: a file that is mapped into memory, such as decoded images, was cut off, or its disk cannot be read\n"
    b"  hint: run the same command again: it finds what is damaged; check the disk if that ends in the same way\n"
)
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8  # glibc's malloc.h


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_large_buffers() -> None:
    """Tells glibc to keep freed memory of up to 1 GiB for the next step, instead of giving it back and mapping it anew.

    Every step frees and takes the same large activations; mapping them afresh cost 40 % of a step of ViT-S on a CPU
    (benchmarks/README.md). Elsewhere than on Linux with glibc this does nothing.
    """
    for option, value in ((_MMAP_THRESHOLD, 1 << 30), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 1 << 26)):
        _find_libc("mallopt")(option, value)


def use_one_arena() -> None:
    """Tells glibc that all threads allocate from one arena: of others `release_memory` leaves up to 64 MiB each."""
    _find_libc("mallopt")(_ARENA_MAX, 1)


def release_memory() -> None:
    """Gives freed memory back to the system, including what `keep_large_buffers` keeps. On Linux with glibc only."""
    _find_libc("malloc_trim")(0)


def _find_libc(name: str) -> Any:
    """Returns a function of the C library, or one that does nothing."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return lambda *arguments: None


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _end_with_words(number: int) -> None:
    os.write(2, BUS_ERROR)
    os._exit(DiskError.code)  # the read cannot be given up, and returning would repeat it


def explain_bus_errors() -> None:
    """Ends the process with an error message, in place of SIGBUS, when a mapped file cannot be read. Not on Windows.

    A handler of `signal.signal` would never run: it waits for the instruction that fails.
    """
    if not hasattr(signal, "SIGBUS") or signal.getsignal(signal.SIGBUS) != signal.SIG_DFL:
        return
    set_handler = _find_libc("signal")
    set_handler.argtypes, set_handler.restype = [ctypes.c_int, type(_end_with_words)], ctypes.c_void_p
    set_handler(signal.SIGBUS, _end_with_words)


def use_all_cores() -> None:
    """Gives torch as many threads as there are `cores`, unless ``OMP_NUM_THREADS`` names a number; for the command line."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(cores())


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Inside the context torch computes each operation with ``count`` threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def keep_generators() -> Iterator[None]:
    """Restores the state of torch's default generators after the context."""
    import torch

    with torch.random.fork_rng(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        yield


@contextmanager
def handle_signals(handlers: Mapping[Any, Callable[[int, FrameType | None], Any]]) -> Iterator[None]:
    """Replaces the handlers of signals within the block. Python calls them in the main thread only; elsewhere nothing is done."""
    in_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()} if in_main else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None is a handler that was not set from Python


class StopRequests:
    """What `note_stops` notes."""

    asked = 0  # the number of the signal


@contextmanager
def note_stops() -> Iterator[StopRequests]:
    """Within the block, the first SIGTERM or SIGINT is noted in `StopRequests.asked`; a second Ctrl-C interrupts at once."""
    stop = StopRequests()

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and stop.asked == signal.SIGINT:
            raise KeyboardInterrupt
        stop.asked = number

    with handle_signals({signal.SIGTERM: note, signal.SIGINT: note}):
        yield stop


def stopped_by(number: int, where: str) -> Preempted | Interrupted:
    """Returns the error to raise for a signal once the state is saved; ``where`` says how to continue."""
    error, name = (Preempted, "SIGTERM") if number == signal.SIGTERM else (Interrupted, "Ctrl-C")
    return error(f"stopped by {name}; a checkpoint is saved", where)


@contextmanager
def end_at_once(remedy: str) -> Iterator[None]:
    """Inside, SIGTERM raises `Preempted` and Ctrl-C `Interrupted`, wherever the main thread is; ``remedy`` says how to go on."""

    def preempt(number: int, frame: FrameType | None) -> None:
        raise Preempted("stopped by SIGTERM", remedy)

    with handle_signals({signal.SIGTERM: preempt}):
        try:
            yield
        except KeyboardInterrupt:
            raise Interrupted("stopped by Ctrl-C", remedy) from None
