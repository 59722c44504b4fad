"""How long each test file takes: orders files by ``durations.json``, and renews that table (`make durations`).

The table holds seconds of one worker, set-up and tear-down included, of every file and of each function above one second.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

TABLE = Path(__file__).with_name("durations.json")
LISTED = 1.0  # seconds from which a function is listed


class Recorder:
    """Sums the durations of all reports; registered where ``--write-durations`` is given, in the process that reports."""

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.functions: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.files[report.nodeid.split("::")[0]] += report.duration
        self.functions[report.nodeid.split("[")[0]] += report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        table = read_table()
        root = session.config.rootpath
        files = {name: seconds for name, seconds in table["files"].items() if (root / name).exists()} | self.files
        functions = {
            name: seconds for name, seconds in table["functions"].items() if name.split("::")[0] not in self.files
        } | {name: seconds for name, seconds in self.functions.items() if seconds >= LISTED}
        known = {name: seconds for name, seconds in functions.items() if name.split("::")[0] in files}
        TABLE.write_text(json.dumps({"files": descending(files), "functions": descending(known)}, indent=1) + "\n")


def read_table() -> dict[str, dict[str, float]]:
    """Returns ``{"files": {path: seconds}, "functions": {path::name: seconds}}``, both empty without a table."""
    return json.loads(TABLE.read_text()) if TABLE.exists() else {"files": {}, "functions": {}}


def descending(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in sorted(seconds.items(), key=lambda item: -item[1])}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-durations", action="store_true", help=f"renew {TABLE.name} for the files that run")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("write_durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Orders files by their seconds, longest first, so that the run ends with short ones; unknown files come first."""
    seconds = read_table()["files"]
    items.sort(key=lambda item: -seconds.get(item.nodeid.split("::")[0], float("inf")))
