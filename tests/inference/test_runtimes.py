"""``predict --fast``: the fastest runtime is taken if its answers are those of fp32, and PyTorch for little work."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from tests.inference.test_precision import make_model, save_images
from tests.slow import slow_except
from vitrail.errors import ConfigError
from vitrail.inference import runtimes
from vitrail.inference.comparison import Comparison
from vitrail.runtime.timing import Timing
from vitrail.weights import load

IMAGES = 24
FP32, INT8, COMPILED, PYTORCH = "ONNX Runtime fp32", "ONNX Runtime int8", "compiled fp32", "PyTorch fp32"
OPENVINO = ["OpenVINO fp32", "OpenVINO int8"] if find_spec("openvino") and find_spec("nncf") else []

Measured = Callable[..., list[str]]


@lru_cache
def load_once(path: Path) -> Any:
    """The graph of a file, which every test may take: to load one starts two processes that try it out."""
    return load(path, log=lambda line: None)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """A cache in which the graphs are made once, as that takes long."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def measured(monkeypatch, cache) -> Measured:
    """A function that sets the seconds of each runtime, by name; all others need 9. It returns the names that are timed."""
    monkeypatch.setattr(runtimes, "WORTH", 0.0)
    monkeypatch.setattr(runtimes, "load", lambda path, **how: load_once(path))
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setenv("VITRAIL_CACHE", str(cache))

    def set_seconds(**seconds: float) -> list[str]:
        timed: list[str] = []

        def time_in_turns(verbs: Mapping[str, Any], **limits: Any) -> dict[str, Timing]:
            timed.extend(verbs)
            return {name: Timing((seconds.get(name, 9.0),), (0.0,)) for name in verbs}

        monkeypatch.setattr(runtimes, "time_in_turns", time_in_turns)
        return timed

    return set_seconds


def refuse(*given: Any, **how: Any) -> Any:
    raise ConfigError("exporting to ONNX needs onnx and onnxscript", "pip install 'vitrail[onnx]'")


def predict(folder: Path, **how: Any) -> tuple[list[dict[str, Any]], list[str]]:
    images, lines = save_images(folder / "images.npz", IMAGES), list[str]()
    how = {"fast": True, "quiet": True, "log": lines.append, **how}
    rows = vitrail.predict(make_model(), [images], **how).to_rows()
    said = [line.removeprefix("fast     ") for line in lines if line.startswith("fast")]
    return rows, [line for line in said if not line.endswith("require openvino, which is not installed")]


@pytest.mark.slow
@pytest.mark.parametrize("fastest", slow_except([FP32, INT8, *OPENVINO], {FP32, *OPENVINO[1:]}))
def test_the_fastest_runtime_is_taken_and_its_graph_is_kept(measured, fastest, monkeypatch, tmp_path):
    timed = measured(**{fastest: 1.0})
    rows, (line,) = predict(tmp_path)
    assert sorted(timed) == sorted([PYTORCH, COMPILED, FP32, INT8, *OPENVINO])
    assert line.startswith(f"{fastest}; ms of an image: {fastest} 125, PyTorch fp32 1.12e+03, ")
    assert line.partition("; of 24 images ")[2].startswith("100 % of the answers agree")
    vitrail.predict(make_model(), [str(tmp_path / "images.npz")], fast=True, quiet=True, out=tmp_path / "answers.csv")
    agreement = json.loads((tmp_path / "answers.csv.agreement.json").read_text())
    assert agreement["runtime"] == fastest and agreement["agreement"] == 1.0
    exact, lines = predict(tmp_path, fast=False)
    assert not lines
    assert [row["label"] for row in rows] == [row["label"] for row in exact]
    monkeypatch.setattr(runtimes, "to_onnx", pytest.fail)
    monkeypatch.setattr(runtimes, "to_int8", pytest.fail)
    monkeypatch.setattr(runtimes, "to_openvino", pytest.fail)
    assert predict(tmp_path)[0] == rows


@pytest.mark.skipif(not OPENVINO, reason="needs openvino and nncf")
@pytest.mark.parametrize("precision", slow_except(["fp32", "bf16"], {"bf16"}))
def test_the_layers_that_int8_leaves_out_are_computed_in_the_chosen_precision(
    measured, precision, monkeypatch, tmp_path
):
    from vitrail.weights.openvino import OpenVINOSession

    compiled, compile_graph = [], OpenVINOSession.compile
    monkeypatch.setattr(
        OpenVINOSession, "compile", lambda self, given: (compiled.append(given), compile_graph(self, given))
    )
    measured(**{"OpenVINO int8": 1.0})
    monkeypatch.setattr(runtimes, "load", load)
    predict(tmp_path, precision=precision)
    assert compiled == ["fp32", precision] * 2  # as each of both graphs is loaded, and then as it is computed


