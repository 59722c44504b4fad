"""The benchmark of a GPU, rehearsed on a CPU: it is to work at the first try where one is at hand for minutes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.peers


def test_every_part_is_measured():
    script = Path(__file__).parents[2] / "benchmarks/gpu.py"
    command = [sys.executable, str(script), "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    titles = [line for line in done.stdout.splitlines() if line.startswith("## ")]
    assert titles == [
        "## Products",
        "## vit-ti16, training, 2 images",
        "## vit-ti16, inference, 2 images",
        "## vit-ti16, masked autoencoding, 8 images",
        "## vit-ti16 from JPEG files, 8 images",
    ]
    assert all(library in done.stdout for library in ("| vitrail |", "| timm |", "| torchvision |"))
    assert "no time for" not in done.stdout
