"""A run as a value: what it refuses, how it is asked for, and when two of them are the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from tests.each_row import each_row
from vitrail.config.compose import compose_run
from vitrail.config.parse import build, plain
from vitrail.config.recipes import RECIPES
from vitrail.config.reconcile import continue_run
from vitrail.config.schema import DataSettings, OptimSettings, Run, ScheduleSettings, differences
from vitrail.config.units import grid_of_patches, parse_fraction, seconds, size_in_pixels
from vitrail.errors import ConfigError


@each_row("name", RECIPES)
def test_every_recipe_survives_yaml_and_states_its_source(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.run.recipe == name
    assert recipe.source
    assert build(Run, yaml.safe_load(yaml.safe_dump(plain(recipe.run)))) == recipe.run


def test_a_warm_up_of_the_user_replaces_that_of_the_recipe() -> None:
    def schedule(*settings: str) -> tuple[float, int | None, int | None]:
        run, _ = compose_run(recipe="paper-finetune", flags={"data": {"source": "x"}}, settings=settings)
        return run.schedule.warmup, run.schedule.warmup_steps, run.schedule.recipe_steps

    assert schedule("schedule.steps=500") == (0.05, 500, 10_000)
    assert schedule("schedule.warmup_steps=100") == (0.05, 100, None)
    assert schedule("schedule.warmup=0.2") == (0.2, None, None)
    with pytest.raises(ConfigError, match="recipe_steps"):
        schedule("schedule.recipe_steps=500")


def test_a_run_begun_before_warm_ups_were_scaled_resumes_with_its_own() -> None:
    asked, _ = compose_run(recipe="paper-finetune", flags={"data": {"source": "x"}, "schedule": {"steps": 600}})
    old = replace(asked, schedule=replace(asked.schedule, steps=500, recipe_steps=None))
    same, longer = continue_run(replace(asked, schedule=replace(asked.schedule, steps=500)), old, "run")
    assert (same.schedule, longer) == (old.schedule, False)
    stretched, longer = continue_run(asked, old, "run")
    assert (stretched.schedule, longer) == (replace(old.schedule, steps=600), True)
    scaled = replace(asked, schedule=replace(asked.schedule, steps=500))
    explicit = replace(asked, schedule=replace(asked.schedule, recipe_steps=None))
    assert continue_run(asked, scaled, "run")[0].schedule == asked.schedule
    with pytest.raises(ConfigError, match=r"schedule\.recipe_steps"):
        continue_run(explicit, scaled, "run")


def test_the_t4_recipe_is_the_stated_one() -> None:
    run = RECIPES["t4"].run
    assert (run.data.batch, run.data.micro_batch, run.accumulate) == (128, 32, 4)
    assert (run.schedule.steps, run.schedule.warmup_steps, run.schedule.kind) == (50_000, 1_000, "cosine")
    assert (run.optim.lr, run.optim.weight_decay, run.model.size) == (1e-3, 0.1, (224, 224))


@each_row(
    "make",
    [
        lambda: ScheduleSettings(),
        lambda: ScheduleSettings(epochs=1, steps=1),
        lambda: ScheduleSettings(steps=0),
        lambda: DataSettings(batch=10, micro_batch=4),
        lambda: DataSettings(batch=0),
        lambda: OptimSettings(lr=0),
        lambda: OptimSettings(ema=1.0),
        lambda: OptimSettings(ema_ramp=0.5),
        lambda: Run(schedule=ScheduleSettings(steps=1), seed=-1),
    ],
)
def test_invalid_options_are_refused_with_a_remedy(make) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.remedy


def test_flags_lie_over_the_file_and_settings_over_flags(tmp_path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("optim: {lr: 1e-3, clip: 5}\nschedule: {epochs: 3}\n")
    flags = {"data": {"source": "digits", "batch": None}, "optim": {"lr": 2e-3}, "schedule": {"time": "1m30s"}}
    run, folder = compose_run(config=file, flags=flags, settings=["optim.clip=7", "model.size=48x32"])
    assert folder is None
    assert (run.optim.lr, run.optim.clip, run.model.size) == (2e-3, 7.0, (48, 32))
    assert (run.schedule.epochs, run.schedule.steps, run.schedule.time) == (None, None, 90.0)
    assert run.recipe == "small-data"


def test_weights_to_start_from_choose_the_fine_tuning_recipe() -> None:
    assert compose_run(flags={"data": {"source": "x"}, "model": {"init": "w.safetensors"}})[0].recipe == "finetune"
    assert compose_run(settings=["data.source=x", "model.init=w.safetensors"])[0].recipe == "finetune"


@each_row(
    "call, words",
    [
        ({"flags": {}}, "no data were named"),
        ({"recipe": "smal-data"}, "did you mean 'small-data'"),
        ({"settings": ["optim.lrr=1"]}, "did you mean 'lr'"),
        ({"settings": ["optm.lr=1"]}, "did you mean 'optim'"),
        ({"settings": ["schedule.time=soon"]}, "not a length of time"),
        ({"settings": ["model.size=big"]}, "not a size"),
    ],
)
def test_a_request_that_cannot_be_meant_says_why(call: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compose_run(**call)


def test_human_words_are_read() -> None:
    assert [seconds(text) for text in ("90", "45s", "10m", "1h30m", 7)] == [90, 45, 600, 5400, 7]
    assert [parse_fraction(text) for text in ("1%", "0.5", 0.25)] == [0.01, 0.5, 0.25]
    assert size_in_pixels("384") == (384, 384)
    assert size_in_pixels("48x32") == (48, 32)
    for wrong in ("", "m", "10 minutes"):
        with pytest.raises(ConfigError):
            seconds(wrong)


def test_a_run_stays_on_its_device() -> None:
    asked, _ = compose_run(flags={"data": {"source": "x"}})
    stored = replace(asked, compute=replace(asked.compute, device="cuda:0"))
    assert continue_run(asked, stored, "run")[0].compute.device == "cuda:0"
    with pytest.raises(ConfigError, match=r"compute\.device: 'cuda:0' there, 'cpu' asked"):
        continue_run(replace(asked, compute=replace(asked.compute, device="cpu")), stored, "run")


def test_two_runs_differ_only_in_what_was_asked_explicitly() -> None:
    asked = RECIPES["small-data"].run
    stored = replace(asked, compute=replace(asked.compute, device="cpu", precision="bf16", threads=2))
    assert differences(asked, stored) == {}
    louder = replace(asked, save=replace(asked.save, every=5.0), data=replace(asked.data, workers=3))
    assert differences(louder, stored) == {}
    other = replace(asked, optim=replace(asked.optim, lr=0.5), compute=replace(asked.compute, precision="fp32"))
    assert differences(other, stored) == {"compute.precision": ("bf16", "fp32"), "optim.lr": (asked.optim.lr, 0.5)}


def test_none_where_it_means_none_is_a_difference_too() -> None:
    stored = RECIPES["small-data"].run
    asked = replace(stored, optim=replace(stored.optim, clip=None))
    assert differences(asked, stored) == {"optim.clip": (1.0, None)}
    warm = replace(stored, schedule=replace(stored.schedule, warmup_steps=10))
    assert differences(stored, warm) == {"schedule.warmup_steps": (10, None)}


def test_weights_bring_their_network_whatever_the_recipe_names() -> None:
    flags = {"data": {"source": "digits"}, "model": {"init": "weights.safetensors"}}
    assert compose_run(recipe="t4", flags=flags)[0].model.name is None
    named = {**flags, "model": {"init": "weights.safetensors", "name": "vit-b16"}}
    assert compose_run(recipe="t4", flags=named)[0].model.name == "vit-b16"


def test_a_grid_has_rows_and_columns():
    assert grid_of_patches("4x9") == grid_of_patches([4, 9]) == (4, 9)
    for wrong in ("4", "0x9", "4x9x2", "4,9", "x", [4]):
        with pytest.raises(ConfigError, match=r"is not a grid of patches\n  hint: give rows and columns, as 4x9"):
            grid_of_patches(wrong)
