"""The proof that an exported file computes what its model does: outputs compared on the same images, and its speed.

B images, C channels, H and W their size, F features, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.data.loader import Bad
from vitrail.data.sources.contents import choose_evenly
from vitrail.data.sources.source import Source
from vitrail.errors import CheckpointError, ConfigError, DataError
from vitrail.images.decode import BadImage
from vitrail.inference.comparison import generate_pictures
from vitrail.inference.inputs import find_inputs, open_split
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import read_inputs
from vitrail.models import Config
from vitrail.runtime.device import in_precision
from vitrail.runtime.progress import LogFunction, ProgressBar
from vitrail.runtime.timing import time_in_turns
from vitrail.tasks.metric import Targets
from vitrail.tasks.task import Task
from vitrail.tasks.user_images import to_pixels
from vitrail.torch_private import has_bf16

EXACT, LOST, OTHERWISE = 1e-4, 0.02, 0.05  # what is allowed: see `Tolerances`
BATCHES = (1, 3, 8)  # batch sizes
TIMED_BATCHES = (1, 8)
SLOWER = 1.05  # ratio of times per image; less is within the noise of the measurement
MAX_ROUNDS, MIN_ROUNDS, SECONDS = 30, 5, 3.0  # limits of the speed measurement: rounds and time

Outputs = Mapping[str, Tensor]  # outputs by name, as in `Task.graph`
Forward = Callable[[Tensor], Outputs]


def compare(model: Forward, graph: Forward, batches: Iterable[Tensor]) -> Iterator[tuple[Outputs, Outputs]]:
    """Runs model and graph on every batch and yields the outputs of both.

    Raises:
        CheckpointError: an output of either is not finite, or the graph has other outputs.
    """
    for images in batches:
        with torch.inference_mode():
            expected, actual = model(images), graph(images)
        _check_outputs(expected, actual)
        yield expected, actual


def _check_outputs(expected: Outputs, actual: Outputs) -> None:
    shapes = [{name: tuple(output.shape) for name, output in outputs.items()} for outputs in (expected, actual)]
    if shapes[0] != shapes[1]:
        what = f"the outputs of the graph are {shapes[1]}, those of the model {shapes[0]}"
        raise CheckpointError(what, "report this as a bug in vitrail")
    for name in expected:
        if not expected[name].isfinite().all():
            raise CheckpointError(f"the {name} of the model are not finite", "export a model with finite outputs")
        if not actual[name].isfinite().all():
            raise CheckpointError(f"the {name} of the graph are not finite", "report this as a bug in vitrail")


def choose_sizes(config: Config) -> list[tuple[int, int]]:
    """Returns (height, width) of the model, a larger size and a non-square size; whole patches if the first is."""
    (height, width), (down, across) = config.image_size, config.cell
    oblong = (height + down, width + (3 if height == width else 2) * across)
    return [(height, width), (height + 2 * down, width + 2 * across), oblong]


def scale_pictures(pictures: Tensor, sizes: Iterable[tuple[int, int]]) -> Iterator[Tensor]:
    """Resizes pictures (B, C, H, W) uint8 to every size, in batches of the sizes in `BATCHES`."""
    for size in sizes:
        scaled = F.interpolate(pictures.float(), size, mode="bilinear", align_corners=False, antialias=True)
        for count in BATCHES:
            yield scaled[:count].clamp(0, 255).to(torch.uint8)


@torch.inference_mode()
def measure_speeds(functions: Mapping[str, Callable[[Tensor], object]], images: Tensor) -> dict[str, float]:
    """Returns median milliseconds per image (B, C, H, W) of each function, measured alternately."""
    calls = {name: partial(function, images) for name, function in functions.items()}
    timings = time_in_turns(calls, rounds=MAX_ROUNDS, min_rounds=MIN_ROUNDS, seconds=SECONDS)
    return {name: 1e3 * timing.median / len(images) for name, timing in timings.items()}


def describe_slowness(figures: Mapping[str, Any]) -> str:
    """Describes where the file takes longer per image than the model in its faster precision. Empty if it does not.

    Args:
        figures: as returned by `ParityCheck.figures`.
    """
    slower = []
    for count in TIMED_BATCHES:
        after, *before = (figures.get(f"ms_{name}_batch_{count}") for name in ("after", "before", "bf16"))
        fastest, precision = min((time, name) for time, name in zip(before, ("fp32", "bf16")) if time is not None)
        if after > SLOWER * fastest:
            slower.append(f"{after:.2f} ms an image in batches of {count}, the model in {precision} {fastest:.2f} ms")
    return "; ".join(slower)


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
            off, most, what = figures["difference"], EXACT, "outputs differ by {} of the largest"
        elif metric:
            lost = figures[f"{metric}_before"] - figures[f"{metric}_after"]
            lost, words = (lost, "lower") if higher_is_better else (-lost, "higher")
            off, most, what = round(lost, 9), LOST, f"{metric} is {words} by {{}}"
        else:
            off, most = round(1 - figures["agreement"], 9), OTHERWISE
            what = "predictions differ for a share of {} of the images"
        most = most if self.tolerance is None else self.tolerance
        if off <= most:
            return
        remedy = "nothing was written; --tolerance allows more"
        if not self.exact and not metric:
            remedy += ", and labelled images of yours (--check DATA) say what it costs"
        listing = "\n".join(f"{name} {value}" for name, value in round_figures(figures).items())
        what = what.format(f"{off:.3g}")
        raise CheckpointError(f"what was exported is not the model: {what}, {most:g} is allowed", remedy, value=listing)


def round_figures(figures: dict[str, Any]) -> dict[str, Any]:
    """Rounds floats to four significant digits."""
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in figures.items()}


@dataclass(frozen=True, kw_only=True)
class ParityCheck:
    """A model ``task`` and its export ``graph``, which should give the same outputs.

    With ``pictures`` its inputs are whole pictures (B, C, H, W) uint8, not normalised images; ``dynamic``: of any size.
    """

    task: Task
    graph: Forward
    pictures: bool
    dynamic: bool

    def figures(self, source: Source | None, count: int, options: InferenceOptions) -> dict[str, Any]:
        """Returns the proof in figures, flat, by the ``count`` images of ``source``, best labelled; None generates some.

        Raises `CheckpointError` for answers that are no finite numbers, and `DataError` where no image can be read.
        """
        truths: list[tuple[Targets, Frames]] = []  # of each batch
        evaluated = source is not None and source.labelled and bool(self.task.classes)
        metrics = [self.task.metric() for _ in range(2)] if evaluated else []
        seen, agreed, worst = 0, 0.0, 0.0
        with ProgressBar("comparing", count, quiet=options.quiet) as show:
            images = self._generate(count) if source is None else self._read_inputs(source, truths, options)
            for pair in compare(self.model, self.graph, images):
                batch = len(next(iter(pair[0].values())))
                seen, agreed = seen + batch, agreed + batch * self.task.agreement(*pair)
                show.update(seen)
                worst = max(worst, self.task.difference(*pair))
                for metric, answers in zip(metrics, pair):
                    metric.update(self.task.read_graph(answers), truths[-1][0], [""] * batch, truths[-1][1])
        if not seen:
            what = "no image could be read: the split is empty or all of it is bad"
            raise DataError(what, "see `vitrail data check`")
        sizes = choose_sizes(self.task.config)[: None if self.dynamic or self.pictures else 1]
        shapes = compare(self.model, self.graph, map(self._to_input, scale_pictures(self._draw(seed=1), sizes)))
        compared = {}
        if metrics:
            before, after = (metric.compute() for metric in metrics)
            name = next(iter(before))
            compared = {"metric": name, f"{name}_before": before[name], f"{name}_after": after[name]}
        return {
            "images": seen,
            "real_images": source is not None,
            "batches": ",".join(map(str, BATCHES)),
            "sizes": ",".join(f"{height}x{width}" for height, width in sizes),
            "difference": max([worst, *(self.task.difference(*pair) for pair in shapes)]),
            "agreement": agreed / seen,
            **compared,
            **self._measure_speeds(),
        }

    def model(self, inputs: Tensor) -> Outputs:
        return self.task.graph(self.task.preprocess(inputs) if self.pictures else inputs)

    def _draw(self, count: int = max(BATCHES), *, seed: int = 0) -> Tensor:
        return generate_pictures(count, self.task.config.in_channels, self.task.config.image_size, seed=seed)

    def _generate(self, count: int) -> Iterator[Tensor]:
        for first in range(0, count, max(BATCHES)):
            yield self._to_input(self._draw(min(max(BATCHES), count - first), seed=first))

    def _to_input(self, pictures: Tensor) -> Tensor:
        return pictures if self.pictures else self.task.preprocessing.normalise(pictures)

    def _read_inputs(self, source: Source, truths: list[Any], options: InferenceOptions) -> Iterator[Tensor]:
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
        """Milliseconds an image, of one alone and of the largest batch; in bf16 too if the processor has it."""
        functions = {
            "before": self.model,
            "after": self.graph,
            **({"bf16": self._compute_in_bf16} if has_bf16() else {}),
        }
        times = {}
        for count in TIMED_BATCHES:
            speeds = measure_speeds(functions, self._to_input(self._draw(count)))
            times |= {f"ms_{name}_batch_{count}": speed for name, speed in speeds.items()}
        return {**times, "threads": torch.get_num_threads()}

    def _compute_in_bf16(self, inputs: Tensor) -> Outputs:
        with in_precision("bf16", inputs.device):
            return self.model(inputs)


def open_source(task: Task, data: Any, most: int, log: LogFunction) -> Source:
    """Returns at most ``most`` evaluation images, spread evenly; without labels where the labels are not the model's.

    Raises `DataError`.
    """
    try:
        _, source = open_split(task, data, None, log, labelled=False)
        if source.labelled:
            task.targets.check(source, task.name)
    except DataError as error:
        if not (isinstance(data, str | Path) and Path(data).is_dir()):
            raise
        log(f"warning  compared without labels: {error.what}")
        source = find_inputs([str(data)]).source
    if task.classes and source.labelled and source.multi_label != task.multi_label:
        kinds = ("one label an image", "several")
        what = f"the data have {kinds[source.multi_label]}, the model gives {kinds[task.multi_label]}"
        raise DataError(what, "give data of the kind that the model was trained on")
    return source.subset(choose_evenly(len(source), most))


def _read_pictures(source: Source, truths: list[Any], task: Task, bad: Bad) -> Iterator[Tensor]:
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
