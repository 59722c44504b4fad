"""Progress of a task: a bar on a terminal and in a notebook, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib import import_module
from types import TracebackType
from typing import Any, Self

from vitrail.markup import join, tag

LogFunction = Callable[[str], None]
LINE_EVERY = 10.0  # seconds between two plain lines
REDRAWN_EVERY = 0.25  # seconds between two states of a bar


def to_stderr(line: str) -> None:
    """Prints a line on stderr; in a notebook on stdout, because it shows stderr as an error."""
    print(line, file=sys.stdout if in_notebook() else sys.stderr, flush=True)


def log_nothing(line: str) -> None:
    """Prints nothing, for ranks other than the first."""


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this process; its front end can replace what it has shown."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None  # the shell of a terminal has none


class ProgressBar:
    """Progress of ``total`` units, on stderr or in a notebook.

    Of several ``processes`` that share the units one has a bar, and the others are assumed to have done as many.
    """

    def __init__(self, title: str, total: int, *, processes: int = 1, quiet: bool = False) -> None:
        self.title, self.total, self.processes, self.quiet = title, total, processes, quiet
        self._bar: _NotebookBar | _TerminalBar | _PlainLines | None = None

    def __enter__(self) -> Self:
        if not self.quiet:
            # not rich's `Console.is_terminal`: FORCE_COLOR, which kernels and CI hand on, makes it true of a file
            kind = _NotebookBar if in_notebook() else _TerminalBar if sys.stderr.isatty() else _PlainLines
            self._bar = kind(self.title, self.total)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, **figures: Any) -> None:
        """``figures`` are printed as ``name value``; a bar redraws itself, plain lines come every few seconds."""
        if self._bar is not None:
            figures = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in figures.items()}
            text = "  ".join(f"{name} {value}" for name, value in figures.items())
            self._bar.update(min(done * self.processes, self.total), text)

    def log(self, line: str) -> None:
        """One line above the bar."""
        if self._bar is not None:
            self._bar.log(line)


class _TimeLeft:
    """How long ``total`` units still take, by those done since the first call: a run may be resumed."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._began: tuple[int, float] | None = None

    def estimate(self, done: int) -> str:
        """Returns the time left, such as "1 min 15 s left"; nothing before the second unit and after the last."""
        first, began = self._began = self._began or (done, time.monotonic())
        if not first < done < self.total:
            return ""
        return f"{duration((time.monotonic() - began) / (done - first) * (self.total - done))} left"


class _PlainLines:
    """A line every few seconds, for a log."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self._printed = title, total, time.monotonic()
        self._left = _TimeLeft(total)

    def update(self, done: int, text: str) -> None:
        left = self._left.estimate(done)
        if time.monotonic() - self._printed >= LINE_EVERY:
            self._printed = time.monotonic()
            self.log(f"{self.title} {done:,}/{self.total:,}  {text}  {left}".rstrip())

    def log(self, line: str) -> None:
        to_stderr(line)

    def stop(self) -> None: ...


class _TerminalBar:
    """A line of the terminal that rich redraws."""

    def __init__(self, title: str, total: int) -> None:
        # loading rich takes longer than the rest of what a prediction imports
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
        text, console = TextColumn("{task.fields[text]}"), Console(stderr=True)
        rate = 1 / REDRAWN_EVERY
        self._bar = Progress(*columns, text, TimeRemainingColumn(), console=console, refresh_per_second=rate)
        self._task = self._bar.add_task(title, total=total, text="")
        self._bar.start()

    def update(self, done: int, text: str) -> None:
        self._bar.update(self._task, completed=done, text=text)

    def log(self, line: str) -> None:
        self._bar.console.print(line, markup=False)

    def stop(self) -> None:
        self._bar.stop()


class _NotebookBar:
    """One output of the cell, which is replaced; rich would need ipywidgets for that, and a page saved then shows no bar."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total = title, total
        self._state, self._drawn = (0, ""), time.monotonic()
        self._left = _TimeLeft(total)
        display = import_module("IPython.display").display  # a kernel has it
        self._output = display(self._render(), raw=True, display_id=True)

    def update(self, done: int, text: str) -> None:
        self._state = (done, f"{text}  {self._left.estimate(done)}".rstrip())
        if time.monotonic() - self._drawn >= REDRAWN_EVERY:
            self._drawn = time.monotonic()
            self.stop()

    def log(self, line: str) -> None:
        to_stderr(line)

    def stop(self) -> None:
        self._output.update(self._render(), raw=True)

    def _render(self) -> dict[str, str]:
        done, text = self._state
        text = f"{done:,}/{self.total:,}  {text}"
        bar = tag("progress", value=done, max=max(self.total, 1), style="vertical-align:middle")
        return {
            "text/plain": f"{self.title} {text}".rstrip(),
            "text/html": join(self.title, " ", bar, " ", text.rstrip()),
        }


def duration(seconds: float) -> str:
    """``75`` -> ``"1 min 15 s"``."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
