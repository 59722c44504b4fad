"""A server as a process of its own: started on a free port, asked for its memory, told to end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

LISTENING = re.compile(r"http://127\.0\.0\.1:(\d+)")
PAGE = os.sysconf("SC_PAGE_SIZE")
START = 300.0  # seconds that a start may take on a busy machine
# for tests of what is answered, not of when: nothing is measured, and no request is late
PATIENT = ("--no-tune", "--deadline", "600")


class Process:
    """``python *words`` with one thread, known by the line of its stderr that names its address; ends with the block.

    Args:
        log: the file that its stderr goes to.
        core: the one core that it may use, else any.
        folder: where it starts, whose modules come first; else the current folder.
    """

    def __init__(self, words: Sequence[str], log: Path, *, core: int | None = None, folder: Path | None = None) -> None:
        self.log = log
        before = os.sched_getaffinity(0)
        if core is not None:
            os.sched_setaffinity(0, {core})  # what is started inherits it
        try:
            with log.open("wb") as stderr:
                self.child = subprocess.Popen(
                    [sys.executable, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    cwd=folder,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
        finally:
            os.sched_setaffinity(0, before)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()

    @property
    def stderr(self) -> str:
        return self.log.read_text(errors="replace")

    def address(self) -> tuple[str, int]:
        """Waits for the line that names it. Raises `RuntimeError` with what was said where none came."""
        limit = time.monotonic() + START
        while time.monotonic() < limit and self.child.poll() is None:
            if found := LISTENING.search(self.stderr):
                return "127.0.0.1", int(found[1])
            time.sleep(0.02)
        raise RuntimeError(f"the server did not start: {self.stderr}")

    def end(self, *, within: float = 120.0) -> int:
        """The exit code after SIGTERM. Raises `subprocess.TimeoutExpired` where it takes longer."""
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(within)

    def resident(self) -> int:
        """Bytes of memory that it holds, with the processes that it started."""
        return sum(int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in family(self.child.pid)) * PAGE

    def sockets(self) -> int:
        """How many it holds open."""
        count = 0
        for each in Path(f"/proc/{self.child.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                count += os.readlink(each).startswith("socket:")
        return count


def serve(model: Path | str, log: Path, *words: str, core: int | None = None, folder: Path | None = None) -> Process:
    """``vitrail serve`` of one model on a free port."""
    return Process(["-m", "vitrail", "serve", str(model), "--port", "0", *words], log, core=core, folder=folder)


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children = [
        int(child) for tasks in Path(f"/proc/{pid}/task").glob("*/children") for child in tasks.read_text().split()
    ]
    return [pid, *(each for child in children for each in family(child))]
