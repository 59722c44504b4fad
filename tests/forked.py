"""Copies of the process of the tests, which are spared the imports, to be killed."""

from __future__ import annotations

import os
from collections.abc import Callable


def start_copy(act: Callable[[], object], **environment: str) -> int:
    """Returns the id of a copy of this process that calls ``act``; it ends with 0, or with 99 where that raises."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.environ.update(environment)
            act()
            code = 0
        finally:
            os._exit(code)
    return child


def wait_for_end(child: int) -> int:
    """Returns the exit code of a copy, or the negative number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
