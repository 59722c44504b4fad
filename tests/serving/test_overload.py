"""Load: every reply belongs to its own image whatever batch it was answered in; what is too much is refused at once with
the time to come again, nothing is lost, and afterwards all is as before. Times are in the records of benchmarks/serving.
"""

from __future__ import annotations

import asyncio
from itertools import cycle, islice
from pathlib import Path

import pytest

from tests.serving.load import closed_loop
from tests.serving.process import serve
from tests.serving.questions import HEAVY, model, photographs, questions
from vitrail.weights.native import save_model

pytestmark = pytest.mark.slow


def test_each_of_10000_replies_is_that_of_its_own_image(tmp_path: Path) -> None:
    classifier = model()
    path = save_model(tmp_path / "model.safetensors", classifier)
    asked = cycle(questions(classifier, photographs(100)))
    with serve(path, tmp_path / "stderr.txt") as server:
        kept = asyncio.run(closed_loop(server.address(), islice(asked, 9000), clients=64))
        anew = asyncio.run(closed_loop(server.address(), islice(asked, 1000), clients=32, keep_alive=False))
        assert server.end() == 0
    assert (kept.statuses, kept.wrong, kept.lost) == ({200: 9000}, 0, 0)
    assert (anew.statuses, anew.wrong, anew.lost) == ({200: 1000}, 0, 0)
    assert "Traceback" not in server.stderr


def test_a_flood_is_refused_with_the_time_to_come_again_and_leaves_nothing_behind(tmp_path: Path) -> None:
    classifier = model(config=HEAVY)
    path = save_model(tmp_path / "model.safetensors", classifier)
    asked = cycle(questions(classifier, photographs(20, side=256)))
    with serve(path, tmp_path / "stderr.txt") as server:
        flood = asyncio.run(closed_loop(server.address(), islice(asked, 5000), clients=400))
        calm = asyncio.run(closed_loop(server.address(), islice(asked, 100), clients=8))
        assert server.end() == 0
    assert flood.statuses.keys() == {200, 503}
    assert flood.sent == sum(flood.statuses.values()) == 5000
    assert (flood.hasty, flood.wrong, flood.lost, flood.unreachable) == (0, 0, 0, 0)
    assert (calm.statuses, calm.wrong) == ({200: 100}, 0)
    assert "Traceback" not in server.stderr
