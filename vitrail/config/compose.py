"""Composes a `Run`: the recipe, the YAML file, the flags and ``--set``, where later values override earlier ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, Literal, get_args

from vitrail.config.parse import assignment, build, overlay, plain, read_stored
from vitrail.config.recipes import OF_TASK, RECIPES, find_recipe
from vitrail.config.schema import TASK_ALIASES, Run, Unlabelled
from vitrail.config.units import (
    columns_of_table,
    numbers,
    parse_fraction,
    seconds,
    size_in_pixels,
    weights_of_classes,
)
from vitrail.errors import ConfigError, nearest
from vitrail.plugins import OBJECTIVES, find_own

AUTO, NONE = "auto", "none"  # values of model.init: weights that suit the data, and training from scratch
OWN_OBJECTIVE = "masked-patch"  # the recipe of registered objectives, in which nothing belongs to its objective
LENGTHS = ("epochs", "steps", "time")
WARMUPS = ("warmup", "warmup_steps")
# changes to every recipe for built-in data: digits must not be flipped, and 1,500 images overfit without mixup
BUILT_IN: dict[str, dict[str, Any]] = {"digits": {"augment": {"flip": 0.0}}}
# changes to every recipe for a task: the numbers of a picture are not those of a part of it, or of a mixture with another
WHOLE = {"crop": "squash", "crop_area": (1.0, 1.0), "mixup": 0.0, "cutmix": 0.0, "smoothing": 0.0}
FOR_TASK: dict[str, dict[str, Any]] = {"regression": {"augment": WHOLE, "objective": {"loss": None, "binarise": False}}}
BUILT_IN_LABELS: dict[str, dict[str, Any]] = {"digits": {"augment": {"mixup": 0.4, "mix_major": True}}}


def compose_run(
    *,
    recipe: str | None = None,
    config: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
    out: Path | None = None,
    resume: Path | None = None,
    annotated: str | None = None,
    init: str | None = None,
) -> tuple[Run, Path | None]:
    """Composes the requested run; returns it and its folder, if one was given.

    The recipe is by default that of an objective without labels, where one is named (``masked-patch`` for a registered one), else
    for boxes and maps of classes ``detect`` and ``segment``, with weights to start from ``finetune``, or ``head-only`` where only
    the head is trained, or ``lora`` with adapters, else ``small-data``.

    Args:
        recipe: as `find_recipe` takes it.
        config: a YAML file of settings.
        flags: nested settings; ``None`` means not given.
        settings: ``group.key=value`` strings.
        resume: a run directory to resume, with its own settings.
        annotated: the task that the data are annotated for, unless the settings name one.
        init: the weights that were chosen where ``model.init`` is "auto" or not given.

    Raises `ConfigError` for invalid settings.
    """
    if out is not None and resume is not None and out != resume:
        raise ConfigError(f"--out {out} and --resume {resume} name two folders", "give one of them")
    layers = [read_stored(config) if config else {}, _drop_none(flags or {}), *map(assignment, settings)]
    asked = reduce(overlay, layers, {})
    length = _group(reduce(overlay, layers[1:], {}), "schedule")
    if length.get("steps") is not None and length.get("time") is not None:  # in a run's own config they are one length
        raise ConfigError(
            "both steps and time are given as the length of the training", "give one of epochs, steps and time"
        )
    if init is not None or _group(asked, "model").get("init") in (AUTO, NONE):
        layers.append({"model": {"init": init}})
        asked = overlay(asked, layers[-1])
    if resume is not None:
        base = _read_stored(resume)
    else:
        objective = _group(asked, "objective").get("name") or "supervised"
        if objective not in ("supervised", *get_args(Unlabelled)):
            find_own("objective", str(objective), OBJECTIVES, ("supervised", *get_args(Unlabelled)))
        task = asked.get("task") or annotated
        task = TASK_ALIASES.get(str(task), task)
        settings_of_model = _group(asked, "model")
        otherwise = "small-data"
        if settings_of_model.get("init"):
            has_adapters = _group(settings_of_model, "adapters").get("rank")
            otherwise = "head-only" if settings_of_model.get("head_only") else "lora" if has_adapters else "finetune"
        otherwise = OF_TASK.get(str(task), otherwise)
        name = (
            recipe
            or asked.get("recipe")
            or (otherwise if objective == "supervised" else objective if objective in RECIPES else OWN_OBJECTIVE)
        )
        run = find_recipe(str(name), model=_group(asked, "model").get("name")).run
        source = str(_group(asked, "data").get("source"))
        base = overlay(plain(run), BUILT_IN.get(source, {}))
        if run.objective.name == "supervised":
            base = overlay(base, {"task": task or run.task, **BUILT_IN_LABELS.get(source, {})})
            base = overlay(base, FOR_TASK.get(str(task), {}))
    if _group(asked, "model").get("init") and not _group(asked, "model").get("name"):
        base = overlay(base, {"model": {"name": None}})  # the weights determine the network; the recipe's is ignored
    for layer in layers:
        base = overlay(_clear_replaced(base, layer), _convert_units(layer))
    run = build(Run, base)
    if not run.data.source:
        remedy = "name a folder, a manifest or arrays; the built-in `digits` needs no files"
        raise ConfigError("no data were named", remedy)
    return run, resume or out


def find_start(
    recipe: str | None, config: Path | None, flags: Mapping[str, Any], settings: Sequence[str]
) -> Literal["auto", "open", "given"]:
    """Returns how the arguments of `compose_run` say what a training starts from: by "auto"; not at all, so that it may be
    chosen ("open"); or by weights, "none", a network, a recipe, an objective or a teacher ("given").
    """
    asked = reduce(overlay, [read_stored(config) if config else {}, _drop_none(flags), *map(assignment, settings)], {})
    model, objective = _group(asked, "model"), _group(asked, "objective")
    if model.get("init") == AUTO:
        return "auto"
    decided = (
        recipe
        or asked.get("recipe")
        or {"name", "changes", "init"} & model.keys()
        or {"name", "teacher"} & objective.keys()
    )
    return "given" if decided else "open"


def check_objective(run: Run, *, labels: bool) -> None:
    """Raises `ConfigError` if the objective of ``run`` needs labels and ``labels`` is false, or the reverse."""
    name, known = run.objective.name, "|".join(get_args(Unlabelled))
    if labels and name != "supervised":
        raise ConfigError(f"the objective {name!r} learns without labels", "use `vitrail pretrain` in place of `train`")
    if not labels and name == "supervised":
        raise ConfigError("no objective was named", f"give --objective {known}; with labels it is `vitrail train`")


def _group(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    group = tree.get(name)
    return group if isinstance(group, Mapping) else {}


def _drop_none(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flags without those that were not given."""
    kept = {key: _drop_none(value) if isinstance(value, Mapping) else value for key, value in flags.items()}
    return {key: value for key, value in kept.items() if value is not None and value != {}}


