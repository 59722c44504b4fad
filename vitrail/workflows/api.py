"""`vitrail.train` and `vitrail.pretrain` for Python: the verbs of the command line, on any data that a program can hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitrail.config.compose import check_objective, request, settings_of
from vitrail.config.schema import Unlabelled
from vitrail.data.workers import refuse_in_worker
from vitrail.training.train import Result
from vitrail.training.train import train as run_training


def train(
    data: Any,
    *,
    model: str | None = None,
    init: str | Path | None = None,
    teacher: str | Path | None = None,
    recipe: str | None = None,
    size: int | tuple[int, int] | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    time: str | float | None = None,
    batch: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    config: str | Path | None = None,
    settings: Sequence[str] = (),
    workers: int | None = None,
    device: str | None = None,
    precision: str | None = None,
    head_only: bool = False,
    transform: Callable[[Any], Any] | None = None,
    quiet: bool = False,
) -> Result:
    """Trains a ViT; the same function as ``vitrail train``.

    Args:
        data: a path or built-in name as on the command line, ``(images, labels)`` arrays, a mapping of splits, a
            `vitrail.data.sources.source.Source`, or a torch ``Dataset`` of (picture, label) pairs.
        transform: a callable or ``nn.Module`` from a decoded picture to a tensor (C, h, w), uint8 or floats in [0, 1], in
            place of the recipe's crops. It runs where images are read, so with workers it must pickle. Normalising is the
            model's: ``settings=["model.preprocessing={mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}"]``.
        settings: ``"group.key=value"`` words, as ``--set`` takes them.

    The other arguments are the flags of the same name; with an existing ``out`` the run there goes on.

    Returns:
        The finished run: its folder, report and figures; ``.load()`` gives the `Classifier`.

    Raises:
        ConfigError, DataError, CheckpointError, DivergedError, DiskError: of `vitrail.errors`.
    """
    return _start(
        data,
        "vitrail.train",
        {
            "seed": seed,
            "model": model,
            "init": init,
            "size": size,
            "head_only": head_only or None,
            "batch": batch,
            "workers": workers,
            "teacher": teacher,
            "lr": lr,
            "epochs": epochs,
            "steps": steps,
            "time": time,
            "device": device,
            "precision": precision,
        },
        {"recipe": recipe, "out": out and Path(out), "config": config and Path(config), "settings": settings},
        transform=transform,
        quiet=quiet,
    )


def pretrain(
    data: Any,
    *,
    objective: Unlabelled | None = None,
    tokenizer: str | Path | None = None,
    model: str | None = None,
    init: str | Path | None = None,
    recipe: str | None = None,
    size: int | tuple[int, int] | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    time: str | float | None = None,
    batch: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
    out: str | Path | None = None,
    config: str | Path | None = None,
    settings: Sequence[str] = (),
    workers: int | None = None,
    device: str | None = None,
    precision: str | None = None,
    transform: Callable[[Any], Any] | None = None,
    quiet: bool = False,
) -> Result:
    """Trains an encoder without labels; the same function as ``vitrail pretrain``.

    Args:
        data: what `train` takes; labels, where there are some, only judge the features on the way.
        objective: how to learn; needed where neither ``recipe`` nor ``config`` names it.
        tokenizer: for ``beit``, the run of a tokenizer.

    The other arguments are those of `train`.

    Returns:
        The finished run; ``.load()`` gives a `Classifier` without a head, and ``train(data, init=run.folder)`` goes on from it.

    Raises:
        ConfigError, DataError, CheckpointError, DivergedError, DiskError: of `vitrail.errors`.
    """
    return _start(
        data,
        "vitrail.pretrain",
        {
            "seed": seed,
            "model": model,
            "init": init,
            "size": size,
            "batch": batch,
            "workers": workers,
            "objective": objective,
            "tokenizer": tokenizer,
            "lr": lr,
            "epochs": epochs,
            "steps": steps,
            "time": time,
            "device": device,
            "precision": precision,
        },
        {"recipe": recipe, "out": out and Path(out), "config": config and Path(config), "settings": settings},
        transform=transform,
        quiet=quiet,
    )


def _start(
    data: Any,
    command: str,
    flags: dict[str, Any],
    asked: dict[str, Any],
    *,
    transform: Callable[[Any], Any] | None,
    quiet: bool,
) -> Result:
    """Runs what the flags ask for on data by their path or name, or on what a program holds."""
    refuse_in_worker()
    named = isinstance(data, (str, Path))
    source = str(data) if named else type(data).__name__
    run, folder = request(flags=settings_of(flags, source), **asked)
    check_objective(run, labels=command == "vitrail.train")
    return run_training(
        run, out=folder, data=None if named else data, transform=transform, quiet=quiet, command=command
    )
