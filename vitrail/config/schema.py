"""The settings of a training run, as frozen dataclasses: name, type, meaning and default of each stand at its field.

``None`` in a field means *automatic*: `training.prepare` decides it once, before the first step, and writes the decision to
``config.yaml``, from where a resumed run reads it back. This module does not import torch, so errors are reported fast.
"""

from __future__ import annotations

import functools
import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field, is_dataclass
from typing import Annotated, Any, Literal

from vitrail.config.parse import flatten, plain
from vitrail.config.units import parse_fold
from vitrail.data.augment.policy import Augment
from vitrail.data.sources.bad_images import MAX_BAD
from vitrail.errors import ConfigError, nearest
from vitrail.images.pixel_range import check_levels
from vitrail.untrusted.limits import PIXELS

TaskAlias = Literal["classify", "regress", "segment", "detect", "instances", "panoptic"]
# objectives that need no labels
Unlabelled = Literal["masked-patch", "mae", "beit", "moco", "simclr", "dino", "ibot", "distil", "tokenizer"]
TrackerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]
Precision = Literal["fp32", "bf16", "bf16-weights", "fp16"]
COLUMNS = ("path", "label", "split")  # of a table
Parallel = Literal["replicate", "shard", "hybrid"]


def _demand(holds: bool, what: str, remedy: str) -> None:
    if not holds:
        raise ConfigError(what, remedy)


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


# what a task is called on the command line
TASK_ALIASES = {
    "classify": "classification",
    "regress": "regression",
    "segment": "segmentation",
    "detect": "detection",
    "instances": "instances",
    "panoptic": "panoptic",
}


