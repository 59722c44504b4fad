"""What `pip install` of this project brings: the code, the data files beside it, the version, the licence."""

from __future__ import annotations

import email
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    """The wheel as pip builds it from this tree, with what is installed (no network)."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, ROOT]
    subprocess.run(command, check=True)
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


@pytest.fixture(scope="module")
def metadata(wheel) -> email.message.Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(wheel.read(name))


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    package = {str(file.relative_to(ROOT)) for file in (ROOT / "vitrail").rglob("*") if file.is_file()}
    package = {name for name in package if "__pycache__" not in name}
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == package
    assert "vitrail/py.typed" in packed


def test_the_wheel_states_the_version_the_licence_and_the_needs(wheel, metadata):
    assert metadata["Version"] == PROJECT["version"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert any(name.endswith("/licenses/LICENSE") for name in wheel.namelist())
    core = {need for need in metadata.get_all("Requires-Dist") if "extra ==" not in need}
    assert len(core) == len(PROJECT["dependencies"])
    assert not any(peer in need for need in core for peer in ("torchvision", "timm", "transformers", "opencv"))


def test_the_wheel_brings_the_command(wheel):
    (entry,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "vitrail = vitrail.cli:main" in wheel.read(entry).decode()


def test_the_installed_wheel_runs_away_from_the_tree(wheel, tmp_path):
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        tmp_path / "site",
        wheel.filename,
    ]
    subprocess.run(command, check=True)
    code = "import vitrail.cli, sys; print(vitrail.__file__); sys.exit(vitrail.cli.run(['--help']))"
    said = subprocess.check_output(
        [sys.executable, "-c", code], text=True, cwd=tmp_path, env={"PYTHONPATH": tmp_path / "site"}
    )
    assert said.startswith(str(tmp_path / "site" / "vitrail"))
    assert "train" in said


def test_the_constraints_are_versions_and_nothing_else():
    for name in ("constraints.txt", "constraints-peers.txt"):
        for line in (ROOT / name).read_text().splitlines():
            version = line.partition("==")[2]
            assert line.startswith("#") or (version and not set("+@/: ") & set(version)), f"{name}: {line}"
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().splitlines()
    assert "torch==2.14.1" in (ROOT / "constraints-peers.txt").read_text().splitlines()
