"""`vitrail settings`: every setting has a meaning, a type and the value of the recipe, and can be set by what is shown."""

from __future__ import annotations

import json
from functools import reduce

import pytest

import vitrail
from tests.each_row import each_row
from vitrail.cli import run
from vitrail.config.compose import compose_run
from vitrail.config.parse import plain
from vitrail.config.recipes import RECIPES, find_recipe
from vitrail.config.schema import list_fields
from vitrail.errors import ConfigError
from vitrail.verbs.settings import list_settings


@each_row("recipe", RECIPES)
def test_the_list_has_every_setting_of_a_recipe_with_its_value(recipe):
    composed = find_recipe(recipe).run
    found = list_settings(recipe=recipe)
    assert found.keys() == list_fields().keys()
    assert all(plain(reduce(getattr, key.split("."), composed)) == found[key].value for key in found)


def test_what_is_shown_can_be_set():
    for key, setting in list_settings().items():
        if key in ("recipe", "data.source") or (key.startswith("schedule.") and setting.value is None):
            continue
        asked, _ = compose_run(flags={"data": {"source": "a"}}, settings=[f"{key}={json.dumps(setting.value)}"])
        assert plain(reduce(getattr, key.split("."), asked)) == setting.value, key


def test_types_and_flags_are_those_of_the_schema():
    found = list_settings("optim")
    assert {key.partition(".")[0] for key in found} == {"optim"}
    assert (found["optim.lr"].flag, found["optim.lr"].type) == ("--lr", "float")
    assert found["optim.name"].type == "adamw | sgd | muon"
    assert found["optim.clip"].type == "float | null"
    assert found["optim.betas"].type == "[float, float]"
    assert vitrail.list_settings("seed")["seed"].flag == "--seed"


def test_an_unknown_setting_names_the_nearest(capsys):
    with pytest.raises(ConfigError, match=r"there is no setting 'optm'\n.*'optim'"):
        list_settings("optm")
    assert run(["settings", "data.max_bad"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("data.max_bad: 0.01  (--max-bad)\n")
    assert "maximum share of images" in said
    assert run(["settings", "save", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["save.keep"]["value"] == 2


def test_steps_and_time_exclude_each_other_where_a_user_gives_them():
    flags = {"data": {"source": "digits"}, "schedule": {"steps": 4, "time": "10s"}}
    with pytest.raises(ConfigError, match="both steps and time are given"):
        compose_run(flags=flags)
    with pytest.raises(ConfigError, match="both steps and time are given"):
        compose_run(flags={"data": {"source": "digits"}, "schedule": {"time": "10s"}}, settings=["schedule.steps=4"])


def test_the_learning_rate_is_found_by_other_names():
    with pytest.raises(ConfigError, match=r"it is called 'optim\.lr' here"):
        compose_run(flags={"data": {"source": "digits"}}, settings=["optim.rate=1"])
