"""`vitrail pretrain`: an encoder trained on images without labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from vitrail.verbs import options
from vitrail.verbs.train import Training, make_run, start
from vitrail.verbs.verb import Sets, verb

if TYPE_CHECKING:
    from vitrail.training.train import Result


@verb("objective", "epochs", "size", "batch", "out")
def pretrain(
    data: Annotated[Any, "What `vitrail train` takes, or a folder of images without classes."] = None,
    *,
    objective: Annotated[str | None, Sets("objective.name")] = None,
    teacher: Annotated[str | Path | None, Sets("objective.teacher", "it needs no classes")] = None,
    tokenizer: Annotated[str | Path | None, Sets("objective.tokenizer")] = None,
    recipe: Annotated[
        str | None, "Default values of all settings; by default the recipe named after the objective."
    ] = None,
    command: options.Command = "vitrail.pretrain",
    **shared: Unpack[Training],
) -> Result | Any:
    """Trains an encoder on images without labels; labels, where there are any, only monitor its features.

    The result is fine-tuned with `vitrail train DATA --init RUN` and evaluated with `vitrail probe RUN DATA`. Running the
    same command with the same --out resumes the run. moco and simclr compare all images of a --batch, in as little memory as
    --set data.micro_batch asks for. dino and ibot save the slow average of the encoder, their teacher.

    Returns:
        The finished run; ``.load()`` gives a `Classifier` without a head, and ``train(data, init=run.folder)`` fine-tunes it.
        With ``dry_run`` the plan.

    Raises:
        ConfigError: no objective, invalid settings, or the folder of another run.
        DataError: data that cannot be used for training.
    """
    return start(pretrain, {**locals(), **shared}, labels=False)


run = make_run(pretrain, labels=False)
