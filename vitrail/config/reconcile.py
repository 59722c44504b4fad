"""What a recipe changes in a network, reconciled with the network that the run has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from vitrail.config.recipes import RECIPES
from vitrail.config.schema import Run
from vitrail.runtime.progress import Say

if TYPE_CHECKING:
    from vitrail.models import Config

# fields of configs that leave what a network answers as it is
ONLY_TRAINING = ("drop_path", "dropout", "attention_dropout", "patch_dropout", "checkpoint")


def without_foreign_changes(run: Run, config: Config, say: Say) -> Run:
    """``run`` without what its recipe changes in a ViT and the network of ``config`` has no field for.

    What a person asked for stays, and is refused by name where it cannot be meant.
    """
    known = {field.name: getattr(config, field.name) for field in fields(config)}
    # a field of the same name may be another thing: positions are a choice in a ViT, and a yes or no in BEiT
    foreign = [
        name
        for name in _of_recipe(run)
        if name not in known or isinstance(known[name], bool) != isinstance(run.model.changes[name], bool)
    ]
    return _without(run, foreign, f"which {config.about} does not have", say)


def without_another_network(run: Run, say: Say) -> Run:
    """``run``, which starts from weights, without what its recipe makes of a fresh network: these bring their own."""
    return _without(run, [name for name in _of_recipe(run) if name not in ONLY_TRAINING], "which the weights say", say)


def without_what_was_left_out(run: Run, stored: Run) -> Run:
    """``run`` without what its recipe changes in a network and ``stored``, as it began, does not."""
    left_out = [name for name in _of_recipe(run) if name not in stored.model.changes]
    return _without(run, left_out, "which the run began without", lambda line: None)


def _of_recipe(run: Run) -> list[str]:
    """Names of what the recipe changes in the network, where the run has it so."""
    changes = RECIPES[run.recipe].run.model.changes if run.recipe in RECIPES else {}
    return [name for name, value in run.model.changes.items() if name in changes and changes[name] == value]


def _without(run: Run, names: Sequence[str], why: str, say: Say) -> Run:
    if not names:
        return run
    say(f"recipe   {run.recipe} changes {', '.join(names)}, {why}: left out")
    kept = {name: value for name, value in run.model.changes.items() if name not in names}
    return replace(run, model=replace(run.model, changes=kept))
