"""What a process has only once: malloc, torch's threads and its generators of random numbers.

They belong to the user. A library call that needs others restores them; only the command line, whose process is its own, sets
them for good. Importing this loads no torch.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # glibc's malloc.h


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_large_buffers() -> None:
    """Tells glibc to keep freed memory of up to 1 GiB for the next step, instead of giving it back and mapping it anew.

    Every step frees and takes the same large activations; mapping them afresh cost 40 % of a step of ViT-S on a CPU
    (benchmarks/README.md). Elsewhere than on Linux with glibc this does nothing.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for option, value in ((_MMAP_THRESHOLD, 1 << 30), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 1 << 26)):
        mallopt(option, value)


def use_all_cores() -> None:
    """Gives torch as many threads as there are `cores`, unless ``OMP_NUM_THREADS`` names a number; for the command line."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(cores())


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Within an operation torch computes with ``count`` threads inside the context, and with the previous number after it."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def keep_generators() -> Iterator[None]:
    """Inside the context torch's default generators may be seeded; after it they are in the previous state."""
    import torch

    with torch.random.fork_rng(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        yield
