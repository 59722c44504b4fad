"""Programs that are run alone: what they see, where they import from, and the limits that they set themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import vitrail
from vitrail.runtime.confined import describe_end, list_import_paths, run_alone

PROGRAM = """
import json, os, sys
sys.path[:] = json.loads(sys.argv[1])
from vitrail.runtime.confined import limit, limit_memory
said = {"environment": sorted(os.environ), "folder": os.getcwd()}
said["modules"] = [name for name in sys.modules if name.startswith("vitrail") or name in ("torch", "numpy")]
limit("RLIMIT_FSIZE", 10)
limit("RLIMIT_FSIZE", 1_000)
limit_memory(50_000_000)
import resource
said["bytes"] = resource.getrlimit(resource.RLIMIT_FSIZE)
for size in (20_000_000, 200_000_000):
    try:
        said[str(size)] = len(bytearray(size))
    except MemoryError:
        said[str(size)] = "too much"
print(json.dumps(said))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_a_program_sees_nothing_of_its_parent_and_keeps_to_the_lowest_limits(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    (tmp_path / "program.py").write_text(PROGRAM)
    program, options = str(tmp_path / "program.py"), json.dumps(list_import_paths())
    ended = run_alone(program, options, folder=tmp_path, seconds=60, stdout=subprocess.PIPE)
    said = json.loads(ended.stdout)
    assert "OMP_NUM_THREADS" in said["environment"] and "HF_TOKEN" not in said["environment"]
    assert Path(said["folder"]) == tmp_path
    assert said["modules"] == ["vitrail", "vitrail.runtime", "vitrail.runtime.confined"]
    assert said["bytes"] == [10, 10]
    assert (said["20000000"], said["200000000"]) == (20_000_000, "too much")


def test_a_program_imports_from_no_working_directory_and_finds_vitrail(monkeypatch):
    monkeypatch.setattr(sys, "path", ["", "here", "/there", "/there"])
    assert list_import_paths() == ["/there", str(Path(vitrail.__file__).resolve().parents[1])]


def test_the_message_says_how_a_process_ended():
    assert (describe_end(-9), describe_end(3)) == ("SIGKILL", "exit code 3")
