"""`vitrail train`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

Precision = Literal["fp32", "bf16", "bf16-weights", "fp16"]


def train(
    data: str | None = None,
    /,
    *,
    model: str | None = None,
    init: str | None = None,
    teacher: str | None = None,
    recipe: str | None = None,
    size: Annotated[str | None, Parameter(help="Pixels, as 384 or 384x256 (height x width).")] = None,
    epochs: float | None = None,
    steps: int | None = None,
    time: Annotated[str | None, Parameter(help="Train for this long: 90s, 10m, 1h30m.")] = None,
    batch: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    config: Path | None = None,
    set: Annotated[list[str] | None, Parameter(help="One setting of the config, e.g. --set optim.clip=1.")] = None,
    workers: int | None = None,
    device: str | None = None,
    precision: Precision | None = None,
    head_only: Annotated[bool, Parameter(negative="")] = False,
    max_bad: Annotated[str | None, Parameter(help="Stop when more of the images are bad than this, e.g. 1%.")] = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    quiet: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Train a ViT on your images, from scratch or from given weights (--init).

    Running the same command with the same --out goes on where it stopped.

    Parameters
    ----------
    data
        A folder of class folders, a manifest (CSV, JSONL, Parquet), arrays (.npy, .npz), or the built-in `digits`.
    model
        A name from `vitrail models`; by default the recipe's choice.
    init
        Weights to start from: a run, a model folder, or a .safetensors file.
    teacher
        A model that knows the classes: the labels are learnt beside its answers (DeiT).
    recipe
        The starting point for every other setting; `finetune` with --init, else `small-data`.
    epochs
        How often every image is seen.
    steps
        How many updates.
    batch
        Images in one update.
    lr
        Peak learning rate.
    seed
        Decides everything random.
    out
        The run directory; a new one under runs/ by default.
    resume
        Go on with the run in this directory, with its own settings.
    config
        A YAML file of settings, laid over the recipe; flags are laid over it.
    workers
        Processes that read images.
    device
        cuda, mps or cpu.
    precision
        fp32, bf16 (autocast), bf16-weights, or fp16 with loss scaling.
    head_only
        Freeze all but the classification head.
    dry_run
        Say what would be done, how long it takes and what it needs, from a few measured steps.
    quiet
        No progress.
    json
        The final figures as one JSON object on the last line of stdout.
    """
    from vitrail.engine.request import check_objective, request

    flags: dict[str, Any] = {
        "seed": seed,
        "model": {"name": model, "init": init, "size": size, "head_only": head_only or None},
        "data": {"source": data, "batch": batch, "workers": workers, "max_bad": max_bad},
        "objective": {"teacher": teacher},
        "optim": {"lr": lr},
        "schedule": {"epochs": epochs, "steps": steps, "time": time},
        "compute": {"device": device, "precision": precision},
    }
    run, folder = request(recipe=recipe, config=config, flags=flags, settings=set or [], out=out, resume=resume)
    check_objective(run, labels=True)
    if dry_run:
        from vitrail.engine.dryrun import dry_run as measure

        print(measure(run))
        return
    from vitrail.engine.train import train as start

    result = start(run, out=folder, quiet=quiet, command=shlex.join(["vitrail", *sys.argv[1:]]))
    if json:
        from vitrail.cli.words import one_line

        print(f"report: {result.report}")
        print(one_line(result.figures))
    else:
        print(f"report: {result.report}")
