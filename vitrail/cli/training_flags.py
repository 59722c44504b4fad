"""The flags of every verb that trains, and what it does with them."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

Precision = Literal["fp32", "bf16", "bf16-weights", "fp16"]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainingFlags:
    """Which network is trained, for how long, and where.

    Parameters
    ----------
    model
        A name from `vitrail models`; by default one that follows the recipe and the images' size.
    init
        Weights to start from: a run, a model folder, or a .safetensors file.
    size
        Pixels, as 384 or 384x256 (height x width).
    epochs
        How often every image is seen.
    steps
        How many updates.
    time
        Train for this long: 90s, 10m, 1h30m.
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
    set
        One setting of the config, e.g. --set optim.clip=1.
    workers
        Processes that read images.
    device
        cuda, mps or cpu.
    precision
        fp32, bf16 (autocast), bf16-weights, or fp16 with loss scaling.
    max_bad
        Stop when more of the images are bad than this, e.g. 1%.
    dry_run
        Say what would be done, how long it takes and what it needs, from a few measured steps.
    quiet
        No progress.
    json
        The final figures as one JSON object on the last line of stdout.
    """

    model: str | None = None
    init: str | None = None
    size: str | None = None
    epochs: float | None = None
    steps: int | None = None
    time: str | None = None
    batch: int | None = None
    lr: float | None = None
    seed: int | None = None
    out: Path | None = None
    resume: Path | None = None
    config: Path | None = None
    set: Annotated[list[str] | None, Parameter(negative="")] = None
    workers: int | None = None
    device: str | None = None
    precision: Precision | None = None
    max_bad: str | None = None
    dry_run: Annotated[bool, Parameter(negative="")] = False
    quiet: Annotated[bool, Parameter(negative="")] = False
    json: Annotated[bool, Parameter(negative="")] = False

    def start(self, data: str | None, *, labels: bool, recipe: str | None, **more: Any) -> None:
        """Trains on ``data``, or says what that would take; prints the report's path, and with ``json`` the figures.

        ``more`` are the verb's own flags.
        """
        from vitrail.config.compose import FLAGS, check_objective, request, settings_of

        flags = {name: value for name, value in vars(self).items() if name in FLAGS} | more
        asked = {"recipe": recipe, "config": self.config, "settings": self.set or [], "out": self.out}
        run, folder = request(flags=settings_of(flags, data), resume=self.resume, **asked)
        check_objective(run, labels=labels)
        if self.dry_run:
            from vitrail.training.dry_run import dry_run as measure

            print(measure(run))
            return
        from vitrail.training.train import train

        result = train(run, out=folder, quiet=self.quiet, command=shlex.join(["vitrail", *sys.argv[1:]]))
        print(f"report: {result.report}")
        if self.json:
            from vitrail.cli.output import one_line

            print(one_line(result.figures))