@dataclass(frozen=True, kw_only=True)
class AdapterSettings:
    """Low-rank adapters (LoRA, Hu et al. 2022), see `vitrail.models.adapters.add_adapters`; with rank 0 there are none.

    The weights of the backbone are left as they are; adapters and head are trained. The saved model is merged.
    """

    rank: Annotated[int, "rank of low-rank adapters (LoRA), which are trained in place of the backbone; 0 for none"] = 0
    alpha: Annotated[float, "scale of the updates, divided by the rank"] = 16.0
    layers: Annotated[tuple[str, ...], "dense layers with adapters, such as qkv, proj, fc1, fc2; by default all"] = ()
    slices: Annotated[Literal["qkv", "qv", "q", "k", "v"], "which of q, k and v have adapters"] = "qkv"
    blocks: Annotated[int | None, "number of the last blocks with adapters; null for all"] = None
    rslora: Annotated[bool, "divide alpha by the square root of the rank"] = False

    def __post_init__(self) -> None:
        _demand(self.rank >= 0, f"model.adapters.rank is {self.rank}", "give a rank such as 8, or 0 for no adapters")
        _demand(self.alpha > 0, f"model.adapters.alpha is {self.alpha}", "give a number above 0, e.g. 16")
        least = f"model.adapters.blocks is {self.blocks}"
        _demand(self.blocks is None or self.blocks >= 1, least, "give a number of blocks, or null for all")


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The network: a name of `vitrail.models.MODELS` with changes, or the weights to start from.

    ``head_first`` is linear probing, then fine-tuning (LP-FT, Kumar et al. 2022).
    """

    name: Annotated[
        str | None, "model to train, see `vitrail models`; by default it follows the recipe and the image size"
    ] = None
    init: Annotated[str | None, "weights to start from"] = None
    size: Annotated[
        tuple[int, int] | None, "input size in pixels, height x width; by default that of the images or the weights"
    ] = None
    changes: Annotated[dict[str, Any], "changed fields of the model's config, see `vitrail models NAME`"] = field(
        default_factory=dict
    )
    preprocessing: Annotated[
        dict[str, Any],
        "mean, std (of values in [0, 1]) and resize (pixels, squash, fit or none) in place of the weights'",
    ] = field(default_factory=dict)
    head: Annotated[
        dict[str, Any],
        "arguments of a segmenter (head) or a detector (most), of both (levels, head_width, maps), and of queries (queries, "
        "query_blocks, upscales)",
    ] = field(default_factory=dict)
    head_only: Annotated[bool, "train the classification head only"] = False
    head_first: Annotated[float, "share of the steps in which only the head learns, at the beginning"] = 0.0
    freeze_until: Annotated[int, "blocks that are not trained, from the first on, with the embedding of patches"] = 0
    adapters: AdapterSettings = AdapterSettings()

    def __post_init__(self) -> None:
        share = f"model.head_first is {self.head_first}"
        _demand(0 <= self.head_first < 1, share, "give a share of the steps, e.g. 0.3")
        _demand(not (self.head_first and self.head_only), f"{share} with model.head_only", "set one of them")
        _demand(self.freeze_until >= 0, f"model.freeze_until is {self.freeze_until}", "give a number of blocks, e.g. 6")
        if self.adapters.rank:
            adapters = f"model.adapters.rank is {self.adapters.rank}"
            _demand(not self.head_only, f"{adapters} with model.head_only", "set one of them")
            remedy = "set model.adapters.blocks, the number of the last blocks that are adapted"
            _demand(not self.freeze_until, f"{adapters} with model.freeze_until", remedy)
        if self.size is not None:
            _demand(min(self.size) >= 1, f"model.size is {self.size}", "give a size in pixels, e.g. --size 224")
        derived = {"image_size", "in_channels", "classes"} & self.changes.keys()
        what = f"model.changes sets {', '.join(sorted(derived))}"
        _demand(not derived, what, "these follow from --size and the data")
        for name in self.preprocessing:
            known = ("mean", "std", "resize")
            _demand(name in known, f"model.preprocessing sets {name!r}", nearest(name, known))


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The data and the batches."""

    source: Annotated[str, "the data: a path, a pattern of class folders or a built-in name"] = ""
    batch: Annotated[int, "images per update"] = 64
    micro_batch: Annotated[
        int | None, "images per forward pass, a divisor of the batch; null takes the largest that fits in memory"
    ] = None
    validation: Annotated[float, "share of each class that is held out if there is no validation split"] = 0.15
    fold: Annotated[
        str | None,
        "part of the training and validation images together that is held out, 0/5 to 4/5 of five stratified folds; `all` trains "
        "on both and holds out nothing",
    ] = None
    limit: Annotated[
        int | None, "number of training images, a random subset by the seed, stratified by class; by default all"
    ] = None
    fraction: Annotated[float | None, "share of the training images, chosen as data.limit; by default all"] = None
    repeats: Annotated[int, "times that each image of a batch is repeated with another augmentation"] = 1
    workers: Annotated[int | None, "processes that read images; by default as many as the cores allow"] = None
    on_bad: Annotated[Literal["skip", "stop"], "skip bad images, or stop at the first"] = "skip"
    max_bad: Annotated[float, "maximum share of images or objects that cannot be read before the run stops"] = MAX_BAD
    columns: Annotated[
        dict[str, str],
        "columns of a table that hold the path, the label (of regression one or several, as x+y) and the split, where they "
        "have other names",
    ] = field(default_factory=dict)
    conflicts: Annotated[
        Literal["drop", "keep"] | None,
        "training images that are equal to others with other labels, of a set from which the validation split is held out; "
        "null drops them, and keeps them in runs of versions that did not look for them",
    ] = None
    channels: Annotated[int | None, "channels of the images; null follows the data or the weights"] = None
    decoded: Annotated[
        str | None, "folder in which decoded small images are kept, and shared by processes; null decodes into memory"
    ] = None
    pixel_range: Annotated[
        tuple[float, float] | None,
        "values of 16-bit and float images that become black and white; by default those of the training images",
    ] = None
    max_pixels: Annotated[int, "maximum width x height of an image file; a larger one counts as unreadable"] = PIXELS
    balance: Annotated[
        bool, "draw images of rare classes more often: of each class in proportion to the square root of its images"
    ] = False

    @property
    def share_held_out(self) -> float:
        """What to hold out where the data have no validation split, before `fold` divides them."""
        return 0.0 if self.fold else self.validation

    def __post_init__(self) -> None:
        _demand(self.batch >= 1, f"data.batch is {self.batch}", "give a batch of at least 1")
        micro = self.micro_batch
        fits = micro is None or (1 <= micro <= self.batch and self.batch % micro == 0)
        _demand(fits, f"data.micro_batch {micro} does not divide the batch {self.batch}", "use a divisor of the batch")
        for kind in self.columns:
            _demand(kind in COLUMNS, f"data.columns names the {kind!r}", nearest(kind, COLUMNS))
        remedy = "give a part between 0 and 1, e.g. 0.15"
        _demand(0 < self.validation < 1, f"data.validation is {self.validation}", remedy)
        if self.fold is not None:
            parse_fold(self.fold)
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
    """The objective: ``supervised``, or a name of `vitrail.objectives.OBJECTIVES` or of one's own, which need no labels.

    Supervised is soft-target cross-entropy, binary cross-entropy with one sigmoid per class, an error of numbers, or a registered
    loss.
    """

    name: Annotated[
        str,
        "objective: supervised, or without labels masked-patch (of the ViT paper), mae, beit, moco, simclr, dino, ibot, "
        "distil, tokenizer or the name of a registered one",
    ] = "supervised"
    loss: Annotated[
        str | None,
        "loss: softmax, sigmoid (one per class), of numbers mse or smooth-l1, or the name of a registered loss; by default that "
        "of the task, sigmoid for multi-label data",
    ] = None
    binarise: Annotated[bool, "with sigmoids, every target above 0 counts as 1 (DeiT III)"] = False
    teacher: Annotated[
        str | None, "model whose predictions are distilled, or, by the objective distil, its features"
    ] = None
    tokenizer: Annotated[str | None, "run of the tokenizer whose codes beit predicts"] = None
    changes: Annotated[dict[str, Any], "changed arguments of the objective"] = field(default_factory=dict)
    class_weights: Annotated[
        Literal["none", "auto"] | dict[str, float],
        "weights of classes in the loss softmax: none, auto (1 / sqrt of their images, at most 10), or some by name, relative to "
        "the others",
    ] = "none"

    def __post_init__(self) -> None:
        if self.class_weights != "none":
            what, remedy = "objective.class_weights is set", "leave one of them out"
            _demand(self.loss in (None, "softmax"), f"{what} with the loss {self.loss!r}, not softmax", remedy)
        for name, weight in dict(() if isinstance(self.class_weights, str) else self.class_weights).items():
            fits = _is_amount(weight) and 0 < weight < math.inf
            _demand(fits, f"objective.class_weights gives {name!r} {weight!r}", "give a number above 0, e.g. 5")
        no_use = f"the objective {self.name!r} does not use a"
        fits = self.teacher is None or self.name in ("supervised", "distil")
        _demand(fits, f"{no_use} teacher", "leave objective.teacher out")
        _demand(self.tokenizer is None or self.name == "beit", f"{no_use} tokenizer", "leave the tokenizer out")


