"""TensorBoard, where a run asks for it: the records of ``metrics.jsonl`` as scalars beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.errors import ConfigError


class Board:
    """Writes event files into ``folder``; the viewer is the user's own. Raises `ConfigError` where tensorboardX is missing."""

    def __init__(self, folder: Path, *, start: int) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as missing:
            raise ConfigError("save.tensorboard needs tensorboardX", "pip install 'vitrail[track]'") from missing
        # what a killed run wrote beyond its checkpoint is hidden by the viewer
        self._writer = SummaryWriter(str(folder), purge_step=start)

    def write(self, record: Mapping[str, Any]) -> None:
        """One scalar for every number of a record, at its step."""
        for name, value in record.items():
            if name != "step" and isinstance(value, (int, float)):
                self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        self._writer.close()
