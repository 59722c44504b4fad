"""The import of openvino and nncf with their telemetry off, and a repair of what compiling does to signals.

Both use the package openvino_telemetry if it can be imported: nncf sends events and writes an id below the home folder unless
the user has declined, and openvino sends an event when it is imported if the user has agreed. Both work without the package.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vitrail.errors import ConfigError

INSTALL = "pip install 'vitrail[openvino]'"
_SIGNAL_STACK_BYTES = 24  # of Linux's stack_t, on processors of 64 bits


def import_openvino(package: str = "openvino") -> Any:
    """Imports ``openvino`` or ``nncf`` without telemetry. Raises `ConfigError` if it is not installed."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        return importlib.import_module(package)
    except ImportError as missing:
        raise ConfigError(f"OpenVINO files require {package}, which is not installed", INSTALL) from missing


@contextmanager
def keep_signal_stack() -> Iterator[None]:
    """Restores the alternate signal stack of the calling thread after the context, in which OpenVINO compiles a graph.

    On Linux OpenVINO's CPU plugin sets a stack of its own, and when it ends, the one from before. That may be the stack of
    another plugin that has ended: then the next signal that Python handles, such as Ctrl-C, ends the process with SIGSEGV.
    """
    if sys.platform != "linux":
        yield
        return
    before = read_signal_stack()
    try:
        yield
    finally:
        ctypes.CDLL(None).sigaltstack(before, None)


def read_signal_stack() -> ctypes.Array[ctypes.c_char]:
    """Returns the ``stack_t`` of the calling thread. Linux only."""
    stack = ctypes.create_string_buffer(_SIGNAL_STACK_BYTES)
    ctypes.CDLL(None).sigaltstack(None, stack)
    return stack
