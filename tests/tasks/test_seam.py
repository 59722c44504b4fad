"""The seam of tasks: one that the project does not have is trained, evaluated, used, exported and served by the code as it is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.serving.conftest import start as start
from tests.tasks.spot import SpotFinder
from vitrail.config.schema import ModelSettings
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.contents import Arrays, Strings
from vitrail.data.sources.source import Source, Splits
from vitrail.errors import CheckpointError, ConfigError
from vitrail.models import create_backbone
from vitrail.objectives import Supervised
from vitrail.serving.loaded_model import LoadedModel
from vitrail.tasks import TASKS, Task, register_task
from vitrail.training.optimizer import select_trainable

SIDE = 16
TINY = ("model.name=vit-ti16", "model.changes={width: 32, depth: 1, heads: 2, mlp_width: 64, patch_size: [4, 4]}")
RECIPE = (
    "task=spot",
    "augment.mixup=0",
    "augment.cutmix=0",
    "augment.smoothing=0",
    "augment.flip=0.5",
    "optim.name=adamw",
)


def spots(count: int, seed: int) -> Source:
    """Noise with one bright spot; the targets are its middle (x, y)."""
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 60, (count, SIDE, SIDE, 3)).astype(np.uint8)
    points = generator.integers(2, SIDE - 2, (count, 2))
    for image, (x, y) in zip(images, points):
        image[y - 1 : y + 2, x - 1 : x + 2] = 255
    keys = Strings([f"{number}.png" for number in range(count)])
    return Source(contents=Arrays(images, keys), targets=(points + 0.5).astype(np.float32))


def evaluating() -> Splits:
    return Splits(train=None, val=spots(60, 1), test=None, layout="", classes=())


def large_pictures(folder: Path) -> list[str]:
    """The paths of two pictures of 96 x 96 pixels with a spot, the first at 4 of 16 and the second at 12."""
    names = []
    for x in (4, 12):
        picture = np.full((SIDE, SIDE, 3), 30, np.uint8)
        picture[7:10, x - 1 : x + 2] = 255
        names.append(str(folder / f"{x}.png"))
        Image.fromarray(picture.repeat(6, 0).repeat(6, 1)).save(names[-1])
    return names


@pytest.fixture(scope="module", autouse=True)
def known():
    register_task(SpotFinder)
    yield
    del TASKS["spot"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of the task: half of the pictures are mirrored as it learns, so it learns only if the targets follow."""
    data = Splits(train=spots(400, 0), val=spots(60, 1), test=None, layout="spots", classes=())
    out = tmp_path_factory.mktemp("runs") / "spots"
    return vitrail.train(data, out=out, steps=150, batch=40, lr=2e-3, settings=(*TINY, *RECIPE), quiet=True)


def test_the_base_of_tasks_has_at_most_20_methods_and_properties():
    members = {
        name
        for kind in Task.__mro__[: Task.__mro__.index(torch.nn.Module)]
        for name, member in vars(kind).items()
        if isinstance(member, property | classmethod | staticmethod) or callable(member)
    }
    assert len({name for name in members if not name.startswith("__")}) <= 20


def test_it_is_trained_and_targets_follow_their_pixels(trained):
    figures = trained.figures
    assert figures["mean_error"] < 0.1  # a guess in the middle is off by 0.19
    assert figures["mean_error_low"] < figures["mean_error"] < figures["mean_error_high"]
    assert trained.report.exists()
    assert "val_mean_error" in (trained.folder / "metrics.jsonl").read_text()
    assert json.loads((trained.folder / "model" / "config.json").read_text())["task"] == "spot"


def test_it_is_loaded_and_evaluated_as_it_was_in_training(trained):
    model = vitrail.load(trained.folder)
    assert isinstance(model, SpotFinder)
    evaluated = vitrail.evaluate(model, evaluating(), quiet=True)
    assert evaluated.figures["mean_error"] == pytest.approx(trained.figures["mean_error"], abs=1e-6)


