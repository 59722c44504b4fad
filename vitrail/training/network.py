"""The network of a run: planned before it is built, and built with random or given weights."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from vitrail import weights
from vitrail.config.default_model import model_for_images
from vitrail.config.reconcile import changes_for
from vitrail.config.schema import AdapterSettings, ModelSettings, Run
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError
from vitrail.images.decode import BadImage, upright_size
from vitrail.models import MODELS, Backbone, configure, sketch
from vitrail.models.adapters import add_adapters, list_adapters
from vitrail.models.cost import count_cost, image_for, saved_bytes
from vitrail.objectives import find_objective
from vitrail.runtime.device import find_device
from vitrail.runtime.progress import LogFunction
from vitrail.tasks import Task, create_task, find_task
from vitrail.tasks.task import count_head_outputs
from vitrail.text import plural
from vitrail.training.data import RunData
from vitrail.weights.resolve import ResolvedModel, resolve_model

SIZES_READ = 65  # images whose headers decide the size of inputs


@dataclass(frozen=True, kw_only=True)
class NetworkPlan:
    """The network that a run trains."""

    model: ModelSettings  # without automatic settings
    channels: int
    parameters: int
    image_bytes: float  # activations that one image keeps for the backward pass
    network: Backbone | None = None  # on the meta device, where its blocks can be timed


@dataclass(frozen=True, kw_only=True)
class BuiltModel:
    """The model that a run trains and saves, and its size."""

    model: Any  # a Task, without a head where it learns without labels, or a Tokenizer
    preprocessing: Preprocessing
    about: str
    parameters: int
    multiply_adds: int | None = None  # of one image
    base: ResolvedModel | None = None  # the weights to start from
    teacher: Any = None  # the Task whose features are distilled


def check_model(run: Run) -> None:
    """Checks the network before any data is read. Raises `ConfigError`."""
    if run.model.adapters.rank and run.model.init is None:
        what = f"adapters of rank {run.model.adapters.rank} change weights to start from, and none are given"
        raise ConfigError(what, "name them with --init, or leave the adapters out")
    if run.model.init is None:
        name = run.model.name or "vit-s16"
        configure(name, **changes_for(run, configure(name), lambda line: None))
    elif run.model.name is not None:
        what = f"both --init {run.model.init} and --model {run.model.name} name a network"
        raise ConfigError(what, "give one of them")


def plan_network(run: Run, data: RunData, start: Task | None, log: LogFunction) -> NetworkPlan:
    """Chooses the network that the run names or starts from, or one that follows the size and number of the images."""
    train = data.train
    own_size, own_channels = size_and_channels(train)
    kind, name, defaults, init = find_task(run.task, run.model.head), run.model.name, {}, None
    if kind.pixels and run.model.size is None and own_size is None:
        cell = (start.config if start is not None else MODELS[name or "vit-s16"]).cells[-1]
        device = "cuda" if find_device(run.compute.device).type == "cuda" else "cpu"
        own_size = choose_size(train, cell, kind.pixels[device])
    if start is None:
        channels = run.data.channels or own_channels or 3
        size = run.model.size or own_size or (224, 224)
        if name is None:
            name, defaults = model_for_images(size, images=len(train))
        base = MODELS[name]
    else:
        assert run.model.init is not None
        channels = run.data.channels or own_channels or start.config.in_channels
        size, base = run.model.size or (own_size if kind.pixels else None) or start.preprocessing.size, start.config
        init = resolve_model(run.model.init).origin  # `latest` may be another one when the run is resumed
    changes = {**defaults, **changes_for(run, base, log, from_weights=start is not None)}
    classes = count_head_outputs(kind, data.arguments["classes"])
    config = configure(base, **{**changes, "classes": classes, "image_size": size, "in_channels": channels})
    model = replace(run.model, name=name, init=init, changes=changes, size=config.image_size)
    drawn = sketch(config)
    name = run.objective.name
    views = 1 if name == "supervised" else find_objective(name).count_views(run.objective.changes)
    return NetworkPlan(
        model=model,
        channels=channels,
        parameters=sum(parameter.numel() for parameter in drawn.parameters()),
        image_bytes=saved_bytes(drawn.train(), image_for(drawn)) * views,
        network=drawn,
    )


def build_network(run: Run, data: RunData, plan: NetworkPlan, start: Task | None, log: LogFunction) -> BuiltModel:
    """Builds the network of a resolved run, fresh or from ``start`` with a zero head."""
    size, channels, kind, drawn = run.model.size, run.data.channels, find_task(run.task, run.model.head), plan.network
    assert size is not None and channels is not None and drawn is not None, "the run is not resolved"
    prepared: dict[str, Any] = {**({} if kind.resize is None else {"resize": kind.resize}), **run.model.preprocessing}
    if run.data.pixel_range is not None:
        prepared["pixel_range"] = run.data.pixel_range
    torch.manual_seed(run.seed)
    if start is None:
        preprocessing = Preprocessing.paper(size, channels=channels).override(**prepared)
        model = create_task(kind, drawn.config, data.arguments, preprocessing=preprocessing)
    else:
        before = start.config.in_channels
        if channels != before:
            log(f"channels {channels}; the first layer of the weights, which has {before}, is adapted to them")
        if start.false_alarms is not None:
            log(
                "unlike   what tells images unlike those of the training is not taken over: "
                "fit it again with `vitrail evaluate RUN DATA --fit-unknown 5%`"
            )
        fitted = {"image_size": size, "in_channels": channels}
        model = weights.adapt(start, task=kind, arguments=data.arguments, **fitted, **run.model.changes)  # type: ignore[bad-argument-type]
        model.preprocessing = model.preprocessing.override(**prepared)
    if drawn.config != model.config:  # a new head has no hidden layer
        drawn = sketch(model.config)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if run.model.adapters.rank:
        attach_adapters(model, run.model.adapters, log)
    base = None if run.model.init is None else resolve_model(run.model.init)
    return BuiltModel(
        model=model,
        preprocessing=model.preprocessing,
        about=run.model.name or (base.name if base else "vit"),
        base=base,
        parameters=parameters,
        multiply_adds=count_cost(drawn).multiply_adds,
    )


def attach_adapters(model: Task, settings: AdapterSettings, log: LogFunction) -> None:
    """Adds adapters to the backbone of ``model``, and logs what they are and what they save. Raises `ConfigError`."""
    backbone = model.backbone
    adapted = add_adapters(
        backbone,
        rank=settings.rank,
        alpha=settings.alpha,
        layers=settings.layers,
        slices=settings.slices,
        blocks=settings.blocks,
        rslora=settings.rslora,
    )
    count = sum(parameter.numel() for _, adapter in list_adapters(backbone) for parameter in adapter.parameters())
    frozen = sum(parameter.numel() for parameter in backbone.parameters()) - count
    log(
        f"adapters {plural(count, 'parameter')} of rank {settings.rank} in {plural(len(adapted), 'layer')} are trained with the "
        f"head, beside {frozen:,} that are frozen"
    )
    blocks = backbone.config.blocks
    if settings.blocks is None or settings.blocks == blocks:
        log("note     adapters make gradients, moments and checkpoints smaller, and neither activations nor steps")
    else:
        log(f"note     no activations are kept of the first {plural(blocks - settings.blocks, 'block')} of {blocks}")


def choose_size(train: Source, cell: tuple[int, int], pixels: int) -> tuple[int, int]:
    """Returns the median size (height, width) of the images, scaled down to about ``pixels``, in whole cells of the last map."""
    sizes = sample_sizes(train)
    height, width = np.median(sizes, axis=0).tolist() if sizes else (224, 224)
    scale = min((pixels / (height * width)) ** 0.5, 1)
    across, down = max(round(width * scale / cell[1]), 1), max(round(height * scale / cell[0]), 1)
    return down * cell[0], across * cell[1]


def sample_sizes(train: Source) -> list[tuple[int, int]]:
    """Returns the sizes (height, width) of up to 65 images, evenly spread, without those that cannot be read."""
    sizes = []
    for row in np.unique(np.linspace(0, len(train) - 1, min(SIZES_READ, len(train))).astype(int)).tolist():
        with suppress(BadImage):
            content = train.contents[row]
            if size := content.shape[:2] if isinstance(content, np.ndarray) else upright_size(content):
                sizes.append(size)
    return sizes


def size_and_channels(train: Source) -> tuple[tuple[int, int] | None, int | None]:
    """Returns the (height, width) and channels of images in memory; (None, None) for files."""
    for row in range(min(len(train), SIZES_READ)):
        with suppress(BadImage):
            if isinstance(content := train.contents[row], np.ndarray):
                return content.shape[:2], content.shape[2]
            break
    return None, None