@dataclass(frozen=True, kw_only=True)
class OptimSettings:
    """The optimiser. Weight decay is decoupled and multiplied by the learning rate, as in the ViT and AdamW papers.

    After update t the average of the weights decays by ``(1 + t) / (ema_ramp + t)``, at most by ``ema``: with 10 it follows short
    runs closely; with 2 all weights count alike until ``ema`` is reached. ``rates`` is a record, and changes nothing; a loss is
    None where training diverged.
    """

    name: Annotated[
        Literal["adamw", "sgd", "muon"],
        "optimiser; muon is for hidden matrices and kernels of convolutions, with AdamW for the rest",
    ] = "adamw"
    lr: Annotated[float, "peak learning rate"] = 1e-3
    rates: Annotated[
        dict[str, float | None], "written by --tune-lr: validation losses of the learning rates that were tried"
    ] = field(default_factory=dict)
    betas: Annotated[tuple[float, float], "decay rates of the moments of AdamW"] = (0.9, 0.999)
    momentum: Annotated[float, "momentum of SGD and Muon"] = 0.9
    weight_decay: Annotated[float, "decoupled weight decay, multiplied by the learning rate"] = 0.1
    decay_on: Annotated[Literal["kernels", "all"], "parameters that decay: kernels, or all"] = "kernels"
    clip: Annotated[float | None, "largest norm of the gradient; null does not clip"] = 1.0
    layer_decay: Annotated[
        float | None,
        "factor of the learning rate from each layer to the one below; null follows the depth: 0.75 up to 12 blocks",
    ] = 1.0
    groups: Annotated[
        dict[str, dict[str, float]],
        "by pattern of parameter names, a factor of the learning rate (lr) and a weight_decay, such as {head.*: {lr: 10}}; the "
        "first pattern that matches counts",
    ] = field(default_factory=dict)
    ema: Annotated[float | None, "decay of the moving average of the weights; null keeps none"] = None
    ema_ramp: Annotated[
        float, "the average's decay rises as (1 + t) / (ema_ramp + t) to ema; 2 is Polyak's mean, 1 is constant"
    ] = 10.0

    def __post_init__(self) -> None:
        _demand(self.lr > 0, f"optim.lr is {self.lr}", "give a learning rate above 0, e.g. 1e-3")
        _demand(self.weight_decay >= 0, f"optim.weight_decay is {self.weight_decay}", "give 0 or more")
        _demand(all(0 <= beta < 1 for beta in self.betas), f"optim.betas is {self.betas}", "each lies in [0, 1)")
        _demand(0 <= self.momentum < 1, f"optim.momentum is {self.momentum}", "it lies in [0, 1)")
        _demand(self.clip is None or self.clip > 0, f"optim.clip is {self.clip}", "give a norm above 0, or null")
        decay = 1.0 if self.layer_decay is None else self.layer_decay
        _demand(0 < decay <= 1, f"optim.layer_decay is {decay}", "it lies in (0, 1]; 1 is none")
        _demand(self.ema is None or 0 < self.ema < 1, f"optim.ema is {self.ema}", "give a decay such as 0.999, or null")
        for pattern, changes in self.groups.items():
            written = f"optim.groups gives {pattern!r}: {changes!r}"
            remedy = "give lr, weight_decay or both, each 0 or more: {head.*: {lr: 10, weight_decay: 0}}"
            known = isinstance(changes, dict) and 0 < len(changes) and {*changes} <= {"lr", "weight_decay"}
            _demand(known and all(_is_amount(value) for value in changes.values()), written, remedy)
        _demand(self.ema_ramp >= 1, f"optim.ema_ramp is {self.ema_ramp}", "give 1, for a constant decay, or more")


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings:
    """The length of training and the learning rate schedule.

    Exactly one of ``epochs``, ``steps`` and ``time`` is set; ``steps`` beside ``time`` are those that fit into it.
    ``recipe_steps`` is None where the user sets the warm-up.
    """

    epochs: Annotated[float | None, "passes over the training images"] = None
    steps: Annotated[int | None, "number of updates"] = None
    time: Annotated[float | None, "training time, in seconds"] = None
    warmup: Annotated[float, "share of the run for linear warm-up"] = 0.05
    warmup_steps: Annotated[int | None, "updates for linear warm-up, instead of the share"] = None
    recipe_steps: Annotated[
        int | None, "length in updates that the warm-up steps are for; a shorter run scales them; null never does"
    ] = None
    kind: Annotated[Literal["cosine", "linear", "rsqrt", "constant"], "decay of the learning rate after warm-up"] = (
        "cosine"
    )
    end: Annotated[float, "last learning rate"] = 0.0

    def __post_init__(self) -> None:
        lengths = [name for name in ("epochs", "steps", "time") if getattr(self, name) is not None]
        what = f"schedule sets {' and '.join(lengths) or 'no length'}"
        _demand(len(lengths) == 1 or lengths == ["steps", "time"], what, "set one of epochs, steps, time")
        amount = getattr(self, lengths[0])
        _demand(amount > 0, f"schedule.{lengths[0]} is {amount}", "give a length above 0")
        _demand(0 <= self.warmup < 1, f"schedule.warmup is {self.warmup}", "give a part of the run, e.g. 0.05")
        _demand((self.warmup_steps or 0) >= 0, f"schedule.warmup_steps is {self.warmup_steps}", "give 0 or more")
        longer = self.recipe_steps is None or self.recipe_steps > (self.warmup_steps or 0)
        remedy = "give more steps than those of the warm-up, or null"
        _demand(longer, f"schedule.recipe_steps is {self.recipe_steps}", remedy)
        _demand(self.end >= 0, f"schedule.end is {self.end}", "give the last learning rate, e.g. 1e-5")


