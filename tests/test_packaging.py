"""What `pip install` of this project brings: the code, the data files beside it, the version, the licence; alone, with each
extra, and with the lowest versions. `make test-dist` builds the archives and runs the tests that install them."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
OUTSIDE = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VITRAIL"))}


CORE = """
import vitrail
changes = "model.changes={patch_size: 4, width: 16, depth: 1, heads: 2, mlp_width: 32}"
settings = ["model.name=vit-ti16", changes, "compute.tune=false", "data.batch=16"]
run = vitrail.train("digits", steps=3, settings=settings, out="run", quiet=True)
evaluated = vitrail.evaluate("run", "digits", batch=256, quiet=True)
model = run.load()
model.save("model")
assert 0 <= evaluated.figures["top1"] <= 1
from PIL import Image
Image.new("RGB", (8, 8), "red").save("red.png")
assert model.predict("red.png")[0].label in model.classes
"""
USES = {  # what an extra is for, in the folder that `CORE` filled
    "data": """
import pyarrow.parquet, vitrail
vitrail.predict("model", "red.png", out="answers.parquet", quiet=True)
assert pyarrow.parquet.read_table("answers.parquet").num_rows == 1
""",
    "figure": """
import vitrail
vitrail.visualize_attention(vitrail.load("model"), "red.png", layer_idx=0, head_idx=0)
""",
    "onnx": """
import vitrail
vitrail.export("model", "model.onnx", images=2)
assert len(list(vitrail.predict("model.onnx", "red.png", quiet=True))) == 1
""",
    "openvino": """
import vitrail
vitrail.export("model", "model.xml", "openvino", images=2)
assert len(list(vitrail.predict("model.xml", "red.png", quiet=True))) == 1
""",
    "ray": "import ray.data",
    "remote": """
import fsspec
assert fsspec.get_filesystem_class("s3").__name__ == "S3FileSystem"
""",
    "serve": """
from vitrail.serving.app import create_app
from vitrail.serving.limits import ServerLimits
from vitrail.serving.loaded_model import LoadedModel
from vitrail.serving.service import Service
import vitrail
service = Service(lambda: LoadedModel(vitrail.load("model"), "tiny"), ServerLimits())
create_app(service)
service.close()
""",
    "tiff": """
import numpy as np, tifffile, vitrail
tifffile.imwrite("deep.tif", np.full((8, 8, 3), 40_000, np.uint16), photometric="rgb", compression="zstd")
assert vitrail.load("model").predict("deep.tif")[0].label
""",
    "track": """
import vitrail
settings = ["compute.tune=false", "track.to=[tensorboard]"]
vitrail.train("digits", init="model", steps=1, settings=settings, out="tracked", quiet=True)
""",
}


INCLUDES = {"openvino": "onnx", "ray": "data"}


def test_the_uses_are_those_of_all_extras():
    assert {*USES, "all"} == set(PROJECT["optional-dependencies"])


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The wheel that `make dist` built from the source archive."""
    (found,) = (ROOT / "dist").glob("*.whl")
    return found


def install(place: Path, *needs: object, upon: Sequence[Path] = ()) -> Path:
    """Makes an empty environment, which sees the packages of those that it stands ``upon``; returns its Python."""
    venv.create(place, symlinks=True)
    (packages,) = place.glob("lib/python*/site-packages")
    below = [path for python in upon for path in python.parent.parent.glob("lib/python*/site-packages")]
    (packages / "upon.pth").write_text("".join(f"{path}\n" for path in below))
    python = place / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, *map(str, needs)], check=True)
    return python


