"""Verification of an export: the outputs of the model and of the written file for the same images, compared.

B images, C channels, H and W their size, K classes, N images in all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.data.loader import Bad
from vitrail.data.sources.contents import choose_evenly
from vitrail.data.sources.source import Source
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.exports.comparison import (
    BATCHES,
    Answers,
    Verb,
    choose_sizes,
    compare,
    generate_pictures,
    measure_speeds,
    scale_pictures,
)
from vitrail.images.decode import BadImage
from vitrail.inference.inputs import find_inputs, open_split
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import read_inputs
from vitrail.runtime.progress import ProgressBar, Say
from vitrail.tasks.metric import Metric, Targets
from vitrail.tasks.pictures import to_pixels
from vitrail.tasks.task import Task

Truth = tuple[Targets, Frames]  # of a batch

EXACT, LOST, OTHERWISE = 1e-4, 0.02, 0.05  # what is allowed: see `Tolerances`
IMAGES, GENERATED = 300, 64  # that are compared by default


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """How far a file may be off; ``tolerance`` stands for the one that holds.

    Where it computes what the model does (``exact``): the largest difference of an output, as a share of the largest output,
    0.0001. Where it computes less, int8, or prepares pictures in another way: with labels the accuracy that it loses, 0.02;
    without them the share of images with another answer, 0.05.
    """

    exact: bool
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise ConfigError(f"tolerance is {self.tolerance}", "give a share between 0 and 1, such as 0.02")

    def check(self, figures: dict[str, Any], *, higher_is_better: bool = True) -> None:
        """Raises `CheckpointError` for what is beyond; of the metric in ``figures`` more or less is better."""
        metric = figures.get("metric")
        if self.exact:
            off, most, of = figures["difference"], EXACT, "outputs differ by {} of the largest"
        elif metric:
            lost = figures[f"{metric}_before"] - figures[f"{metric}_after"]
            lost, words = (lost, "lower") if higher_is_better else (-lost, "higher")
            off, most, of = round(lost, 9), LOST, f"{metric} is {words} by {{}}"
        else:
            off, most, of = (
                round(1 - figures["agreement"], 9),
                OTHERWISE,
                "predictions differ for a share of {} of the images",
            )
        most = most if self.tolerance is None else self.tolerance
        if off <= most:
            return
        remedy = "nothing was written; --tolerance allows more"
        if not self.exact and not metric:
            remedy += ", and labelled images of yours (--check DATA) say what it costs"
        listing = "\n".join(f"{name} {value}" for name, value in round_figures(figures).items())
        what = f"what was exported is not the model: {of.format(f'{off:.3g}')}, {most:g} is allowed"
        raise CheckpointError(what, remedy, value=listing)


def round_figures(figures: dict[str, Any]) -> dict[str, Any]:
    """Rounds floats to four significant digits."""
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in figures.items()}


@dataclass(frozen=True, kw_only=True)
class Proof:
    """A model and its export, which should give the same outputs.

    Args:
        task: the model.
        graph: what was written: inputs to answers.
        pictures: its inputs are whole pictures (B, C, H, W) uint8, not normalised images.
        dynamic: it takes images of any size.
    """

    task: Task
    graph: Verb
    pictures: bool
    dynamic: bool

    def figures(self, source: Source | None, count: int, options: InferenceOptions) -> dict[str, Any]:
        """Returns the proof in figures, flat.

        Args:
            source: images, best labelled; None generates some.
            count: how many.

        Raises:
            CheckpointError: answers that are no finite numbers.
            DataError: no image can be read.
        """
        truths: list[Truth] = []
        judged = source is not None and source.labelled and bool(self.task.classes)
        metrics = [self.task.metric() for _ in range(2)] if judged else []
        seen, agreed, worst = 0, 0.0, 0.0
        with ProgressBar("comparing", count, quiet=options.quiet) as show:
            images = self._generate(count) if source is None else self._read_inputs(source, truths, options)
            for pair in compare(self.model, self.graph, _show_progress(images, show)):
                batch = len(next(iter(pair[0].values())))
                seen, agreed = seen + batch, agreed + batch * self.task.agreement(*pair)
                worst = max(worst, self.task.difference(*pair))
                for metric, answers in zip(metrics, pair):
                    metric.update(self.task.read_graph(answers), truths[-1][0], [""] * batch, truths[-1][1])
        if not seen:
            raise DataError(
                "no image could be read: the split is empty or all of it is bad", "see `vitrail data check`"
            )
        shapes = compare(self.model, self.graph, self._make_shapes())
        return {
            "images": seen,
            "real_images": source is not None,
            "batches": ",".join(map(str, BATCHES)),
            "sizes": ",".join(f"{height}x{width}" for height, width in self._list_sizes()),
            "difference": max([worst, *(self.task.difference(*pair) for pair in shapes)]),
            "agreement": agreed / seen,
            **_compare_metrics(*metrics),
            **self._measure_speeds(),
        }

    def model(self, inputs: Tensor) -> Answers:
        images = self.task.preprocess(inputs) if self.pictures else inputs
        return self.task.graph(images)

    def _list_sizes(self) -> list[tuple[int, int]]:
        sizes = choose_sizes(self.task.config)
        return sizes if self.dynamic or self.pictures else sizes[:1]

    def _make_shapes(self) -> Iterator[Tensor]:
        pictures = generate_pictures(max(BATCHES), self.task.config.in_channels, self.task.config.image_size, seed=1)
        return map(self._to_input, scale_pictures(pictures, self._list_sizes()))

    def _generate(self, count: int) -> Iterator[Tensor]:
        channels, size = self.task.config.in_channels, self.task.config.image_size
        for first in range(0, count, max(BATCHES)):
            yield self._to_input(generate_pictures(min(max(BATCHES), count - first), channels, size, seed=first))

    def _to_input(self, pictures: Tensor) -> Tensor:
        return pictures if self.pictures else self.task.preprocessing.normalise(pictures)

    def _read_inputs(self, source: Source, truths: list[Truth], options: InferenceOptions) -> Iterator[Tensor]:
        """Yields the good images of ``source``; notes their targets, and what they show of their pictures."""
        bad = options.record_bad(source)
        if self.pictures:
            yield from _read_pictures(source, truths, self.task, bad)
            return
        reading = replace(options, batch=max(BATCHES))
        for batch, images in read_inputs(self.task, source, reading, bad=bad):
            truths.append((batch.targets, batch.frames))
            yield images

    def _measure_speeds(self) -> dict[str, float]:
        """Milliseconds an image, of one alone and of the largest batch."""
        times = {}
        for count in (1, max(BATCHES)):
            pictures = generate_pictures(count, self.task.config.in_channels, self.task.config.image_size)
            before, after = measure_speeds(self.model, self.graph, self._to_input(pictures))
            times |= {f"ms_before_batch_{count}": before, f"ms_after_batch_{count}": after}
        return {**times, "threads": torch.get_num_threads()}


def _compare_metrics(*metrics: Metric) -> dict[str, Any]:
    """Returns the first figure of a judgement, of the model and of the graph; nothing without both."""
    if not metrics:
        return {}
    before, after = (metric.compute() for metric in metrics)
    name = next(iter(before))
    return {"metric": name, f"{name}_before": before[name], f"{name}_after": after[name]}


def open_source(task: Task, data: Any, most: int, say: Say) -> Source:
    """At most ``most`` of the evaluation images, spread evenly; without labels where the labels are not the model's.

    Raises:
        DataError: data that cannot be used.
    """
    try:
        _, source = open_split(task, data, None, say, labelled=False)
    except DataError as error:
        if not (isinstance(data, str | Path) and Path(data).is_dir()):
            raise
        say(f"warning  compared without labels: {error.what}")
        source = find_inputs([str(data)]).source
    if task.classes and source.labelled and source.multi_label != task.multi_label:
        kinds = ("one label an image", "several")
        what = f"the data have {kinds[source.multi_label]}, the model gives {kinds[task.multi_label]}"
        raise DataError(what, "give data of the kind that the model was trained on")
    return source.subset(choose_evenly(len(source), most))


def _read_pictures(source: Source, truths: list[Truth], task: Task, bad: Bad) -> Iterator[Tensor]:
    """Pictures as they lie there, decoded: (1, C, H, W) uint8."""
    channels = task.config.in_channels
    for row in range(len(source)):
        try:
            item = source.read(row)
            pixels = np.asarray(to_pixels(item.content, task.preprocessing))
        except BadImage as error:
            bad(source.keys[row], error.reason)
            continue
        pixels = pixels if pixels.dtype == np.uint8 else np.rint(pixels * 255).astype(np.uint8)
        frames = Frames.seen(task.preprocessing, [pixels.shape[:2]])
        truths.append((task.targets.collate(np.asarray(item.target)[None]), frames))
        yield torch.tensor(pixels.reshape(*pixels.shape[:2], channels)).permute(2, 0, 1)[None]


def _show_progress(inputs: Iterator[Tensor], show: ProgressBar) -> Iterator[Tensor]:
    done = 0
    for batch in inputs:
        yield batch
        done += len(batch)
        show.update(done)
