"""The cells of a study, the order of their turn, and the plan that fits into a budget."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from tests.workflows.study.planned import POOL, VIT, fake_result, make_study
from vitrail.errors import ConfigError
from vitrail.workflows.study.cells import TUNING_SEED, Cell, Grid, PoolFacts, fit_to_images
from vitrail.workflows.study.plan import Plan, choose_claims, make_plan, read_plan, reduce, write_plan
from vitrail.workflows.study.results import Place, write_result
from vitrail.workflows.study.study import Experiment, Pool, Study


def price(cell: Cell) -> float:
    """A second for every ten steps."""
    return (cell.run.schedule.steps or 0) / 10


def plan_of(study: Study, budget: float | None = None, request: str = "a") -> Plan:
    return make_plan(study, POOL, device="cpu", request=request, price=price, budget=budget)


def keys(study: Study, pool: PoolFacts = POOL, device: str = "cpu") -> set[str]:
    return set(Grid(study, pool, device).cells)


def test_keys_are_the_same_in_every_process_and_every_version() -> None:
    # a change of these loses every study that was computed; it needs a new `results.FORMAT`
    grid = Grid(make_study(), POOL)
    assert len(grid.cells) == 3 * (2 * 3 + 1 + 1)
    again = Grid(make_study(), POOL)
    assert list(again.cells) == list(grid.cells)
    assert list(again.tuned) == list(grid.tuned)


def test_what_does_not_decide_a_result_leaves_the_keys_and_what_does_changes_every_one() -> None:
    study = make_study()
    expected = keys(study)

    def keys_with(**base: object) -> set[str]:
        return keys(replace(study, base={**study.base, **base}))

    same = {
        "data.source": "elsewhere",
        "save.every": 3.0,
        "save.evaluations": 2,
        "data.workers": 2,
        "compute.threads": 2,
        "compute.device": "cpu",
        "recipe": "other",
    }
    assert not [name for name, value in same.items() if keys_with(**{name: value}) != expected]
    deciding = {"optim.weight_decay": 0.2, "schedule.steps": 41, "compute.precision": "bf16", "augment.flip": 0.0}
    assert not [name for name, value in deciding.items() if keys_with(**{name: value}) & expected]


def test_other_images_another_device_other_seeds_and_other_rates_change_the_keys() -> None:
    study = make_study()
    assert not keys(study, replace(POOL, fingerprint="0" * 64)) & keys(study)
    assert not keys(study, device="cuda") & keys(study)
    first = study.experiments[0]
    later = replace(study, experiments=(replace(first, first_seed=3),))
    assert not keys(later) & keys(study)
    tuned = replace(study, experiments=(replace(first, rates=replace(first.rates, grid=(1e-3, 2e-3))),))
    assert not keys(tuned) & keys(replace(study, experiments=(first,)))


def test_cells_that_experiments_share_are_computed_once_and_their_tuning_too() -> None:
    grid = Grid(make_study(), POOL)
    place = Place("narrow", (("data.limit", None),), 0)
    assert grid.places["width"][place] == grid.places["depth"][Place("base", (), 0)]
    assert len(grid.tuned) == 3  # narrow, wide, deep
    assert len(list(grid.foreseen())) == 24 + 9


def test_all_images_are_the_same_however_they_are_asked_for() -> None:
    study = make_study(experiments=(Experiment(name="a", arms={"b": VIT}, factors={"data.limit": (1_000,)}),))
    other = make_study(experiments=(Experiment(name="a", arms={"b": VIT}, factors={"data.limit": (None,)}),))
    assert keys(study) == keys(other)


def test_what_is_measured_beside_accuracy_is_measured_of_shared_cells_too() -> None:
    study = make_study()
    first, second, _ = study.experiments
    grid = Grid(replace(study, experiments=(first, replace(second, measure=("heads",)))), POOL)
    shared = grid.places["depth"][Place("base", (), 0)]
    assert grid.places["width"][Place("narrow", (("data.limit", None),), 0)] == shared
    assert grid.cells[shared].measure == ("heads",)
    assert shared not in keys(study)


def test_cells_take_turns_seed_by_seed() -> None:
    turns = [cell.run.seed for cell in Grid(make_study(), POOL).cells.values()]
    assert turns == sorted(turns)
    assert len(set(turns)) == 3


def test_rates_are_tuned_before_the_cells_that_need_them() -> None:
    grid = Grid(make_study(), POOL)
    ready = grid.list_ready({})
    assert ready is not None
    tuning = [cell for cell in ready if cell.kind == "tuning"]
    assert len(tuning) == 9
    assert {cell.run.seed for cell in tuning} == {TUNING_SEED}
    assert {cell.run.schedule.steps for cell in tuning} == {20}
    assert {cell.run.data.limit for cell in tuning} == {None}
    assert [cell.tuning for cell in ready[9:]] == [None] * 3  # of the experiment whose rate is fixed
    results = {cell.key: fake_result(cell, cell.run.optim.lr) for cell in tuning}
    ready = grid.list_ready(results)
    assert ready is not None
    assert {cell.kind for cell in ready} == {"final"}
    assert {tuning.choose(results).best for tuning in grid.tuned.values()} == {2e-3}
    results |= {cell.key: fake_result(cell) for cell in ready}
    assert grid.list_ready(results) is None


def test_a_best_rate_at_the_edge_asks_for_one_more_cell() -> None:
    grid = Grid(make_study(), POOL)
    tuning = next(iter(grid.tuned.values()))
    results = {
        tuning.cell(rate).key: fake_result(tuning.cell(rate), validation={"nll": 1 / rate})
        for rate in tuning.rates.grid
    }
    assert [cell.run.optim.lr for cell in tuning.missing(results)] == [8e-3]


def seconds(study: Study) -> float:
    return sum(map(price, Grid(study, POOL).foreseen()))


def test_the_budget_drops_experiments_then_sizes_then_images_and_never_seeds() -> None:
    study, _ = fit_to_images(make_study(), POOL)
    budgets = (114, 102, 84, 60, 30, 15)  # seconds of each form: 4 a final cell, 2 a tuning cell, then half as much
    forms = [reduce(study, seconds, budget) for budget in budgets]
    said = [words for _, words in forms]
    assert said[0] == []
    assert said[1] == ["without the experiment fixed"]
    assert said[2] == [*said[1], "without the experiment depth"]
    assert said[3] == [*said[2], "only the smallest and the largest data.limit"]
    assert said[4] == [*said[3], "half the images: 20 steps"]
    assert said[5] == [*said[4], "half the images: 10 steps"]
    assert {experiment.seeds for form, _ in forms for experiment in form.experiments} == {3}
    assert forms[3][0].experiments[0].factors == {"data.limit": (100, 1_000)}
    assert [seconds(form) for form, _ in forms] == list(budgets)


def test_controls_go_last() -> None:
    study, _ = fit_to_images(make_study(), POOL)
    again = Experiment(name="again", arms={"base": VIT}, first_seed=3)
    study = replace(study, experiments=(study.experiments[0], again, *study.experiments[1:]))
    form, _ = reduce(study, seconds, seconds(study) / 6)
    assert [experiment.name for experiment in form.experiments] == ["width", "again"]


def test_steps_are_halved_wherever_a_study_names_them() -> None:
    arms = {"short": {**VIT, "schedule.steps": 20}}
    study = make_study(
        experiments=(
            Experiment(name="a", arms=arms),
            Experiment(name="again", arms={"b": VIT}, factors={"schedule.steps": (8, 16)}),
        )
    )
    form, _ = reduce(study, lambda form: form.base["schedule.steps"], 20)
    assert form.experiments[0].arms["short"]["schedule.steps"] == 10
    assert form.experiments[1].factors["schedule.steps"] == (4, 8)


def test_a_budget_that_no_form_fits_is_refused_with_what_the_smallest_takes() -> None:
    with pytest.raises(ConfigError, match=r"takes .* at least, and the budget has") as refused:
        reduce(make_study(), seconds, 1)
    assert "--budget" in refused.value.remedy


def test_sizes_that_the_images_do_not_have_are_left_out_and_said() -> None:
    study, notes = fit_to_images(make_study(), replace(POOL, training=200))
    assert study.experiments[0].factors == {"data.limit": (100, 200)}
    assert notes == ["width: without data.limit 300, there are 200 training images"]


def test_a_claim_that_the_study_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no claim 'patches'"):
        choose_claims(make_study(), ["patches"])


def test_a_plan_is_read_as_it_was_written_and_has_the_same_hash(tmp_path: Path) -> None:
    plan = plan_of(make_study())
    assert write_plan(tmp_path, plan) == []
    read, earlier = read_plan(tmp_path)
    assert (read.sha256, earlier) == (plan.sha256, [])
    assert list(read.grid.cells) == list(plan.grid.cells)


def test_the_hash_of_a_plan_depends_neither_on_where_its_images_lie_nor_on_the_call() -> None:
    places = ("/here/digits", "/there/digits", "/here/others")
    studies = [make_study(pool=Pool(source=source)) for source in places]
    plans = [
        make_plan(study, POOL, device="cpu", request=study.pool.source, price=price, budget=None) for study in studies
    ]
    assert plans[0].sha256 == plans[1].sha256 != plans[2].sha256


def test_another_plan_has_another_hash_and_the_earlier_one_is_kept(tmp_path: Path) -> None:
    plans = [plan_of(make_study(base={"schedule.steps": steps})) for steps in (40, 50, 60)]
    assert len({plan.sha256 for plan in plans}) == 3
    for plan in plans:
        write_plan(tmp_path, plan)
    write_plan(tmp_path, plans[2])
    assert read_plan(tmp_path)[1] == [plan.sha256 for plan in plans[:2]]
    assert {path.stem for path in (tmp_path / "plans").iterdir()} == {plan.sha256 for plan in plans[:2]}


def test_a_folder_without_a_plan_and_a_damaged_plan_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plan\.json is missing"):
        read_plan(tmp_path)
    write_plan(tmp_path, plan_of(make_study()))
    path = tmp_path / "plan.json"
    path.write_text(path.read_text().replace('"small"', '"other"'))
    with pytest.raises(ConfigError, match=r"plan\.json is damaged"):
        read_plan(tmp_path)


def test_results_are_found_by_their_keys_and_damaged_ones_are_not(tmp_path: Path) -> None:
    plan = plan_of(make_study())
    cells = list(itertools.islice(plan.grid.cells.values(), 3))
    for cell in cells:
        write_result(tmp_path, fake_result(cell))
    path = tmp_path / "cells" / f"{cells[0].key}.json"
    path.write_text(path.read_text().replace('"accuracy": 0.5', '"accuracy": 0.9'))
    found = plan.results(tmp_path)
    assert set(found) == {cell.key for cell in cells[1:]}
    assert (found[cells[1].key].right == fake_result(cells[1]).right).all()
