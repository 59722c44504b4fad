"""What the ranks of the tests do: functions of `Ranks` and plain values, which a process can be sent."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.models.tiny import TINY
from tests.training.test_family import DERIVED, NAMES
from vitrail.config.compose import compose_run
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source
from vitrail.errors import DataError, VitrailError
from vitrail.evaluation.evaluate import compute_metric
from vitrail.inference.features import features_of
from vitrail.inference.options import InferenceOptions
from vitrail.models import MODELS
from vitrail.runs import checkpoint
from vitrail.runs.folder import RunFolder
from vitrail.runtime.distributed import SINGLE, Ranks, gather_full
from vitrail.tasks.classification.classifier import create_classifier
from vitrail.tasks.task import Task
from vitrail.training import loop, step
from vitrail.training.optimizer import Optimiser
from vitrail.training.prepare import Prepared
from vitrail.training.train import train

PLAIN = (
    *("optim.name=adamw", "compute.threads=1", "compute.tune=false"),
    *("save.evaluations=1", "save.log_every=1", "save.watched=60"),
)


def settings(network: str, *more: str) -> tuple[str, ...]:
    """The settings of a short run of a small config, with an optimiser that every strategy has."""
    config = TINY[network]
    name = NAMES[config.architecture]
    default = MODELS[name].to_dict()
    changes = {key: value for key, value in config.to_dict().items() if key not in DERIVED and value != default[key]}
    return (f"model.name={name}", f"model.changes={json.dumps(changes)}", "model.size=[32, 32]", *PLAIN, *more)


def run(ranks: Ranks, out: Path, given: Sequence[str], objective: str = "supervised", data: Any = "digits") -> str:
    """Trains to the end; what it ended with, where that is an error."""
    flags = {"data": {"source": str(data)}, "objective": {"name": objective}}
    wanted, _ = compose_run(flags=flags, settings=tuple(given))
    try:
        train(wanted, out=out, quiet=True, ranks=ranks)
    except VitrailError as error:
        return f"{type(error).__name__} {error.reported}: {error}"
    return ""


def evaluate_at_the_end(ranks: Ranks, out: Path, given: Sequence[str], data: Any) -> dict[str, float]:
    """The figures of a run that ends by evaluating two parts."""
    wanted, _ = compose_run(flags={"data": {"source": str(data)}}, settings=tuple(given))

    def end(prepared: Prepared) -> dict[str, float]:
        parts = prepared.evaluate({"val": prepared.data.splits.val, "train": prepared.data.train.subset(range(20))})
        return {name: evaluated.figures["nll"] for name, evaluated in parts.items()}

    return train(wanted, out=out, quiet=True, ranks=ranks, end=end).figures


def run_with(ranks: Ranks, fault: str, rank: int, at: int, out: Path, given: Sequence[str], data: Any) -> str:
    """`run` in which something happens to one rank at a step: ``nan``, ``term`` or ``full``, a disk without space."""
    take_step, limits = step.take_step, resource.getrlimit(resource.RLIMIT_FSIZE)

    def disturbed(training: Any, batch: Any) -> float:
        if ranks.rank == rank and training.progress.step == at:
            if fault == "term":
                os.kill(os.getpid(), signal.SIGTERM)
            if fault == "nan":
                read = training.inputs
                training.inputs = lambda batch: (read(batch)[0] * torch.nan, *read(batch)[1:])
            if fault == "full":  # every file ends at 4 kB
                resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        return take_step(training, batch)

    loop.take_step = disturbed
    try:
        return run(ranks, out, given, data=data)
    finally:
        loop.take_step = take_step
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def run_with_slow_disk(ranks: Ranks, out: Path, given: Sequence[str], data: Any) -> str:
    """`run` in which a checkpoint before the last one is written only once the training has made another step."""
    point = "is_whole" if ranks.is_single else "begin"  # the first that the thread comes to
    take_step, pass_point = step.take_step, getattr(checkpoint, point)
    made = last = 0

    def counted(training: Any, batch: Any) -> float:
        nonlocal made, last
        loss = take_step(training, batch)
        made, last = training.progress.step, training.steps
        return loss

    def late(folder: Path) -> Any:
        saved, until = int(folder.name.split("-")[1]), time.monotonic() + 200
        while made <= saved and not made == last > 0:
            assert time.monotonic() < until, "the training waits for its checkpoint"
            time.sleep(0.01)
        return pass_point(folder)

    loop.take_step = counted
    setattr(checkpoint, point, late)
    try:
        return run(ranks, out, given, data=data)
    finally:
        loop.take_step = take_step
        setattr(checkpoint, point, pass_point)


def run_keeping_gradients(ranks: Ranks, out: Path, given: Sequence[str], objective: str, data: Any) -> str:
    """`run` that leaves the gradients of its first update, before they are clipped, beside its folder."""
    kept: dict[str, torch.Tensor] = {}
    measure_norm = Optimiser.gradient_norm

    def keep(optimiser: Optimiser) -> torch.Tensor:
        if not kept:
            kept.update(
                {name: gather_full(p.grad).clone() for name, p in optimiser.parameters.items() if p.grad is not None}
            )
        return measure_norm(optimiser)

    Optimiser.gradient_norm = keep
    try:
        ended = run(ranks, out, given, objective, data)
    finally:
        Optimiser.gradient_norm = measure_norm
    if ranks.first:
        save_file({name: tensor.contiguous() for name, tensor in kept.items()}, out.with_suffix(".gradients"))
    return ended


def run_in_another_torch(ranks: Ranks, out: Path, given: Sequence[str], data: Any) -> str:
    """`run` where torch has no module that replicates by FSDP."""
    name = "torch.distributed._composable.replicate_with_fsdp"
    module, sys.modules[name] = sys.modules.get(name), None  # type: ignore[assignment]
    try:
        return run(ranks, out, given, data=data)
    finally:
        del sys.modules[name]
        if module is not None:
            sys.modules[name] = module


def evaluate(ranks: Ranks, images: int) -> tuple[list[str], dict[str, float]]:
    """The names of the images that a model of random weights is evaluated on, and its figures."""
    model, source = make_evaluable(images)
    metric = compute_metric(model, source, InferenceOptions(batch=10), ranks=ranks)
    assert metric is not None
    return metric.keys, metric.compute()


def evaluate_failing(ranks: Ranks, images: int) -> tuple[str, int]:
    """The error of an evaluation in which one rank cannot go on, and how often this rank asked whether to stop."""
    model, source = make_evaluable(images)
    asked, features = 0, model.backbone.features

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        return max(ranks.largest(0)) > 0

    def fail(pixels: torch.Tensor) -> torch.Tensor:
        if ranks.rank == 1 and asked:
            raise DataError("the store does not answer", "try again")
        return features(pixels)

    model.backbone.features = fail  # type: ignore[method-assign]
    try:
        compute_metric(model, source, InferenceOptions(batch=10), stopped=stopped, ranks=ranks)
    except DataError as error:
        return error.what, asked
    return "", asked


def make_evaluable(images: int) -> tuple[Task, Source]:
    """A model of random weights, and labelled images."""
    torch.manual_seed(0)
    model = create_classifier(TINY["vit"], classes=7)
    torch.nn.init.normal_(model.backbone.head.weight)
    random = np.random.default_rng(0)
    pictures = random.integers(0, 256, (images, 32, 32, 3), dtype=np.uint8)
    splits = open_data({"val": (pictures, random.integers(0, 7, images))}, seed=0)
    assert splits.val is not None
    return model, splits.val


def collect(ranks: Ranks, folder: Path, **options: Any) -> tuple[list[int], bytes] | str:
    """The rows and the bytes of the features that a model of random weights gives images of a folder, or its error."""
    torch.manual_seed(0)
    model = create_classifier(TINY["vit"], classes=2)
    splits = open_data(folder, seed=0)
    assert splits.train is not None
    try:
        found = features_of(model, splits.train, options=InferenceOptions(batch=10, quiet=True, **options), ranks=ranks)
    except VitrailError as error:
        return str(error)
    return found.rows.tolist(), found.values.tobytes()


def collect_keeping(ranks: Ranks, folder: Path, on_bad: str) -> tuple[list[int], bytes] | str:
    return collect(ranks, folder, on_bad=on_bad, max_bad=0.5)


def gradient_difference(one: Path, other: Path) -> float:
    """`difference` of the gradients that two runs left."""
    return _largest(*(load_file(out.with_suffix(".gradients")) for out in (one, other)))


def weights(out: Path) -> dict[str, torch.Tensor]:
    """What the newest checkpoint of a run holds of its objective."""
    saved = checkpoint.load_newest(RunFolder(out).checkpoints)
    assert saved is not None
    return {f"{group}/{name}": tensor for group, named in saved.tensors.items() for name, tensor in named.items()}


def difference(one: Path, other: Path) -> float:
    """The largest relative difference of a tensor in the newest checkpoints of two runs.

    Tensors whose gradient is zero but for rounding are left out, since the optimiser makes steps of that: the key biases of
    attention (the softmax does not see them) and what comes right before a norm over the batch.
    """
    return _largest(weights(one), weights(other))


def weight_difference(one: Path, other: Path) -> float:
    """The same of the weights alone: moments are as far apart as gradients."""
    a, b = (
        {name: tensor for name, tensor in weights(out).items() if name.startswith("objective/")} for out in (one, other)
    )
    return _largest(a, b)


def _largest(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    moved = [name for name in a if a[name].ndim > 1]
    return max(float((a[name] - b[name]).norm() / a[name].norm().clamp(min=1e-6)) for name in moved)


def alone(out: Path, given: Sequence[str], **more: Any) -> str:
    return run(SINGLE, out, given, **more)


def run_differently(ranks: Ranks, out: Path, given: Sequence[str]) -> str:
    """A training whose ranks have other images."""
    wanted, _ = compose_run(flags={"data": {"source": "arrays"}}, settings=tuple(given))
    count = 60 + ranks.rank
    try:
        train(
            wanted,
            out=out,
            data=(np.zeros((count, 32, 32, 3), np.uint8), np.arange(count) % 3),
            quiet=True,
            ranks=ranks,
        )
    except VitrailError as error:
        return f"{type(error).__name__} {error.reported}: {error}"
    return ""


def write_photographs(folder: Path, images: int, bad: set[int]) -> Path:
    """Images of 90 x 70 pixels, too large to be kept in memory, in two class folders; some are no images."""
    random = np.random.default_rng(0)
    for index in range(images):
        path = folder / ("train" if index % 4 else "val") / "ab"[index % 2] / f"{index:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if index in bad:
            path.write_bytes(b"no image")
        else:
            Image.fromarray(random.integers(0, 256, (70, 90, 3), dtype=np.uint8)).save(path)
    return folder
