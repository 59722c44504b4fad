"""From a run as it was asked for to a training that can start: data, network, optimiser, and what joins them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from vitrail import weights
from vitrail.config.reconcile import without_another_network, without_foreign_changes
from vitrail.config.schema import Run
from vitrail.data.decoded_cache import keep_decoded
from vitrail.data.loader import Batch, train_batches
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source, Splits, check_data, describe_data, parts_of
from vitrail.engine.choices import choose_model, len_in_steps, settle
from vitrail.engine.feed import Feed, labelled, taught
from vitrail.engine.judge import quick_figures
from vitrail.engine.optim import Average, Optimiser, trainable
from vitrail.engine.teacher import Teacher
from vitrail.engine.training import Training
from vitrail.errors import ConfigError
from vitrail.models import activation_bytes, configure, device_of
from vitrail.objectives.distillation import Distillation
from vitrail.objectives.objective import Objective, configured
from vitrail.objectives.supervised import Supervised
from vitrail.runs.folder import RunFolder
from vitrail.runtime.device import find_device
from vitrail.runtime.machine import keep_large_buffers
from vitrail.runtime.progress import Say
from vitrail.tasks.classification import Classifier, create_model
from vitrail.weights.resolve import find

Transform = Callable[[Any], Any]


@dataclass(frozen=True)
class Prepared:
    """A training ready for its next step, and the data it stands on."""

    training: Training
    classifier: Classifier
    splits: Splits
    bad: BadImages


def prepare(run: Run, folder: RunFolder, *, data: Any = None, transform: Transform | None = None, say: Say) -> Prepared:
    """Opens the data, builds the network, and fills every automatic field of ``run``.

    Args:
        run: what was asked for, or what a resumed run's ``config.yaml`` says.
        data: anything `open_data` takes; by default the path in ``run.data.source``.
        transform: the user's own map from a decoded picture to a (C, h, w) tensor in [0, 1], in place of the recipe's crops.
        say: takes each line that a user should read.

    Raises `ConfigError`, `DataError` or `CheckpointError` before any training memory is used.
    """
    run = check_model(run, say)
    keep_large_buffers()
    device = find_device(run.compute.device)
    run, start = load_start(run, say)
    splits, bad = opened(run, folder, data, start)
    train = check_data(splits)
    say(describe_data(splits))
    run, classifier = build(run, train, start, say, classes=train.classes, multi_label=train.multi_label)
    classifier = classifier.to(device)
    preprocessing, saved = classifier.preprocessing, activation_bytes(classifier.config)
    run = settle(run, preprocessing, train, device, say, width=classifier.width, saved=saved)
    torch.set_num_threads(run.compute.threads or 1)

    def judge(stopped: Callable[[], bool]) -> dict[str, float] | None:
        return quick_figures(classifier, splits.val, run, bad=bad, stopped=stopped) if splits.val is not None else {}

    cropped = train.kind == "files" or transform is not None
    feed = labelled(run, preprocessing, len(train.classes), cropped=cropped)
    objective, feed = objective_of(run, classifier, feed, say)
    training = assemble(
        run,
        objective,
        feed,
        batches=training_batches(run, train, preprocessing, device, bad, transform),
        evaluate=judge,
        images=len(train),
        folder=folder,
        device=device,
    )
    return Prepared(training, classifier, splits, bad)


def objective_of(run: Run, classifier: Classifier, feed: Feed, say: Say) -> tuple[Objective, Feed]:
    """What is minimised and what it is fed: the labels alone, or also a teacher's answers.

    Raises `ConfigError` for arguments that the objective does not have, or a teacher that cannot teach this.
    """
    asked, encoder = run.objective, classifier.backbone
    on_labels = {"loss": asked.loss or "softmax", "binarise": asked.binarise}
    if asked.teacher is None:
        return configured(Supervised, encoder, {**on_labels, **asked.changes}), feed
    if classifier.multi_label:
        raise ConfigError("the images have several labels each, and a teacher says one", "train without --teacher")
    device = device_of(classifier)
    teaching = weights.load(asked.teacher, log=say).to(device)
    teacher = Teacher(teaching, classifier.classes, classifier.preprocessing)
    size = "{} x {}".format(*teaching.preprocessing.size)
    say(f"teacher  {teaching.config.about}, {len(teaching.classes)} classes, images of {size}: {asked.teacher}")
    return configured(Distillation, encoder, {**on_labels, **asked.changes}), taught(feed, teacher)


def check_model(run: Run, say: Say) -> Run:
    """The run with the changes that its network can have; refuses an impossible one before anything is read.

    Raises `ConfigError`.
    """
    if run.model.init is None:
        name = run.model.name or "vit-s16"
        run = without_foreign_changes(run, configure(name), say)
        configure(name, **run.model.changes)
    elif run.model.name is not None:
        raise ConfigError(
            f"both --init {run.model.init} and --model {run.model.name} name a network", "give one of them"
        )
    return run


def load_start(run: Run, say: Say) -> tuple[Run, Classifier | None]:
    """The weights to start from, where the run names some, and the run with their path in full: `latest` may change."""
    if run.model.init is None:
        return run, None
    path = find(run.model.init).path.resolve()
    start = weights.load(path, log=say)
    run = replace(run, model=replace(run.model, init=str(path)))
    run = without_another_network(run, say)
    return without_foreign_changes(run, start.config, say), start


def opened(
    run: Run, folder: RunFolder, data: Any, start: Classifier | None, *, labels: bool = True
) -> tuple[Splits, BadImages]:
    """The data, ``data`` or those that the run names, with sets of small images decoded once, into memory; and what becomes of
    bad images.
    """
    channels = run.data.channels or (start.config.in_channels if start else None)
    source = run.data.source if data is None else data
    splits = open_data(source, seed=run.seed, validation=run.data.validation, channels=channels, labelled=labels)
    parts = parts_of(splits)
    total = sum(map(len, parts.values()))
    bad = BadImages(run.data.on_bad, run.data.max_bad, folder.path / "bad_images.csv", total=total)
    kept: dict[str, Any] = {name: keep_decoded(part, channels=channels, bad=bad) for name, part in parts.items()}
    return replace(splits, **kept), bad


def build(
    run: Run,
    train: Source,
    start: Classifier | None,
    say: Say,
    *,
    classes: Sequence[str] = (),
    multi_label: bool = False,
) -> tuple[Run, Classifier]:
    """The network of the run on ``classes`` and the channels of the data, fresh or from given weights with a zero head; and
    the run that says which it is. Without classes it has no head."""
    native, own = size_and_channels(train)
    if start is not None:
        channels = run.data.channels or own or start.config.in_channels
        if channels != start.config.in_channels:
            say(
                f"channels {channels}, where the weights have {start.config.in_channels}: their first layer is dealt round"
            )
        adapted = weights.adapt(
            start,
            classes=classes,
            image_size=run.model.size or start.preprocessing.size,
            in_channels=channels,
            multi_label=multi_label,
            **run.model.changes,
        )
        adapted.preprocessing = adapted.preprocessing.stated(**run.model.preprocessing)
        return run, adapted
    size, channels = run.model.size or native or (224, 224), run.data.channels or own or 3
    run = choose_model(run, size, len(train))
    assert run.model.name is not None
    torch.manual_seed(run.seed)
    return run, create_model(
        run.model.name,
        classes=classes,
        multi_label=multi_label,
        preprocessing=Preprocessing.paper(size, channels=channels).stated(**run.model.preprocessing),
        image_size=size,
        in_channels=channels,
        **run.model.changes,
    )


def size_and_channels(train: Source) -> tuple[tuple[int, int] | None, int | None]:
    """Of images that are in memory (height, width) and channels; of files neither is known."""
    content = train.read(0).content
    return (content.shape[:2], content.shape[2]) if isinstance(content, np.ndarray) else (None, None)


def training_batches(
    run: Run,
    train: Source,
    preprocessing: Preprocessing,
    device: torch.device,
    bad: BadImages,
    transform: Transform | None,
    views: int = 1,
) -> Callable[[int, int], Generator[Batch, None, None]]:
    """From the first step and the last to the batches between them, each image in so many views."""

    def batches(start: int, stop: int) -> Generator[Batch, None, None]:
        return train_batches(
            train,
            policy=run.augment,
            size=preprocessing.size,
            batch=run.data.batch,
            seed=run.seed,
            start=start,
            stop=stop,
            workers=run.data.workers or 0,
            repeats=run.data.repeats,
            views=views,
            channels=preprocessing.channels,
            transform=transform,
            bad=bad,
            device=device,
        )

    return batches


def assemble(
    run: Run,
    objective: Objective,
    feed: Feed,
    *,
    batches: Callable[[int, int], Generator[Batch, None, None]],
    evaluate: Callable[[Callable[[], bool]], dict[str, float] | None],
    images: int,
    folder: RunFolder,
    device: torch.device,
    evaluate_first: bool = False,
) -> Training:
    """The `Training` of a settled run on so many ``images``."""
    parameters = trainable(objective, head_only=run.model.head_only)
    return Training(
        run=run,
        steps=len_in_steps(run, images) or 1_000_000,
        steps_an_epoch=images / run.data.batch,
        objective=objective,
        feed=feed,
        optimiser=Optimiser(objective, run.optim, parameters),
        average=Average(parameters, run.optim.ema) if run.optim.ema else None,
        batches=batches,
        evaluate=evaluate,
        folder=folder,
        device=device,
        evaluate_every=1,
        evaluate_first=evaluate_first,
        scaler=torch.amp.GradScaler(device.type) if run.compute.precision == "fp16" else None,
    )
