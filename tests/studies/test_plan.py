"""The trials of a study, the order of their turn, and the plan that fits into a budget."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from tests.studies.planned import POOL, VIT, fake_result, make_study
from vitrail.errors import ConfigError
from vitrail.files import write_checksummed
from vitrail.studies.design import Experiment, Pool, Rates, Study
from vitrail.studies.plan import (
    TUNING_SEED,
    Place,
    Plan,
    PoolFacts,
    RateSearch,
    Trial,
    choose_claims,
    fit_to_images,
    make_plan,
    read_plan,
    reduce,
    write_plan,
    write_result,
)
from vitrail.studies.report import Tuning


def price(trial: Trial) -> float:
    """A second for every ten steps."""
    return (trial.run.schedule.steps or 0) / 10


def grid_of(study: Study, pool: PoolFacts = POOL, device: str = "cpu") -> Plan:
    """All trials of a study that is not bounded."""
    return Plan(study=study, pool=pool, device=device)


def plan_of(study: Study, budget: float | None = None, request: str = "a") -> Plan:
    return make_plan(study, POOL, device="cpu", request=request, price=price, budget=budget)


def keys(study: Study, pool: PoolFacts = POOL, device: str = "cpu") -> set[str]:
    return set(Plan(study=study, pool=pool, device=device).trials)


def test_keys_are_the_same_in_every_process_and_every_version() -> None:
    # a change of these loses every study that was computed; it needs a new `results.FORMAT`
    plan = grid_of(make_study())
    assert len(plan.trials) == 3 * (2 * 3 + 1 + 1)
    again = grid_of(make_study())
    assert list(again.trials) == list(plan.trials)
    assert list(again.searches) == list(plan.searches)


def test_keys_of_trials_depend_on_all_and_only_what_decides_the_result() -> None:
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
    later = replace(study, base={**study.base, "seed": 3})
    assert not keys(later) & keys(study)
    tuned = replace(study, experiments=(replace(first, rates=replace(first.rates, grid=(1e-3, 2e-3))),))
    assert not keys(tuned) & keys(replace(study, experiments=(first,)))


def test_trials_that_experiments_share_are_computed_once_and_their_tuning_too() -> None:
    plan = grid_of(make_study())
    place = Place("narrow", (("data.limit", None),), 0)
    assert plan.places["width"][place] == plan.places["depth"][Place("base", (), 0)]
    assert len(plan.searches) == 3  # narrow, wide, deep
    assert len(list(plan.foreseen())) == 24 + 9


def test_all_images_are_the_same_however_they_are_asked_for() -> None:
    study = make_study(experiments=(Experiment(name="a", arms={"b": VIT}, factors={"data.limit": (1_000,)}),))
    other = make_study(experiments=(Experiment(name="a", arms={"b": VIT}, factors={"data.limit": (None,)}),))
    assert keys(study) == keys(other)


def test_further_measurements_are_made_of_shared_trials_too() -> None:
    study = make_study()
    first, second, _ = study.experiments
    measured = replace(study, experiments=(first, replace(second, measure=("heads",))))
    assert measured.measure == ("heads",)
    assert not keys(measured) & keys(study)
    plan = grid_of(measured)
    shared = plan.places["depth"][Place("base", (), 0)]
    assert plan.places["width"][Place("narrow", (("data.limit", None),), 0)] == shared


def test_trials_take_turns_seed_by_seed() -> None:
    turns = [trial.run.seed for trial in grid_of(make_study()).trials.values()]
    assert turns == sorted(turns)
    assert len(set(turns)) == 3


def test_rates_are_tuned_before_the_trials_that_need_them() -> None:
    plan = grid_of(make_study())
    ready = plan.list_ready({})
    assert ready is not None
    tuning = [trial for trial in ready if trial.kind == "tuning"]
    assert len(tuning) == 9
    assert {trial.run.seed for trial in tuning} == {TUNING_SEED}
    assert {trial.run.schedule.steps for trial in tuning} == {20}
    assert {trial.run.data.limit for trial in tuning} == {None}
    assert [trial.search for trial in ready[9:]] == [None] * 3  # of the experiment whose rate is fixed
    results = {trial.key: fake_result(trial, trial.run.optim.lr) for trial in tuning}
    ready = plan.list_ready(results)
    assert ready is not None
    assert {trial.kind for trial in ready} == {"final"}
    assert {search.choose(results).best for search in plan.searches.values()} == {2e-3}
    results |= {trial.key: fake_result(trial) for trial in ready}
    assert plan.list_ready(results) is None


def test_a_best_rate_at_the_edge_asks_for_one_more_trial() -> None:
    plan = grid_of(make_study())
    search = next(iter(plan.searches.values()))
    results = {
        search.trial(rate).key: fake_result(search.trial(rate), validation={"nll": 1 / rate})
        for rate in search.rates.grid
    }
    assert [trial.run.optim.lr for trial in search.missing(results)] == [8e-3]


GRID = Rates(grid=(1e-3, 2e-3, 4e-3))


def search(losses: dict[float, float], rates: Rates = GRID) -> tuple[list[float], float | None, bool]:
    """The rates that have to be tried, the best one so far, and whether it is at the edge, by validation NLL of those tried."""
    run = make_study().run(VIT, {})
    given = RateSearch(key="a", run=run, rates=rates, pool="p", device="cpu")
    results = {
        (trial := given.trial(rate)).key: fake_result(trial, rate, validation={"nll": loss, "accuracy": -loss})
        for rate, loss in losses.items()
    }
    choice = given.choose(results)
    return [trial.run.optim.lr or 0 for trial in given.missing(results)], choice.best, Tuning({}, choice).is_at_edge


def test_every_rate_of_the_grid_is_tried_and_the_best_is_taken() -> None:
    assert search({2e-3: 1.0})[0] == [1e-3, 4e-3]
    assert search({1e-3: 1.1, 2e-3: 1.0, 4e-3: 1.1}) == ([], 2e-3, False)
    assert search({1e-3: 1.2, 2e-3: 1.0, 4e-3: 1.1}) == ([], 2.245e-3, False)  # the vertex of the parabola


def test_a_best_rate_at_an_edge_continues_the_grid_on_that_side_twice_at_most() -> None:
    losses = {1e-3: 0.9, 2e-3: 1.0, 4e-3: 1.1}
    assert search(losses)[0] == [5e-4]
    assert search({**losses, 5e-4: 0.8})[0] == [2.5e-4]
    assert search({**losses, 5e-4: 0.8, 2.5e-4: 0.7}) == ([], 2.5e-4, True)
    assert search({1e-3: 1.1, 2e-3: 1.0, 4e-3: 0.9})[0] == [8e-3]


def test_rates_that_diverged_are_not_taken() -> None:
    infinite, short = float("inf"), Rates(grid=(1e-3, 2e-3))
    assert search({1e-3: 1.0, 2e-3: infinite}, short)[1] == 1e-3
    lost = {1e-3: infinite, 2e-3: infinite}
    assert search(lost, short) == ([5e-4], None, False)
    assert search({**lost, 5e-4: infinite, 2.5e-4: infinite}, short) == ([], None, False)


def test_a_study_of_another_version_is_refused(tmp_path: Path) -> None:
    write_plan(tmp_path, plan_of(make_study()))
    write_checksummed(tmp_path / "plan.json", {"format": 1, "study": {"name": "small"}})
    with pytest.raises(ConfigError, match=r"holds a study of another version of vitrail \(format 1, this one has 3\)"):
        read_plan(tmp_path)


def seconds(study: Study) -> float:
    return sum(map(price, grid_of(study).foreseen()))


def test_the_budget_drops_experiments_then_images_and_never_seeds() -> None:
    study, _ = fit_to_images(make_study(), POOL)
    budgets = (114, 102, 84, 42, 21)  # seconds of each form: 4 a final trial, 2 a tuning trial, then half as much
    forms = [reduce(study, seconds, budget) for budget in budgets]
    said = [words for _, words in forms]
    assert said[0] == []
    assert said[1] == ["without the experiment fixed"]
    assert said[2] == [*said[1], "without the experiment depth"]
    assert said[3] == [*said[2], "half the images: 20 steps"]
    assert said[4] == [*said[3], "half the images: 10 steps"]
    assert {experiment.seeds for form, _ in forms for experiment in form.experiments} == {3}
    assert [seconds(form) for form, _ in forms] == list(budgets)


def test_steps_are_halved_wherever_a_study_names_them() -> None:
    arms = {"short": {**VIT, "schedule.steps": 20}}
    experiment = Experiment(name="a", arms=arms, factors={"schedule.steps": (8, 16)})
    form, _ = reduce(make_study(experiments=(experiment,)), lambda form: form.base["schedule.steps"], 20)
    assert form.experiments[0].arms["short"]["schedule.steps"] == 10
    assert form.experiments[0].factors["schedule.steps"] == (4, 8)


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
    assert list(read.trials) == list(plan.trials)


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
    trials = list(itertools.islice(plan.trials.values(), 3))
    for trial in trials:
        write_result(tmp_path, fake_result(trial))
    path = tmp_path / "trials" / f"{trials[0].key}.json"
    path.write_text(path.read_text().replace('"accuracy": 0.5', '"accuracy": 0.9'))
    path = tmp_path / "trials" / f"{trials[2].key}.json"
    path.write_text(path.read_text().replace("vitrail_sha256", "vitrayl_sha256"))  # damaged in the name of its checksum
    found = plan.read_results(tmp_path)
    assert set(found) == {trials[1].key}
    assert (found[trials[1].key].right == fake_result(trials[1]).right).all()
