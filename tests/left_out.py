"""The last line of a run: how many tests were left out because of their marks, and the target that runs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

# a test with several marks counts for the first of them
TARGETS = {
    "nightly": "test-nightly",
    "site": "site",
    "dist": "test-dist",
    "peers": "test-peers",
    "gpu": "test-gpu",
    "slow": "test-all",
}
LEFT_OUT = pytest.StashKey[Counter[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = Counter()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    marks = (next((mark for mark in TARGETS if item.get_closest_marker(mark)), None) for item in items)
    for mark in filter(None, marks):
        items[0].config.stash[LEFT_OUT][mark] += 1


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hands the counts of a worker of pytest-xdist to the process that started it."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(session.config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # every worker collects all tests, so the counts of any one are those of the run
    node.config.stash[LEFT_OUT] = Counter(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts = config.stash[LEFT_OUT]
    if told := ", ".join(
        f"{counts[mark]:,} {mark} (make {target})" for mark, target in TARGETS.items() if counts[mark]
    ):
        terminalreporter.write_line(f"left out: {told}")
