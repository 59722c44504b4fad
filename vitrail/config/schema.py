"""The settings of a training run, as frozen dataclasses. This module does not import torch, so errors are reported fast.

``None`` in a field means *automatic*: `training.auto` decides it once, before the first step, and writes the decision to
``config.yaml``, from where a resumed run reads it back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from vitrail.config.parse import flatten, plain
from vitrail.data.augment.policy import Augment
from vitrail.data.sources.bad_images import MOST_BAD
from vitrail.errors import ConfigError, nearest
from vitrail.images.pixel_range import check_levels
from vitrail.untrusted.limits import PIXELS

TaskVerb = Literal["classify", "segment", "detect"]
Unlabelled = Literal["masked-patch", "mae", "beit", "moco", "simclr", "tokenizer"]  # objectives that need no labels
Precision = Literal["fp32", "bf16", "bf16-weights", "fp16"]
Parallel = Literal["replicate", "shard", "hybrid"]


def _demand(holds: bool, what: str, remedy: str) -> None:
    if not holds:
        raise ConfigError(what, remedy)


# what a task is called on the command line
TASK_VERBS = {"classify": "classification", "segment": "segmentation", "detect": "detection"}


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The network: a name of `vitrail.models.MODELS` with changes, or the weights to start from.

    ``preprocessing`` overrides that of the weights: ``mean`` and ``std`` of values in [0, 1], and ``resize``,
    pixels of the shorter side before the crop, or "squash", "fit" or "none". ``head`` are arguments of a segmenter or detector,
    such as ``levels``. In the first ``head_first`` of the steps, a share, only the head learns, while the features of the
    given weights stay as they are (LP-FT, Kumar et al. 2022).
    """

    name: str | None = None
    init: str | None = None
    size: tuple[int, int] | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    preprocessing: dict[str, Any] = field(default_factory=dict)
    head: dict[str, Any] = field(default_factory=dict)
    head_only: bool = False
    head_first: float = 0.0

    def __post_init__(self) -> None:
        share = f"model.head_first is {self.head_first}"
        _demand(0 <= self.head_first < 1, share, "give a share of the steps, e.g. 0.3")
        _demand(not (self.head_first and self.head_only), f"{share} with model.head_only", "set one of them")
        if self.size is not None:
            _demand(min(self.size) >= 1, f"model.size is {self.size}", "give a size in pixels, e.g. --size 224")
        derived = {"image_size", "in_channels", "classes"} & self.changes.keys()
        _demand(
            not derived, f"model.changes sets {', '.join(sorted(derived))}", "these follow from --size and the data"
        )
        for name in self.preprocessing:
            known = ("mean", "std", "resize")
            _demand(name in known, f"model.preprocessing sets {name!r}", nearest(name, known))


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The data and the batches; ``batch`` is the number of images of one update, over all its micro-steps.

    Small images are decoded once; with ``decoded``, a folder, they are kept there, and mapped by all processes that need them.
    ``pixel_range`` are the values of images of more than 8 bits that become 0 and 1, by default the extremes of the training
    images. Files of more than ``max_pixels`` are bad. ``limit``, or ``fraction``, trains on a part of the training images
    (`vitrail.data.sources.holdout.choose_part`).
    """

    source: str = ""
    batch: int = 64
    micro_batch: int | None = None
    validation: float = 0.15
    limit: int | None = None
    fraction: float | None = None
    repeats: int = 1
    workers: int | None = None
    on_bad: Literal["skip", "stop"] = "skip"
    max_bad: float = MOST_BAD
    channels: int | None = None
    decoded: str | None = None
    pixel_range: tuple[float, float] | None = None
    max_pixels: int = PIXELS

    def __post_init__(self) -> None:
        _demand(self.batch >= 1, f"data.batch is {self.batch}", "give a batch of at least 1")
        micro = self.micro_batch
        fits = micro is None or (1 <= micro <= self.batch and self.batch % micro == 0)
        _demand(fits, f"data.micro_batch {micro} does not divide the batch {self.batch}", "use a divisor of the batch")
        _demand(
            0 < self.validation < 1, f"data.validation is {self.validation}", "give a part between 0 and 1, e.g. 0.15"
        )
        _demand(self.limit is None or self.limit >= 1, f"data.limit is {self.limit}", "give a number of images")
        share = f"data.fraction is {self.fraction}"
        _demand(self.fraction is None or 0 < self.fraction <= 1, share, "give a part above 0 and up to 1, e.g. 10%")
        both = self.limit is not None and self.fraction is not None
        _demand(not both, f"data.limit is {self.limit}, and {share}", "set one of them, the other to null")
        _demand(self.repeats >= 1, f"data.repeats is {self.repeats}", "1 means no repeated augmentation")
        _demand(self.workers is None or self.workers >= 0, f"data.workers is {self.workers}", "give 0 or more")
        if self.pixel_range is not None:
            check_levels(self.pixel_range)
        _demand(self.max_pixels >= 1, f"data.max_pixels is {self.max_pixels}", "give a number of pixels")
        _demand(0 <= self.max_bad <= 1, f"data.max_bad is {self.max_bad}", "give a part, e.g. 0.01 or 1%")


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings:
    """The objective: ``supervised``, or a name of `vitrail.objectives.OBJECTIVES`, which need no labels.

    Supervised is soft-target cross-entropy, or one sigmoid per class (the default for multi-label data); with
    ``binarise`` every target above 0 counts as 1 for the sigmoids (DeiT III). A ``teacher``, the path of a model, makes it a
    distillation. ``tokenizer`` is the path of the visual tokenizer that BEiT learns to predict. ``changes`` are arguments of
    the objective.
    """

    name: Literal["supervised"] | Unlabelled = "supervised"
    loss: Literal["softmax", "sigmoid"] | None = None
    binarise: bool = False
    teacher: str | None = None
    tokenizer: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        no_use = f"the objective {self.name!r} does not use a"
        _demand(self.teacher is None or self.name == "supervised", f"{no_use} teacher", "leave objective.teacher out")
        _demand(self.tokenizer is None or self.name == "beit", f"{no_use} tokenizer", "leave the tokenizer out")


@dataclass(frozen=True, kw_only=True)
class OptimSettings:
    """The optimiser. Weight decay is decoupled and multiplied by the learning rate, as in the ViT and AdamW papers.

    After update t the average of the weights decays by ``(1 + t) / (ema_ramp + t)``, at most by ``ema``: with 10 it follows short
    runs closely; with 2 all weights count alike until ``ema`` is reached (Polyak); with 1 the decay is constant. ``rates`` is a
    record, and changes nothing: the validation losses of the rates among which ``lr`` was chosen, None where training diverged.
    """

    name: Literal["adamw", "sgd", "muon"] = "adamw"
    lr: float = 1e-3
    rates: dict[str, float | None] = field(default_factory=dict)
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.9
    weight_decay: float = 0.1
    decay_on: Literal["kernels", "all"] = "kernels"
    clip: float | None = 1.0
    layer_decay: float = 1.0
    ema: float | None = None
    ema_ramp: float = 10.0

    def __post_init__(self) -> None:
        _demand(self.lr > 0, f"optim.lr is {self.lr}", "give a learning rate above 0, e.g. 1e-3")
        _demand(self.weight_decay >= 0, f"optim.weight_decay is {self.weight_decay}", "give 0 or more")
        _demand(all(0 <= beta < 1 for beta in self.betas), f"optim.betas is {self.betas}", "each lies in [0, 1)")
        _demand(0 <= self.momentum < 1, f"optim.momentum is {self.momentum}", "it lies in [0, 1)")
        _demand(self.clip is None or self.clip > 0, f"optim.clip is {self.clip}", "give a norm above 0, or null")
        _demand(0 < self.layer_decay <= 1, f"optim.layer_decay is {self.layer_decay}", "it lies in (0, 1]; 1 is none")
        _demand(self.ema is None or 0 < self.ema < 1, f"optim.ema is {self.ema}", "give a decay such as 0.999, or null")
        _demand(self.ema_ramp >= 1, f"optim.ema_ramp is {self.ema_ramp}", "give 1, for a constant decay, or more")


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings:
    """The length of training and the learning rate schedule.

    Exactly one of ``epochs``, ``steps`` and ``time`` (seconds) is set; ``steps`` beside ``time`` are those that fit into it.
    ``recipe_steps`` is the length that a recipe's ``warmup_steps`` were stated for: in a shorter run they are scaled down with
    the length, so that the decay keeps its share. It is None where the user sets the warm-up.
    """

    epochs: float | None = None
    steps: int | None = None
    time: float | None = None
    warmup: float = 0.05
    warmup_steps: int | None = None
    recipe_steps: int | None = None
    kind: Literal["cosine", "linear", "rsqrt", "constant"] = "cosine"
    end: float = 0.0

    def __post_init__(self) -> None:
        lengths = [name for name in ("epochs", "steps", "time") if getattr(self, name) is not None]
        _demand(
            len(lengths) == 1 or lengths == ["steps", "time"],
            f"schedule sets {' and '.join(lengths) or 'no length'}",
            "set one of epochs, steps, time",
        )
        amount = getattr(self, lengths[0])
        _demand(amount > 0, f"schedule.{lengths[0]} is {amount}", "give a length above 0")
        _demand(0 <= self.warmup < 1, f"schedule.warmup is {self.warmup}", "give a part of the run, e.g. 0.05")
        _demand((self.warmup_steps or 0) >= 0, f"schedule.warmup_steps is {self.warmup_steps}", "give 0 or more")
        _demand(
            self.recipe_steps is None or self.recipe_steps > (self.warmup_steps or 0),
            f"schedule.recipe_steps is {self.recipe_steps}",
            "give more steps than those of the warm-up, or null",
        )
        _demand(self.end >= 0, f"schedule.end is {self.end}", "give the last learning rate, e.g. 1e-5")


@dataclass(frozen=True, kw_only=True)
class ComputeSettings:
    """Device, precision and threads; and how several ranks share the work.

    ``threads``, like ``data.workers``, are those of a machine, shared by its ranks. ``parallel`` says where the parameters lie:
    ``replicate``, a whole copy on each rank; ``shard``, a part on each; ``hybrid``, parts on the ranks of a machine and copies on
    the machines. With ``exact`` the ranks add in the order of one process, so they compute its very bits where every rank takes
    one micro-step. A rank that does not answer for ``timeout`` seconds is lost. With ``tune`` what is left open is measured on
    a CPU before the first step, and kept for the run.
    """

    device: str | None = None
    precision: Precision | None = None
    compile: bool | None = None
    threads: int | None = None
    tune: bool = True
    parallel: Parallel | None = None
    exact: bool = False
    timeout: float = 600.0

    def __post_init__(self) -> None:
        _demand(self.timeout > 0, f"compute.timeout is {self.timeout}", "give seconds above 0")
        fits = not self.exact or self.parallel in (None, "shard")
        _demand(
            fits, f"compute.exact with compute.parallel={self.parallel}", "leave compute.parallel out, or take shard"
        )


@dataclass(frozen=True, kw_only=True)
class SaveSettings:
    """Checkpoints, logs and evaluations. None of these settings changes the trained weights.

    ``watched`` is the number of images whose features are measured in each evaluation of pre-training. With ``train_images`` an
    evaluation of a supervised run judges, beside the validation split, so many training images without augmentation: the gap
    between the two is what the model learned by heart.
    """

    every: float = 120.0
    keep: int = 2
    watched: int = 1500
    train_images: int = 0
    evaluations: int = 12
    log_every: int | None = None
    tensorboard: bool = False

    def __post_init__(self) -> None:
        _demand(self.every > 0, f"save.every is {self.every}", "give seconds between checkpoints")
        _demand(self.watched >= 30, f"save.watched is {self.watched}", "watch at least 30 images")
        _demand(self.train_images >= 0, f"save.train_images is {self.train_images}", "give 0 or more")
        _demand(self.keep >= 1, f"save.keep is {self.keep}", "keep at least one checkpoint")
        _demand(self.evaluations >= 1, f"save.evaluations is {self.evaluations}", "evaluate at least once, at the end")
        _demand((self.log_every or 1) >= 1, f"save.log_every is {self.log_every}", "give steps, at least 1")


@dataclass(frozen=True, kw_only=True)
class Run:
    """The settings of a run. `config.recipes.RECIPES` contains the named starting points."""

    recipe: str = "custom"
    seed: int = 0
    task: str = "classification"  # a name of `vitrail.tasks.TASKS`
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    optim: OptimSettings = OptimSettings()
    schedule: ScheduleSettings
    augment: Augment = Augment()
    compute: ComputeSettings = ComputeSettings()
    save: SaveSettings = SaveSettings()

    def __post_init__(self) -> None:
        if self.task in TASK_VERBS:
            object.__setattr__(self, "task", TASK_VERBS[self.task])
        _demand(0 <= self.seed < 2**31, f"seed is {self.seed}", "give a whole number from 0 to 2147483647")

    @property
    def accumulate(self) -> int:
        """Micro-steps per update."""
        return self.data.batch // (self.data.micro_batch or self.data.batch)


# May differ when a run is resumed: they change no results, or as much as running out of memory does (the micro-batch).
FREE_TO_CHANGE = (
    *("data.workers", "data.decoded", "save.", "data.source", "model.init"),
    *("data.micro_batch", "compute.parallel", "compute.timeout"),
)
# Here None means automatic, decided before the first step; elsewhere it means none.
AUTOMATIC = ("model.", "data.", "objective.loss", "compute.", "schedule.epochs", "schedule.steps", "schedule.time")
# May be increased: the schedule is stretched over the new length, and the log says so.
LENGTH = ("schedule.epochs", "schedule.steps", "schedule.time")
# May differ from those that a checkpoint was saved with, because they do not belong to what a run computes.
UNBOUND = (*FREE_TO_CHANGE, *LENGTH, "recipe", "compute.", "data.micro_batch")


def identify(run: Run) -> dict[str, Any]:
    """The settings that determine the weights of a run, by dotted path: what a checkpoint is bound to.

    The micro-batch is not one of them: running out of memory changes it during a run.
    """
    leaves = flatten(plain(run))
    return {path: value for path, value in leaves.items() if not path.startswith(UNBOUND)}


def differences(asked: Run, stored: Run) -> dict[str, tuple[Any, Any]]:
    """Settings in which a resumed run differs from its folder: path -> (stored, requested).

    `AUTOMATIC` fields of ``asked`` that are None take the stored value; those of `FREE_TO_CHANGE` may differ.
    """

    def is_open(path: str) -> bool:
        return path not in new or (new[path] is None and path.startswith(AUTOMATIC)) or new[path] == {}

    new, old = flatten(plain(asked)), flatten(plain(stored))
    return {
        path: (old.get(path), new.get(path))
        for path in sorted(old.keys() | new.keys())
        if not is_open(path) and new[path] != old.get(path) and not (path in FREE_TO_CHANGE or path.startswith("save."))
    }
