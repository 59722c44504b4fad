"""The benchmark of a GPU, rehearsed on a CPU: it is to work at the first try where one is at hand for minutes."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

pytestmark = pytest.mark.peers


def test_every_part_is_measured(monkeypatch, capsys):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    gpu = import_module("gpu")
    # the least work there is, and time without end
    least = {"products": 64, "models": (("vit-ti16", 1),), "block_seconds": 1e-6, "photographs": 12}
    scale = replace(gpu.SCALES["cpu"], seconds=1e9, trained=("vit-ti16", 2, 6), **least)
    monkeypatch.setitem(gpu.SCALES, "cpu", scale)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu"])
    gpu.main()
    said = capsys.readouterr().out
    assert [line for line in said.splitlines() if line.startswith("## ")] == [
        "## Products",
        "## vit-ti16, training, 1 images",
        "## vit-ti16, inference, 1 images",
        "## vit-ti16, masked autoencoding, 2 images",
        "## vit-ti16 from JPEG files, 2 images",
    ]
    assert all(library in said for library in ("| vitrail |", "| timm |", "| torchvision |"))
    assert "Left out: nothing" in said
