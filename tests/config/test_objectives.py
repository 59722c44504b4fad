"""The names of the objectives without labels stand in `schema.Unlabelled`; every table has all of them."""

from __future__ import annotations

from typing import get_args

from vitrail.config.recipes import RECIPES
from vitrail.config.schema import Unlabelled
from vitrail.objectives import OBJECTIVES


def test_every_objective_is_made_and_has_a_recipe_of_its_name() -> None:
    assert OBJECTIVES.keys() == set(get_args(Unlabelled))
    assert {name for name, recipe in RECIPES.items() if recipe.run.objective.name == name} == OBJECTIVES.keys()
