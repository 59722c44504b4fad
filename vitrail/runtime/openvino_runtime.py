"""The import of openvino and nncf, with their telemetry off.

Both use the package openvino_telemetry if it can be imported: nncf sends events and writes an id below the home folder unless
the user has declined, and openvino sends an event when it is imported if the user has agreed. Both work without the package.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from vitrail.errors import ConfigError

INSTALL = "pip install 'vitrail[openvino]'"


def import_openvino(package: str = "openvino") -> Any:
    """Imports ``openvino`` or ``nncf`` without telemetry. Raises `ConfigError` if it is not installed."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        return importlib.import_module(package)
    except ImportError as missing:
        raise ConfigError(f"OpenVINO files require {package}, which is not installed", INSTALL) from missing
