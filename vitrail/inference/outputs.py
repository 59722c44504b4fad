"""A model applied to data: the one loop from a source to outputs, and judging by it.

B images, C channels, H and W their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import itemgetter

import torch
from torch import Tensor

from vitrail.data.augment.placement import Frames
from vitrail.data.loader import Bad, Batch, eval_batches, stop_at_bad
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.source import Source
from vitrail.data.windows import Windows
from vitrail.errors import DataError, VitrailError
from vitrail.evaluation.corruptions import corrupt
from vitrail.evaluation.judgement import Judgement
from vitrail.inference.dealing import deal_batches, tell_bad
from vitrail.inference.options import InferenceOptions
from vitrail.models.backbone import at_rest, device_of
from vitrail.runtime.distributed import SINGLE, Ranks
from vitrail.runtime.progress import ProgressBar
from vitrail.tasks.metric import Metric, Targets
from vitrail.tasks.task import WINDOWS, Task

Verb = Callable[[Tensor], Tensor]


def inputs(
    model: Task,
    source: Source,
    options: InferenceOptions,
    *,
    bad: Bad = stop_at_bad,
    fast: bool = False,
    corruption: tuple[str, int] | None = None,
    preprocessing: Preprocessing | Windows | None = None,
    spans: Iterable[range] | None = None,
) -> Iterator[tuple[Batch, Tensor]]:
    """Every batch of ``source`` in order, and its images (B, C, H, W) as ``model`` takes them, on its device.

    Args:
        bad: told of each bad image.
        fast: decodes large JPEGs at a reduced scale.
        corruption: a kind and a level of `vitrail.evaluation.corruptions`, applied before normalisation.
        preprocessing: in place of the model's own; with `Windows` each batch is a picture, and images are (1, V, C, H, W).
        spans: the items to read, as `eval_batches` takes them.
    """
    preprocessing, device = preprocessing or model.preprocessing, device_of(model)
    size = 1 if isinstance(preprocessing, Windows) else options.batch
    how = {"batch": size, "workers": options.workers, "collate": model.collate, "max_pixels": options.max_pixels}
    for batch in eval_batches(source, preprocessing, bad=bad, fast=fast, spans=spans, **how):
        images = batch.images.to(device)
        if corruption is not None:
            images = corrupt(images, *corruption, samples=batch.ids[:, 1])
        yield batch, preprocessing.normalise(images)


@torch.inference_mode()
def outputs(
    model: Task,
    source: Source,
    verb: Verb | None,
    options: InferenceOptions,
    *,
    bad: Bad = stop_at_bad,
    fast: bool = False,
    corruption: tuple[str, int] | None = None,
    progress: ProgressBar | None = None,
    spans: Iterable[range] | None = None,
) -> Iterator[tuple[Batch, Tensor]]:
    """Every batch of ``source``, and what ``verb`` gives for its images, in fp32: by default what calling the model gives.

    ``options.precision`` and ``options.way`` are those of the verb. With ``options.zoom`` every batch is a picture, and the
    outputs are what `Task.join_windows` makes of those for its windows. Further arguments are those of `inputs`.
    """
    windows, done = model.windows(options.zoom), 0
    compute = partial(options.compute, verb or model)
    how = {"bad": bad, "fast": fast, "corruption": corruption, "spans": spans}
    for batch, images in inputs(model, source, options, preprocessing=windows, **how):
        if windows is None:
            yield batch, compute(images)
        else:
            views = Frames.of_windows(windows, batch.frames.pictures[0])
            parts = images[0].split(min(options.batch, WINDOWS))
            yield batch, model.join_windows(map(compute, parts), views)
        done += len(batch)
        if progress is not None:
            progress.update(done)


def measure(
    model: Task,
    source: Source,
    options: InferenceOptions,
    *,
    bad: Bad = stop_at_bad,
    corruption: tuple[str, int] | None = None,
    among: Tensor | None = None,
    stopped: Callable[[], bool] = lambda: False,
    on_outputs: Callable[[Tensor, Targets], None] | None = None,
    progress: ProgressBar | None = None,
    ranks: Ranks = SINGLE,
) -> Metric | None:
    """The metric of ``model``'s task over ``source``; None if ``stopped`` said so on the way.

    ``among`` (K,) are true for the classes that can be predicted; None is all. ``on_outputs`` is given the outputs and targets
    of every batch, where somebody keeps them. Of several ranks each computes its part, and asks as often as the others whether
    to stop; all of them get the metric and the bad images that one process gets, and the error of any.

    Raises `DataError` where no image could be judged.
    """
    size = options.batch if model.windows(options.zoom) is None else 1
    rows = deal_batches(len(source), size, ranks)
    own = source if ranks.is_single else source.subset(rows)
    noted: dict[str, str] = {}
    given = {"bad": bad if ranks.is_single else noted.__setitem__, "corruption": corruption, "progress": progress}
    parts: list[tuple[int, Metric, tuple[Tensor, Targets] | None]] = []  # of every batch, with its first row
    failure: VitrailError | None = None
    with at_rest(model):
        batches = outputs(model, own, None, options, **given)
        for _ in range(-(-len(range(0, len(source), size)) // ranks.world)):
            computed = None
            try:
                computed = next(batches, None)
            except VitrailError as error:
                failure = error
            if stopped():
                return None
            if computed is None:  # the rest of this rank's batches had no good image
                continue
            batch, found = computed
            if among is not None:
                found = found.masked_fill(~among.to(found.device), -torch.inf)
            part = model.metric_for(source)
            part.update(found, batch.targets, batch.keys, batch.frames)
            kept = None if on_outputs is None else (found.cpu(), batch.targets)
            parts.append((int(rows[batch.ids[0, 1]]), part, kept))
    with ranks.share_errors():
        if failure is not None:
            raise failure
    tell_bad(noted, source, bad, ranks)
    metric = model.metric_for(source)
    for _, part, kept in sorted((part for parts in ranks.gather(parts) for part in parts), key=itemgetter(0)):
        metric.merge(part)
        if on_outputs is not None and kept is not None:
            on_outputs(*kept)
    if not metric.keys:
        what = "no image could be judged: the split is empty or all of it is bad"
        raise ranks.collective_error(DataError(what, "see `vitrail data check`"))
    return metric


def judge(
    model: Task,
    source: Source,
    options: InferenceOptions,
    *,
    split: str,
    seed: int = 0,
    bad: Bad = stop_at_bad,
    corruption: tuple[str, int] | None = None,
    among: Tensor | None = None,
    on_outputs: Callable[[Tensor, Targets], None] | None = None,
    progress: ProgressBar | None = None,
    ranks: Ranks = SINGLE,
) -> Judgement:
    """Every figure of ``model`` on ``source``; see `measure`. Raises `DataError` for an empty or unlabelled source."""
    if not source.labelled:
        what = f"the split {split!r} has no labels"
        raise ranks.collective_error(DataError(what, "use `vitrail predict` for unlabelled images"))
    kept = {"corruption": corruption, "among": among, "on_outputs": on_outputs, "progress": progress}
    metric = measure(model, source, options, bad=bad, ranks=ranks, **kept)
    assert metric is not None
    return Judgement(split, model.classes, metric, seed)