@dataclass(frozen=True, kw_only=True)
class ComputeSettings:
    """Device, precision and threads; and how several ranks share the work.

    ``threads``, like ``data.workers``, are those of a machine, shared by its ranks. ``parallel`` is where the parameters lie:
    ``replicate``, a whole copy on each rank; ``shard``, a part on each; ``hybrid``, parts on the ranks of a machine and copies on
    the machines. ``exact`` gives the bits of one process where every rank takes one micro-step.
    """

    device: Annotated[str | None, "device: cuda, mps or cpu; by default the best that there is"] = None
    precision: Annotated[
        Precision | None,
        "precision: fp32, bf16 (autocast), bf16-weights, or fp16 with loss scaling; by default the fastest that is measured",
    ] = None
    compile: Annotated[bool | None, "use torch.compile; null compiles on a GPU"] = None
    threads: Annotated[
        int | None,
        "threads of the CPU, shared by the ranks of a machine; null takes all cores, or half if that is faster",
    ] = None
    tune: Annotated[
        bool, "time the network's blocks before the first step, and take the fastest precision and threads (CPU)"
    ] = True
    parallel: Annotated[
        Parallel | None, "parameters on several ranks: replicate, shard or hybrid; null replicates what fits in memory"
    ] = None
    exact: Annotated[bool, "add over ranks in the order of one process, for its very bits"] = False
    timeout: Annotated[float, "seconds after which a rank that does not answer is lost"] = 600.0

    def __post_init__(self) -> None:
        _demand(self.timeout > 0, f"compute.timeout is {self.timeout}", "give seconds above 0")
        what = f"compute.exact with compute.parallel={self.parallel}"
        fits = not self.exact or self.parallel in (None, "shard")
        _demand(fits, what, "leave compute.parallel out, or take shard")