def _read_stored(folder: Path) -> dict[str, Any]:
    if not (folder / "config.yaml").exists():
        runs = [str(path.parent) for path in folder.parent.glob("*/config.yaml")]
        remedy = nearest(str(folder), runs) if runs else "give the run directory that was printed when it started"
        raise ConfigError(f"{folder} holds no run to resume", remedy)
    return read_stored(folder / "config.yaml")


def _clear_replaced(base: dict[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``base`` without its length and its warm-up in steps, where ``layer`` sets another kind of length or warm-up."""
    given = {name for name, value in _group(layer, "schedule").items() if value is not None}
    cleared = (*LENGTHS,) if given.intersection(LENGTHS) else ()
    cleared += ("warmup_steps", "recipe_steps") if given.intersection(WARMUPS) else ()
    return overlay(base, {"schedule": dict.fromkeys(cleared)}) if cleared else base


def _convert_units(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the layer with values such as ``10m``, ``1%`` and ``384x256`` converted to numbers."""
    readers = {
        ("schedule", "time"): seconds,
        ("data", "max_bad"): parse_fraction,
        ("data", "fraction"): parse_fraction,
        ("data", "columns"): columns_of_table,
        ("data", "pixel_range"): numbers,
        ("model", "size"): size_in_pixels,
        ("objective", "class_weights"): weights_of_classes,
    }
    read = dict(layer)
    for (group, key), reader in readers.items():
        inner = read.get(group)
        if isinstance(inner, Mapping) and inner.get(key) is not None:
            read[group] = {**inner, key: reader(inner[key])}
    return read
