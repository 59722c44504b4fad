"""Learning without labels, from a run as it was asked for to a training that can start: data, encoder, objective."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from vitrail.config.schema import Run
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.source import Source, Splits, describe_data
from vitrail.engine.choices import settle
from vitrail.engine.feed import viewed
from vitrail.engine.objectives import make_objective
from vitrail.engine.prepare import (
    Say,
    Transform,
    assemble,
    build,
    check_model,
    load_start,
    opened,
    size_and_channels,
    training_batches,
)
from vitrail.engine.training import Training
from vitrail.engine.watch import CodeWatch, FeatureWatch
from vitrail.errors import ConfigError, DataError
from vitrail.models import activation_bytes
from vitrail.models.cost import saved_bytes
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.objectives.gradient_cache import Comparing
from vitrail.objectives.objective import Objective
from vitrail.runs.folder import RunFolder
from vitrail.runtime.device import find_device
from vitrail.runtime.machine import keep_large_buffers
from vitrail.tasks.classification import Classifier

TOO_SMALL_TO_BLUR = 64  # pixels; the blurs of the papers are for images of 224


@dataclass(frozen=True)
class Pretraining:
    """A training without labels that is ready for its next step: what it makes, and the data it stands on."""

    training: Training
    kept: Classifier | Tokenizer  # what is saved for use; the classifier has no head
    preprocessing: Preprocessing
    splits: Splits
    bad: BadImages
    transform: Transform | None


def prepare_pretraining(
    run: Run, folder: RunFolder, *, data: Any = None, transform: Transform | None = None, say: Say
) -> Pretraining:
    """As `prepare.prepare`, of a run whose objective needs no labels; labels that are there serve only to judge by.

    Raises `ConfigError`, `DataError` or `CheckpointError` before any training memory is used.
    """
    tokenizes = run.objective.name == "tokenizer"
    if run.model.head_only:
        raise ConfigError("model.head_only is set, and learning without labels has no head", "leave it out")
    if not tokenizes:
        run = check_model(run, say)
    keep_large_buffers()
    device = find_device(run.compute.device)
    run, start = (run, None) if tokenizes else load_start(run, say)
    splits, bad = opened(run, folder, data, start, labels=False)
    train = check_images(splits)
    say(describe_data(splits))
    if tokenizes:
        run, kept, preprocessing = build_tokenizer(run, train)
        encoder, width, saved = kept, kept.config.width, tokenizer_bytes(kept.config, preprocessing)
    else:
        run, kept = build(run, train, start, say)
        encoder, preprocessing = kept.backbone, kept.preprocessing
        width, saved = kept.width, activation_bytes(kept.config)
    kept.to(device)
    objective, seen = make_objective(run.objective, encoder, preprocessing, say)
    warn_of_repeats(run, objective, len(train), say)
    run = settle(run, preprocessing, train, device, say, width=width, saved=saved * objective.views)
    torch.set_num_threads(run.compute.threads or 1)
    if isinstance(kept, Tokenizer):
        watch: CodeWatch | FeatureWatch = CodeWatch(kept, preprocessing, splits, run, bad)
    else:
        watch = FeatureWatch(kept, splits, run, bad)
    cropped = train.kind == "files" or transform is not None
    training = assemble(
        run,
        objective.to(device),
        viewed(small_views(run, preprocessing, say), preprocessing, objective, cropped=cropped, seen=seen),
        batches=training_batches(run, train, preprocessing, device, bad, transform, views=objective.views),
        evaluate=watch,
        images=len(train),
        folder=folder,
        device=device,
        evaluate_first=True,
    )
    return Pretraining(training, kept, preprocessing, splits, bad, transform)


def check_images(splits: Splits) -> Source:
    """The training images. Raises `DataError` where there are too few to learn from and to watch."""
    if splits.train is None or len(splits.train) < 4:
        count = 0 if splits.train is None else len(splits.train)
        raise DataError(f"the data hold {count} training images", "give more; see `vitrail data check`")
    return splits.train


def warn_of_repeats(run: Run, objective: Objective, images: int, say: Say) -> None:
    """Says where images that are to be told from all others of a batch are among these themselves."""
    if isinstance(objective, Comparing) and run.data.batch > images:
        told = (
            f"a batch of {run.data.batch} holds each of {images} images more than once, and each is to be unlike itself"
        )
        say(f"warning  {told}: give a smaller --batch")


def build_tokenizer(run: Run, train: Source) -> tuple[Run, Tokenizer, Preprocessing]:
    """A fresh tokenizer for the size and channels of the data, its patch that of `small-data` for small images."""
    if run.model.init is not None or run.model.name is not None:
        raise ConfigError("a tokenizer has no names and starts from nothing", "leave --model and --init out")
    native, own = size_and_channels(train)
    size, channels = run.model.size or native or (224, 224), run.data.channels or own or 3
    preprocessing = Preprocessing.paper(size, channels=channels).stated(**run.model.preprocessing)
    patch = 16 if min(size) > 96 else 8 if min(size) > 40 else 4 if min(size) > 16 else 2
    changes = {"patch_size": (patch, patch), **run.model.changes}
    torch.manual_seed(run.seed)
    tokenizer = Tokenizer(TokenizerConfig.from_dict({**changes, "in_channels": channels}))
    return replace(run, model=replace(run.model, changes=changes)), tokenizer, preprocessing


def tokenizer_bytes(config: TokenizerConfig, preprocessing: Preprocessing) -> int:
    """Bytes that one image keeps for the backward pass."""
    with torch.device("meta"):
        sketched = Tokenizer(config)
    return saved_bytes(sketched, torch.empty(1, config.in_channels, *preprocessing.size, device="meta"))


def small_views(run: Run, preprocessing: Preprocessing, say: Say) -> Run:
    """The run without the blur of its views where images are too small for it: SimCLR's for CIFAR has none either."""
    if not any(run.augment.blur_views) or min(preprocessing.size) >= TOO_SMALL_TO_BLUR:
        return run
    say(f"views    no blur: images of {preprocessing.size[0]} x {preprocessing.size[1]} would lose what is in them")
    return replace(run, augment=replace(run.augment, blur_views=(0.0, 0.0)))
