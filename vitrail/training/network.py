"""The network of a run: fresh, or from given weights with a zero head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from vitrail import weights
from vitrail.config.reconcile import without_another_network, without_foreign_changes
from vitrail.config.schema import Run
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError
from vitrail.models import configure
from vitrail.runtime.progress import Say
from vitrail.tasks.classification import Classifier, create_model
from vitrail.training.auto import choose_model
from vitrail.weights.resolve import resolve_model


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
    path = resolve_model(run.model.init).path.resolve()
    start = weights.load(path, log=say)
    run = replace(run, model=replace(run.model, init=str(path)))
    run = without_another_network(run, say)
    return without_foreign_changes(run, start.config, say), start


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
