"""Times functions that run networks: in turns, so that other work on the machine affects all of them alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

Name = TypeVar("Name", bound=Hashable)
Clock = Callable[[], float]

CPU = torch.device("cpu")
DISTURBED = 0.9  # of a call's time, below which its thread had the processor for less than it takes alone


@dataclass(frozen=True)
class Timing:
    """The time that a function took in each round."""

    seconds: tuple[float, ...]
    processor_seconds: tuple[float, ...]  # in which its thread, which waits actively for the others, had a processor

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def fastest(self) -> float:
        return min(self.seconds)

    @property
    def is_disturbed(self) -> bool:
        """Whether other work had the processor for a part of the fastest round."""
        wall, processor = min(zip(self.seconds, self.processor_seconds))
        return processor < DISTURBED * wall


def time_call(function: Callable[[], object], device: torch.device = CPU, clock: Clock = time.perf_counter) -> float:
    """Returns the seconds of one call, until the device has finished."""
    began = clock()
    function()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return clock() - began


def time_in_turns(
    functions: Mapping[Name, Callable[[], object]],
    *,
    rounds: int,
    min_rounds: int = 1,
    seconds: float = math.inf,
    give_up_ratio: float = math.inf,
    device: torch.device = CPU,
    within: Callable[[Name], AbstractContextManager[Any]] = lambda name: nullcontext(),
    on_call: Callable[[], object] = lambda: None,
    clock: Clock = time.perf_counter,
    processor_clock: Clock = time.thread_time,
) -> dict[Name, Timing]:
    """Calls all functions in turns, each once more before the first round: that call prepares kernels and memory.

    Args:
        rounds: their largest number.
        min_rounds: the smallest number, after which no round begins once ``seconds`` have passed.
        give_up_ratio: a function is not called again once its fastest call took more than this times as long as the
            fastest of all, unless other work disturbed that call. The first one is called in all rounds: it is the default.
        within: returns the context in which a function is called; entering it is not timed.
        on_call: called after each call, such as for progress.
    """
    walls: dict[Name, list[float]] = {name: [] for name in functions}
    processor: dict[Name, list[float]] = {name: [] for name in functions}
    timings: dict[Name, Timing] = {}
    active, first, ends = list(functions), next(iter(functions)), clock() + seconds
    for number in range(rounds):
        for name in active:
            with within(name):
                if number == 0:
                    time_call(functions[name], device)
                    on_call()
                began = processor_clock()
                walls[name].append(time_call(functions[name], device, clock))
                processor[name].append(processor_clock() - began)
                on_call()
        timings = {name: Timing(tuple(walls[name]), tuple(processor[name])) for name in functions}
        limit = give_up_ratio * min(timing.fastest for timing in timings.values())
        given_up = {name for name, timing in timings.items() if timing.fastest > limit and not timing.is_disturbed}
        active = [name for name in active if name == first or name not in given_up]
        alone = len(functions) > 1 and len(active) == 1
        if alone or (number + 1 >= min_rounds and clock() > ends):
            break
    return timings
