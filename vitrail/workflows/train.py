"""`vitrail train` and `vitrail pretrain`: from options to a run, on data by their name or as a program holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Unpack

from vitrail.config.compose import check_objective, request, settings_of
from vitrail.config.flags_training import PretrainFlags, TrainFlags
from vitrail.config.keywords import takes
from vitrail.config.schema import Run
from vitrail.data.sources.open import find_data
from vitrail.data.workers import refuse_in_worker
from vitrail.runtime.distributed import join
from vitrail.runtime.progress import Say, say_nothing, to_stderr
from vitrail.training.dry_run import dry_run
from vitrail.training.train import Result, name_folder
from vitrail.training.train import train as run_training
from vitrail.workflows.tune_rate import tune_rate

Transform = Callable[[Any], Any]


@takes(TrainFlags)
def train(
    data: Any = None,
    *,
    transform: Transform | None = None,
    command: str = "vitrail.train",
    say: Say | None = None,
    **flags: Unpack[TrainFlags],
) -> Result | Any:
    """Trains a ViT; with an existing ``out`` the run there is resumed.

    Args:
        data: a path or built-in name as on the command line, ``(images, labels)`` arrays, a mapping of splits, a
            `vitrail.data.sources.source.Source`, or a torch ``Dataset`` of (picture, label) pairs.
        transform: a callable or ``nn.Module`` from a decoded picture to a tensor (C, h, w), uint8 or floats in [0, 1], in
            place of the recipe's crops. It runs where images are read, so with workers it must pickle. Normalising is the
            model's: ``set=["model.preprocessing={mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}"]``.
        command: how the report names the call.
        say: with ``dry_run``, takes each line of the plan as soon as it is known.

    Returns:
        The finished run with its folder, report and figures; ``.load()`` gives the `Classifier`. With ``dry_run`` the plan.
    """
    return _start(data, flags, labels=True, transform=transform, command=command, say=say)


@takes(PretrainFlags)
def pretrain(
    data: Any = None,
    *,
    transform: Transform | None = None,
    command: str = "vitrail.pretrain",
    say: Say | None = None,
    **flags: Unpack[PretrainFlags],
) -> Result | Any:
    """Trains an encoder without labels; with an existing ``out`` the run there is resumed.

    Args:
        data: what `train` takes; labels, where there are some, only judge the features on the way.
        transform: as of `train`.
        command: how the report names the call.
        say: with ``dry_run``, takes each line of the plan as soon as it is known.

    Returns:
        The finished run; ``.load()`` gives a `Classifier` without a head, and ``train(data, init=run.folder)`` fine-tunes it.
        With ``dry_run`` the plan.
    """
    return _start(data, flags, labels=False, transform=transform, command=command, say=say)


def _start(
    data: Any,
    flags: Mapping[str, Any],
    *,
    labels: bool,
    transform: Transform | None,
    command: str,
    say: Say | None,
) -> Result | str:
    """Trains what the options ask for, with or without ``labels``; with the option ``dry_run`` returns the plan."""
    refuse_in_worker()
    run, folder, held = compose(data, flags, labels=labels)
    if flags["dry_run"]:
        plan: list[str] = []

        def note(line: str) -> None:
            plan.append(line)
            if say is not None:
                say(line)

        if flags.get("tune_lr"):
            note(
                "note     --tune-lr first trains 3 to 5 times for half the length; what follows is the training after it"
            )
        dry_run(run, data=held, say=note)
        return "\n".join(plan)
    how = {"data": held, "transform": transform}
    if not flags.get("tune_lr"):
        return run_training(run, out=folder, quiet=flags["quiet"], command=command, **how)
    with join(run.compute.device, run.compute.timeout) as ranks:
        place = folder or ranks.run_on_rank0(lambda: name_folder(run))
        tuned = tune_rate(
            run, place, say=say_nothing if flags["quiet"] or not ranks.first else to_stderr, ranks=ranks, **how
        )
        return run_training(tuned, out=place, quiet=flags["quiet"], command=command, ranks=ranks, **how)


def compose(data: Any, flags: Mapping[str, Any], *, labels: bool) -> tuple[Run, Path | None, Any]:
    """The run that the options ask for, its folder, if one was given, and the data, if not those that the run names.

    Raises `ConfigError` or `DataError`.
    """
    source = None if data is None else str(data) if _is_named(data) else type(data).__name__
    paths = {name: Path(flags[name]) if flags.get(name) else None for name in ("out", "resume", "config")}
    searched = labels and data is not None and paths["resume"] is None
    found = find_data(source if _is_named(data) else data) if searched else None
    run, folder = request(
        recipe=flags.get("recipe"),
        flags=settings_of(flags, source),
        settings=flags.get("set") or (),
        annotated=found.task if found else None,
        **paths,
    )
    check_objective(run, labels=labels)
    return run, folder, found if _is_named(data) else data


def _is_named(data: Any) -> bool:
    return data is None or isinstance(data, str | Path)
