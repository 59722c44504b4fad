"""A study as a value: to YAML and back, what its cells are, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from vitrail.errors import ConfigError
from vitrail.workflows.study.definitions import STUDIES, find_study, format_study, name_claims, read_study
from vitrail.workflows.study.rates import Rates, choose, list_missing
from vitrail.workflows.study.study import Experiment, Pool, Study

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


def test_yaml_gives_the_values_and_the_values_give_the_yaml_back() -> None:
    study = name_claims(TREE)
    assert study.experiments[0] == Experiment(
        name="patch",
        arms={"p8": {"model.changes.patch_size": [8, 8]}, "p16": {}},
        factors={"data.limit": (100, None)},
        rates=Rates(grid=(1e-3, 2e-3)),
    )
    again = name_claims(yaml.safe_load(format_study(study)))
    assert again.experiments == study.experiments
    assert again.base.items() >= study.base.items()
    assert again.run({}, {}) == study.run({}, {})


@pytest.mark.parametrize("name", STUDIES)
def test_a_built_in_study_comes_back_from_its_yaml(name: str) -> None:
    study = find_study(name)
    again = name_claims(yaml.safe_load(format_study(study)))
    assert again.claims == study.claims
    for one, other in zip(again.experiments, study.experiments, strict=True):
        for arm, settings in one.arms.items():
            assert again.run(settings, {}) == study.run(other.arms[arm], {})


def test_arms_and_levels_are_settings_over_the_base() -> None:
    study = name_claims(TREE)
    run = study.run(study.experiments[0].arms["p8"], {"data.limit": 100}, seed=7)
    assert run.model.changes == {"depth": 2, "patch_size": [8, 8]}
    assert (run.data.limit, run.seed, run.schedule.steps, run.data.source) == (100, 7, 64, "photos")
    assert (run.optim.name, run.compute.threads, run.schedule.warmup) == ("adamw", 1, 0.1)


def test_an_arm_with_another_network_takes_no_changes_of_the_base() -> None:
    study = name_claims(TREE)
    assert study.run(study.experiments[1].arms["bit"], {}).model.changes == {}


def test_levels_are_crossed() -> None:
    experiment = Experiment(name="a", arms={"b": {}}, factors={"data.limit": (1, 2), "augment.flip": (0.0, 0.5)})
    assert [tuple(levels.values()) for levels in experiment.levels()] == [(1, 0.0), (1, 0.5), (2, 0.0), (2, 0.5)]


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "a misspelt key": ({"experimnets": []}, "unknown setting 'experimnets'", "did you mean 'experiments'"),
    "an unknown claim": ({"claims": ["data-hugry"]}, "there is no claim 'data-hugry'", ""),
    "no experiment": ({"experiments": []}, "has no experiments", "vitrail study write"),
    "no length": ({"base": {}}, "has no schedule.steps", "512"),
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
            name_claims({**TREE, **change})
        assert what in refused.value.what, mistake
        assert remedy in refused.value.remedy, mistake


def test_a_misspelt_setting_of_an_arm_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"optim\.lrr"):
        name_claims(TREE).run({"optim.lrr": 1}, {})


def test_a_file_of_yaml_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(TREE))
    assert read_study(path).pool == Pool(source="photos", validation=200)


def test_an_unknown_study_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'vit-paper'"):
        find_study("vit-papr")


GRID = Rates(grid=(1e-3, 2e-3, 4e-3))


def test_every_rate_of_the_grid_is_tried_and_the_best_is_taken() -> None:
    assert list_missing(GRID, {2e-3: 1.0}) == [1e-3, 4e-3]
    losses = {1e-3: 1.2, 2e-3: 1.0, 4e-3: 1.1}
    assert list_missing(GRID, losses) == []
    assert (choose(losses).best, choose(losses).edge) == (2e-3, False)


def test_a_best_rate_at_an_edge_continues_the_grid_on_that_side_twice_at_most() -> None:
    losses = {1e-3: 0.9, 2e-3: 1.0, 4e-3: 1.1}
    assert list_missing(GRID, losses) == [5e-4]
    losses[5e-4] = 0.8
    assert list_missing(GRID, losses) == [2.5e-4]
    losses[2.5e-4] = 0.7
    assert list_missing(GRID, losses) == []
    assert (choose(losses).best, choose(losses).edge) == (2.5e-4, True)
    assert list_missing(GRID, {1e-3: 1.1, 2e-3: 1.0, 4e-3: 0.9}) == [8e-3]


def test_rates_that_diverged_are_not_taken() -> None:
    infinite = float("inf")
    assert choose({1e-3: 1.0, 2e-3: infinite}).best == 1e-3
    assert choose({1e-3: infinite, 2e-3: infinite}).best is None
    lost = {1e-3: infinite, 2e-3: infinite}
    assert list_missing(Rates(grid=(1e-3, 2e-3)), lost) == [5e-4]
    assert list_missing(Rates(grid=(1e-3, 2e-3)), {**lost, 5e-4: infinite, 2.5e-4: infinite}) == []


def test_a_study_without_the_claims_experiment_is_refused() -> None:
    study = find_study("vit-paper")
    for claim in (claim for claim in study.claims if claim.experiment):
        others = tuple(each for each in study.experiments if each.name != claim.experiment)
        with pytest.raises(ConfigError, match=claim.experiment):
            Study(name="a", base=study.base, experiments=others, claims=(replace(claim),))
