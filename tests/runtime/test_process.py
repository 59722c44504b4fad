"""The process is the user's: a library call leaves threads, malloc and generators as they were; the command line sets them."""

from __future__ import annotations

import ast
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from tests.each_row import each_row
from tests.looked_at import picture
from tests.models.tiny import SHALLOW
from tests.slow import slow_except
from vitrail.errors import VitrailError
from vitrail.runs.folder import RunFolder
from vitrail.runtime.process import (
    BUS_ERROR,
    cores,
    explain_bus_errors,
    keep_generators,
    keep_large_buffers,
    use_all_cores,
    use_one_arena,
    use_threads,
)
from vitrail.tasks.classification.classifier import Classifier, create_classifier
from vitrail.training.dry_run import dry_run
from vitrail.weights.native import save_model

PACKAGE = Path(vitrail.__file__).parent
THREADS = 3  # of the user; no verb would choose as many by itself
SETTINGS = (
    "model.name=vit-ti16",
    "model.changes={width: 16, depth: 2, heads: 2, mlp_width: 32, patch_size: [8, 8]}",
    "data.workers=0",
)


def silent(line: str) -> None: ...


def make_model() -> Classifier:
    return create_classifier(SHALLOW["vit"], classes=["0", "1"])


def images(count: int = 16) -> dict[str, np.ndarray]:
    targets = np.arange(count) % 2
    pixels = np.random.default_rng(0).integers(0, 100, (count, 32, 32, 3)) + 100 * targets[:, None, None, None]
    return {"images": pixels.astype(np.uint8), "labels": targets}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    np.savez(path := tmp_path_factory.mktemp("data") / "pixels.npz", **images())
    picture(32, 32).save(path.with_suffix(".png"))
    return str(path)


@pytest.fixture
def user_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


def train(data: str, out: Path, *, threads: int = 1) -> Any:
    settings = (*SETTINGS, f"compute.threads={threads}")
    return vitrail.train(data, out=out / "run", steps=1, batch=4, settings=settings, quiet=True)


def pretrain(data: str, out: Path) -> Any:
    settings = (*SETTINGS, "compute.threads=1")
    return vitrail.pretrain(data, objective="mae", out=out / "run", steps=1, batch=4, settings=settings, quiet=True)


def transfer(data: str, out: Path) -> Any:
    tuning = {"steps": 1, "set": ("data.batch=4", "compute.threads=1")}
    protocols = {"protocols": ["knn", "finetune"], "k": 3}
    save_model(out / "model", make_model())
    return vitrail.transfer(out / "model", [data], out=out / "table", **protocols, **tuning, **QUIET)


def predict(data: str, out: Path) -> Any:
    return list(vitrail.predict(make_model(), [str(Path(data).with_suffix(".png"))], **QUIET))


QUIET = {"quiet": True, "log": silent}
VERBS: dict[str, Callable[[str, Path], Any]] = {
    "train": train,
    "pretrain": pretrain,
    "evaluate": lambda data, out: vitrail.evaluate(make_model(), data, **QUIET),
    "predict": predict,
    "probe": lambda data, out: vitrail.probe(make_model(), data, protocol="knn", k=3, cache=False, **QUIET),
    "transfer": transfer,
    "export": lambda data, out: vitrail.export(make_model(), out=out / "a.onnx", **QUIET),
    "inspect": lambda data, out: vitrail.inspect(make_model(), out=out / "page", data=data, **QUIET),
    "inspect --cost": lambda data, out: vitrail.inspect(make_model(), out=out / "page", cost=True, **QUIET),
}