def use(python: Path, program: str, folder: Path) -> None:
    done = subprocess.run([python, "-c", program], cwd=folder, env=OUTSIDE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The Python of an environment with the wheel and what it needs, and a folder in which `CORE` ran."""
    folder = tmp_path_factory.mktemp("core")
    python = install(folder / "venv", wheel, "--constraint", ROOT / "constraints.txt")
    use(python, CORE, folder)
    return python, folder


@pytest.fixture(scope="module")
def environment(
    wheel: Path, core: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The Python of an environment with one extra, which stands upon those of the core and of an extra that it includes."""

    @cache
    def make(extra: str) -> Path:
        upon = [core[0], *([make(INCLUDES[extra])] if extra in INCLUDES else [])]
        needs = (f"{wheel}[{extra}]", "--constraint", ROOT / "constraints.txt")
        return install(tmp_path_factory.mktemp(extra) / "venv", *needs, upon=upon)

    return make


@pytest.mark.dist
def test_the_archives_have_every_file_the_metadata_and_a_command(wheel, core):
    python, folder = core
    with zipfile.ZipFile(wheel) as packed:
        names, metadata = set(packed.namelist()), packed.read(f"vitrail-{VERSION}.dist-info/METADATA")
    package = {str(file.relative_to(ROOT)) for file in (ROOT / "vitrail").rglob("*") if file.is_file()}
    own = {name for name in names if ".dist-info/" not in name}
    assert own == {name for name in package if "__pycache__" not in name}
    assert "vitrail/py.typed" in own
    assert f"vitrail-{VERSION}.dist-info/licenses/LICENSE" in names
    described = email.message_from_bytes(metadata)
    assert (described["Version"], described["License-Expression"]) == (VERSION, "Apache-2.0")
    needs = {need for need in described.get_all("Requires-Dist") if "extra ==" not in need}
    assert len(needs) == len(PROJECT["dependencies"])
    assert not any(peer in need for need in needs for peer in ("torchvision", "timm", "transformers", "opencv"))
    with tarfile.open(ROOT / f"dist/vitrail-{VERSION}.tar.gz") as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    assert {*own, "README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "tests/conftest.py"} <= sources
    said = subprocess.check_output([python.parent / "vitrail", "--version"], text=True, cwd=folder, env=OUTSIDE)
    assert said.strip() == VERSION
    state = subprocess.check_output([python.parent / "vitrail", "doctor", "--json"], text=True, cwd=folder, env=OUTSIDE)
    extras = {key: value for key, value in json.loads(state.splitlines()[-1]).items() if key.startswith("extra ")}
    assert extras
    assert not [key for key, value in extras.items() if value.startswith("installed")]


@pytest.mark.dist
@pytest.mark.parametrize("extra", USES)
def test_an_extra_brings_what_its_use_needs(extra, core, environment, tmp_path):
    shutil.copytree(core[1], tmp_path / "work", ignore=shutil.ignore_patterns("venv"))
    use(environment(extra), USES[extra], tmp_path / "work")


@pytest.mark.dist
def test_everything_works_with_the_lowest_versions(wheel, tmp_path):
    python = install(tmp_path / "venv", f"{wheel}[all]", "--constraint", ROOT / "constraints-lowest.txt")
    for program in (CORE, *(program for extra, program in USES.items() if extra != "ray")):
        use(python, program, tmp_path)


def test_the_lowest_versions_are_those_of_the_requirements():
    lowest = dict(line.split("==") for line in read_lines("constraints-lowest.txt") if "==" in line)
    for need in (*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())):
        name, floor = re.match(r"([\w.-]+)(?:\[\w+\])?(?:>=([\w.]+))?", need).groups()
        if floor is not None:
            assert lowest[name.lower()].startswith(floor), need


def test_the_constraints_are_versions_and_nothing_else():
    for name in ("constraints.txt", "constraints-lowest.txt", "constraints-peers.txt"):
        for line in read_lines(name):
            version = line.partition("==")[2]
            assert line.startswith("#") or (version and not set("+@/: ") & set(version)), f"{name}: {line}"
    assert "torch==2.13.0" in read_lines("constraints.txt")
    assert "torch==2.14.1" in read_lines("constraints-peers.txt")


def read_lines(name: str) -> list[str]:
    return (ROOT / name).read_text().splitlines()
