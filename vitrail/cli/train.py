"""`vitrail train`."""

from __future__ import annotations

from typing import Unpack

from vitrail.cli.output import AsJson
from vitrail.cli.takes_flags import takes_flags
from vitrail.config.flags_training import TrainFlags


@takes_flags(TrainFlags)
def train(data: str | None = None, /, *, json: AsJson = False, **flags: Unpack[TrainFlags]) -> None:
    """Train a ViT on your images, from scratch or from given weights (--init).

    Running the same command with the same --out resumes the run.

    Parameters
    ----------
    data
        A folder of class folders, a manifest (CSV, JSONL, Parquet), arrays (.npy, .npz), or the built-in `digits`.
    """
    from vitrail.cli.output import command_line, print_line, print_result
    from vitrail.workflows.train import train as run

    print_result(run(data, command=command_line(), say=print_line, **flags), json=json)
