"""The learning rate by hand, and the warm-up of every recipe."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from vitrail.config.compose import compose_run
from vitrail.config.recipes import RECIPES, find_recipe
from vitrail.config.schema import ScheduleSettings
from vitrail.errors import ConfigError
from vitrail.runs.folder import RunFolder
from vitrail.training.prepare import prepare
from vitrail.training.schedule import check_warmup, learning_rate, warmup_steps


def test_warm_up_then_cosine_by_hand() -> None:
    schedule = ScheduleSettings(steps=110, warmup_steps=10, kind="cosine", end=0.1)
    middle, last = (0.1 + 0.9 * (1 + math.cos(math.pi * part)) / 2 for part in (0.5, 0.99))
    expected = {0: 0.1, 4: 0.5, 9: 1.0, 10: 1.0, 60: middle, 109: last}
    assert {step: learning_rate(schedule, 1.0, step, 110) for step in expected} == pytest.approx(expected)


def test_linear_rsqrt_and_constant_by_hand() -> None:
    linear = ScheduleSettings(steps=100, warmup=0.0, kind="linear", end=0.2)
    assert learning_rate(linear, 1.0, 75, 100) == pytest.approx(0.2 + 0.8 * 0.25)
    rsqrt = ScheduleSettings(steps=1000, warmup_steps=100, kind="rsqrt")
    assert learning_rate(rsqrt, 1.0, 399, 1000) == pytest.approx(math.sqrt(100 / 400))
    constant = ScheduleSettings(steps=10, warmup=0.0, kind="constant")
    assert learning_rate(constant, 0.3, 9, 10) == 0.3


def test_the_warm_up_of_a_recipe_shrinks_with_the_run_and_never_grows() -> None:
    schedule = ScheduleSettings(steps=10_000, warmup_steps=500, recipe_steps=10_000)
    assert [warmup_steps(schedule, steps) for steps in (1, 500, 5_000, 10_000, 20_000)] == [0, 25, 250, 500, 500]
    said: list[str] = []
    check_warmup(schedule, 500, said.append, begun=False)
    check_warmup(schedule, 20_000, said.append, begun=False)
    assert said == ["warm-up  25 of 500 steps: the recipe's 500 of 10,000, scaled to the length of this run"]


def test_every_recipe_reaches_its_peak_and_ends_at_its_final_rate() -> None:
    names = [*RECIPES, *(f"{name}/{row}" for name, each in RECIPES.items() for row in each.rows)]
    for name, length in itertools.product(names, (10, 500, None)):
        run = find_recipe(name).run
        schedule, peak = run.schedule, run.optim.lr
        own = schedule.recipe_steps or schedule.steps or round((schedule.epochs or 0) * 1_281_167 / run.data.batch)
        steps, row = length or own, f"{name} in {length or own} steps"
        check_warmup(schedule, steps, lambda line: None, begun=False)
        assert learning_rate(schedule, peak, warmup_steps(schedule, steps), steps) == pytest.approx(peak), row
        assert learning_rate(schedule, peak, steps, steps) == pytest.approx(schedule.end, abs=1e-12), row
        # the last update is one step before the end
        last = learning_rate(schedule, peak, steps - 1, steps)
        assert last < schedule.end + peak * (0.15 if steps == 10 else 0.003), row


def test_a_warm_up_that_leaves_no_step_for_the_decay_is_refused_or_was_begun() -> None:
    for schedule in (ScheduleSettings(steps=500, warmup_steps=500), ScheduleSettings(steps=500, warmup=0.9999)):
        said: list[str] = []
        with pytest.raises(ConfigError, match=r"500 steps takes the whole run.*\n.*schedule.warmup"):
            check_warmup(schedule, 500, said.append, begun=False)
        check_warmup(schedule, 500, said.append, begun=True)
        assert "warning" in said[0]


def test_a_training_scales_the_warm_up_of_its_recipe_and_refuses_one_of_the_user_that_is_too_long(tmp_path) -> None:
    tiny = "model.changes={width: 32, depth: 1, heads: 2, mlp_width: 32, patch_size: [4, 4]}"
    flags = {"data": {"source": "made"}, "model": {"name": "vit-ti16", "size": 8}, "schedule": {"steps": 40}}
    arrays = np.zeros((60, 8, 8, 1), np.uint8), np.arange(60) % 3

    def prepared(folder: str, *settings: str) -> list[str]:
        said: list[str] = []
        run, _ = compose_run(recipe="paper-finetune", flags=flags, settings=[tiny, "compute.threads=1", *settings])
        prepare(run, RunFolder(tmp_path / folder), data=arrays, log=said.append)
        return said

    assert "warm-up  2 of 40 steps: the recipe's 500 of 10,000, scaled to the length of this run" in prepared("scaled")
    with pytest.raises(ConfigError, match="warm-up of 40 steps takes the whole run of 40"):
        prepared("refused", "schedule.warmup_steps=40")
