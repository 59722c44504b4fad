"""Every setting of a run, with its type, its value in a recipe and its meaning: what ``--set`` and a YAML file can change."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

from vitrail.config.flags_training import PretrainFlags, TrainFlags
from vitrail.config.keywords import flags_of
from vitrail.config.parse import plain
from vitrail.config.recipes import find_recipe
from vitrail.errors import ConfigError, nearest
from vitrail.rows import Records

MEANINGS = {
    "recipe": "name of the recipe that the other settings start from",
    "seed": "seed of all random numbers",
    "task": "task of the model",
    "model.name": "model to train, see `vitrail models`; null follows the recipe and the image size",
    "model.init": "weights to start from",
    "model.size": "input size in pixels, height and width; null follows the images or the weights",
    "model.changes": "changed fields of the model's config, see `vitrail models NAME`",
    "model.preprocessing": "mean, std (of values in [0, 1]) and resize (pixels, squash, fit or none) in place of the weights'",
    "model.head": "arguments of a segmenter (head, levels, head_width) or a detector (levels, head_width, most)",
    "model.head_only": "train the classification head only",
    "model.head_first": "share of the steps in which only the head learns, at the beginning",
    "data.source": "the data: a path, a pattern of class folders or a built-in name",
    "data.batch": "images per update",
    "data.micro_batch": "images per forward pass, a divisor of the batch; null takes the largest that fits in memory",
    "data.validation": "share of each class that is held out if there is no validation split",
    "data.limit": "number of training images, a seeded part of them, stratified by class; null takes all",
    "data.fraction": "share of the training images, as data.limit; null takes all",
    "data.repeats": "times that each image of a batch is repeated with another augmentation",
    "data.workers": "processes that read images; null follows the cores",
    "data.on_bad": "skip bad images, or stop at the first",
    "data.pixel_range": "values of 16-bit and float images that become black and white; by default those of the training images",
    "data.max_pixels": "largest width x height of an image file",
    "data.max_bad": "largest share of bad images",
    "data.channels": "channels of the images; null follows the data or the weights",
    "data.decoded": "folder in which decoded small images are kept, and shared by processes; null decodes into memory",
    "objective.name": "supervised, or an objective that needs no labels",
    "objective.loss": "softmax, or one sigmoid per class; null is sigmoid for multi-label data",
    "objective.binarise": "with sigmoids, every target above 0 counts as 1 (DeiT III)",
    "objective.teacher": "model whose predictions are distilled",
    "objective.tokenizer": "run of the tokenizer whose codes beit predicts",
    "objective.changes": "changed arguments of the objective",
    "optim.name": "optimiser; muon is for hidden matrices and kernels of convolutions, with AdamW for the rest",
    "optim.lr": "peak learning rate",
    "optim.rates": "written by --tune-lr: validation losses of the learning rates that were tried",
    "optim.betas": "decay rates of the moments of AdamW",
    "optim.momentum": "momentum of SGD and Muon",
    "optim.weight_decay": "decoupled weight decay, multiplied by the learning rate",
    "optim.decay_on": "parameters that decay: kernels, or all",
    "optim.clip": "largest norm of the gradient; null does not clip",
    "optim.layer_decay": "factor of the learning rate from each layer to the one below",
    "optim.ema": "decay of the moving average of the weights; null keeps none",
    "optim.ema_ramp": "the average's decay rises as (1 + t) / (ema_ramp + t) to ema; 2 is Polyak's mean, 1 is constant",
    "schedule.epochs": "length in passes over the training images",
    "schedule.steps": "length in updates",
    "schedule.time": "length in seconds",
    "schedule.warmup": "share of the run for linear warm-up",
    "schedule.warmup_steps": "updates for linear warm-up, instead of the share",
    "schedule.recipe_steps": "length in updates that the warm-up steps are for; a shorter run scales them; null never does",
    "schedule.kind": "decay of the learning rate after warm-up",
    "schedule.end": "last learning rate",
    "augment.crop": "random part of the image, or the image shifted or scaled at random, or the largest centred part",
    "augment.crop_area": "range of the area of the crop, relative to the image",
    "augment.crop_aspect": "range of the width / height of the crop",
    "augment.crop_rule": "draw the area (torchvision) or the height (TensorFlow) uniformly",
    "augment.crop_scale": "range of the factor of jitter; at 1 the whole image just fits",
    "augment.crop_major": "share of one class of pixels above which a crop of jitter is drawn again",
    "augment.pad": "largest shift of the crop over a padded border, relative to the side",
    "augment.pad_mode": "border of reflected pixels, or of zeros",
    "augment.flip": "probability of a horizontal flip",
    "augment.layers": "operations of RandAugment per image; 0 disables it",
    "augment.magnitude": "strength of RandAugment, on a scale of 10",
    "augment.magnitude_std": "standard deviation of the strength over images",
    "augment.increasing": "every operation gets stronger with the magnitude (timm's inc1)",
    "augment.probability": "probability of each operation of RandAugment",
    "augment.operations": "operations of RandAugment, drawn uniformly",
    "augment.fill": "level of uncovered pixels, 0 to 255",
    "augment.three_augment": "one of grey, solarise and blur per image (DeiT III)",
    "augment.blur": "range of the standard deviation of the blur in pixels",
    "augment.jitter": "strengths of the jitter of brightness, contrast and saturation",
    "augment.hue": "largest shift of the hue, relative to the colour circle",
    "augment.jitter_probability": "probability of jittering an image",
    "augment.grey": "probability of converting an image to grey",
    "augment.blur_views": "probability of blurring even and odd views",
    "augment.solarise_views": "probability of solarising even and odd views",
    "augment.erase": "probability of random erasing",
    "augment.erase_area": "range of the erased area, relative to the image",
    "augment.erase_aspect": "range of the height / width of the erased box",
    "augment.erase_fill": "noise per pixel, or the level `fill`",
    "augment.mixup": "parameter of the Beta distribution of mixup; 0 disables it",
    "augment.cutmix": "parameter of the Beta distribution of CutMix; 0 disables it",
    "augment.switch": "probability of CutMix if mixup is enabled, too",
    "augment.mix_probability": "probability of mixing a batch or an image",
    "augment.mix_each": "draw the mixture per batch, or per image",
    "augment.mix_major": "each image keeps the larger share of a mixture (big_vision)",
    "augment.smoothing": "label smoothing",
    "compute.device": "cuda, mps or cpu; null takes the best that there is",
    "compute.precision": "fp32, bf16 (autocast), bf16-weights or fp16; null takes the fastest that is measured",
    "compute.compile": "use torch.compile; null compiles on a GPU",
    "compute.threads": "threads of the CPU, shared by the ranks of a machine; null takes all cores, or half if that is faster",
    "compute.tune": "time the network's blocks before the first step, and take the fastest precision and threads (CPU)",
    "compute.parallel": "parameters on several ranks: replicate, shard or hybrid; null replicates what fits in memory",
    "compute.exact": "add over ranks in the order of one process, for its very bits",
    "compute.timeout": "seconds after which a rank that does not answer is lost",
    "save.every": "seconds between checkpoints",
    "save.keep": "number of checkpoints kept",
    "save.watched": "images whose features are measured in pre-training",
    "save.train_images": "training images that each evaluation of a supervised run judges too, without augmentation",
    "save.evaluations": "number of evaluations during the run",
    "save.log_every": "updates between two lines of metrics.jsonl; null follows the length",
    "save.tensorboard": "also write TensorBoard files",
}


@dataclass(frozen=True)
class Setting:
    """One setting: its dotted key, type, value in the recipe, meaning, and the flag that sets it, if there is one."""

    key: str
    type: str
    value: Any
    meaning: str
    flag: str = ""

    def row(self) -> dict[str, Any]:
        """As flat values for a table; the value as JSON, since a column has one type."""
        return {**asdict(self), "value": json.dumps(self.value, ensure_ascii=False)}


def list_settings(name: str | None = None, *, recipe: str = "small-data") -> Records[Setting]:
    """Returns the settings whose key is ``name`` or starts with it, by key; all without a name.

    Raises `ConfigError` for an unknown name or recipe.
    """
    tables = (*flags_of(TrainFlags).items(), *flags_of(PretrainFlags).items())
    flags = {flag.setting: f"--{option.replace('_', '-')}" for option, flag in tables if flag.setting}
    found = Records(
        (key, Setting(key, kind, value, MEANINGS[key], flags.get(key, "")))
        for key, kind, value in _walk(find_recipe(recipe).run)
        if name is None or key == name or key.startswith(f"{name}.")
    )
    if not found:
        assert name is not None
        groups = {key.partition(".")[0] for key in MEANINGS}
        raise ConfigError(f"there is no setting {name!r}", nearest(name, [*sorted(groups), *MEANINGS]))
    return found


def _walk(settings: Any, prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """The key, type and value of every field that is not itself a group of settings."""
    hints = typing.get_type_hints(type(settings))
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            yield from _walk(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, _describe_type(hints[field.name]), plain(value)


def _describe_type(hint: Any) -> str:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return " | ".join("null" if part is type(None) else _describe_type(part) for part in typing.get_args(hint))
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) is tuple:
        parts = [part for part in typing.get_args(hint) if part is not Ellipsis]
        return f"[{', '.join(map(_describe_type, parts))}{', ...' if len(parts) == 1 else ''}]"
    if typing.get_origin(hint) is dict:
        return "{key: value}"
    return {str: "text", bool: "true | false"}.get(hint, hint.__name__)
