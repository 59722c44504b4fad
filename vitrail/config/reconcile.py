"""Reconciles the requested settings with the network of the run, and with the run that its folder stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from vitrail.config.recipes import recipe_of
from vitrail.config.schema import LENGTH, Run, differences
from vitrail.errors import ConfigError
from vitrail.runtime.progress import LogFunction

if TYPE_CHECKING:
    from vitrail.models import Config


def changes_for(run: Run, config: Config, log: LogFunction, *, from_weights: bool = False) -> dict[str, Any]:
    """Returns the changes of ``run`` to the network ``config``, without changes of its recipe that do not apply to this network.

    Fields that this architecture does not have are left out; with ``from_weights``, and for a ViT with parts that the paper's
    does not have, so are those that determine the network.
    Changes that the user requested are kept; invalid ones are refused later, by name.
    """
    from vitrail.models.config import TRAINING_FIELDS  # vitrail.models loads torch

    changes = run.model.changes
    # a model with parts of its own is a whole, as weights are
    if from_weights or getattr(config, "is_later", False):
        decided = [name for name in _find_recipe_changes(run, changes) if name not in TRAINING_FIELDS]
        decider = "the weights decide" if from_weights else "the model decides"
        changes = _drop_changes(run, changes, decided, f"which {decider}", log)
    known = {field.name: getattr(config, field.name) for field in fields(config)}
    # a field of the same name may have another type: positions are a string in a ViT and a bool in BEiT
    foreign = [
        name
        for name in _find_recipe_changes(run, changes)
        if name not in known or isinstance(known[name], bool) != isinstance(changes[name], bool)
    ]
    return _drop_changes(run, changes, foreign, f"which {config.about} does not have", log)


def continue_run(asked: Run, stored: Run, folder: object) -> tuple[Run, bool]:
    """Returns the stored run with the changes that are allowed on resuming; and whether it was made longer.

    Raises `ConfigError` with the differences if the settings are those of another run.
    """
    left_out = [name for name in _find_recipe_changes(asked, asked.model.changes) if name not in stored.model.changes]
    changes = _drop_changes(asked, asked.model.changes, left_out, "", lambda line: None)
    asked = replace(asked, model=replace(asked.model, changes=changes))
    if stored.schedule.recipe_steps is None and asked.schedule.warmup_steps is not None:
        # begun with an earlier version, which did not scale the warm-up, or with a warm-up of the user's
        asked = replace(asked, schedule=replace(asked.schedule, recipe_steps=None))
    changed = differences(asked, stored)
    longer = any(path in LENGTH for path in changed)
    wrong = {path: values for path, values in changed.items() if path not in LENGTH and path != "recipe"}
    if wrong:
        listing = "\n".join(f"{path}: {before!r} there, {now!r} asked" for path, (before, now) in wrong.items())
        what = f"{folder} holds a run with other settings"
        raise ConfigError(what, "choose another --out, or the same settings", value=listing)
    data = replace(
        stored.data,
        source=asked.data.source or stored.data.source,
        workers=stored.data.workers if asked.data.workers is None else asked.data.workers,
        decoded=asked.data.decoded or stored.data.decoded,
        micro_batch=asked.data.micro_batch or stored.data.micro_batch,
    )
    parallel = asked.compute.parallel or stored.compute.parallel
    compute = replace(stored.compute, parallel=parallel, timeout=asked.compute.timeout)
    save = replace(asked.save, log_every=stored.save.log_every, evaluations=stored.save.evaluations)
    schedule = asked.schedule if longer else stored.schedule
    model = replace(stored.model, init=asked.model.init or stored.model.init)
    stored = replace(stored, track=asked.track)
    return replace(stored, model=model, data=data, compute=compute, save=save, schedule=schedule), longer


def _find_recipe_changes(run: Run, changes: dict[str, Any]) -> list[str]:
    """Returns the names of the ``changes`` whose values come from the recipe."""
    recipe = recipe_of(run)
    own = recipe.run.model.changes if recipe else {}
    return [name for name, value in changes.items() if name in own and own[name] == value]


def _drop_changes(
    run: Run, changes: dict[str, Any], names: Sequence[str], why: str, log: LogFunction
) -> dict[str, Any]:
    if names:
        log(f"recipe   {run.recipe} changes {', '.join(names)}, {why}: left out")
    return {name: value for name, value in changes.items() if name not in names}
