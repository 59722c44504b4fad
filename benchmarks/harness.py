"""Timing that can be believed on a shared machine: contenders take turns in one process, and a record says all of it.

A block times every contender once, one after the other, so what disturbs one disturbs its neighbours as well; every
second block goes backwards. A figure is the median over blocks, its spread half the range of the middle half. Two
contenders are compared by the median of their ratios within a block. No time is ever asserted.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

RECORDS = Path(__file__).parent / "records"

Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What one contender did: images per second in every block."""

    rates: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    @property
    def spread(self) -> float:
        low, _, high = statistics.quantiles(self.rates, n=4)
        return (high - low) / 2

    def times(self, other: Timing) -> float:
        """How many times faster than ``other``, block by block."""
        return statistics.median(own / its for own, its in zip(self.rates, other.rates, strict=True))


def settle(device: str) -> None:
    """Waits for what the device still has to do."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def clock_of(device: str) -> Clock:
    """The wall's clock; for one thread of a CPU the time it was given there, which a busy neighbour takes little of."""
    return time.thread_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter


def seconds_for(step: Callable[[], object], repeats: int, device: str, clock: Clock | None = None) -> float:
    clock = clock or clock_of(device)
    settle(device)
    started = clock()
    for _ in range(repeats):
        step()
    settle(device)
    return clock() - started


def take_turns(
    contenders: Mapping[str, Callable[[], object]],
    *,
    images: int,
    device: str = "cpu",
    blocks: int = 7,
    block_seconds: float = 2.0,
    clock: Clock | None = None,
) -> dict[str, Timing]:
    """The rate of each contender, whose step works on ``images`` images; at least five blocks after a warm-up.

    ``clock`` is by default that of `clock_of`; ``time.process_time`` counts all threads of the process.
    """
    assert blocks >= 5, "a median of fewer blocks says little"
    repeats = {}
    for name, step in contenders.items():
        seconds_for(step, 3, device, clock)  # compiles, allocates, plans
        repeats[name] = max(1, round(block_seconds / seconds_for(step, 1, device, clock)))
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for block in range(blocks):
        for name in list(contenders)[:: -1 if block % 2 else 1]:
            seconds = seconds_for(contenders[name], repeats[name], device, clock)
            rates[name].append(repeats[name] * images / seconds)
    return {name: Timing(rates=tuple(each)) for name, each in rates.items()}


def machine(device: str, clock: Clock | None = None) -> dict[str, object]:
    """The words that a figure is worth nothing without."""
    information = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", information.read_text()) if information.exists() else None
    return {
        "processor": found[1] if found else platform.processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "amx": bool(torch.cpu.get_capabilities().get("amx_tile")),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "clock": (clock or clock_of(device)).__name__,
        "gpu": torch.cuda.get_device_name() if device.startswith("cuda") else None,
        "load_average": [round(each, 2) for each in os.getloadavg()],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def commit() -> str:
    """The commit that was measured, with ``+`` where the tree differs from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=RECORDS.parent, capture_output=True, text=True).stdout.strip()

    return (git("rev-parse", "--short", "HEAD") or "no commit") + ("+" if git("status", "--porcelain") else "")


def claim(name: str, timings: Mapping[str, Timing], where: Mapping[str, object], revision: str) -> str:
    """The whole claim, fastest first; each line is compared with the fastest that is neither ours nor a bound."""
    peers = {each: timing for each, timing in timings.items() if not each.startswith(("vitrail", "bound"))}
    best = max(peers or timings, key=lambda each: timings[each].median)
    device = where["gpu"] or f"{where['processor']}, {where['cores']} cores"
    stack = f"torch {where['torch']}, threads {where['threads']} by {where['clock']}, load {where['load_average']}"
    lines = [f"{name}  ·  {device}  ·  {stack}  ·  {revision}"]
    for each, timing in sorted(timings.items(), key=lambda item: -item[1].median):
        lines.append(
            f"  {each:<42} {timing.median:9.1f} ± {timing.spread:.1f} images/s   n={len(timing.rates)}"
            f"   {timing.times(timings[best]):.2f} x {best}"
        )
    return "\n".join(lines)


def report(
    name: str,
    timings: Mapping[str, Timing],
    *,
    device: str,
    notes: Mapping[str, object],
    records: Path = RECORDS,
    clock: Clock | None = None,
) -> Path:
    """Prints the claim and writes its record."""
    print(claim(name, timings, machine(device, clock), commit()), flush=True)
    rates = {
        each: {"median": timing.median, "spread": timing.spread, **asdict(timing)} for each, timing in timings.items()
    }
    return write(name, {**notes, "images_per_second": rates}, device=device, records=records, clock=clock)


def write(
    name: str, facts: Mapping[str, object], *, device: str, records: Path = RECORDS, clock: Clock | None = None
) -> Path:
    """The record ``<date>-<name>.json``: what was found, where and on which commit."""
    today = datetime.date.today().isoformat()
    record = {"name": name, "date": today, "commit": commit(), "machine": machine(device, clock), **facts}
    records.mkdir(exist_ok=True)
    path = records / f"{today}-{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path
