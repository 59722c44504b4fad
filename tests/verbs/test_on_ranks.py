"""Several processes evaluate a model as one does: the same figures, files and errors, and the first one speaks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from tests.models.tiny import TINY
from tests.training.on_ranks import write_photographs
from tests.training.ranks import Pool, Starter, command, start_pool
from tests.verbs.on_ranks import evaluate
from vitrail.cli import run
from vitrail.runtime.distributed import SINGLE
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.weights.native import save_model

WORLD = 3
FLAGS: dict[str, Any] = {"batch": 4, "max_bad": 0.5}


@pytest.fixture(scope="module")
def pool(tmp_path_factory) -> Pool:
    with start_pool(tmp_path_factory.mktemp("pool")) as pool:
        yield pool


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> Path:
    """36 images to learn from and 12 to evaluate, 7 of them bad: of three batches the last has no good image."""
    return write_photographs(tmp_path_factory.mktemp("photographs"), images=48, bad={3, 4, 15, 32, 36, 40, 44})


@pytest.fixture
def model(tmp_path) -> Path:
    torch.manual_seed(0)
    network = create_classifier(TINY["vit"], classes=["a", "b"])
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    save_model(tmp_path / "model", network)
    return tmp_path / "model"


def twice(pool: Pool, verb: str, model: Path, data: Any, one: dict[str, Any], all: dict[str, Any]) -> list[Any]:
    """The answers of one process and, on a copy of the model, of each of several."""
    copy = model.with_name("copy")
    shutil.copytree(model, copy)
    return [evaluate(SINGLE, verb, model, data, one), *pool(WORLD, evaluate, verb, copy, data, all)]


@pytest.mark.slow
def test_an_evaluation(pool, photographs, model, tmp_path):
    """With a temperature, which all ranks fit to all outputs, a page and a list of bad images."""

    def flags(name: str) -> dict[str, Any]:
        place = tmp_path / name
        return {**FLAGS, "calibrate": True, "out": place, "bad_list": place.with_suffix(".csv")}

    (figures, said), *answers = twice(pool, "evaluate", model, photographs, flags("one"), flags("all"))
    assert [found for found, _ in answers] == [figures] * WORLD
    assert [bool(lines) for _, lines in answers] == [True] + [False] * (WORLD - 1)
    assert len(answers[0][1]) == len(said)
    listed = [(tmp_path / f"{name}.csv").read_text() for name in ("one", "all")]
    assert listed[0] == listed[1] and len(listed[0].splitlines()) == 6
    files = [{path.name for path in (tmp_path / name).rglob("*")} for name in ("one", "all")]
    assert files[0] == files[1] and "report.html" in files[0]
    assert (tmp_path / "one" / "figures.json").read_bytes() == (tmp_path / "all" / "figures.json").read_bytes()
    configs = [(model.with_name(name) / "config.json").read_text() for name in ("model", "copy")]
    assert configs[0] == configs[1] and '"temperature"' in configs[0]


@pytest.mark.slow
@pytest.mark.parametrize("given", [{"max_bad": 0.01}, {"split": "test"}], ids=["too many bad images", "no such split"])
def test_an_evaluation_that_fails(pool, photographs, model, given):
    """Every rank has the error, and one of them reports it."""
    flags = {**FLAGS, **given}
    ((what, _), _), *answers = twice(pool, "evaluate", model, photographs, flags, flags)
    assert [error for error, _ in answers] == [(what, False)] + [(what, True)] * (WORLD - 1)


@pytest.mark.slow
def test_a_probe_and_its_cache(pool, photographs, model, tmp_path):
    """What three ranks have kept, one process finds, and the other way round."""
    flags = {**FLAGS, "protocol": "knn", "k": 3}
    (figures, _), *answers = twice(pool, "probe", model, photographs, flags, {**flags, "cache": tmp_path / "cache"})
    assert [found for found, _ in answers] == [figures] * WORLD
    kept = sorted((tmp_path / "cache").rglob("*.safetensors"))
    assert evaluate(SINGLE, "probe", model, photographs, {**flags, "cache": tmp_path / "cache"})[0] == figures
    assert pool(WORLD, evaluate, "probe", model, photographs, {**flags, "cache": tmp_path / "cache"})[0][0] == figures
    assert sorted((tmp_path / "cache").rglob("*.safetensors")) == kept


@pytest.mark.slow
def test_a_transfer(pool, photographs, model, tmp_path):
    """Features and fine-tuning of two data sets, one of which does not exist; the same call finds its cells."""
    settings = [
        *("augment.crop_area=[1.0, 1.0]", "compute.threads=1", "optim.name=sgd", "data.batch=6"),
        *("data.max_bad=0.5", "save.evaluations=1", "save.watched=30"),
    ]
    flags = {**FLAGS, "protocols": "knn,finetune", "k": 3, "steps": 2, "set": settings, "cache": False}
    data = [str(photographs), str(tmp_path / "nowhere")]
    (rows, said), *answers = twice(
        pool, "transfer", model, data, {**flags, "out": tmp_path / "one"}, {**flags, "out": tmp_path / "all"}
    )
    assert [found for found, _ in answers] == [answers[0][0]] * WORLD
    for name, cells in rows.items():
        for protocol, cell in cells.items():
            ours = answers[0][0][name][protocol]
            assert ours.error == cell.error
            assert ours.figures == pytest.approx(cell.figures, abs=1e-6)
    assert [len(lines) for _, lines in answers] == [len(said)] + [0] * (WORLD - 1)
    assert (tmp_path / "all" / "report.html").exists()
    again = pool(WORLD, evaluate, "transfer", model.with_name("copy"), data, {**flags, "out": tmp_path / "all"})
    assert [found for found, _ in again] == [found for found, _ in answers]


@pytest.mark.slow
def test_the_command_line(photographs, model, tmp_path):
    """Each of the verbs prints once, what one process prints."""

    def call(start: Starter, *words: Any, ranks: int = 1) -> tuple[int, str]:
        act = command(*map(str, words), "--quiet")
        ended = [each.finish() for each in (start.ranks(ranks, act) if ranks > 1 else [start(act)])]
        return max(code for code, _ in ended), "".join(said for _, said in ended)

    shared = ("--batch", 4, "--max-bad", "50%")
    evaluate = ("evaluate", model, photographs, "--json", *shared)
    probe = ("probe", model, photographs, "--protocol", "knn", "--k", 3, "--no-cache", *shared)
    with Starter(tmp_path) as start:
        figures, neighbours = call(start, *evaluate), call(start, *probe)
        assert figures[0] == neighbours[0] == 0 and '"top1"' in figures[1] and neighbours[1]
        assert call(start, *evaluate, "--devices", 2) == figures  # which starts the ranks
        assert call(start, *probe, "--devices", 2, ranks=2) == neighbours
        parts = tmp_path / "parts"
        embed = ("embed", model, photographs / "train", "--parts", parts, "--part-size", 5, "--devices", 2)
        code, said = call(start, *embed)
        assert code == 0 and said.count("8 parts; 0 done before") == said.count(f"{parts}\n") == 1, said
        assert len(list(parts.rglob("*.parquet"))) == 8 and vitrail.check_parts(parts, quiet=True).images == 36
        code, said = call(start, "evaluate", model, tmp_path / "nowhere", "--devices", 2, ranks=2)
        assert code == 3 and said.count("error:") == 1


@pytest.mark.parametrize(
    ("given", "what"), [(("x.png",), "there is no --parts"), (("-", "--parts", "parts"), "standard input")]
)
def test_devices_need_parts_and_names(model, capsys, given, what):
    assert run(["embed", str(model), *given, "--devices", "2"]) == 2
    assert what in capsys.readouterr().err
