"""The order of files, the table that it is made from, and the summary of what was left out."""

from __future__ import annotations

import json

import pytest

from tests import durations

pytest_plugins = ["pytester"]
TEST = "import pytest\n@pytest.mark.{mark}\ndef test_{name}():\n    pass\n"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Files a, b and c of one test each, of which the table knows b and c, and a file that is gone."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # whatever else is installed is not of this suite
    monkeypatch.setattr(durations, "TABLE", pytester.path / "durations.json")
    files = {"test_b.py": 1e6, "test_c.py": 2e6, "test_gone.py": 7.0}
    functions = {"test_c.py::test_c": 2e6, "test_gone.py::test_gone": 7.0}
    durations.TABLE.write_text(json.dumps({"files": files, "functions": functions}))
    for name, mark in {"a": "quick", "b": "slow", "c": "nightly"}.items():
        (pytester.path / f"test_{name}.py").write_text(TEST.format(mark=mark, name=name))
    pytester.makeini("[pytest]\nmarkers =\n    quick\n    slow\n    nightly\n")
    return pytester


def run(suite: pytest.Pytester, *words: str) -> pytest.RunResult:
    return suite.runpytest_inprocess("-v", "-p", "tests.durations", "-p", "tests.left_out", *words)


def test_files_run_longest_first_and_unknown_ones_before_them(suite):
    run(suite).stdout.fnmatch_lines(["test_a.py*", "test_c.py*", "test_b.py*"])


def test_the_table_is_renewed_for_the_files_that_ran(suite):
    run(suite, "--write-durations", "test_a.py", "test_b.py")
    table = durations.read_table()
    assert table["files"].keys() == {"test_a.py", "test_b.py", "test_c.py"}
    assert table["files"]["test_b.py"] < 1e6
    assert table["functions"] == {"test_c.py::test_c": 2e6}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("-p", "xdist.plugin", "-n", "1")], ids=["one process", "workers"])
def test_the_summary_counts_what_was_left_out_and_names_its_target(suite, workers):
    found = run(suite, "-m", "quick", *workers)
    found.stdout.fnmatch_lines(["left out: 1 nightly (make test-nightly), 1 slow (make test-all)"])
    assert "left out" not in str(run(suite, *workers).stdout)
