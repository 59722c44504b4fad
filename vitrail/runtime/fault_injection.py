"""Named points at which a test can make the process die or a write fail; without the environment variable, nothing.

``VITRAIL_FAULT="checkpoint.after_state:kill:2"`` acts on the second time that point is passed. Actions: ``kill`` (SIGKILL to
this process), ``term`` and ``int`` (SIGTERM, Ctrl-C), ``enospc`` and ``eio`` (the `OSError` of a full or broken disk).
"""

from __future__ import annotations

import errno
import os
import signal

VARIABLE = "VITRAIL_FAULT"
POINTS = (
    "checkpoint.begin", "checkpoint.after_folder", "checkpoint.after_first_tensors", "checkpoint.after_tensors",
    "checkpoint.after_state", "checkpoint.after_manifest", "checkpoint.before_rename", "checkpoint.after_rename",
    "checkpoint.after_verify", "checkpoint.while_retiring", "checkpoint.end",
    "run.after_metrics", "run.before_model", "run.after_model", "run.before_finished",
)  # fmt: skip
_SIGNALS = {"kill": getattr(signal, "SIGKILL", signal.SIGTERM), "term": signal.SIGTERM, "int": signal.SIGINT}
_passed: dict[str, int] = {}


def hit(point: str) -> None:
    """Performs the action that the environment variable sets for ``point`` and the number of times that it was passed."""
    assert point in POINTS, point
    name, action, count = (*(os.environ.get(VARIABLE) or ":").split(":"), "1")[:3]
    if name != point:
        return
    _passed[point] = _passed.get(point, 0) + 1
    if _passed[point] != int(count):
        return
    if action in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[action])
    else:
        code = {"enospc": errno.ENOSPC, "eio": errno.EIO}[action]
        raise OSError(code, os.strerror(code))
