"""`vitrail pretrain`."""

from __future__ import annotations

from typing import Literal

from vitrail.cli.training_flags import TrainingFlags

Objective = Literal["masked-patch", "mae", "beit", "moco", "simclr", "tokenizer"]


def pretrain(
    data: str | None = None,
    /,
    *,
    objective: Objective | None = None,
    tokenizer: str | None = None,
    recipe: str | None = None,
    running: TrainingFlags = TrainingFlags(),
) -> None:
    """Train an encoder on images without labels; labels that are there only judge it on the way.

    What comes out is fine-tuned with `vitrail train DATA --init RUN` and judged with `vitrail probe RUN DATA`. Running the
    same command with the same --out goes on where it stopped. moco and simclr compare all images of a --batch, in as little
    memory as --set data.micro_batch asks for.

    Parameters
    ----------
    data
        What `vitrail train` takes, or a folder of images without classes.
    objective
        How to learn: masked-patch (the ViT paper's), mae, beit, moco, simclr; or tokenizer, the codes that beit predicts.
    tokenizer
        For beit: the run of a tokenizer.
    recipe
        The starting point for every other setting; by default that of the objective's name.
    """
    running.start(data, labels=False, recipe=recipe, objective=objective, tokenizer=tokenizer)
