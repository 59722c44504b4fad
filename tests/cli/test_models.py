"""`vitrail models`: every name has a paper, costs follow the size, and a size that a model cannot take is shown as such."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from vitrail.errors import ConfigError
from vitrail.models import MODELS, configure, cost_of
from vitrail.models.family import sketch
from vitrail.models.known import KNOWN, VIT
from vitrail.verbs.models import run as models


def test_every_model_has_its_cost_its_paper_and_a_figure_its_setting():
    assert list(KNOWN) == list(MODELS)
    for name, known in ((name, facts.published) for name, facts in KNOWN.items()):
        assert any(year in known.paper for year in ("2020", "2021", "2022", "2023", "2024", "2025")), name
        assert (known.top1 is None) == (known.setting is None), name
        assert known.top1 is None or 65 < known.top1 < 91, name


def test_figures_and_models_are_attributed_to_the_paper_that_has_them():
    published = {name: facts.published for name, facts in KNOWN.items()}
    own = {
        "vit-b32",
        "vit-b16",
        "vit-l32",
        "vit-l16",
        "vit-h14",
        "r50-vit-b16",
        "r50-vit-b32",
        "r50-vit-l16",
        "axial-b16",
        "axial-b32",
    }
    assert {name for name, known in published.items() if known.paper == VIT} == own
    borrowed = {name: known.top1 for name, known in published.items() if known.setting and "table 6" in known.setting}
    assert borrowed == {
        "bit-r50x1": 77.54,
        "bit-r50x2": 82.12,
        "bit-r101x1": 80.67,
        "bit-r152x1": 81.88,
        "bit-r152x2": 84.97,
        "bit-r200x3": 87.22,
    }


def check_known(names: Iterable[str]) -> None:
    configs = {name: configure(name, classes=1000) for name in names}
    found = {name: (each.image_size, each.attention, cost_of(each)) for name, each in configs.items()}
    assert found == {name: (KNOWN[name].image_size, KNOWN[name].attention, KNOWN[name].cost) for name in configs}


def test_what_is_known_of_a_model_is_what_is_counted():
    check_known(["vit-ti16", "swin-t"])


@pytest.mark.slow
def test_what_is_known_of_one_model_of_each_architecture_and_all_parameters_are_what_is_counted():
    check_known({config.architecture: name for name, config in reversed(MODELS.items())}.values())
    counted = {name: sum(each.numel() for each in sketch(name, classes=1000).parameters()) for name in MODELS}
    assert counted == {name: known.cost.parameters for name, known in KNOWN.items()}


@pytest.mark.nightly
def test_what_is_known_of_every_model_is_what_is_counted():
    check_known(MODELS)


def test_the_list_counts_nothing_and_has_every_model(capsys, monkeypatch):
    monkeypatch.setattr("vitrail.models.family.count_cost", None)
    models()
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == list(MODELS)


def test_one_model_is_shown_at_any_size(capsys):
    models("axial-b16", size=384, json=True)
    facts = json.loads(capsys.readouterr().out)
    assert facts["attention"] == 12 * 2 * 24**2 * (24 + 24) * 768
    assert (facts["tokens"], facts["image_size"], facts["architecture"]) == (24**2, [384, 384], "axial")
    models("swin-t")
    shown = capsys.readouterr().out
    assert "28288354" in shown
    assert "81.2" in shown
    with pytest.raises(ConfigError, match="84x84 or 98x98"):
        models("vit-b14", size=96)


def test_the_list_leaves_out_what_cannot_be(capsys, monkeypatch):
    known = {name: KNOWN[name] for name in ("vit-ti16", "vit-s14", "bit-r50x1")}
    monkeypatch.setattr("vitrail.verbs.models.KNOWN", known)
    models(size=96)
    head, tiny, patches, bit = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head[:3] == ["model", "image", "tokens"]
    assert tiny[:3] == ["vit-ti16", "96x96", "37"]
    assert patches[2:6] == ["-"] * 4
    assert bit[-1] == "none"
    models(size=96, json=True)
    assert json.loads(capsys.readouterr().out).keys() == {"vit-ti16", "bit-r50x1"}
    with pytest.raises(ConfigError, match="classes"):
        models(classes=-1)
