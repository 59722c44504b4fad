"""`vitrail pretrain`: an encoder trained on images without labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitrail.config.schema import Precision, Unlabelled
from vitrail.verbs import options
from vitrail.verbs.train import Devices, Network, Restarts, SayPlan, SetAgain, Transform, run_training, start
from vitrail.verbs.verb import Sets, verb

if TYPE_CHECKING:
    from vitrail.training.train import Result


@verb
def pretrain(
    data: Annotated[Any, "What `vitrail train` takes, or a folder of images without classes."] = None,
    *,
    objective: Annotated[Unlabelled | None, Sets("objective.name")] = None,
    tokenizer: Annotated[str | Path | None, Sets("objective.tokenizer")] = None,
    recipe: Annotated[
        str | None, "Default values of all settings; by default the recipe named after the objective."
    ] = None,
    model: Annotated[str | None, Sets("model.name")] = None,
    init: Annotated[
        str | Path | None,
        Sets("model.init", "a run, a model folder, a .safetensors, .pth or .npz file, or hf:owner/name"),
    ] = None,
    size: Annotated[options.Pixels | None, Sets("model.size", "such as 384 or 384x256")] = None,
    epochs: Annotated[float | None, Sets("schedule.epochs")] = None,
    steps: Annotated[int | None, Sets("schedule.steps")] = None,
    time: Annotated[str | float | None, Sets("schedule.time", "or 90s, 10m, 1h30m")] = None,
    batch: Annotated[int | None, Sets("data.batch")] = None,
    lr: Annotated[float | None, Sets("optim.lr")] = None,
    limit: Annotated[int | None, Sets("data.limit")] = None,
    fraction: Annotated[str | float | None, Sets("data.fraction", "such as 10%")] = None,
    seed: Annotated[int | None, Sets("seed")] = None,
    out: Annotated[options.File | None, "The run directory; a new one under runs/ by default."] = None,
    resume: Annotated[options.File | None, "Resume the run in this directory, with its own settings."] = None,
    config: Annotated[
        options.File | None, "A YAML file of settings that override the recipe's; flags override both."
    ] = None,
    set: Annotated[Sequence[str] | None, "One setting of the config, e.g. --set optim.clip=1."] = None,
    workers: Annotated[int | None, Sets("data.workers")] = None,
    device: Annotated[str | None, Sets("compute.device")] = None,
    precision: Annotated[Precision | None, Sets("compute.precision")] = None,
    max_bad: Annotated[str | float | None, Sets("data.max_bad", "such as 1%")] = None,
    pixel_range: Annotated[str | Sequence[float] | None, Sets("data.pixel_range", "such as 0,4095")] = None,
    max_pixels: Annotated[int | None, Sets("data.max_pixels")] = None,
    dry_run: Annotated[bool, "Print the plan, and an estimate of time and memory from a few measured steps."] = False,
    quiet: options.Quiet = False,
    transform: Transform = None,
    command: options.Command = "vitrail.pretrain",
    say: SayPlan = None,
    settings: SetAgain = None,
) -> Result | Any:
    """Trains an encoder on images without labels; labels, where there are any, only monitor its features.

    The result is fine-tuned with `vitrail train DATA --init RUN` and evaluated with `vitrail probe RUN DATA`. Running the
    same command with the same --out resumes the run. moco and simclr compare all images of a --batch, in as little memory as
    --set data.micro_batch asks for.

    Returns:
        The finished run; ``.load()`` gives a `Classifier` without a head, and ``train(data, init=run.folder)`` fine-tunes it.
        With ``dry_run`` the plan.

    Raises:
        ConfigError: no objective, invalid settings, or the folder of another run.
        DataError: data that cannot be used for training.
    """
    return start(pretrain, locals(), labels=False)


def run(
    data: str | None = None,
    /,
    *,
    devices: Devices = None,
    restarts: Restarts = 0,
    network: Network = None,
    json: options.AsJson = False,
    **given: Any,
) -> int:
    return run_training(
        pretrain, data, given, labels=False, devices=devices, restarts=restarts, network=network, json=json
    )
