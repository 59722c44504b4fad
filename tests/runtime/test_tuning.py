"""The way that is taken is the one that took least time on the network's own blocks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from tests.models.tiny import TINY
from vitrail.models import sketch
from vitrail.runtime import tuning
from vitrail.runtime.tuning import Way, choose_way, find_blocks

SLOW, FAST, HALF = Way("fp32", 2), Way("bf16", 2), Way("fp32", 1)


class Machine:
    """A clock, and contexts in which a pass takes as long as is told of each way; counts the passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, costs: dict[Way, Sequence[float]]) -> None:
        self.now, self.costs, self.passes = 0.0, costs, dict.fromkeys(costs, 0)
        monkeypatch.setattr(tuning, "use_threads", self.enter("threads"))
        monkeypatch.setattr(tuning, "in_precision", self.enter("precision"))
        monkeypatch.setattr(tuning.Block, "build", lambda block, from_images=False: self.compute)
        self.threads, self.precision = 0, ""

    def enter(self, name):
        def context(value, *rest):
            setattr(self, name, value)
            return torch.no_grad()

        return context

    def compute(self) -> None:
        way = Way(self.precision, self.threads)
        costs = self.costs[way]
        self.now += costs[min(self.passes[way], len(costs) - 1)]
        self.passes[way] += 1

    def choose(self, *ways: Way, config: str = "vit", batch: int = 1) -> tuning.Choice:
        network = sketch(TINY[config])
        return choose_way(network, (3, *network.config.image_size), ways, batch=batch, clock=lambda: self.now)


@pytest.mark.parametrize(
    ("costs", "taken"),
    [
        ({SLOW: [0.3], FAST: [0.2], HALF: [0.5]}, FAST),
        ({SLOW: [0.3], FAST: [0.5], HALF: [0.2]}, HALF),
        ({SLOW: [0.300], FAST: [0.297], HALF: [0.2955]}, SLOW),  # not worth another
        ({SLOW: [0.3], FAST: [9.0, 0.1], HALF: [0.5]}, FAST),  # the first pass does not count
        ({SLOW: [0.2, 0.2, 0.2, 0.2, 0.2, 2.0], FAST: [0.2, 0.2, 0.8, 0.05], HALF: [1.0]}, FAST),  # nor a disturbed one
    ],
)
def test_the_fastest_way_is_taken(monkeypatch, costs, taken):
    machine = Machine(monkeypatch, costs)
    choice = machine.choose(*costs)
    assert choice.way == taken
    if max(map(len, costs.values())) < 3:
        assert choice.seconds[taken] == pytest.approx(3 * costs[taken][-1])  # three blocks
    assert f"{taken.precision}; ms of an image" in str(choice)


def test_a_small_network_is_timed_as_a_whole(monkeypatch):
    """What a pass costs then holds for all images, and for the network, not for each block."""
    machine = Machine(monkeypatch, {SLOW: [0.004], FAST: [0.003]})
    assert machine.choose(SLOW, FAST, batch=4).seconds == pytest.approx({SLOW: 0.001, FAST: 0.00075})


def test_time_is_bounded_and_a_hopeless_way_is_tried_once(monkeypatch):
    machine = Machine(monkeypatch, {SLOW: [0.4], FAST: [0.7], HALF: [4.0]})
    choice = machine.choose(SLOW, FAST, HALF, config="beit")
    assert machine.passes[HALF] == 2  # one of them to warm up
    assert 1 < choice.took <= 3 + 2 * 4.0 + 2 * 0.4 + 0.7
    assert choice.way == SLOW


def test_more_images_are_taken_where_one_is_too_quick(monkeypatch):
    asked: list[int] = []
    found = find_blocks

    def note(network, image, images):
        asked.append(images)
        return found(network, image, images)

    monkeypatch.setattr(tuning, "find_blocks", note)
    machine = Machine(monkeypatch, {SLOW: [0.004], FAST: [0.006]})
    machine.choose(SLOW, FAST, batch=64)
    assert max(asked) == 12  # of 4 ms each, in 0.05 s
    asked.clear()
    machine.choose(SLOW, FAST, batch=32)
    assert max(asked) == 12


@pytest.mark.parametrize("name", TINY)
def test_the_blocks_of_every_architecture_run_as_the_network_calls_them(name):
    """As many as it has, in fp32 and in bf16, with gradients; and so does the network."""
    config = TINY[name]
    network = sketch(config)
    image = (config.in_channels, *config.image_size)
    blocks = find_blocks(network, image, 2)
    lists = [each for path, each in network.named_modules() if path.rpartition(".")[2].startswith("blocks")]
    assert sum(block.count for block in blocks) == sum(map(len, lists)) > 0
    images = torch.zeros(2, *image, device="meta")
    for run in [block.build() for block in blocks] + [tuning.Block(network, (images,), {}).build(from_images=True)]:
        for precision in ("fp32", "bf16"):
            with tuning.in_precision(precision, torch.device("cpu")):
                run()
    assert all(parameter.is_meta for parameter in network.parameters())
