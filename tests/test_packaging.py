"""What `pip install` of this project brings: the code, the data files beside it, the version, the licence."""

from __future__ import annotations

import email
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.slow
def test_pip_installs_every_file_the_metadata_and_a_command_that_runs(tmp_path):
    """Built from this tree with what is installed (no network), and run away from the tree."""
    site = tmp_path / "site"
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-compile", "--target", site]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, ROOT], check=True)
    packed = {str(file.relative_to(site)) for file in (site / "vitrail").rglob("*") if file.is_file()}
    package = {str(file.relative_to(ROOT)) for file in (ROOT / "vitrail").rglob("*") if file.is_file()}
    assert packed == {name for name in package if "__pycache__" not in name}
    assert "vitrail/py.typed" in packed
    (told,) = site.glob("*.dist-info")
    assert {each.name for each in site.iterdir()} == {"vitrail", "bin", told.name}
    metadata = email.message_from_bytes((told / "METADATA").read_bytes())
    assert metadata["Version"] == PROJECT["version"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert (told / "licenses/LICENSE").is_file()
    core = {need for need in metadata.get_all("Requires-Dist") if "extra ==" not in need}
    assert len(core) == len(PROJECT["dependencies"])
    assert not any(peer in need for need in core for peer in ("torchvision", "timm", "transformers", "opencv"))
    run = "import runpy, sys, vitrail; print(vitrail.__file__); del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", run, site / "bin/vitrail", "--help"]
    said = subprocess.check_output(command, text=True, cwd=tmp_path, env={"PYTHONPATH": site})
    assert said.startswith(str(site / "vitrail"))
    assert "train" in said


def test_the_constraints_are_versions_and_nothing_else():
    for name in ("constraints.txt", "constraints-peers.txt"):
        for line in (ROOT / name).read_text().splitlines():
            version = line.partition("==")[2]
            assert line.startswith("#") or (version and not set("+@/: ") & set(version)), f"{name}: {line}"
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().splitlines()
    assert "torch==2.14.1" in (ROOT / "constraints-peers.txt").read_text().splitlines()
