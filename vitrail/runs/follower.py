"""The run directory as the ranks of a training see it that do not write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.config.schema import Run
from vitrail.errors import ConfigError
from vitrail.runs.folder import RunFolder, State


class FollowerFolder(RunFolder):
    """The folder of a rank other than the first: it is read, and of all that is written there is only the rank's own log."""

    bad_images = None

    def __init__(self, path: Path, rank: int) -> None:
        super().__init__(path)
        self.rank = rank

    def open(self) -> None:
        """Makes sure that the first rank's folder is the one seen here. Raises `ConfigError`."""
        if not self.checkpoints.is_dir():
            what = f"rank {self.rank} does not see the run directory {self.path.resolve()}"
            raise ConfigError(what, "all machines of a training need the same file system there: choose another --out")

    def close(self) -> None: ...

    def remove_if_unused(self) -> None: ...

    def write_config(self, run: Run) -> None: ...

    def write_status(self, state: State, **facts: Any) -> None: ...

    def log(self, line: str) -> None:
        self._append(f"rank-{self.rank}.log", line)

    def start_metrics(self, size: int, *, step: int, tensorboard: bool = False) -> None: ...

    def write_metrics(self, record: Mapping[str, Any]) -> int:
        return 0

    def write_timing(self, record: Mapping[str, Any]) -> None: ...
