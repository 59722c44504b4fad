"""`vitrail serve` under load, beside a plain FastAPI handler: throughput and latency, ten times too much, slow clients.

    python benchmarks/serving.py vit_tiny_patch16_224.safetensors photographs/

Each server has one core, all clients share another. Uploads are the files as they are, and every reply is compared with
the answer for its own file, computed before; a wrong or lost reply ends the benchmark. Servers and situations take turns;
rates are medians over blocks, latencies quantiles over the requests of all blocks.

Capacity is what 64 clients in a closed loop get. Overload is an open loop of ten times that, on connections that are kept.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import harness
import torch

import vitrail

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.serving.load import Address, Question, Tally, closed_loop, is_prediction, open_loop, quantile, upload
from tests.serving.process import Process, serve
from tests.serving.slow import crowd, keep_dripping

OURS, PLAIN = "vitrail serve", "plain FastAPI"
CLIENTS = (1, 8, 64)
TIMES = 10  # how much more than its capacity an overloaded server is asked
SLOW = 1000


@dataclass
class Measured:
    """One situation over all blocks."""

    rates: list[float] = field(default_factory=list)  # answers a second, by block
    tally: Tally = field(default_factory=Tally)

    def add(self, tally: Tally, seconds: float) -> None:
        if tally.wrong or tally.lost or tally.unreachable or not tally.seconds.keys() <= {200, 503}:
            counts = f"{tally.wrong} wrong, {tally.lost} lost, {tally.unreachable} unreachable"
            raise SystemExit(f"not what was asked for: {counts}, by status {tally.statuses}")
        self.rates.append(len(tally.seconds[200]) / seconds)
        for status, each in tally.seconds.items():
            self.tally.seconds[status] += each
        self.tally.hasty += tally.hasty
        self.tally.lateness += tally.lateness

    def told(self) -> dict[str, Any]:
        """Rates in answers a second, times in milliseconds."""
        return {
            "rate": round(statistics.median(self.rates), 2),
            "rates": [round(rate, 2) for rate in self.rates],
            "statuses": self.tally.statuses,
            "p50": round(self.tally.milliseconds(200, 0.5), 1),
            "p99": round(self.tally.milliseconds(200, 0.99), 1),
        }


async def among_the_slow(address: Address, questions: Iterator[Question], clients: int) -> tuple[Tally, float]:
    """The tally of good clients while slow ones hold connections, and its seconds."""
    slow = await crowd(address, SLOW)
    dripping = asyncio.create_task(keep_dripping(slow))
    await asyncio.sleep(1)
    started = time.perf_counter()
    tally = await closed_loop(address, questions, clients=clients)
    seconds = time.perf_counter() - started
    dripping.cancel()
    await asyncio.wait([dripping])
    return tally, seconds


class Bench:
    """Two servers, the questions for them, and what was measured."""

    def __init__(self, servers: dict[str, Process], questions: list[Question]) -> None:
        self.addresses = {name: server.address() for name, server in servers.items()}
        self.asked = cycle(questions)
        self.found: dict[str, Measured] = defaultdict(Measured)

    def closed(self, server: str, situation: str, *, clients: int, requests: int) -> float:
        """The rate of this block."""
        started = time.perf_counter()
        tally = asyncio.run(closed_loop(self.addresses[server], islice(self.asked, requests), clients=clients))
        measured = self.found[f"{server}, {situation}"]
        measured.add(tally, time.perf_counter() - started)
        return measured.rates[-1]

    def compare(self, blocks: int, requests: int) -> None:
        """Both servers in turns, every second block backwards."""
        for block in range(blocks):
            for clients in CLIENTS:
                for server in (OURS, PLAIN)[:: -1 if block % 2 else 1]:
                    asked = max(requests, 8 * clients)
                    self.closed(server, f"{clients} clients", clients=clients, requests=asked)

    def overload(self, blocks: int, seconds: float) -> dict[str, Any]:
        """Capacity and ten times as much in turns."""
        shares = []
        for _ in range(blocks):
            capacity = self.closed(OURS, "capacity", clients=64, requests=640)
            started = time.perf_counter()
            flood = asyncio.run(open_loop(self.addresses[OURS], self.asked, rate=TIMES * capacity, seconds=seconds))
            self.found[f"{OURS}, overload"].add(flood, time.perf_counter() - started)
            shares.append(self.found[f"{OURS}, overload"].rates[-1] / capacity)
        tally = self.found[f"{OURS}, overload"].tally
        return {
            "times_capacity": TIMES,
            "goodput_of_capacity": round(statistics.median(shares), 3),
            "by_block": [round(share, 3) for share in shares],
            "refusals_without_retry_after": tally.hasty,
            "refusal_p50": round(tally.milliseconds(503, 0.5), 2),
            "refusal_p99": round(tally.milliseconds(503, 0.99), 2),
            "plan_lag_p99": round(1000 * quantile(tally.lateness, 0.99), 2),
        }

    def slow_clients(self, blocks: int, requests: int) -> dict[str, Any]:
        """Eight good clients alone and among a thousand slow ones, in turns."""
        for _ in range(blocks):
            self.closed(OURS, "alone", clients=8, requests=requests)
            among = among_the_slow(self.addresses[OURS], islice(self.asked, requests), clients=8)
            self.found[f"{OURS}, among the slow"].add(*asyncio.run(among))
        alone, among = (self.found[f"{OURS}, {each}"].tally for each in ("alone", "among the slow"))
        times = among.milliseconds(200, 0.99) / alone.milliseconds(200, 0.99)
        return {"slow_clients": SLOW, "p99_times": round(times, 2)}


def questions_about(model: str, images: Path) -> list[Question]:
    """One upload for each file, and its answer computed offline."""
    files = [path.read_bytes() for path in sorted(images.iterdir())]
    answers = vitrail.load(model).predict(files, top=5)
    return [Question(upload("/v1/predict", file), is_prediction(each.top)) for file, each in zip(files, answers)]


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("model")
    words.add_argument("images", type=Path, help="a folder of image files and nothing else")
    words.add_argument("--blocks", type=int, default=5)
    words.add_argument("--requests", type=int, default=300, help="of one client or eight, in a block")
    words.add_argument("--seconds", type=float, default=15, help="of overload, in a block")
    asked = words.parse_args()
    torch.set_num_threads(1)
    questions = questions_about(asked.model, asked.images)
    first, *_, last = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plain = [str(Path(__file__).with_name("serving_plain.py")), asked.model]
        servers = {
            OURS: stack.enter_context(serve(asked.model, folder / "ours.txt", core=first)),
            PLAIN: stack.enter_context(Process(plain, folder / "plain.txt", core=first)),
        }
        os.sched_setaffinity(0, {last})
        bench = Bench(servers, questions)
        for server in servers:
            bench.closed(server, "warm-up", clients=64, requests=256)
        bench.compare(asked.blocks, asked.requests)
        overload = bench.overload(asked.blocks, asked.seconds)
        slow = bench.slow_clients(asked.blocks, asked.requests)
        megabytes = {name: round(server.resident() / 2**20) for name, server in servers.items()}
    told = {name: measured.told() for name, measured in bench.found.items()}
    for name, each in told.items():
        print(
            f"{name:<32} {each['rate']:7.1f}/s   p50 {each['p50']:7.1f} ms   p99 {each['p99']:7.1f} ms   {each['statuses']}"
        )
    checked = sum(each["statuses"].get(200, 0) for each in told.values())
    facts = {
        "model": Path(asked.model).name,
        "files": len(questions),
        "answers_checked": checked,
        "megabytes": megabytes,
    }
    print(f"overload {overload}\nslow clients {slow}\n{facts}")
    print(harness.write("serving", {**facts, "situations": told, "overload": overload, "slow": slow}, device="cpu"))


if __name__ == "__main__":
    main()
