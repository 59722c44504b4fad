"""`vitrail serve` with deadlines: answers in time at 1 to 50 times the capacity, for three models of different cost.

    python benchmarks/serving_deadlines.py photographs/

The server has one core, all clients share another. Capacity is what 8 clients in a closed loop get without a deadline;
each situation is an open loop of a multiple of it, in which every request carries the deadline. Goodput is the rate of
answers that came in time, as a share of the capacity. Of the requests that were admitted, the share answered with 504 is
reported; a request that is refused at once gets 503, or 504 where the model cannot meet the deadline at all.

Models have random weights; every answer is compared with that of the library.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import harness
import torch

import vitrail

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.serving.load import Question, closed_loop, is_prediction, open_loop, upload
from tests.serving.process import serve
from vitrail.weights.native import save_model

MODELS: dict[str, dict[str, Any]] = {
    "vit-ti16 at 64": {"name": "vit-ti16", "image_size": 64},
    "vit-ti16 at 224": {"name": "vit-ti16"},
    "vit-b16 at 224": {"name": "vit-b16"},
}
DEADLINES = (0.5, 2.5, 10.0, 30.0)  # seconds
TIMES = (1, 2, 5, 10, 50)  # the capacity
LEAST = 20.0  # seconds in which the capacity is measured


def make_questions(model: Any, files: list[bytes], deadline: float | None) -> list[Question]:
    header = {} if deadline is None else {"X_Deadline_Ms": str(round(1000 * deadline))}
    answers = model.predict(files, top=5)
    return [
        Question(upload("/v1/predict", file, **header), is_prediction(answer.top))
        for file, answer in zip(files, answers)
    ]


def measure(
    model: Any, address: tuple[str, int], files: list[bytes], seconds: float, deadlines: list[float]
) -> dict[str, Any]:
    """Capacity, and by deadline and multiple of it the goodput and what became of the requests."""
    plain = cycle(make_questions(model, files, None))
    asyncio.run(closed_loop(address, islice(plain, 32), clients=8))  # warms up
    started = time.perf_counter()
    tally = asyncio.run(closed_loop(address, until(plain, started + max(seconds, LEAST)), clients=8))
    capacity = len(tally.seconds[200]) / (time.perf_counter() - started)
    rows = []
    for deadline in deadlines:
        asked = cycle(make_questions(model, files, deadline))
        for times in TIMES:
            length = max(seconds, 1.2 * deadline)
            started = time.perf_counter()
            tally = asyncio.run(open_loop(address, asked, rate=times * capacity, seconds=length))
            elapsed = time.perf_counter() - started
            if tally.wrong:
                raise SystemExit(f"{tally.wrong} wrong answers")
            answered = tally.seconds[200]
            late = sum(latency > deadline + 0.25 for latency in answered)
            # a 504 that comes at once is a refusal; one that comes about the deadline was admitted
            expired = sum(latency > 0.5 * deadline for latency in tally.seconds[504])
            row = {
                "deadline": deadline,
                "times": times,
                "goodput": round((len(answered) - late) / elapsed / capacity, 3),
                "expired_of_admitted": round(expired / max(expired + len(answered), 1), 4),
                "statuses": tally.statuses,
                "dropped": tally.lost + tally.unreachable,  # connections above the limit are closed without a reply
            }
            print(row, flush=True)
            rows.append(row)
    return {"capacity": round(capacity, 2), "situations": rows}


def until(questions: Any, end: float) -> Any:
    while time.perf_counter() < end:
        yield next(questions)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("images", type=Path, help="a folder of image files and nothing else")
    words.add_argument("--seconds", type=float, default=8, help="of a situation, at least 1.2 of its deadline")
    words.add_argument("--deadlines", nargs="*", type=float, default=list(DEADLINES), help="in seconds")
    words.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    asked = words.parse_args()
    torch.set_num_threads(1)
    first, *_, last = sorted(os.sched_getaffinity(0))
    files = [path.read_bytes() for path in sorted(asked.images.iterdir())][:32]
    found = {}
    for name in asked.models:
        torch.manual_seed(0)
        model = vitrail.create_model(**MODELS[name], classes=10).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.05)
        with tempfile.TemporaryDirectory() as place:
            path = save_model(Path(place) / "model.safetensors", model)
            with serve(path, Path(place) / "stderr.txt", core=first) as server:
                os.sched_setaffinity(0, {last})
                print(name, flush=True)
                found[name] = measure(model, server.address(), files, asked.seconds, asked.deadlines)
                os.sched_setaffinity(0, {first, last})
    print(harness.write("serving_deadlines", {"models": found}, device="cpu"))


if __name__ == "__main__":
    main()
