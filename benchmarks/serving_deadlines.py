"""`vitrail serve` with deadlines: answers in time at 1 to 50 times the capacity, for models of different cost.

    python benchmarks/serving_deadlines.py photographs/
    python benchmarks/serving_deadlines.py photographs/ --before ../older     # a checkout to compare with
    python benchmarks/serving_deadlines.py photographs/ --processes 2         # a server of several processes to compare with

The server has one core and all clients share another ("one core"), or both share both cores ("two cores"). The network has
one thread. Capacity is what 8 clients in a closed loop get without a deadline; each situation is an open loop of a multiple
of it, in which every request carries the deadline. Goodput is the rate of answers that came in time, as a share of the
capacity. ``offered`` is the multiple that the clients managed to send. Of the requests that were admitted, the share answered
with 504 is reported; a request that is refused at once gets 503, or 504 where the model cannot meet the deadline at all.
Servers take turns in each situation, and are asked at the same rate: a multiple of the capacity of the current code.

Models have random weights; every answer is compared with that of the library.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import harness
import torch

import vitrail

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.serving.load import Question, closed_loop, is_prediction, open_loop, upload
from tests.serving.process import Process, serve
from vitrail.weights.native import save_model

MODELS: dict[str, dict[str, Any]] = {
    "vit-ti16 at 64": {"name": "vit-ti16", "image_size": 64},
    "vit-ti16 at 224": {"name": "vit-ti16"},
    "vit-b16 at 224": {"name": "vit-b16"},
}
DEADLINES = (0.5, 2.5, 10.0)  # seconds
TIMES = (1, 5, 10, 50)  # the capacity
CLOSED = 10.0  # seconds in which the capacity is measured
CORES = {"one core": (1, 5, 10, 50), "two cores": (10, 50)}  # and the multiples that are measured with them
OURS, BEFORE, SEVERAL = "vitrail", "before", "processes"


def make_questions(model: Any, files: list[bytes], deadline: float | None) -> list[Question]:
    header = {} if deadline is None else {"X_Deadline_Ms": str(round(1000 * deadline))}
    answers = model.predict(files, top=5)
    return [
        Question(upload("/v1/predict", file, **header), is_prediction(answer.top))
        for file, answer in zip(files, answers)
    ]


def measure(
    model: Any,
    servers: dict[str, Process],
    files: list[bytes],
    seconds: float,
    deadlines: list[float],
    times: list[int],
) -> dict[str, Any]:
    """Capacity of each server, and by deadline and multiple the goodput and what became of the requests."""
    addresses = {name: server.address() for name, server in servers.items()}
    plain = cycle(make_questions(model, files, None))
    capacities = {name: find_capacity(address, plain) for name, address in addresses.items()}
    print(capacities, flush=True)
    rows = []
    for deadline, multiple in product(deadlines, times):
        asked = cycle(make_questions(model, files, deadline))
        for name in list(addresses)[:: -1 if len(rows) % 2 else 1]:
            found = flood(addresses[name], asked, multiple * capacities[OURS], max(seconds, 1.2 * deadline), deadline)
            rate, sent = found.pop("answers"), found.pop("sent")
            shares = {"goodput": round(rate / capacities[OURS], 3), "offered": round(sent / capacities[OURS], 1)}
            rows.append({"server": name, "deadline": deadline, "times": multiple, **shares, **found})
            print(rows[-1], flush=True)
    return {"capacities": {name: round(each, 2) for name, each in capacities.items()}, "situations": rows}


def find_capacity(address: tuple[str, int], questions: Iterator[Question]) -> float:
    """The rate of 8 clients in a closed loop, after a warm-up."""
    asyncio.run(closed_loop(address, islice(questions, 32), clients=8))
    started = time.perf_counter()
    tally = asyncio.run(closed_loop(address, until(questions, started + CLOSED), clients=8))
    return len(tally.seconds[200]) / (time.perf_counter() - started)


def flood(
    address: tuple[str, int], questions: Iterator[Question], rate: float, seconds: float, deadline: float
) -> dict[str, Any]:
    """The rates of answers in time and of requests, and what became of the others."""
    started = time.perf_counter()
    tally = asyncio.run(open_loop(address, questions, rate=rate, seconds=seconds))
    elapsed = time.perf_counter() - started
    if tally.wrong:
        raise SystemExit(f"{tally.wrong} wrong answers")
    answered = tally.seconds[200]
    late = sum(latency > deadline + 0.25 for latency in answered)
    # a 504 that comes at once is a refusal; one that comes about the deadline was admitted
    expired = sum(latency > 0.5 * deadline for latency in tally.seconds[504])
    return {
        "answers": (len(answered) - late) / elapsed,
        "sent": len(tally.lateness) / (seconds + tally.lateness[-1]),
        "expired_of_admitted": round(expired / max(expired + len(answered), 1), 4),
        "refusal_p50_ms": round(tally.milliseconds(503, 0.5), 1) if tally.seconds[503] else None,
        "statuses": tally.statuses,
        "dropped": tally.lost + tally.unreachable,  # connections above the limit are closed without a reply
    }


def until(questions: Any, end: float) -> Any:
    while time.perf_counter() < end:
        yield next(questions)


def measure_model(name: str, asked: argparse.Namespace, files: list[bytes]) -> dict[str, Any]:
    """What is found for a model of `MODELS` with each number of cores."""
    torch.manual_seed(0)
    model = vitrail.create_model(**MODELS[name], classes=10).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    exact = ("--precision", "fp32")  # as the answers that those of the servers are compared with
    starts: dict[str, tuple[Path | None, tuple[str, ...]]] = {OURS: (None, exact)}
    if asked.before:
        starts[BEFORE] = asked.before.resolve(), exact
    if asked.processes > 1:
        starts[SEVERAL] = None, (*exact, "--processes", str(asked.processes))
    both = os.sched_getaffinity(0)
    first, *_, last = sorted(both)
    found = {}
    for cores in asked.cores:
        times = [each for each in asked.times if each in CORES[cores]]
        with ExitStack() as stack:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            path, core = save_model(place / "model.safetensors", model), first if cores == "one core" else None
            servers = {
                each: stack.enter_context(serve(path, place / f"{each}.txt", *words, core=core, folder=folder))
                for each, (folder, words) in starts.items()
            }
            print(f"{name}, {cores}", flush=True)
            os.sched_setaffinity(0, both if core is None else {last})
            found[cores] = measure(model, servers, files, asked.seconds, asked.deadlines, times)
            os.sched_setaffinity(0, both)
    return found


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("images", type=Path, help="a folder of image files and nothing else")
    words.add_argument("--before", type=Path, help="a folder with other code of vitrail, measured in turns")
    words.add_argument("--processes", type=int, default=1, help="of a second server of this code, measured in turns")
    words.add_argument("--seconds", type=float, default=5, help="of a situation, at least 1.2 of its deadline")
    words.add_argument("--deadlines", nargs="*", type=float, default=list(DEADLINES), help="in seconds")
    words.add_argument("--times", nargs="*", type=int, default=list(TIMES), help="multiples of the capacity")
    words.add_argument("--cores", nargs="*", default=list(CORES), choices=list(CORES))
    words.add_argument("--models", nargs="*", default=list(MODELS)[:2], choices=list(MODELS))
    asked = words.parse_args()
    torch.set_num_threads(1)
    files = [path.read_bytes() for path in sorted(asked.images.iterdir())[:32]]
    found = {name: measure_model(name, asked, files) for name in asked.models}
    print(harness.write("serving_deadlines", {"models": found}, device="cpu"))


if __name__ == "__main__":
    main()
