"""The process group of a training, which torch's launcher starts: collectives for values, errors and files.

Rank 0 reads the clock, writes the files and logs; it broadcasts its decisions. W ranks.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ctypes import CDLL
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from vitrail.errors import ConfigError, LostRankError, VitrailError
from vitrail.runtime.launch import LAUNCHER

Value = TypeVar("Value")
HEALTH_TIMEOUT = 5  # seconds
# seconds that rank 0 may work while the others wait, as on a linear classifier of a million features
MAX_TIMEOUT = 6 * 3600.0
_ADDED_BY_GLOO = re.compile(r"^\[[^]]*\] |\. This is typically.*")  # its source file, and advice
_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


@dataclass(frozen=True, eq=False)
class Ranks:
    """A process group, as one of its processes sees it; by default a single process.

    Every rank must call the collective methods in the same order. In a single process they exchange nothing.

    Args:
        rank: number of this process, from 0.
        world: number W of processes.
        local_world: how many of them share this machine.
        group: the process group that computes: NCCL for GPUs, gloo for CPUs.
        control_group: a gloo group of the same ranks, for Python objects.
        health_group: another one, used only to find out which ranks answer after a collective has failed.
        checkpoint_group: another one, for the thread that writes checkpoints.
    """

    rank: int = 0
    world: int = 1
    local_world: int = 1
    group: Any = None
    control_group: Any = None
    health_group: Any = None
    checkpoint_group: Any = None

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def is_single(self) -> bool:
        return self.world == 1

    def share(self, count: int) -> slice:
        """Returns this rank's slice of ``count`` rows: slices are contiguous and differ in length by at most one row."""
        length, longer = divmod(count, self.world)  # the first ``longer`` slices have one row more
        start = self.rank * length + min(self.rank, longer)
        return slice(start, start + length + (self.rank < longer))

    def broadcast(self, value: Value) -> Value:
        """Returns the value that rank 0 gave."""
        if self.is_single:
            return value
        box = [value]
        with lost_ranks():
            dist.broadcast_object_list(box, group=self.control_group, group_src=0)
        return box[0]

    def gather(self, value: Value) -> list[Value]:
        """Returns the values of all ranks, by rank."""
        if self.is_single:
            return [value]
        values: list[Any] = [None] * self.world
        with lost_ranks():
            dist.all_gather_object(values, value, group=self.control_group)
        return values

    def gather_rows(self, rows: Tensor, counts: Sequence[int] | None = None) -> list[Tensor]:
        """Gathers the rows (n, ...) of every rank, without a graph; ``counts``: their numbers n, if all ranks know them."""
        if self.is_single:
            return [rows]
        counts = self.gather(len(rows)) if counts is None else counts
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        with lost_ranks():
            dist.all_gather(parts, padded, group=self.group)
        return [part[:count] for part, count in zip(parts, counts)]

    def add(self, values: Tensor) -> Tensor:
        """Sums ``values`` (n,) on the CPU over ranks, in the order of the ranks: the same bits on all of them."""
        if self.is_single:
            return values
        parts = [torch.empty_like(values) for _ in range(self.world)]
        with lost_ranks():
            dist.all_gather(parts, values, group=self.control_group)
        return reduce(torch.add, parts)

    def largest(self, *numbers: int) -> list[int]:
        """Returns the largest value over ranks of each number."""
        if self.is_single:
            return list(numbers)
        values = torch.tensor(numbers)
        with lost_ranks():
            dist.all_reduce(values, dist.ReduceOp.MAX, group=self.control_group)
        return values.tolist()

    def run_on_rank0(self, act: Callable[[], Value]) -> Value:
        """Calls ``act`` on rank 0 and returns its result on every rank. A `VitrailError` of it is raised on every rank."""
        if self.is_single:
            return act()
        result: Any = None
        error: VitrailError | None = None
        try:
            result = act() if self.first else None
        except VitrailError as caught:
            error = caught
        result, error = self.broadcast((result, error))
        if error is not None:
            raise self.collective_error(error)
        return result

    @contextmanager
    def share_errors(self) -> Iterator[None]:
        """Runs a block without collectives on every rank; at its end a `VitrailError` of any rank is raised on all of them."""
        if self.is_single:
            yield
            return
        error: VitrailError | None = None
        try:
            yield
        except VitrailError as caught:
            error = caught
        errors = self.gather(error)
        for rank, first in enumerate(errors):
            if first is not None:
                if None in errors:
                    first.what = f"rank {rank}: {first.what}"
                raise self.collective_error(first)

    def collective_error(self, error: VitrailError) -> VitrailError:
        """Returns ``error``, which every rank raises now, marked so that only rank 0 reports it."""
        error.reported = not self.first
        return error

    def wait_for_all(self) -> None:
        """Waits for the other ranks: a launcher stops all of them when the first one has left."""
        with suppress(RuntimeError):
            dist.barrier(group=self.control_group)

    def describe_lost_ranks(self) -> str:
        """Returns on rank 0 which ranks do not answer within `HEALTH_TIMEOUT` seconds; empty if that is unknown."""
        lost = None
        try:
            dist.monitored_barrier(self.health_group, timeout=timedelta(seconds=HEALTH_TIMEOUT), wait_all_ranks=True)
        except RuntimeError as error:
            lost = re.search(r"Ranks ([\d, ]+) failed to pass", str(error))
        return f"; no answer from rank {lost[1]}" if lost else ""

    def check_same(self, **facts: Any) -> None:
        """Raises `ConfigError` on every rank if a fact is not the same on all of them."""
        for name, own in facts.items():
            first, *others = self.gather(own)
            for rank, value in enumerate(others, 1):
                if value != first:
                    what = f"the ranks of this training differ in their {name}"
                    remedy = "give every rank the same command, files and version of vitrail"
                    error = ConfigError(what, remedy, value=f"rank 0: {first}\nrank {rank}: {value}")
                    raise self.collective_error(error)


