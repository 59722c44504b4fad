"""The ranks of a training: the processes that compute one training together, and the ways in which they agree.

torch's launcher starts them and tells each its place in environment variables. The first rank reads the clock, writes the files
and speaks; what it decides, the others are told.

W ranks.
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
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from vitrail.errors import ConfigError, LostRankError, VitrailError
from vitrail.runtime.launch import LAUNCHER

Value = TypeVar("Value")
ROLL = 5  # seconds
LONGEST = 6 * 3600.0  # seconds that the first rank may work alone, as on a linear classifier of a million features
_ADDED_BY_GLOO = re.compile(r"^\[[^]]*\] |\. This is typically.*")  # its source file, and advice
_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


@dataclass(frozen=True, eq=False)
class Ranks:
    """The processes that train together, as one of them sees them; by default it is alone.

    Every rank must call the methods that exchange something, in the same order; a process that is alone exchanges nothing.

    Args:
        rank: number of this process, from 0.
        world: number W of processes.
        local_world: how many of them share this machine.
        group: the process group that computes: NCCL for GPUs, gloo for CPUs.
        words: a gloo group of the same ranks, for what they tell each other.
        roll: another one, used only to find out who is there once the others have failed.
        saving: another one, for the thread that writes checkpoints.
    """

    rank: int = 0
    world: int = 1
    local_world: int = 1
    group: Any = None
    words: Any = None
    roll: Any = None
    saving: Any = None

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes and speaks."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        return self.world == 1

    def share(self, count: int) -> slice:
        """This rank's part of ``count`` rows: the parts follow one another and differ by at most one row."""
        least, more = divmod(count, self.world)
        start = self.rank * least + min(self.rank, more)
        return slice(start, start + least + (self.rank < more))

    def tell(self, value: Value) -> Value:
        """What the first rank gave."""
        if self.alone:
            return value
        box = [value]
        with lost_ranks():
            dist.broadcast_object_list(box, group=self.words, group_src=0)
        return box[0]

    def gather(self, value: Value) -> list[Value]:
        """What every rank gave, in their order."""
        if self.alone:
            return [value]
        values: list[Any] = [None] * self.world
        with lost_ranks():
            dist.all_gather_object(values, value, group=self.words)
        return values

    def gather_rows(self, rows: Tensor, counts: Sequence[int] | None = None) -> list[Tensor]:
        """The rows (n, ...) of every rank, without a graph; ``counts`` are their numbers n, where every rank knows them."""
        if self.alone:
            return [rows]
        counts = self.gather(len(rows)) if counts is None else counts
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        with lost_ranks():
            dist.all_gather(parts, padded, group=self.group)
        return [part[:count] for part, count in zip(parts, counts)]

    def add(self, values: Tensor) -> Tensor:
        """The sum over ranks of ``values`` (n,) on the CPU, added in the order of the ranks: the same bits on all of them."""
        if self.alone:
            return values
        parts = [torch.empty_like(values) for _ in range(self.world)]
        with lost_ranks():
            dist.all_gather(parts, values, group=self.words)
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def largest(self, *numbers: int) -> list[int]:
        """The largest value on any rank of each number."""
        if self.alone:
            return list(numbers)
        values = torch.tensor(numbers)
        with lost_ranks():
            dist.all_reduce(values, dist.ReduceOp.MAX, group=self.words)
        return values.tolist()

    def lead(self, act: Callable[[], Value]) -> Value:
        """What ``act`` returns on the first rank, which alone calls it. A `VitrailError` of it is raised on every rank."""
        if self.alone:
            return act()
        result: Any = None
        error: VitrailError | None = None
        if self.first:
            try:
                result = act()
            except VitrailError as caught:
                error = caught
        result, error = self.tell((result, error))
        if error is not None:
            raise self.agreed(error)
        return result

    def together(self, act: Callable[[], Value]) -> Value:
        """What ``act`` returns here; see `agreeing`."""
        with self.agreeing():
            return act()

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """A block that every rank runs, without exchanges: at its end a `VitrailError` of any rank is raised on all of them."""
        if self.alone:
            yield
            return
        error: VitrailError | None = None
        try:
            yield
        except VitrailError as caught:
            error = caught
        errors = self.gather(error)
        if any(errors):
            rank, first = next((rank, found) for rank, found in enumerate(errors) if found is not None)
            if not all(errors):
                first.what = f"rank {rank}: {first.what}"
            raise self.agreed(first)

    def agreed(self, error: VitrailError) -> VitrailError:
        """``error``, which every rank raises at this moment: only the first one reports it."""
        error.reported = not self.first
        return error

    def leave_together(self) -> None:
        """Waits for the other ranks: a launcher stops all of them when the first one has left."""
        with suppress(RuntimeError):
            dist.barrier(group=self.words)

    def name_lost(self) -> str:
        """The ranks that do not answer within `ROLL` seconds, in words, on the first rank; empty where that is unknown."""
        if self.roll is None:
            return ""
        try:
            dist.monitored_barrier(self.roll, timeout=timedelta(seconds=ROLL), wait_all_ranks=True)
        except RuntimeError as error:
            lost = re.search(r"Ranks ([\d, ]+) failed to pass", str(error))
            return f"; no answer from rank {lost[1]}" if lost else ""
        return ""

    def check_same(self, **facts: Any) -> None:
        """Raises `ConfigError` on every rank if a fact is not the same on all of them."""
        for name, values in ((name, self.gather(value)) for name, value in facts.items()):
            other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
            if other is not None:
                what = f"the ranks of this training differ in their {name}"
                shown = f"rank 0: {values[0]}\nrank {other}: {values[other]}"
                remedy = "give every rank the same command, files and version of vitrail"
                raise self.agreed(ConfigError(what, remedy, value=shown))


