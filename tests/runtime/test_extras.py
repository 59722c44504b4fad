"""`vitrail doctor` knows every extra of the package."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from vitrail.runtime.machine import EXTRAS, examine, list_extras

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_every_extra_is_listed_with_what_needs_it():
    assert set(EXTRAS) == set(PROJECT["optional-dependencies"]) - {"all"}
    facts = examine()
    assert all(f"extra {name}" in facts for name in EXTRAS)
    assert facts["torch build"] == "CPU only" or "CUDA" in str(facts["torch build"]) or facts["torch build"] == "ROCm"


def test_an_extra_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    version = metadata.version

    def installed(name: str) -> str:
        if name == "matplotlib":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", installed)
    assert list_extras()["figure"].startswith("pip install 'vitrail[figure]': ")
    assert list_extras()["onnx"].startswith("installed: ")
