"""Functions are timed in turns, and a measurement that other work disturbed is recognised; with clocks of the test."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager

import pytest

from vitrail.runtime.timing import Timing, time_in_turns


class Machine:
    """Functions that take the given seconds, call by call, of which ``processor`` is the share that they compute."""

    def __init__(self, costs: dict[str, Sequence[float]], processor: float = 1.0) -> None:
        self.now, self.spent, self.calls, self.active = 0.0, 0.0, list[str](), ""
        self.costs, self.processor = {name: iter(seconds) for name, seconds in costs.items()}, processor

    def run(self, name: str) -> None:
        assert self.active == name
        self.calls.append(name)
        seconds = next(self.costs[name])
        self.now, self.spent = self.now + seconds, self.spent + self.processor * seconds

    @contextmanager
    def within(self, name: str):
        self.active, self.now = name, self.now + 100  # is not timed
        yield
        self.active = ""

    def time(self, **how: float) -> dict[str, Timing]:
        functions = {name: lambda name=name: self.run(name) for name in self.costs}
        clocks = {"clock": lambda: self.now, "processor_clock": lambda: self.spent}
        return time_in_turns(functions, within=self.within, **clocks, **how)


def test_functions_take_turns_after_a_call_that_does_not_count():
    machine = Machine({"a": [9, 1, 3, 2], "b": [9, 4, 4, 7]})
    timings = machine.time(rounds=3)
    assert machine.calls == [*"aabb", *"ab" * 2]
    assert {name: timing.seconds for name, timing in timings.items()} == {"a": (1, 3, 2), "b": (4, 4, 7)}
    assert (timings["a"].median, timings["b"].fastest) == (2, 4)
    assert not any(timing.is_disturbed for timing in timings.values())


def test_rounds_end_with_the_time_but_not_before_the_fewest():
    assert len(Machine({"a": [1] * 9}).time(rounds=8, min_rounds=3, seconds=0)["a"].seconds) == 3
    assert len(Machine({"a": [1] * 9}).time(rounds=8, seconds=500)["a"].seconds) == 5
    assert len(Machine({"a": [1] * 9}).time(rounds=8)["a"].seconds) == 8


def test_a_slow_function_is_given_up_and_the_first_one_is_not():
    timings = Machine({"a": [9, 8, 2, 1], "b": [1] * 4, "c": [1, 3]}).time(rounds=3, give_up_ratio=2)
    assert [len(timing.seconds) for timing in timings.values()] == [3, 3, 1]
    assert len(Machine({"a": [1] * 9, "b": [1, 3]}).time(rounds=8, give_up_ratio=2)["a"].seconds) == 1


def test_a_function_is_not_given_up_after_a_disturbed_round():
    machine = Machine({"a": [9, 2, 2, 2], "b": [1, 9, 1, 1]}, processor=0.5)
    assert [len(timing.seconds) for timing in machine.time(rounds=3, give_up_ratio=2).values()] == [3, 3]


@pytest.mark.parametrize(("processor", "disturbed"), [(1.0, False), (0.95, False), (0.5, True)])
def test_a_function_that_waits_for_the_processor_is_disturbed(processor, disturbed):
    assert Machine({"a": [1] * 4}, processor).time(rounds=3)["a"].is_disturbed == disturbed


def test_only_the_fastest_round_counts_as_it_alone_decides():
    assert not Timing((1.0, 5.0), (0.99, 1.0)).is_disturbed
    assert Timing((1.0, 5.0), (0.5, 5.0)).is_disturbed