@pytest.mark.parametrize("verb", slow_except(VERBS, {"train", "evaluate", "predict", "inspect"}))
def test_a_verb_leaves_threads_malloc_and_generators_as_they_were(verb, data, tmp_path, user_threads, monkeypatch):
    opened: list[str | None] = []
    load = ctypes.CDLL

    def record(name: str | None, *arguments: Any, **options: Any) -> ctypes.CDLL:
        opened.append(name)
        return load(name, *arguments, **options)

    monkeypatch.setattr("vitrail.verbs.export.parity.SECONDS", 0.01)
    if "cost" in verb:
        monkeypatch.setattr("vitrail.verbs.inspect.measurements.measure_cost", lambda *_: [])
    monkeypatch.setattr(ctypes, "CDLL", record)
    VERBS[verb](data, tmp_path)
    assert torch.get_num_threads() == THREADS
    assert None not in opened  # the process itself, where mallopt is


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_fails_leaves_them_too(verb, tmp_path, user_threads, monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("vitrail.verbs.inspect.measurements.measure_cost", fail)
    monkeypatch.setattr("vitrail.verbs.export.files.to_onnx", fail)
    nowhere = str(tmp_path / "nowhere")
    if verb == "transfer":  # it names the data set that failed, and goes on
        assert transfer(nowhere, tmp_path).code
    else:
        with pytest.raises((VitrailError, MemoryError)):
            VERBS[verb](nowhere, tmp_path)
    assert torch.get_num_threads() == THREADS


@pytest.mark.slow
def test_a_run_computes_with_its_own_threads_and_gives_them_back_after_an_error(
    data, tmp_path, user_threads, monkeypatch
):
    seen = []

    def fail(*_: Any) -> None:
        seen.append(torch.get_num_threads())
        raise MemoryError

    monkeypatch.setattr("vitrail.training.train.fit", fail)
    with pytest.raises(MemoryError):
        train(data, tmp_path, threads=2)
    assert (*seen, torch.get_num_threads()) == (2, THREADS)


@pytest.mark.slow
def test_a_run_and_its_plan_leave_the_generator_as_it_was(data, tmp_path, user_threads):
    state, lines = torch.get_rng_state(), []
    run = train(data, tmp_path).folder
    assert torch.equal(torch.get_rng_state(), state)
    dry_run(RunFolder(run).read_config(), log=lines.append)
    assert any(line.startswith("speed") for line in lines)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == THREADS


def test_threads_and_generators_are_restored_after_an_error(user_threads):
    state = torch.get_rng_state()

    def fail() -> None:
        with keep_generators(), use_threads(1):
            assert torch.get_num_threads() == 1
            torch.manual_seed(5)
            raise MemoryError

    with pytest.raises(MemoryError):
        fail()
    assert torch.get_num_threads() == THREADS
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("given", "expected"), [(None, cores()), ("3", THREADS)])
def test_the_command_line_takes_all_cores_unless_the_environment_names_a_number(
    given, expected, user_threads, monkeypatch
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    use_all_cores()
    assert torch.get_num_threads() == expected


@pytest.mark.slow
def test_only_the_command_line_sets_malloc_signals_and_all_cores():
    sets = {"set_num_threads", "set_num_interop_threads"}
    sets |= {setter.__name__ for setter in (keep_large_buffers, use_one_arena, explain_bus_errors, use_all_cores)}
    naming = {
        str(file.relative_to(PACKAGE))
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if (isinstance(node, ast.Name) and node.id in sets) or (isinstance(node, ast.Attribute) and node.attr in sets)
    }
    commands = {f"verbs/{name}.py" for name in ("devices", "export/__init__", "inspect/__init__", "serve")}
    # data/augment for its own threads, see tests/data; the processes of a server are its own
    others = {"runtime/process.py", "data/augment/apply.py", "serving/processes.py"}
    assert naming == {"cli/__init__.py", *commands, *others}


@pytest.mark.skipif(not hasattr(signal, "SIGBUS"), reason="there is no SIGBUS")
@each_row("reads", ["images.sum()", "thread = threading.Thread(target=images.sum); thread.start(); thread.join()"])
def test_a_mapped_file_that_is_cut_off_ends_the_command_line_with_words(reads, tmp_path):
    path = tmp_path / "images.npy"
    np.save(path, np.ones(1_000_000))
    code = f"""
import os, threading
import numpy as np
from vitrail.runtime.process import explain_bus_errors
explain_bus_errors()
images = np.load({str(path)!r}, mmap_mode="r")
os.truncate({str(path)!r}, 500)
{reads}
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert (ended.returncode, ended.stderr) == (6, BUS_ERROR)


def test_main_sets_malloc_once_and_help_needs_no_torch():
    code = """
import ctypes, sys
calls = []
class Libc:
    mallopt = staticmethod(lambda option, value: calls.append(option))
ctypes.CDLL = lambda name: Libc()
from vitrail.cli import main
try:
    main(["--version"])
except SystemExit:
    print(len(calls), len(set(calls)), "torch" in sys.modules)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}, check=True)
    assert told.stdout.split()[-3:] == ["3", "3", "False"]
