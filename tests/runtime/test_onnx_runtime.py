"""onnxruntime is imported without its telemetry."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import vitrail

IMPORT = "from vitrail.runtime.onnx_runtime import import_onnxruntime; import_onnxruntime()"


def test_importing_it_writes_nothing_below_the_home_folder(tmp_path):
    places = {name: str(tmp_path) for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    subprocess.run([sys.executable, "-c", IMPORT], env={**environment, **places}, check=True)
    assert list(tmp_path.rglob("*")) == []


def test_it_is_imported_in_one_place():
    package = Path(vitrail.__file__).parent
    found = [path for path in package.rglob("*.py") if re.search(r"^\s*import onnxruntime", path.read_text(), re.M)]
    assert found == [package / "runtime" / "onnx_runtime.py"]