@dataclass(frozen=True, kw_only=True)
class SaveSettings:
    """Checkpoints, logs and evaluations. Only ``best``, ``patience`` and ``stop_below`` change the saved weights."""

    every: Annotated[float, "seconds between checkpoints"] = 120.0
    keep: Annotated[int, "number of checkpoints kept"] = 2
    watched: Annotated[int, "images whose features are measured in pre-training"] = 1500
    train_images: Annotated[
        int, "training images on which each evaluation of a supervised run is repeated, without augmentation"
    ] = 0
    evaluations: Annotated[int, "number of evaluations during the run"] = 12
    stop_below: Annotated[
        float | None, "pre-training on images with labels ends where knn is so far below that of the start, e.g. 0.02"
    ] = None
    best: Annotated[
        bool, "save the model of the best evaluation on val, by its first figure, not that of the last step"
    ] = False
    patience: Annotated[
        int | None, "end after so many evaluations in a row that are not the best on val, by their first figure"
    ] = None
    metrics: Annotated[
        tuple[str, ...], "registered metrics that every evaluation computes beside those of the task"
    ] = ()
    log_every: Annotated[int | None, "updates between two lines of metrics.jsonl; null follows the length"] = None

    def __post_init__(self) -> None:
        _demand(self.every > 0, f"save.every is {self.every}", "give seconds between checkpoints")
        _demand(self.watched >= 30, f"save.watched is {self.watched}", "watch at least 30 images")
        _demand(self.train_images >= 0, f"save.train_images is {self.train_images}", "give 0 or more")
        _demand(self.keep >= 1, f"save.keep is {self.keep}", "keep at least one checkpoint")
        _demand((self.stop_below or 0) >= 0, f"save.stop_below is {self.stop_below}", "give a share, e.g. 0.02")
        _demand(self.patience is None or self.patience >= 1, f"save.patience is {self.patience}", "give 1 or more")
        _demand(self.evaluations >= 1, f"save.evaluations is {self.evaluations}", "evaluate at least once, at the end")
        _demand((self.log_every or 1) >= 1, f"save.log_every is {self.log_every}", "give steps, at least 1")

    @property
    def compares(self) -> bool:
        """Whether evaluations are compared, to choose the best or to end the run."""
        return self.best or self.patience is not None


