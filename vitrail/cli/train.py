"""`vitrail train`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from vitrail.cli.training_flags import TrainingFlags


def train(
    data: str | None = None,
    /,
    *,
    recipe: str | None = None,
    teacher: str | None = None,
    head_only: Annotated[bool, Parameter(negative="")] = False,
    running: TrainingFlags = TrainingFlags(),
) -> None:
    """Train a ViT on your images, from scratch or from given weights (--init).

    Running the same command with the same --out goes on where it stopped.

    Parameters
    ----------
    data
        A folder of class folders, a manifest (CSV, JSONL, Parquet), arrays (.npy, .npz), or the built-in `digits`.
    recipe
        The starting point for every other setting; `finetune` with --init, else `small-data`.
    teacher
        A model that knows the classes: the labels are learnt beside its answers (DeiT).
    head_only
        Freeze all but the classification head.
    """
    running.start(data, labels=True, recipe=recipe, teacher=teacher, head_only=head_only or None)