SINGLE = Ranks()


@contextmanager
def join(device: str | None, timeout: float = MAX_TIMEOUT) -> Iterator[Ranks]:
    """Joins the process group that torch's launcher started until the context ends; `SINGLE` without a launcher.

    A process group that the program has made is used and left as it is.

    Args:
        device: the requested device; CUDA takes the one with the local rank's number.
        timeout: seconds after which a rank that does not answer counts as lost.

    Raises:
        LostRankError: not all of the ranks appeared.
    """
    given = dist.is_available() and dist.is_initialized()
    if not given and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield SINGLE
        return
    limit, cuda = timedelta(seconds=timeout), torch.cuda.is_available() and (device or "cuda").startswith("cuda")
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not given:
        _end_with_launcher()
        gpu = torch.device("cuda", torch.cuda.current_device()) if cuda else None
        with lost_ranks():
            dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=limit, device_id=gpu)
    try:
        with lost_ranks():
            control, health, checkpoints = (dist.new_group(backend="gloo", timeout=limit) for _ in range(3))
        world = dist.get_world_size()
        local_world = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        ranks = Ranks(dist.get_rank(), world, local_world, dist.group.WORLD, control, health, checkpoints)
        try:
            yield ranks
        except LostRankError as error:
            error.what += ranks.describe_lost_ranks()
            raise
        except VitrailError as error:
            if error.reported is not None:
                ranks.wait_for_all()
            raise
        ranks.wait_for_all()
    finally:
        if not given:
            dist.destroy_process_group()


@contextmanager
def lost_ranks() -> Iterator[None]:
    """Raises `LostRankError` in place of the error of a collective that failed because a rank ended or does not answer."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, VitrailError) or not is_lost_rank(error):
            raise
        reason = _ADDED_BY_GLOO.sub("", str(error).splitlines()[0])
        raise LostRankError(
            f"another rank of this training ended, or did not answer in time ({reason})",
            "look for the error of that rank above; the same command resumes from the newest checkpoint",
        ) from error


def is_lost_rank(error: BaseException) -> bool:
    """Whether a collective failed because of another rank."""
    words = str(error).lower()
    return isinstance(error, dist.DistError) or any(
        sign in words for sign in ("gloo", "nccl", "connection closed by peer", "connection reset by peer", "timed out")
    )


def gather_full(tensor: Any) -> Tensor:
    """Returns the full tensor without a graph; for a `DTensor` all ranks call this."""
    tensor = tensor.detach()
    return tensor.full_tensor() if is_dtensor(tensor) else tensor


def distribute_like(value: Tensor, tensor: Any) -> Tensor:
    """Returns ``value`` on the device of ``tensor`` and, if that is a `DTensor`, distributed over the ranks in the same way."""
    value = value.to(tensor.device)
    if not is_dtensor(tensor) or is_dtensor(value) or not value.ndim:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, tensor.device_mesh, tensor.placements, src_data_rank=None)


def localise(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns replicated parameters as plain ones in the same memory, which are faster to update, and others as they are.

    `collect_gradients` moves the gradients to them.
    """
    local = dict(parameters)
    for name, tensor in parameters.items():
        if is_dtensor(tensor) and all(placement.is_replicate() for placement in tensor.placements):
            local[name] = torch.nn.Parameter(tensor.detach().to_local())
    return local


def collect_gradients(local: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """Moves the gradients of ``parameters`` to those that `localise` returned."""
    for name, plain in local.items():
        parameter = parameters[name]
        if plain is not parameter and parameter.grad is not None:
            plain.grad, parameter.grad = parameter.grad.to_local(), None


def is_dtensor(tensor: Tensor) -> bool:
    """Whether ``tensor`` is a `torch.distributed.tensor.DTensor`, without loading that module, which takes a second."""
    return hasattr(tensor, "placements")


def _end_with_launcher() -> None:
    """Asks Linux to end this process with SIGTERM when its launcher ends. Raises `LostRankError` if it has ended already."""
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        CDLL(None).prctl(_END_WITH_PARENT, signal.SIGTERM)
        if os.environ.get(LAUNCHER, str(os.getppid())) != str(os.getppid()):
            raise LostRankError("the launcher of this training ended", "run the same command again")
