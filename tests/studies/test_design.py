"""A study as a value: to YAML and back, what its cells are, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from vitrail.config.parse import build
from vitrail.errors import ConfigError
from vitrail.studies.design import (
    BUILT_IN,
    Claim,
    Difference,
    Experiment,
    Pairs,
    Pool,
    Rates,
    Study,
    find_definition,
    paper_claims,
    parse_study,
    read_study,
    write_study,
)
from vitrail.studies.verdicts import Equal, Greater

TREE: dict[str, Any] = {
    "name": "mine",
    "pool": {"source": "photos", "validation": 200},
    "base": {"schedule.steps": 64, "model.name": "vit-ti16", "model.changes.depth": 2},
    "experiments": [
        {
            "name": "patch",
            "arms": {"p8": {"model.changes.patch_size": [8, 8]}, "p16": {}},
            "factors": {"data.limit": [100, None]},
            "rates": {"grid": ["1e-3", 2e-3]},
        },
        {"name": "fixed", "arms": {"bit": {"model.name": "bit-r50x1"}}, "rates": None},
    ],
}


def test_yaml_gives_the_values() -> None:
    study = parse_study(TREE)
    assert study.experiments[0] == Experiment(
        name="patch",
        arms={"p8": {"model.changes.patch_size": [8, 8]}, "p16": {}},
        factors={"data.limit": (100, None)},
        rates=Rates(grid=(1e-3, 2e-3)),
    )


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_study_is_written_as_the_yaml_that_it_is_read_from(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(write_study(name))
    study = read_study(find_definition(name))
    assert read_study(tmp_path / "mine.yaml") == study
    for experiment in study.experiments:
        for arm in experiment.arms.values():
            assert study.run(arm, {}).recipe == "study"


def test_arms_of_the_built_in_study_cost_about_the_same() -> None:
    study = read_study(find_definition("vit-paper"))
    run = study.run(study.experiment("patches").arms["patch-4-equal-compute"], {})
    assert (run.schedule.steps, run.model.changes["patch_size"], run.model.changes["width"]) == (128, [4, 4], 96)
    assert study.run(study.experiment("families").arms["bit"], {}).model.changes == {"depths": [1]}


def test_arms_and_levels_are_settings_over_the_base() -> None:
    study = parse_study(TREE)
    run = study.run(study.experiments[0].arms["p8"], {"data.limit": 100, "seed": 7})
    assert run.model.changes == {"depth": 2, "patch_size": [8, 8]}
    assert (run.data.limit, run.seed, run.schedule.steps, run.data.source) == (100, 7, 64, "photos")
    assert (run.optim.name, run.compute.threads, run.schedule.warmup) == ("adamw", 1, 0.1)


def test_an_arm_with_another_network_takes_no_changes_of_the_base() -> None:
    study = parse_study(TREE)
    assert study.run(study.experiments[1].arms["bit"], {}).model.changes == {}


def test_levels_are_crossed() -> None:
    experiment = Experiment(name="a", arms={"b": {}}, factors={"data.limit": (1, 2), "augment.flip": (0.0, 0.5)})
    assert [tuple(levels.values()) for levels in experiment.levels()] == [(1, 0.0), (1, 0.5), (2, 0.0), (2, 0.5)]


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "a misspelt key": ({"experimnets": []}, "unknown setting 'experimnets'", "did you mean 'experiments'"),
    "an unknown claim": ({"claims": ["data-hugry"]}, "there is no claim 'data-hugry'", ""),
    "no experiment": ({"experiments": []}, "has no experiments", "vitrail study write"),
    "no length": ({"base": {}}, "has no schedule.steps", "512"),
    "a choice by evaluations": (
        {"base": {**TREE["base"], "save.patience": 2}},
        "sets save.patience",
        "equal steps compare",
    ),
    "a choice as a factor": (
        {"experiments": [{"name": "a", "arms": {"b": {}}, "factors": {"save.best": [True, False]}}]},
        "sets save.best",
        "equal steps compare",
    ),
    "one name twice": ({"experiments": TREE["experiments"][:1] * 2}, "two experiments are called 'patch'", "name"),
    "no arms": ({"experiments": [{"name": "a", "arms": {}}]}, "has no arms", "arms"),
    "an empty factor": (
        {"experiments": [{"name": "a", "arms": {"b": {}}, "factors": {"seed": []}}]},
        "the factor 'seed'",
        "different levels",
    ),
    "an unknown measure": (
        {"experiments": [{"name": "a", "arms": {"b": {}}, "measure": ["haeds"]}]},
        "measures 'haeds'",
        "did you mean 'heads'",
    ),
    "falling rates": (
        {"experiments": [{"name": "a", "arms": {"b": {}}, "rates": {"grid": [2e-3, 1e-3]}}]},
        "rates.grid",
        "rising",
    ),
}


def test_a_mistake_in_a_study_is_refused_with_the_nearest_name() -> None:
    for mistake, (change, what, remedy) in WRONG.items():
        with pytest.raises(ConfigError) as refused:
            parse_study({**TREE, **change})
        assert what in refused.value.what, mistake
        assert remedy in refused.value.remedy, mistake


def test_a_misspelt_setting_of_an_arm_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"optim\.lrr"):
        parse_study(TREE).run({"optim.lrr": 1}, {})


def test_a_file_of_yaml_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(TREE))
    assert read_study(path).pool == Pool(source="photos", validation=200)


def test_an_unknown_study_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'vit-paper'"):
        find_definition("vit-papr")


def test_a_study_without_the_claims_experiment_is_refused() -> None:
    study = read_study(find_definition("vit-paper"))
    for claim in study.claims:
        others = tuple(each for each in study.experiments if each.name != claim.experiment)
        with pytest.raises(ConfigError, match=claim.experiment):
            Study(name="a", base=study.base, experiments=others, claims=(replace(claim),))


OWN: dict[str, Any] = {
    "name": "own",
    "experiment": "depth",
    "contrast": {"kind": "difference", "plus": "deep", "minus": "shallow"},
}


def test_the_claims_of_the_paper_name_their_source_and_question():
    claims = {name: build(Claim, tree) for name, tree in paper_claims().items()}
    assert len(claims) == 22
    assert all(claim.name == name and claim.question for name, claim in claims.items())
    assert all(c.source and 20 < len(c.quote) < 200 for c in claims.values() if c.name != "same-network")
    names = ("data-hungry", "crossover", "gap-closes", "distance-grows")
    assert [claims[name].unit for name in names] == ["logit", "points", "logit a decade", "correlation"]


def test_a_claim_of_ones_own_takes_two_lines() -> None:
    found = build(Claim, OWN)
    assert found.contrast == Difference(plus="deep", minus="shallow")
    assert found.rule == Greater(by=0.01)
    assert build(Claim, {**OWN, "rule": {"kind": "equal", "within": "2e-2"}}).rule == Equal(within=0.02)
    pairs = {"kind": "pairs", "pairs": [["1d", "2d"]]}
    assert build(Claim, {**OWN, "contrast": pairs}).contrast == Pairs(pairs=(("1d", "2d"),))


def test_a_mistake_in_a_claim_is_named_with_its_remedy() -> None:
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"contrast": {"kind": "diference", "plus": "a", "minus": "b"}}, "contrast.kind is 'diference'.*difference"),
        ({"contrast": {"plus": "a", "minus": "b"}}, "contrast.kind is None"),
        ({"contrast": {"kind": "difference", "plus": "a", "mnius": "b"}}, "contrast.mnius.*minus"),
        ({"rule": {"kind": "equal", "withn": 1}}, "rule.withn.*within"),
        ({"rule": {"kind": "greater", "by": -1}}, "by=-1"),
        ({"contrast": {"kind": "slope", "plus": ["a", "b"], "minus": "c", "along": "flops"}}, "as many arms minus"),
        ({"name": ""}, "has no name"),
        ({"regime": "slow"}, "regime is 'slow'"),
    ]
    for change, message in mistakes:
        with pytest.raises(ConfigError, match=f"(?s){message}"):
            build(Claim, {**OWN, **change})