@pytest.mark.parametrize(("threads", "clock"), [(1, time.process_time), (2, time.perf_counter)])
def test_one_thread_is_timed_by_its_share_of_the_processor(measured, threads, clock, monkeypatch, tmp_path):
    measured()
    given: dict[str, Any] = {}
    stub = runtimes.time_in_turns
    monkeypatch.setattr(runtimes, "time_in_turns", lambda verbs, **how: (given.update(how), stub(verbs, **how))[1])
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    predict(tmp_path)
    assert given["clock"] is clock


def test_a_runtime_with_other_answers_is_not_taken(measured, monkeypatch, tmp_path):
    measured(**{INT8: 1.0, COMPILED: 2.0})
    others = iter([Comparison(24, 0.9, 0.1), Comparison(24, 1.0, 0.01)])
    monkeypatch.setattr(runtimes, "compare_outputs", lambda *given: next(others))
    _, lines = predict(tmp_path)
    refused = "ONNX Runtime int8 is not taken: of 24 images 90 % of the answers agree, largest difference 10 %"
    assert lines[0] == refused and lines[1].startswith("compiled fp32; ms of an image")


def test_pytorch_is_taken_where_others_save_less_than_three_percent(measured, tmp_path):
    measured(**{FP32: 8.8})
    _, (line,) = predict(tmp_path)
    assert line.startswith("PyTorch; ms of an image: ONNX Runtime fp32 1.1e+03")


@pytest.mark.parametrize("difference", [0.1, float("nan")])
def test_only_int8_may_have_outputs_that_differ_much(measured, difference, monkeypatch, tmp_path):
    monkeypatch.setattr(runtimes, "compare_outputs", lambda *given: Comparison(24, 1.0, difference))
    measured(**{FP32: 1.0, INT8: 2.0})
    _, lines = predict(tmp_path)
    taken = INT8 if difference == 0.1 else "PyTorch"
    assert lines[0].startswith(f"{FP32} is not taken") and lines[-1].startswith(f"{taken}; ms of an image")


def test_what_cannot_be_made_is_left_out_with_its_reason(measured, monkeypatch, tmp_path):
    def fail(function: Any) -> Any:
        raise RuntimeError("no C++ compiler\nat line 1")

    timed = measured()
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(runtimes, "to_onnx", refuse)
    monkeypatch.setattr(torch, "compile", fail)
    rows, lines = predict(tmp_path)
    reasons = {COMPILED: "RuntimeError: no C++ compiler"}
    reasons |= dict.fromkeys(
        [FP32, INT8, "OpenVINO fp32", "OpenVINO int8"], "exporting to ONNX needs onnx and onnxscript"
    )
    assert lines[:-1] == [f"{name} is left out: {reason}" for name, reason in reasons.items()]
    assert timed == [PYTORCH] and len(rows) == IMAGES
    assert not list((tmp_path / "cache" / "graphs").glob("*"))


def test_little_work_stays_in_pytorch(measured, monkeypatch, tmp_path):
    timed = measured()
    monkeypatch.setattr(runtimes, "WORTH", 600.0)
    _, (line,) = predict(tmp_path)
    assert line.startswith("PyTorch: the images need ") and line.endswith(
        ", and other runtimes are tried from 10 min 0 s"
    )
    _, lines = predict(tmp_path, tune=False)
    assert not lines and not timed


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_network_gives_the_same_answers(monkeypatch, tmp_path):
    monkeypatch.setattr(runtimes, "WORTH", 0.0)
    monkeypatch.setattr(runtimes, "_export", lambda *given, **how: runtimes.Runtime(refuse, given[1]))
    measured_seconds = {PYTORCH: 2.0, COMPILED: 1.0}
    monkeypatch.setattr(
        runtimes,
        "time_in_turns",
        lambda verbs, **limits: {name: Timing((measured_seconds[name],), (0.0,)) for name in verbs},
    )
    rows, lines = predict(tmp_path)
    assert lines[-1].startswith("compiled fp32; ms of an image")
    exact, _ = predict(tmp_path, fast=False)
    assert [row["label"] for row in rows] == [row["label"] for row in exact]
