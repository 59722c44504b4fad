"""`vitrail evaluate`: a model judged on data, by name of class, on the split that was not trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.decoded_cache import keep_decoded
from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError
from vitrail.evaluation.calibration import fit_temperature
from vitrail.evaluation.corruptions import CORRUPTIONS
from vitrail.evaluation.judgement import Judgement
from vitrail.files import make_folder
from vitrail.inference.inputs import split_to_judge
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import judge
from vitrail.inference.tuning import tune
from vitrail.runtime.distributed import ALONE, Ranks
from vitrail.runtime.progress import ProgressBar, Say, say_nothing, to_stderr
from vitrail.tasks.task import Task
from vitrail.text import large, plural, sentence
from vitrail.weights.native import set_temperature
from vitrail.weights.resolve import check_sha256
from vitrail.workflows.evaluate_report import write_evaluation


def evaluate(
    model: str | Path | Task,
    data: Any,
    *,
    split: str | None = None,
    sha256: str | None = None,
    classes: Path | None = None,
    calibrate: bool = False,
    corruptions: bool = False,
    options: InferenceOptions = InferenceOptions(),
    bad_list: Path | None = None,
    class_map: Path | None = None,
    restrict: bool = False,
    out: Path | None = None,
    command: str = "",
    say: Say = to_stderr,
    ranks: Ranks | None = None,
) -> Judgement:
    """Judges ``model`` on ``data``.

    Args:
        model: anything `vitrail.load` takes, or a `Task`, such as a `Classifier`.
        data: anything `open_data` takes.
        split: ``test``, ``val`` or ``train``; by default test, else val, else the part held out when the model was trained.
        sha256: judge only weights with this hash; see `vitrail.weights.resolve.hash_model`.
        classes: a text file that names the outputs, one a line, for weights that carry no names.
        calibrate: fit a temperature on this split and store it with the model.
        corruptions: judge every corruption too; the figures gain one of each kind and their mean, ``corrupted_top1``.
        bad_list: a CSV file for the images that could not be read; they do not count in the figures.
        class_map: a CSV file of classes of the data and of the model, for data of other classes; see `read_class_map`.
        restrict: only classes that occur in the data can be predicted.
        out: a folder for ``report.html`` and ``figures.json``.
        command: how the report names the call.
        ranks: the processes that judge together, each of which calls this and returns the same; by default this one alone.

    Data with several labels an image and a model of one class an image give ReaL accuracy: the share of images whose class is
    one of the labels.

    Raises `ConfigError` for a model without a head, `DataError` for unknown classes or an unlabelled split, `CheckpointError`
    for the weights, `DiskError` if ``out`` cannot be written.
    """
    ranks = ranks or ALONE
    options, say = options.of_rank(ranks), say if ranks.first else say_nothing
    with ranks.agreeing():
        if sha256 is not None:
            if isinstance(model, Task):
                raise ConfigError(
                    "a model in memory has no file to compare with a SHA-256", "give the path of its weights"
                )
            check_sha256(model, sha256)
        task = options.load(model, classes, say)
        if operations := task.provenance.get("operations"):
            say(f"trained  {large(operations, 'FLOP')} in all steps")
        task.check_can_answer()
        if calibrate and task.temperature is None:
            raise ConfigError(f"the task {task.name} has no temperature to calibrate", "leave calibrate out")
        for asked, flag in ((corruptions, "corruptions"), (out is not None, "out")):
            if asked and options.zoom != 1:
                what = f"zoom is {options.zoom:g}, and {flag} needs each picture whole in one input"
                raise ConfigError(what, "leave one of them out")
        if out is not None:
            make_folder(out)
        name, source = split_to_judge(task, data, split, say, class_map=class_map, max_bad=options.max_bad)
        if calibrate and source.multi_label != task.multi_label:
            what = "the images have several labels each" if source.multi_label else "the images have one label each"
            raise ConfigError(
                f"{what}, unlike those of the model's training", "calibrate on data like those of the training"
            )
        among = _find_present(task, source, calibrate, say) if restrict else None
        bad = options.record_bad(source, bad_list if ranks.first else None)
        if task.preprocessing.pixel_range is None:
            source = keep_decoded(source, channels=task.config.in_channels, bad=bad)
    passes = 1 + 5 * len(CORRUPTIONS) * corruptions
    options = tune(options, task, say, images=passes * len(source), ranks=ranks)
    kept: list[tuple[Tensor, Any]] = []
    on_outputs = (lambda *batch: kept.append(batch)) if calibrate else None
    with ProgressBar("evaluating", len(source), processes=ranks.world, quiet=options.quiet) as progress:
        watched = {"on_outputs": on_outputs, "progress": progress, "ranks": ranks}
        judgement = judge(task, source, options, split=name, bad=bad, among=among, **watched)
    notes = []
    if len(bad):
        listed = f"; see {bad_list}" if bad_list else ""
        notes.append(f"the figures leave out {plural(len(bad), 'image')} that could not be read{listed}")
        say(f"warning  {notes[-1]}")
    if calibrate:
        judgement, temperature = _calibrate(task, judgement, kept, say)
        if not isinstance(model, Task):
            say(f"stored in {ranks.lead(lambda: set_temperature(model, temperature))}")
    if corruptions:
        further = _corruption_figures(task, source, name, options, bad, among, ranks)
        judgement = replace(judgement, further=further)
    if out is not None:
        judged = {"task": task, "source": source, "judgement": judgement, "command": command}
        notes = [sentence(each) + "." for each in notes]
        ranks.lead(lambda: write_evaluation(out, model, data, **judged, notes=notes))
    return judgement


def _find_present(task: Task, source: Source, calibrate: bool, say: Say) -> Tensor:
    """(K,) whether a class occurs in the labels. Raises `ConfigError` where predictions cannot be restricted to these."""
    if not task.answers_classes or task.multi_label:
        raise ConfigError("predictions are restricted for a model that chooses one class", "leave restrict out")
    if calibrate:
        raise ConfigError("a temperature is fitted to the predictions among all classes", "leave restrict out")
    present = torch.from_numpy(source.counts() > 0)
    say(f"classes  predicted among the {int(present.sum()):,} of {len(present):,} that occur in the labels")
    return present


def _calibrate(task: Task, judgement: Judgement, kept: list[tuple[Tensor, Any]], say: Say) -> tuple[Judgement, float]:
    """Fits the temperature of ``task`` on its logits and targets, batch by batch; the judgement with it, and the number."""
    logits, targets = (torch.cat(parts) for parts in zip(*kept))
    task.temperature = temperature = fit_temperature(logits, targets, multi_label=task.multi_label)
    metric = task.metric()
    metric.update(logits, targets, judgement.keys)
    after = replace(judgement, metric=metric)
    before, now = judgement.figures["nll"], after.figures["nll"]
    say(f"calibrated: temperature {temperature:.4f}, nll {before:.4f} -> {now:.4f}")
    return after, temperature


def _corruption_figures(
    task: Task,
    source: Source,
    split: str,
    options: InferenceOptions,
    bad: BadImages,
    among: Tensor | None,
    ranks: Ranks,
) -> dict[str, float]:
    """The first figure under every kind of corruption, averaged over its five levels, and the mean over kinds."""
    figures: dict[str, float] = {}
    first = ""
    with ProgressBar("corruptions", 5 * len(CORRUPTIONS), quiet=options.quiet) as progress:
        for count, kind in enumerate(CORRUPTIONS):
            scores = []
            for level in range(1, 6):
                how = {"bad": bad, "corruption": (kind, level), "among": among, "ranks": ranks}
                judged = judge(task, source, options, split=split, **how)
                first = next(iter(judged.figures))
                scores.append(judged.figures[first])
                progress.update(5 * count + level, kind=kind, **{first: scores[-1]})
            figures[f"corrupted_{kind}"] = float(np.mean(scores))
    figures[f"corrupted_{first}"] = float(np.mean(list(figures.values())))
    return figures
