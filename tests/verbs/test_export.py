"""`vitrail export` is proved before it is there: what is not the model leaves figures and no file."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from PIL import Image
from torch import Tensor, nn

import vitrail
from tests.looked_at import picture, shaken
from tests.weights.graphs import DYNAMIC, a_graph
from tests.weights.hub_cache import fill_cache, use_cache
from tests.weights.kinds import a_model
from vitrail.data.preprocessing import Preprocessing
from vitrail.errors import CheckpointError, ConfigError, DataError, DiskError
from vitrail.models import Backbone, Tokens
from vitrail.tasks.classification.classifier import Classifier
from vitrail.verbs.export import export, files
from vitrail.verbs.export import parity as parity_figures
from vitrail.verbs.export.files import Exported
from vitrail.verbs.export.parity import Tolerances, open_source
from vitrail.weights.native import save_model

CLASSES = ("ant", "bee", "cat")
Sabotage = Callable[[np.ndarray, np.ndarray], None]


def silent(line: str) -> None: ...


class Means(Backbone):
    """What the graph of `tests.weights.graphs` computes: the head reads the mean of each channel."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(a_model(depth=1).config)
        generator = torch.Generator().manual_seed(seed)
        self.head = nn.Linear(3, len(CLASSES))
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(3, 3, generator=generator))
            self.head.bias.copy_(0.1 * torch.randn(3, generator=generator))

    def features(self, images: Tensor) -> Tensor:
        return images.mean((2, 3))

    def encode(self, *given: Any) -> Tokens:
        raise NotImplementedError

    pool = feature_maps = attention_grids = encode


@pytest.fixture
def model() -> Classifier:
    return Classifier(Means(), CLASSES, Preprocessing.timm(16)).eval()


def writer(sabotage: Sabotage = lambda weight, bias: None, *, size: tuple = DYNAMIC) -> Callable[..., bool]:
    """`to_onnx` of such a model, with something done to its head on the way."""

    def to_onnx(classifier: Classifier, path: Path, *, metadata: Mapping[str, str], pictures: bool = False) -> bool:
        weight, bias = (each.detach().numpy().copy() for each in classifier.backbone.head.parameters())
        sabotage(weight, bias)
        graph = a_graph(head=(weight, bias), size=size)
        helper.set_model_props(graph, dict(metadata))
        path.write_bytes(graph.SerializeToString())
        return size == DYNAMIC

    return to_onnx


