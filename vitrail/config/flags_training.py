"""The options of the verbs that train: name, type, help text, and the setting of a `Run` that each option sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypedDict

from vitrail.config.flags_inference import Device, Flag, Pixels, Quiet
from vitrail.config.schema import Precision, TaskVerb, Unlabelled


class TrainingFlags(TypedDict, total=False):
    """Which network is trained, for how long, and where."""

    model: Annotated[
        str | None,
        Flag("A name from `vitrail models`; by default one that follows the recipe and the images' size.",
             setting="model.name"),
    ]  # fmt: skip
    init: Annotated[
        str | Path | None,
        Flag(
            "Weights to start from: a run, a model folder, a .safetensors, .pth or .npz file, or hf:owner/name.",
            setting="model.init",
            word=str,
        ),
    ]
    size: Annotated[Pixels | None, Flag("Pixels, as 384 or 384x256 (height x width).", setting="model.size", word=str)]
    epochs: Annotated[float | None, Flag("Passes over the training images.", setting="schedule.epochs")]
    steps: Annotated[int | None, Flag("Number of updates.", setting="schedule.steps")]
    time: Annotated[
        str | float | None, Flag("Train for this long: 90s, 10m, 1h30m.", setting="schedule.time", word=str)
    ]
    batch: Annotated[int | None, Flag("Images in one update.", setting="data.batch")]
    lr: Annotated[float | None, Flag("Peak learning rate.", setting="optim.lr")]
    limit: Annotated[
        int | None,
        Flag(
            "Train on this many of the training images, drawn by the seed and stratified by class.",
            setting="data.limit",
        ),
    ]
    fraction: Annotated[
        str | float | None,
        Flag("Train on this share of the training images, e.g. 10%.", setting="data.fraction", word=str),
    ]
    seed: Annotated[int | None, Flag("Seed of all random numbers.", setting="seed")]
    out: Annotated[str | Path | None, Flag("The run directory; a new one under runs/ by default.", word=Path)]
    resume: Annotated[str | Path | None, Flag("Resume the run in this directory, with its own settings.", word=Path)]
    config: Annotated[
        str | Path | None,
        Flag("A YAML file of settings that override the recipe's; flags override both.", word=Path),
    ]
    set: Annotated[Sequence[str] | None, Flag("One setting of the config, e.g. --set optim.clip=1.", word=list[str])]
    settings: Annotated[Sequence[str] | None, Flag("", alias="set")]
    workers: Annotated[int | None, Flag("Processes that read images.", setting="data.workers")]
    device: Device
    precision: Annotated[
        Precision | None,
        Flag("fp32, bf16 (autocast), bf16-weights, or fp16 with loss scaling.", setting="compute.precision"),
    ]
    max_bad: Annotated[
        str | float | None,
        Flag(
            "Stop if more than this share of images or objects cannot be read, e.g. 1%.",
            setting="data.max_bad",
            word=str,
        ),
    ]
    pixel_range: Annotated[
        str | Sequence[float] | None,
        Flag(
            "Values of 16-bit and float images that become black and white: 0,4095; by default those of the training images.",
            setting="data.pixel_range",
            word=str,
        ),
    ]
    max_pixels: Annotated[
        int | None, Flag("Largest width x height of an image file; a larger one is bad.", setting="data.max_pixels")
    ]
    dry_run: Annotated[
        bool, Flag("Print the plan, and an estimate of time and memory from a few measured steps.", False)
    ]
    quiet: Quiet


class TrainFlags(TrainingFlags, total=False):
    """`vitrail train`."""

    task: Annotated[
        TaskVerb | None, Flag("What the model answers; by default what the data are annotated with.", setting="task")
    ]
    recipe: Annotated[
        str | None,
        Flag(
            "Default values of all settings; `finetune` with --init, else `small-data`; `segment` and `detect` for these tasks."
        ),
    ]
    teacher: Annotated[
        str | Path | None,
        Flag("A model with the same classes, for distillation (DeiT).",
             setting="objective.teacher", word=str),
    ]  # fmt: skip
    tune_lr: Annotated[
        bool,
        Flag("Choose the learning rate first: trainings of half the length, judged on the validation split, at rates a "
             "factor 2 apart.", False),
    ]  # fmt: skip
    head_only: Annotated[bool, Flag("Train the classification head only.", False, setting="model.head_only")]


class PretrainFlags(TrainingFlags, total=False):
    """`vitrail pretrain`."""

    objective: Annotated[
        Unlabelled | None,
        Flag("The objective: masked-patch (the ViT paper's), mae, beit, moco, simclr; or tokenizer, the codes that beit "
             "predicts.", setting="objective.name"),
    ]  # fmt: skip
    tokenizer: Annotated[
        str | Path | None, Flag("For beit: the run of a tokenizer.", setting="objective.tokenizer", word=str)
    ]
    recipe: Annotated[
        str | None, Flag("Default values of all settings; by default the recipe named after the objective.")
    ]