ALONE = Ranks()


@contextmanager
def join(device: str | None, timeout: float = LONGEST) -> Iterator[Ranks]:
    """The ranks that torch's launcher started, joined until the context ends; `ALONE` where there is no launcher.

    A process group that the program has made is used and left as it is.

    Args:
        device: the requested device; CUDA takes the one with the local rank's number.
        timeout: seconds after which a rank that does not answer counts as lost.

    Raises:
        LostRankError: not all of the ranks appeared.
    """
    given = dist.is_available() and dist.is_initialized()
    if not given and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
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
            words, roll, saving = (dist.new_group(backend="gloo", timeout=limit) for _ in range(3))
        world = dist.get_world_size()
        local_world = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        ranks = Ranks(dist.get_rank(), world, local_world, dist.group.WORLD, words, roll, saving)
        try:
            yield ranks
        except LostRankError as error:
            error.what += ranks.name_lost()
            raise
        except VitrailError as error:
            if error.reported is not None:
                ranks.leave_together()
            raise
        ranks.leave_together()
    finally:
        if not given:
            dist.destroy_process_group()


@contextmanager
def lost_ranks() -> Iterator[None]:
    """Turns an exchange that failed, because a rank has ended or does not answer, into a `LostRankError`."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, VitrailError) or not is_lost_rank(error):
            raise
        reason = _ADDED_BY_GLOO.sub("", str(error).splitlines()[0])
        raise LostRankError(
            f"another rank of this training ended, or did not answer in time ({reason})",
            "its own message says why; the same command goes on from the newest checkpoint",
        ) from error


def is_lost_rank(error: BaseException) -> bool:
    """Whether an exchange between ranks failed."""
    words = str(error).lower()
    return isinstance(error, dist.DistError) or any(
        sign in words for sign in ("gloo", "nccl", "connection closed by peer", "connection reset by peer", "timed out")
    )


def gather_full(tensor: Any) -> Tensor:
    """The whole of a tensor, which may be spread over the ranks: then all of them call this. Without a graph."""
    tensor = tensor.detach()
    return tensor.full_tensor() if is_spread(tensor) else tensor


def spread_like(value: Tensor, tensor: Any) -> Tensor:
    """A whole ``value`` as ``tensor`` is: on its device, and spread over the ranks in the same way, each taking its own part.

    One that is spread already is returned as it is.
    """
    value = value.to(tensor.device)
    if not is_spread(tensor) or is_spread(value) or not value.ndim:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, tensor.device_mesh, tensor.placements, src_data_rank=None)


def localise(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The same memory as plain parameters, where every rank holds the whole of them: that of `DTensor` costs time at every call.

    Gradients are those of the parameters themselves, from where `collect_gradients` takes them.
    """
    return {
        name: torch.nn.Parameter(parameter.detach().to_local()) if _is_replicated(parameter) else parameter
        for name, parameter in parameters.items()
    }


def collect_gradients(local: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """Moves the gradients of ``parameters`` to what `localise` made of them."""
    for name, plain in local.items():
        parameter = parameters[name]
        if plain is not parameter and parameter.grad is not None:
            plain.grad, parameter.grad = parameter.grad.to_local(), None


def _is_replicated(tensor: Any) -> bool:
    return is_spread(tensor) and all(placement.is_replicate() for placement in tensor.placements)


def is_spread(tensor: Tensor) -> bool:
    """Whether it is a `torch.distributed.tensor.DTensor`, the module of which takes a second to load."""
    return hasattr(tensor, "placements")


def _end_with_launcher() -> None:
    """Asks Linux to end this process with SIGTERM when its launcher is gone, which would otherwise leave it running.

    Raises `LostRankError` if it is gone already: a launcher that was killed while this process began is no parent any more.
    """
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        CDLL(None).prctl(_END_WITH_PARENT, signal.SIGTERM)
        if os.environ.get(LAUNCHER, str(os.getppid())) != str(os.getppid()):
            raise LostRankError("the launcher of this training ended", "run the same command again")