@pytest.fixture(autouse=True)
def honest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are read without a process that tries them first, of which `tests.weights` has the proof."""
    monkeypatch.setattr("vitrail.weights.onnx.try_out", lambda *given: None)
    monkeypatch.setattr(files, "to_onnx", writer())
    monkeypatch.setattr("vitrail.verbs.export.parity.SECONDS", 0.01)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Pictures whose red, green or blue is the brightest, one of them broken."""
    draw, folder = np.random.default_rng(0), tmp_path / "photos"
    for tint, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for count in range(7):
            pixels = draw.integers(0, 160, (20 + count, 30, 3), dtype=np.uint8)
            pixels[..., tint] += 90
            Image.fromarray(pixels).save(folder / name / f"{count}.png")
    (folder / "ant" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    return folder


def made(model: Any, out: Path, **how: Any) -> Exported:
    done = export(model, out, **{"quiet": True, "log": silent, **how})
    assert isinstance(done, Exported)
    return done


def parity(path: Path) -> dict[str, Any]:
    return json.loads({each.key: each.value for each in onnx.load(path).metadata_props}["parity"])


def test_it_is_a_model_again_and_carries_its_figures(model, tmp_path):
    done = made(model, tmp_path / "new" / "a.onnx")
    again = vitrail.load(done.path)
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(again(images), model(images))
    assert (again.classes, again.preprocessing) == (model.classes, model.preprocessing)
    figures = parity(done.path)
    assert (figures["precision"], figures["dynamic"], figures["images"]) == ("fp32", True, 64)
    assert figures["difference"] == pytest.approx(done.figures["difference"], rel=1e-3)
    assert done.figures["difference"] < 1e-5
    assert (done.figures["batches"], done.figures["sizes"]) == ("1,3,8", "16x16,24x24,20x28")
    assert done.bytes == done.path.stat().st_size
    assert sorted(path.name for path in done.path.parent.iterdir()) == ["a.onnx", "a.onnx.sha256"]


@pytest.mark.slow
def test_a_file_that_is_slower_than_its_model_is_written_with_a_warning(model, tmp_path, monkeypatch):
    said: list[str] = []
    speeds = {"before": 10.0, "after": 12.5, "bf16": 20.0}
    monkeypatch.setattr(parity_figures, "measure_speeds", lambda functions, images: speeds)
    assert made(model, tmp_path / "a.onnx", log=said.append).path.exists()
    (warning,) = (line for line in said if line.startswith("warning"))
    assert "12.50 ms an image in batches of 1, the model in fp32 10.00 ms" in warning
    assert "; --int8 computes in 8 bits" in warning
    speeds["after"] = 9.0
    made(model, tmp_path / "a.onnx", log=said.append)
    assert sum(line.startswith("warning") for line in said) == 1


def test_labelled_images_give_the_accuracy_before_and_after(model, tmp_path, photos):
    said: list[str] = []
    figures = made(model, tmp_path / "a.onnx", check=photos, max_bad=0.2, log=said.append).figures
    assert (figures["images"], figures["real_images"], figures["metric"]) == (21, True, "top1")
    evaluated = vitrail.evaluate(model, photos, quiet=True, max_bad=0.2, log=silent)
    assert figures["top1_before"] == figures["top1_after"] == evaluated.figures["top1"]
    with pytest.raises(DataError, match="are bad"):
        made(model, tmp_path / "b.onnx", check=photos)
    assert not (tmp_path / "b.onnx").exists()


def test_unlabelled_images_are_compared_too_and_spread_evenly(model, tmp_path, photos):
    (photos / "ant" / "broken.jpg").unlink()
    everything = sorted(photos.rglob("*.png"))
    figures = made(model, tmp_path / "a.onnx", check=everything, images=4).figures
    assert (figures["images"], "metric" in figures) == (4, False)


def test_a_graph_of_one_size_is_compared_at_that(model, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "to_onnx", writer(size=(16, 16)))
    done = made(model, tmp_path / "a.onnx")
    assert (done.dynamic, done.figures["sizes"]) == (False, "16x16")


def one_weight(weight: np.ndarray, bias: np.ndarray) -> None:
    weight[1, 2] += 0.01


def nan(weight: np.ndarray, bias: np.ndarray) -> None:
    bias[0] = np.nan


@pytest.mark.parametrize(("sabotage", "words"), [(one_weight, "outputs differ by"), (nan, "are not finite")])
def test_a_graph_that_is_not_the_model_leaves_figures_and_no_file(model, tmp_path, monkeypatch, sabotage, words):
    monkeypatch.setattr(files, "to_onnx", writer(sabotage))
    with pytest.raises(CheckpointError, match=words) as error:
        made(model, tmp_path / "a.onnx")
    if sabotage is one_weight:
        assert "difference 0.00" in error.value.value
        assert "0.0001 is allowed" in error.value.what
    assert not list(tmp_path.iterdir())


def test_a_tolerance_allows_more(model, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "to_onnx", writer(one_weight))
    assert 1e-4 < made(model, tmp_path / "a.onnx", tolerance=0.1).figures["difference"] < 0.1


def test_an_existing_export_stays_if_the_new_one_is_refused(model, tmp_path, monkeypatch):
    before = made(model, tmp_path / "a.onnx").path.read_bytes()
    monkeypatch.setattr(files, "to_onnx", writer(one_weight))
    with pytest.raises(CheckpointError):
        made(model, tmp_path / "a.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == before


LESS = {"images": 300, "difference": 0.2}
TOP1 = {**LESS, "metric": "top1", "top1_before": 218 / 300}


def test_tolerances_of_an_export():
    for limits, figures, allowed in (
        (Tolerances(exact=True), {"difference": 1e-4, "agreement": 0.5}, True),
        (Tolerances(exact=True), {"difference": 1.1e-4, "agreement": 1.0}, False),
        (Tolerances(exact=False), {**LESS, "agreement": 0.95}, True),
        (Tolerances(exact=False), {**LESS, "agreement": 0.94}, False),
        (Tolerances(exact=False), {**TOP1, "agreement": 0.9, "top1_after": 212 / 300}, True),
        (Tolerances(exact=False), {**TOP1, "agreement": 1.0, "top1_after": 211 / 300}, False),
        (Tolerances(exact=False), {**LESS, "metric": "map", "map_before": 0.5, "map_after": 0.6}, True),
        (Tolerances(exact=False, tolerance=0.1), {**LESS, "agreement": 0.9}, True),
    ):
        if allowed:
            limits.check(figures)
            continue
        with pytest.raises(CheckpointError, match="is allowed") as error:
            limits.check(figures)
        assert "--tolerance" in error.value.remedy, figures


def test_accuracy_that_is_no_number_is_not_allowed():
    with pytest.raises(CheckpointError):
        Tolerances(exact=False).check({**LESS, "metric": "map", "map_before": 0.5, "map_after": float("nan")})


@pytest.mark.parametrize("place", ["to_onnx", "ParityCheck", "_add_figures"])
def test_ctrl_c_and_a_full_disk_leave_nothing(model, tmp_path, monkeypatch, place):
    for error, raised in ((KeyboardInterrupt(), KeyboardInterrupt), (OSError(errno.ENOSPC, "no space"), DiskError)):

        def stopped(*given: Any, error: BaseException = error, **named: Any) -> None:
            raise error

        monkeypatch.setattr(files, place, stopped)
        with pytest.raises(raised):
            made(model, tmp_path / "a.onnx")
        assert not list(tmp_path.iterdir())


def test_a_disk_without_room_is_known_before(model, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "free_bytes", lambda place: 0)
    with pytest.raises(DiskError, match="the disk is full") as error:
        made(model, tmp_path / "a.onnx")
    assert "needed" in error.value.value
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_a_disk_error(model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="cannot be written"):
        made(model, tmp_path / "file" / "folder" / "a.onnx")


@pytest.mark.slow
def test_only_an_export_is_written_over_unless_by_force(model, tmp_path):
    path = made(model, tmp_path / "a.onnx").path
    assert made(model, path).path == path
    path.write_bytes(a_graph().SerializeToString())
    with pytest.raises(ConfigError, match="is not an export of vitrail"):
        made(model, path)
    made(model, path, force=True)
    assert vitrail.load(path).classes == CLASSES
    (tmp_path / "b.onnx").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        made(model, tmp_path / "b.onnx", force=True)


def test_invalid_options_are_refused_with_a_remedy(model, tmp_path):
    for asked, words in (
        ({"to": "onxx"}, "did you mean 'onnx'"),
        ({"to": "program", "int8": True}, "leave --int8 out"),
        ({"to": "timm", "pictures": True}, "leave --pictures out"),
        ({"to": "program"}, "ends in .pt2"),
        ({"tolerance": 0.0}, "between 0 and 1"),
        ({"images": 0}, "one image at least"),
        ({"out": None}, "give out, a path"),
        ({"to": "timm"}, "save it first"),
    ):
        with pytest.raises(ConfigError) as error:
            export(model, **{"out": tmp_path / "a.onnx", "quiet": True, "log": silent, **asked})
        assert words in error.value.remedy
        assert not list(tmp_path.iterdir())


def test_an_export_is_not_exported_again(model, tmp_path):
    path = made(model, tmp_path / "a.onnx").path
    with pytest.raises(ConfigError, match="is an export already"):
        made(path, tmp_path / "b.onnx")


def test_a_layout_of_weights_is_converted_with_its_own_proof(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = save_model(tmp_path / "bees" / "model", a_model(depth=1, gelu="exact"))
    done = export(source.parent, to="timm", log=silent)
    assert (str(done.path), done.difference) == ("bees-timm", 0)
    with pytest.raises(ConfigError, match="tensor by tensor"):
        export(source.parent, to="google", tolerance=0.1, log=silent)


def test_without_a_path_the_file_has_the_models_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "bees" / "model", a_model(depth=1))
    save_model(tmp_path / "one.safetensors", a_model(depth=1))
    use_cache(tmp_path / "hub", monkeypatch)
    fill_cache(tmp_path / "hub", "google/vit-base")
    for given, how, name in (
        ("bees", {}, "bees.onnx"),
        ("bees/model", {"int8": True}, "bees-int8.onnx"),
        ("bees/model", {"to": "program"}, "bees.pt2"),
        ("one.safetensors", {"pictures": True}, "one-pictures.onnx"),
        ("hf:google/vit-base@main", {"to": "google"}, "vit-base.npz"),
    ):
        assert files.ExportOptions(**how).default_path(given) == Path(name)


def test_images_of_other_classes_are_compared_without_labels_and_it_is_said(tmp_path):
    for name in ("dog", "elk"):
        (tmp_path / name).mkdir()
        for number in range(3):
            picture(20, 24, number).save(tmp_path / name / f"{number}.png")
    said: list[str] = []
    source = open_source(shaken(), tmp_path, 4, said.append)
    assert len(source) == 4 and not source.labelled
    assert any("without labels" in line for line in said)
    with pytest.raises(DataError, match="nowhere"):
        open_source(shaken(), tmp_path / "nowhere", 4, said.append)


def test_openvino_names_what_it_needs(model, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="is not a file name for onnx") as error:
        made(model, tmp_path / "a.xml")
    assert "--to openvino" in error.value.remedy
    with pytest.raises(ConfigError, match="measured on images") as error:
        made(model, tmp_path / "a.xml", to="openvino", int8=True)
    assert "--check DATA" in error.value.remedy
    with pytest.raises(ConfigError, match="--pictures is not for openvino"):
        made(model, tmp_path / "a.xml", to="openvino", pictures=True)
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ConfigError) as error:
        made(model, tmp_path / "a.xml", to="openvino")
    assert error.value.remedy == "pip install 'vitrail[openvino]'"
    (tmp_path / "a.bin").write_bytes(b"weights of another program")
    with pytest.raises(ConfigError, match=r"a\.bin exists"):
        made(model, tmp_path / "a.xml", to="openvino")
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
