"""`vitrail.train` for Python: the command line's verb with the same names, on any data that a program can hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitrail.data.workers import refuse_in_worker
from vitrail.engine.request import request
from vitrail.engine.train import Result
from vitrail.engine.train import train as run_training


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
            `vitrail.data.sources.Source`, or a torch ``Dataset`` of (picture, label) pairs.
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
    refuse_in_worker()
    named = data if isinstance(data, (str, Path)) else None
    flags = {
        "seed": seed,
        "model": {"name": model, "init": init and str(init), "size": size, "head_only": head_only or None},
        "data": {
            "source": str(named) if named is not None else type(data).__name__,
            "batch": batch,
            "workers": workers,
        },
        "objective": {"teacher": teacher and str(teacher)},
        "optim": {"lr": lr},
        "schedule": {"epochs": epochs, "steps": steps, "time": time},
        "compute": {"device": device, "precision": precision},
    }
    run, folder = request(
        recipe=recipe,
        config=Path(config) if config else None,
        flags=flags,
        settings=settings,
        out=Path(out) if out else None,
    )
    return run_training(
        run,
        out=folder,
        data=None if named is not None else data,
        transform=transform,
        quiet=quiet,
        command="vitrail.train",
    )
