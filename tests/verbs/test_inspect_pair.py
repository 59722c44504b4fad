"""`vitrail inspect --against`: the numbers of two models are those of each alone, and what cannot be compared is said."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.looked_at import QUIET, picture, shaken
from tests.models.tiny import TINY
from tests.reports.reading import Page
from vitrail.cli import run
from vitrail.errors import ConfigError, DataError
from vitrail.models.config import changed
from vitrail.verbs.inspect import inspect
from vitrail.verbs.inspect.measurements import inspect_model, inspect_pair
from vitrail.weights.native import save_model

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 48, 40, 3), dtype=np.uint8)
SHARED = (
    "filters_explained",
    "position_similarity",
    "attention_distance_px",
    "attention_entropy",
    "images",
)


def silent(line: str) -> None: ...


@pytest.mark.slow
def test_the_numbers_of_both_are_those_of_each_alone(tmp_path):
    hybrid = changed(TINY["vit, stem"], image_size=(64, 32))
    models = shaken(), shaken(hybrid)
    report, numbers = inspect_pair(models, tmp_path / "out", IMAGES, options=QUIET, log=silent)
    assert json.loads((tmp_path / "out" / "numbers.json").read_text()) == numbers
    for model, found in zip(models, numbers["models"], strict=True):
        _, alone = inspect_model(model, tmp_path / "alone", IMAGES, options=QUIET, log=silent)
        assert {name: found[name] for name in SHARED} == {name: alone[name] for name in SHARED}
        assert found["findings"].items() < alone["findings"].items()  # of one model also artefacts
        assert found["figures"]["position_neighbour_rate"] == alone["position_neighbour_rate"]
        shares = [
            [far / layer for far in heads]
            for heads, layer in zip(alone["attention_distance_px"], alone["attention_distance_uniform_px"], strict=True)
        ]
        every = np.concatenate(shares)
        assert found["figures"]["local_heads"] == (every < 0.5).mean()
        assert found["figures"]["global_heads"] == (every >= 0.75).mean()
        assert found["figures"]["distance"] == pytest.approx(every.mean(), rel=1e-5)
        assert found["figures"]["distance_low"] == pytest.approx(np.mean(shares[0]), rel=1e-5)
        assert found["figures"]["distance_high"] == pytest.approx(np.mean(shares[-1]), rel=1e-5)
    one, other = (each["figures"] for each in numbers["models"])
    assert numbers["differences"].keys() == one.keys() & other.keys()
    assert all(change == other[name] - one[name] for name, change in numbers["differences"].items())
    claims = [each["findings"] for each in numbers["models"]]
    assert numbers["findings"] == {claim: [claims[0][claim], claims[1][claim]] for claim in claims[0]}
    assert "images of different sizes: 32 × 32 (A ViT (1)), 64 × 32 (A ViT (2)) pixels" in numbers["notes"][0]
    text = Page(report.read_text()).said
    assert "The heads of both models were measured on the same 3 images" in text


def test_before_and_after_a_training_every_head_has_its_difference(tmp_path):
    before, after = shaken(), shaken()
    for parameter in after.backbone.blocks.parameters():
        parameter.data.mul_(3)
    report, numbers = inspect_pair((before, after), tmp_path / "out", IMAGES, options=QUIET, log=silent)
    first, second = (np.array(each["attention_distance_px"]) for each in numbers["models"])
    assert not np.allclose(first, second)
    page = report.read_text()
    changes = (second - first) / np.array(numbers["models"][0]["attention_distance_uniform_px"])[:, None]
    values = re.findall(r'data-value="(-?[\d.]+)"', page.partition("Changes of the weights")[0])
    cells = np.array(values, float).reshape(-1, 5)  # layer, head, both, difference
    np.testing.assert_allclose(cells[:, 4], changes.ravel(), atol=2e-6)
    assert cells[:, :2].tolist() == [[layer, head] for layer in range(3) for head in range(2)]
    assert page.count("Values of all heads") == 1
    assert numbers["notes"] == []


def test_a_model_without_attention_is_said_to_have_none_and_the_rest_is_compared(tmp_path):
    models = shaken(), shaken(TINY["bit"])
    report, numbers = inspect_pair(models, tmp_path / "out", IMAGES, options=QUIET, log=silent)
    one, other = numbers["models"]
    assert (one["images"], other["images"]) == (3, 0)
    assert "attention_distance_px" in one and "attention_distance_px" not in other
    assert other["figures"] == numbers["differences"] == {}
    assert next(iter(numbers["findings"].values()))[1] is None
    assert numbers["notes"] == [
        "A BiT ResNet has no attention: it has no heads to compare, and the findings about them cannot be tested on it.",
        "The models are of different kinds: a ViT and a BiT ResNet.",
    ]
    text = Page(report.read_text()).said
    assert "A BiT ResNet adds no position embeddings" in text
    assert "Both charts have one scale" not in text
    names = {each.name for each in (tmp_path / "out").iterdir()}
    assert {"filters-1.png", "filters-2.png", "positions-1.png", "attention-distance-1.svg"} <= names
    assert not names & {"positions-2.png", "attention-distance-2.svg", "local-heads.svg"}


def test_two_models_without_attention_need_no_images(tmp_path):
    models = shaken(TINY["bit"]), shaken(TINY["bit, small stem"])
    report, numbers = inspect_pair(models, tmp_path / "out", "no such folder", options=QUIET, log=silent)
    assert len([note for note in numbers["notes"] if "has no attention" in note]) == 2
    page = Page(report.read_text())
    assert "Neither attention nor positions could be measured" in page.said


def test_layers_whose_places_do_not_ask_leave_gaps(tmp_path):
    config = replace(TINY["cait"], depth=3)
    models = shaken(config), shaken(TINY["swin"])
    _, numbers = inspect_pair(models, tmp_path / "out", IMAGES, options=QUIET, log=silent)
    assert all("local_heads" in each["figures"] for each in numbers["models"])


def test_without_images_filters_and_positions_are_compared(tmp_path):
    _, numbers = inspect_pair((shaken(), shaken()), tmp_path / "out", options=QUIET, log=silent)
    assert "--data" in numbers["notes"][0]
    assert set(numbers["differences"].values()) == {0.0}
    assert "local_heads" not in numbers["differences"]


@pytest.mark.parametrize("most", [0, 3])
def test_an_unreadable_model_or_data_set_ends_the_command(most, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    error, words = (DataError, "none of the images could be read") if most else (ConfigError, "most is 0")
    with pytest.raises(error, match=words):
        inspect(
            shaken(), against=shaken(), out=tmp_path / "out", data=tmp_path / "photos", most=most, max_bad=1, log=silent
        )


def test_models_are_named_by_the_distinct_part_of_their_paths(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("a/model", "b/model", "c"):
        save_model(name, shaken())
    Path("photos").mkdir()
    for count in range(3):
        picture(40, 50, seed=count).save(f"photos/{count}.png")
    assert run(["inspect", "a/model", "--against", "b/model", "--data", "photos", "--out", "out", "--quiet"]) == 0
    head, *lines, path = capsys.readouterr().out.splitlines()
    assert head.split() == ["a", "b", "difference"]
    assert path == "out/report.html"
    assert any(line.startswith("local_heads") and line.endswith("+0.000") for line in lines)
    assert run(["inspect", "a/model", "--against", "c", "--out", "out", "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["report"] == "out/report.html"
    assert [each["name"] for each in json.loads(Path("out/numbers.json").read_text())["models"]] == ["a", "c"]


@pytest.mark.parametrize("more", [{"cost": True}, {"others": True}], ids=["cost", "three models"])
def test_a_comparison_of_cost_is_another_command(more, tmp_path):
    models = [shaken()] * (2 if more.pop("others", False) else 1)
    with pytest.raises(ConfigError, match=r"--against compares exactly two models.*\n.*--cost compares speed"):
        inspect(models, against=shaken(), out=tmp_path, log=silent, **more)
