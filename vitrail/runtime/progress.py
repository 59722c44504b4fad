"""What a person sees while something runs: a bar on a terminal, a plain line every few seconds anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

Say = Callable[[str], None]
LINE_EVERY = 10.0  # seconds between two plain lines


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class ProgressBar:
    """Progress of ``total`` units on stderr. ``update`` takes the count done and the words to print beside it."""

    def __init__(self, title: str, total: int, *, quiet: bool = False) -> None:
        self.title, self.total, self.quiet = title, total, quiet
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._printed = time.monotonic()

    def __enter__(self) -> ProgressBar:
        if self._console.is_terminal and not self.quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
            words = TextColumn("{task.fields[words]}")
            self._bar = Progress(*columns, words, TimeRemainingColumn(), console=self._console, refresh_per_second=4)
            self._task = self._bar.add_task(self.title, total=self.total, words="")
            self._bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, **figures: Any) -> None:
        """``figures`` are printed as ``name value``; the bar redraws itself, plain lines come every few seconds."""
        if self.quiet:
            return
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, words=_format_figures(figures))
        elif time.monotonic() - self._printed >= LINE_EVERY:
            self._printed = time.monotonic()
            self.say(f"{self.title} {done}/{self.total}  {_format_figures(figures)}")

    def say(self, line: str) -> None:
        """One line above the bar."""
        if not self.quiet:
            print(line, file=sys.stderr, flush=True) if self._bar is None else self._bar.console.print(
                line, markup=False
            )


def _format_figures(figures: dict[str, Any]) -> str:
    return "  ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in figures.items()
    )


def duration(seconds: float) -> str:
    """``75`` -> ``"1 min 15 s"``."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