def test_it_is_predicted_with_in_the_pixels_of_each_picture(trained, tmp_path):
    names = large_pictures(tmp_path)
    answers = list(vitrail.predict(trained.folder, names, quiet=True))
    assert [answer.key for answer in answers] == names
    assert np.abs([answer.x - 6 * x for answer, x in zip(answers, (4, 12))]).max() < 2 * SIDE
    table = vitrail.predict(trained.folder, names, out=tmp_path / "table.csv", quiet=True)
    assert table.read_text().splitlines()[0] == "path,x,error"
    in_memory = vitrail.load(trained.folder).predict([Image.open(name) for name in names])
    assert [answer.x for answer in in_memory] == pytest.approx([answer.x for answer in answers], abs=1e-3)


def test_graphs_agree_on_images_whose_outputs_differ_by_less_than_a_thousandth_of_the_largest(trained):
    task = trained.load()
    expected = torch.tensor([[1.0, -2.0], [0.5, 0.1], [0.0, 1.0]])
    given = expected + torch.tensor([[0.0, 0.0019], [0.0021, 0.0], [0.0, 0.0]])
    assert task.agreement(*({task.graph_outputs[0]: outputs} for outputs in (expected, given))) == pytest.approx(2 / 3)


@pytest.mark.slow
def test_it_is_exported_and_the_graph_answers_as_the_model_does(trained, tmp_path):
    pytest.importorskip("onnxruntime")
    exported = vitrail.export(trained.folder, tmp_path / "spots.onnx", check=evaluating(), images=32, quiet=True)
    assert exported.figures["metric"] == "mean_error"
    assert exported.figures["agreement"] == 1.0
    graph, model = vitrail.load(tmp_path / "spots.onnx"), vitrail.load(trained.folder)
    images = torch.randn(3, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(graph(images), model(images), atol=1e-4, rtol=1e-4)
    assert vitrail.evaluate(graph, evaluating(), quiet=True).figures["mean_error"] == pytest.approx(
        trained.figures["mean_error"], abs=1e-4
    )


def test_it_is_served(trained, tmp_path, start):
    (name, _) = large_pictures(tmp_path)
    client = start(lambda: LoadedModel(vitrail.load(trained.folder), "spots"))
    with client:
        reply = client.post("/v1/predict", files={"image": ("spot.png", Path(name).read_bytes())})
        assert reply.status_code == 200, reply.text
        (answer,) = vitrail.predict(trained.folder, [name], quiet=True)
        assert reply.json()["predictions"][0]["x"] == pytest.approx(answer.x, abs=1e-2)
        about = client.get("/v2/models/spots").json()
        assert [output["name"] for output in about["outputs"]] == ["outputs"]
        refused = client.post("/v1/explain?method=gradient", files={"image": ("spot.png", Path(name).read_bytes())})
        assert refused.status_code == 422


def test_only_vitrails_own_layout_holds_it(trained, tmp_path):
    with pytest.raises(ConfigError, match="the task spot can only be written in vitrail's own layout"):
        vitrail.convert(trained.folder, tmp_path / "copy", to="timm")
    copy = vitrail.convert(trained.folder, tmp_path / "copy.safetensors", to="native")
    assert copy is not None
    images = torch.zeros(1, 3, SIDE, SIDE)
    assert torch.equal(vitrail.load(tmp_path / "copy.safetensors")(images), vitrail.load(trained.folder)(images))


def test_a_model_of_an_unknown_task_is_refused_by_name(trained, monkeypatch):
    monkeypatch.delitem(TASKS, "spot")
    with pytest.raises(CheckpointError, match="the task 'spot'; this version of vitrail supports classification"):
        vitrail.load(trained.folder)


def test_with_head_only_nothing_but_its_own_head_is_trained():
    backbone = create_backbone("vit-ti16", classes=0, image_size=SIDE, patch_size=4, width=32, depth=1, heads=2)
    model = SpotFinder(backbone, ("x",), Preprocessing.paper(SIDE))
    assert select_trainable(Supervised(model), ModelSettings(head_only=True)).keys() == {
        "own.head.weight",
        "own.head.bias",
    }


def test_policies_that_its_targets_cannot_follow_are_refused(tmp_path):
    data = Splits(train=spots(40, 0), val=None, test=None, layout="spots", classes=())
    with pytest.raises(ConfigError, match="no meaning for the task spot"):
        vitrail.train(data, out=tmp_path / "run", steps=1, settings=(*TINY, *RECIPE, "augment.mixup=0.2"), quiet=True)