@dataclass(frozen=True, kw_only=True)
class TrackSettings:
    to: Annotated[
        tuple[TrackerName, ...], "experiment trackers that the run is written to: tensorboard, wandb, mlflow, trackio"
    ] = ()
    project: Annotated[str, "project in wandb and trackio, experiment in mlflow"] = "vitrail"


@dataclass(frozen=True, kw_only=True)
class Run:
    """The settings of a run. `config.recipes.RECIPES` contains the named starting points."""

    recipe: Annotated[str, "name of the recipe that the other settings start from"] = "custom"
    seed: Annotated[int, "seed of all random numbers"] = 0
    task: Annotated[str, "what the model predicts; by default what the data are annotated with"] = "classification"
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    optim: OptimSettings = OptimSettings()
    schedule: ScheduleSettings
    augment: Augment = Augment()
    compute: ComputeSettings = ComputeSettings()
    save: SaveSettings = SaveSettings()
    track: TrackSettings = TrackSettings()

    def __post_init__(self) -> None:
        if self.task in TASK_ALIASES:
            object.__setattr__(self, "task", TASK_ALIASES[self.task])
        _demand(0 <= self.seed < 2**31, f"seed is {self.seed}", "give a whole number from 0 to 2147483647")
        weighted = self.objective.class_weights != "none"
        if weighted or self.data.balance:
            name = "objective.class_weights" if weighted else "data.balance"
            learned = self.task if self.objective.name == "supervised" else self.objective.name
            is_classifier = learned == "classification"
            _demand(is_classifier, f"{name} is set, and {learned} has no class of an image", "leave it out")

    @property
    def accumulate(self) -> int:
        """Micro-steps per update."""
        return self.data.batch // (self.data.micro_batch or self.data.batch)


# May differ when a run is resumed: they change no results, or as much as running out of memory does (the micro-batch).
FREE_TO_CHANGE = (
    *("data.workers", "data.decoded", "save.", "track.", "data.source", "model.init"),
    *("data.micro_batch", "compute.parallel", "compute.timeout"),
)
# Here None means automatic, decided before the first step; elsewhere it means none.
AUTOMATIC = ("model.", "data.", "objective.loss", "compute.", "schedule.epochs", "schedule.steps", "schedule.time")
# May be increased: the schedule is stretched over the new length, and the log says so.
LENGTH = ("schedule.epochs", "schedule.steps", "schedule.time")
# May differ from those that a checkpoint was saved with, because they do not belong to what a run computes.
UNBOUND = (*FREE_TO_CHANGE, *LENGTH, "recipe", "compute.", "data.micro_batch")


@dataclass(frozen=True)
class Field:
    """Type and meaning of a setting, as the schema has them."""

    type: Any
    meaning: str


@functools.cache
def list_fields() -> dict[str, Field]:
    """Returns every setting by its dotted key, in the order of the schema."""

    def walk(group: type, prefix: str) -> Iterator[tuple[str, Field]]:
        for name, hint in typing.get_type_hints(group, include_extras=True).items():
            if is_dataclass(hint):
                yield from walk(typing.cast(type, hint), f"{prefix}{name}.")
            else:
                yield prefix + name, Field(hint.__origin__, hint.__metadata__[0])

    return dict(walk(Run, ""))


def identify(run: Run) -> dict[str, Any]:
    """Returns the settings that determine the weights of a run, by dotted path: what a checkpoint is bound to.

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
        if not is_open(path) and new[path] != old.get(path) and not path.startswith(FREE_TO_CHANGE)
    }
