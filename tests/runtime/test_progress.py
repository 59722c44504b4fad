"""Progress is one bar where it can be redrawn, and a few lines where it cannot."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vitrail.runtime import progress
from vitrail.runtime.progress import ProgressBar, to_stderr


class Notebook:
    """What IPython offers in a kernel: outputs that can be replaced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kernel: object = object()) -> None:
        self.outputs: list[dict[str, str]] = []
        self.updates = 0
        ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
        ipython.get_ipython = lambda: SimpleNamespace(kernel=kernel)  # type: ignore[attr-defined]
        display.display = self.display  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def display(self, bundle: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        place = len(self.outputs)
        self.outputs.append(bundle)

        def update(bundle: dict[str, str], *, raw: bool) -> None:
            self.updates += 1
            self.outputs[place] = bundle

        return SimpleNamespace(update=update)


def test_in_a_notebook_a_thousand_steps_are_one_output_that_ends_complete(monkeypatch, capsys):
    notebook, now = Notebook(monkeypatch), [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with ProgressBar("training", 1000) as bar:
        for step in range(1, 1001):
            now[0] += 1 / 1024
            bar.update(step, loss=2.0, name="<b>")
        bar.log("epoch 1")
    (output,) = notebook.outputs
    assert output["text/plain"] == "training 1,000/1,000  loss 2  name <b>"
    assert '<progress value="1000" max="1000"' in output["text/html"]
    assert "<b>" not in output["text/html"]
    assert notebook.updates < 20
    to_stderr("a line")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("epoch 1\na line\n", "")  # a notebook shows stderr as an error


def test_the_time_that_is_left_counts_from_where_a_run_was_resumed(monkeypatch):
    notebook, now = Notebook(monkeypatch), [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with ProgressBar("training", 100) as bar:
        for done in (90, 92):
            bar.update(done)
            now[0] += 4.0
        assert notebook.outputs[0]["text/plain"] == "training 92/100    16 s left"


def test_a_terminal_of_ipython_and_a_log_get_lines_on_stderr_every_few_seconds(monkeypatch, capsys):
    notebook, now = Notebook(monkeypatch, kernel=None), [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with ProgressBar("predicting", 1000) as bar:
        for done in range(1, 1001):
            now[0] += 1 / 32
            bar.update(done, loss=2.0)
    said = capsys.readouterr()
    assert (notebook.outputs, said.out) == ([], "")
    assert said.err == (
        "predicting 320/1,000  loss 2  21 s left\npredicting 640/1,000  loss 2  11 s left\n"
        "predicting 960/1,000  loss 2  1.2 s left\n"
    )


def test_force_color_does_not_enable_the_bar_in_a_log(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(progress, "LINE_EVERY", 0.0)
    with ProgressBar("training", 2) as bar:
        bar.update(1, loss=0.5)
        bar.update(2, loss=0.25)
    assert capsys.readouterr().err == "training 1/2  loss 0.5\ntraining 2/2  loss 0.25\n"


def test_quiet_shows_nothing_anywhere(monkeypatch, capsys):
    notebook = Notebook(monkeypatch)
    with ProgressBar("training", 10, quiet=True) as bar:
        bar.update(10)
        bar.log("epoch 1")
    assert not notebook.outputs
    assert capsys.readouterr() == ("", "")
