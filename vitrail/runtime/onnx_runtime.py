"""The one import of onnxruntime, with its telemetry off.

onnxruntime 1.31 writes a device id and a database of events below the home folder and asks for a telemetry host as soon as it is
imported. Only the environment variable, set before the import, prevents this: `disable_telemetry_events` comes too late.
"""

from __future__ import annotations

import os
from types import ModuleType


def import_onnxruntime() -> ModuleType:
    """Imports onnxruntime without telemetry. Raises `ImportError` if it is not installed."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    return onnxruntime
