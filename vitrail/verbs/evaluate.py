"""`vitrail evaluate`: a model evaluated on labelled data, class by name, on the split that it was not trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from vitrail.errors import ConfigError
from vitrail.runtime.progress import LogFunction, log_nothing, to_stderr
from vitrail.verbs import options
from vitrail.verbs.devices import Devices, join_ranks, launch_again
from vitrail.verbs.verb import verb

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from vitrail.data.sources.source import Source
    from vitrail.evaluation.evaluate import EvaluationResult
    from vitrail.evaluation.own_metrics import OwnMetrics
    from vitrail.inference.options import InferenceOptions
    from vitrail.tasks.task import Task


@verb("split", "out", "calibrate", "fit_unknown", "ood", "batch", "device")
def evaluate(
    model: options.AnyModel,
    data: options.Data,
    *,
    split: Annotated[
        Literal["train", "val", "test"] | None,
        "The split to evaluate; by default test, else val, else the part that was held out when the model was trained.",
    ] = None,
    sha256: Annotated[
        str | None,
        "Evaluate only the weights with this SHA-256; of a folder that of `sha256sum * | sha256sum` in it.",
    ] = None,
    calibrate: Annotated[bool, "Fit a temperature on this split and store it with the model."] = False,
    fit_unknown: Annotated[
        str | float | None,
        "Let the model say which images are unlike those of the split train, with this share of false alarms on this split, "
        "such as 5%, and store it with the model.",
    ] = None,
    ood: Annotated[
        options.File | None,
        "Images that the model does not know, a folder or a table: how well it tells them from those of this split.",
    ] = None,
    bad_list: options.BadList = None,
    class_map: Annotated[
        options.File | None,
        "A CSV file without header, `class of the data,class of the model`, for data of other classes; classes that it does "
        "not name are left out.",
    ] = None,
    columns: options.Columns = None,
    restrict: Annotated[bool, "Predict only classes that occur in the labels, e.g. for a subset of ImageNet."] = False,
    logit_adjust: Annotated[
        float | None,
        "Subtract this times the log of each class's share in the training from its logit, for rare classes to be predicted as "
        "readily as common ones; 1 follows from theory (Menon et al. 2021).",
    ] = None,
    out: Annotated[
        options.File | None, "A folder for report.html, its charts, figures.json and predictions.csv."
    ] = None,
    zoom: options.Zoom = 1.0,
    tta: options.Tta = None,
    corruptions: Annotated[bool, "Also evaluate on eight kinds of corruption at five levels."] = False,
    metrics: options.OwnMetrics = None,
    command: options.Command = "vitrail.evaluate",
    log: options.Log = to_stderr,
    ranks: options.SharedWork = None,
    **given: Unpack[options.TunedReading],
) -> EvaluationResult:
    """Evaluates a model on labelled images that it was not trained on.

    Data with several labels an image and a model of one class an image give ReaL accuracy: the share of images whose class is
    one of the labels. With ``tta`` the first figure without it is ``without_tta``, and the difference ``tta_gain``.

    Raises:
        ConfigError: a model without a head, or options that exclude each other.
        DataError: unknown classes, or a split without labels.
        CheckpointError: weights that cannot be read, or with another SHA-256.
        DiskError: ``out`` cannot be written.
    """
    reading = options.parse(given, zoom=zoom, tta=tta)
    import torch

    from vitrail.config.units import columns_of_table, parse_fraction
    from vitrail.data.decoded_cache import keep_decoded
    from vitrail.data.sources.open import find_data
    from vitrail.evaluation.corruptions import CORRUPTIONS, corrupt
    from vitrail.evaluation.evaluate import evaluate_model
    from vitrail.evaluation.own_metrics import OwnMetrics
    from vitrail.evaluation.unlikeness import check_unknown, fit_unlikeness, measure_unlikeness, summarize_unlikeness
    from vitrail.files import make_folder
    from vitrail.inference.inputs import open_split
    from vitrail.inference.options import tune_options
    from vitrail.runtime.distributed import SINGLE
    from vitrail.runtime.progress import ProgressBar
    from vitrail.tasks.task import Task
    from vitrail.text import sentence
    from vitrail.weights.native import set_temperature, set_unlikeness
    from vitrail.weights.resolve import resolve_model

    ranks = ranks or SINGLE
    reading, log = reading.of_rank(ranks), log if ranks.first else log_nothing
    folder = options.to_path(out)
    with ranks.share_errors():
        task = _load(model, sha256, reading, log)
        share = None if fit_unknown is None else parse_fraction(fit_unknown)
        check_unknown(task, share, ood)
        asked = {"calibrate": calibrate, "fit_unknown": share, "corruptions": corruptions, "out": folder is not None}
        _check_options(task, reading, **asked)
        shift = None if logit_adjust is None else _find_shift(task, logit_adjust, calibrate)
        if folder is not None:
            make_folder(folder)
        mapping = {"class_map": options.to_path(class_map), "max_bad": reading.max_bad}
        found = find_data(data, columns_of_table(columns)) if columns else data
        name, source = open_split(task, found, split, log, **mapping)
        if calibrate or share:
            _check_fitted_on(task, source, name, calibrate, share)
        among = _find_present(task, source, calibrate, log) if restrict else None
        bad = reading.record_bad(source, options.to_path(bad_list) if ranks.first else None)
        if task.preprocessing.pixel_range is None:
            source = keep_decoded(source, channels=task.config.in_channels, bad=bad)
    passes = 1 + 5 * len(CORRUPTIONS) * corruptions + (tta is not None)
    reading = tune_options(reading, task, log, images=passes * len(source), ranks=ranks)
    if share is not None:
        _, train = open_split(task, found, "train", log_nothing, **mapping)
        fit_unlikeness(task, train, source, share, split=name, options=reading, log=log, ranks=ranks)
    own = OwnMetrics(options.names_of_metrics(metrics), task) if metrics else None
    kept = _KeptOutputs(task, own, calibrate)
    add = kept.add if own or calibrate or task.false_alarms is not None else None
    how = {"split": name, "bad": bad, "among": among, "shift": shift, "ranks": ranks}
    with ProgressBar("evaluating", len(source), processes=ranks.world, quiet=reading.quiet) as progress:
        result = evaluate_model(task, source, reading, on_outputs=add, progress=progress, **how)
    notes = _list_notes(logit_adjust, len(bad), bad_list, log)
    if calibrate:
        before = task.temperature
        result, temperature = _calibrate(task, result, kept.pairs, log)
        if temperature != before and not isinstance(model, Task):
            log(f"stored in {ranks.run_on_rank0(lambda: set_temperature(model, temperature))}")
    further = dict(own.compute()) if own else {}
    if share is not None and not isinstance(model, Task):
        log(f"stored in {ranks.run_on_rank0(lambda: set_unlikeness(model, task))}")
    if kept.unlikeness:
        others = None if ood is None else measure_unlikeness(task, ood, options=reading, log=log, ranks=ranks)
        further |= summarize_unlikeness(torch.cat(kept.unlikeness), others)
    if tta is not None:
        further |= _measure_gain(result, evaluate_model(task, source, replace(reading, tta=None), **how))
    if corruptions:

        def evaluate_corrupted(kind: str, level: int) -> EvaluationResult:
            def change(pictures: Tensor, samples: np.ndarray) -> Tensor:
                return corrupt(pictures, kind, level, samples=samples)

            return evaluate_model(task, source, reading, change=change, **how)

        further |= _measure_corruptions(evaluate_corrupted, quiet=reading.quiet)
    result = replace(result, further=further)
    if folder is not None:
        title = sentence(task.config.about) if isinstance(model, Task) else resolve_model(model).name
        named = str(data) if isinstance(data, str | Path) else ""
        facts = {"title": title, "command": command, "data": named, "notes": [f"{sentence(note)}." for note in notes]}
        ranks.run_on_rank0(lambda: _write_report(folder, task, source, result, facts))
    return result


def run(
    model: str,
    data: str,
    /,
    *,
    per_class: Annotated[bool, "Print precision, recall and F1 of every class."] = False,
    devices: Devices = None,
    json: options.AsJson = False,
    **given: Any,
) -> int:
    from vitrail.verbs.printing import columns, command_line, one_line, print_beside

    if (code := launch_again(devices)) is not None:
        return code
    with join_ranks(given.get("device")) as ranks:
        result = evaluate(model, data, command=command_line(), ranks=ranks, **given)
    if not ranks.first:
        return 0
    if per_class:
        head, rows = result.per_class()
        if rows:
            print_beside(json)(columns(rows, head))
    if json:
        print(one_line(result.to_dict()))
        return 0
    figures = result.figures.items()
    print(columns((name, f"{value:.4f}" if isinstance(value, float) else value) for name, value in figures))
    if out := given.get("out"):
        print(f"report: {Path(out) / 'report.html'}")
    return 0


@dataclass
class _KeptOutputs:
    """What is kept of the outputs of an evaluation besides its metric."""

    task: Task
    own: OwnMetrics | None
    calibrate: bool
    pairs: list[tuple[Tensor, Any]] = field(default_factory=list)  # outputs and targets, for the temperature
    unlikeness: list[Tensor] = field(default_factory=list)  # of a model that tells unlike images

    def add(self, outputs: Tensor, targets: Any) -> None:
        if self.own:
            self.own.add(outputs, targets)
        if self.calibrate:
            self.pairs.append((outputs, targets))
        if self.task.false_alarms is not None:
            self.unlikeness.append(self.task.split(outputs)[1])


def _load(model: str | Path | Task, sha256: str | None, reading: InferenceOptions, log: LogFunction) -> Task:
    """Loads a model with a head. Raises `ConfigError` without one, and `CheckpointError` for weights with another SHA-256."""
    from vitrail.tasks.task import Task, check_head
    from vitrail.text import large
    from vitrail.weights.resolve import check_sha256

    if sha256 is not None:
        if isinstance(model, Task):
            raise ConfigError("a model in memory has no file to compare with a SHA-256", "give the path of its weights")
        check_sha256(model, sha256)
    task = reading.load(model, log)
    if operations := task.provenance.get("operations"):
        log(f"trained  {large(operations, 'FLOP')} in all steps")
    check_head(task)
    return task


def _check_options(
    task: Task, reading: InferenceOptions, *, calibrate: bool, fit_unknown: float | None, **asked: bool
) -> None:
    """Raises `ConfigError` for options that exclude each other, and a temperature that the task does not have."""
    if calibrate and task.temperature is None:
        raise ConfigError(f"the task {task.name} has no temperature to calibrate", "leave calibrate out")
    if reading.tta and (calibrate or fit_unknown):
        what = f"{'calibrate' if calibrate else 'fit_unknown'} is set with tta={reading.tta}"
        raise ConfigError(what, "leave one out: the model stores what fits one view of each image")
    for flag in (flag for flag, is_set in asked.items() if is_set and reading.zoom != 1):
        what = f"zoom is {reading.zoom:g}, and {flag} needs each picture whole in one input"
        raise ConfigError(what, "leave one of them out")


def _check_fitted_on(task: Task, source: Source, split: str, calibrate: bool, share: float | None) -> None:
    """Raises `ConfigError` for images that neither a temperature nor, with ``share``, a threshold can be fitted on."""
    from vitrail.inference.inputs import is_seen

    if source.multi_label != task.multi_label:
        what = f"the images have {'several labels' if source.multi_label else 'one label'} each"
        remedy = f"{'calibrate' if calibrate else 'fit'} on data like those of the training"
        raise ConfigError(f"{what}, unlike those of the model's training", remedy)
    if share is not None and is_seen(task, source):
        what = f"false alarms are counted on images that took no part in the training, and {split} did"
        raise ConfigError(what, "give data with a split test, or fit a model of one fold")


def _list_notes(logit_adjust: float | None, bad: int, bad_list: str | Path | None, log: LogFunction) -> list[str]:
    """Returns what readers of the figures have to know, which is logged."""
    from vitrail.text import plural

    notes = []
    if logit_adjust is not None:
        shares = "the log of each class's share in the training"
        notes.append(f"the figures are of logits from which {logit_adjust:g} times {shares} was subtracted")
        log(f"adjusted {notes[-1]}")
    if bad:
        listed = f"; see {bad_list}" if bad_list else ""
        notes.append(f"the figures leave out {plural(bad, 'image')} that could not be read{listed}")
        log(f"warning  {notes[-1]}")
    return notes


def _measure_gain(result: EvaluationResult, plain: EvaluationResult) -> dict[str, float]:
    """Returns the first figure of ``plain``, without further views, and by how much that of ``result`` exceeds it."""
    first, gain = next(iter(plain.figures)), result.difference(plain)
    gained = {f"tta_gain{end}": gain[f"{first}{end}"] for end in ("", "_low", "_high") if f"{first}{end}" in gain}
    return {"without_tta": plain.figures[first], **gained}


def _find_present(task: Task, source: Source, calibrate: bool, log: LogFunction) -> Tensor:
    """Returns (K,) whether a class occurs in the labels. Raises `ConfigError` where predictions cannot be restricted."""
    import torch

    if not task.answers_classes or task.multi_label:
        raise ConfigError("predictions are restricted for a model that chooses one class", "leave restrict out")
    if calibrate:
        raise ConfigError("a temperature is fitted to the predictions among all classes", "leave restrict out")
    present = torch.from_numpy(source.counts() > 0)
    log(f"classes  predicted among the {int(present.sum()):,} of {len(present):,} that occur in the labels")
    return present


def _find_shift(task: Task, tau: float, calibrate: bool) -> Tensor:
    """Returns what is added to logits (K,), which takes ``tau`` times the log of each class's share in the training from logits
    divided by the temperature. Raises `ConfigError` where the shares are not known, or another option excludes it.
    """
    import torch

    from vitrail.tasks.class_weights import find_log_prior

    if not 0 <= tau < float("inf"):
        raise ConfigError(f"logit_adjust is {tau}", "give a number from 0, such as 1")
    if not task.answers_classes or task.multi_label:
        raise ConfigError("logits are adjusted for a model that chooses one class", "leave logit_adjust out")
    if calibrate:
        raise ConfigError("a temperature is fitted to logits that are not adjusted", "leave logit_adjust out")
    prior = find_log_prior(task.provenance, len(task.classes))
    return torch.from_numpy(-tau * (task.temperature or 1) * prior).float()


def _calibrate(
    task: Task, result: EvaluationResult, pairs: Sequence[tuple[Tensor, Any]], log: LogFunction
) -> tuple[EvaluationResult, float]:
    """Fits the temperature of ``task`` on its logits and targets of all batches; returns the result with it, and the temperature.

    A temperature that makes the expected calibration error larger is not taken: the task keeps its own.
    """
    import torch

    from vitrail.evaluation.calibration import fit_temperature

    logits, targets = (torch.cat(batches) for batches in zip(*pairs))
    before = task.temperature
    own = logits[:, : len(task.classes)]
    task.temperature = temperature = fit_temperature(own, targets, multi_label=task.multi_label)
    metric = task.metric()
    metric.update(logits, targets, result.keys)
    after = replace(result, metric=metric)
    changes = {name: (result.figures[name], after.figures[name]) for name in ("nll", "ece") if name in after.figures}
    shown = ", ".join(f"{name} {old:.4f} -> {new:.4f}" for name, (old, new) in changes.items())
    log(f"calibrated: temperature {temperature:.4f}, {shown}")
    worse = "ece" in changes and changes["ece"][1] > changes["ece"][0]
    if worse:
        log(
            "warning  the calibration error rose, so the temperature is not kept: calibrate on more images, not of the training"
        )
        task.temperature, after = before, result
    return after, task.temperature


def _measure_corruptions(
    evaluate_corrupted: Callable[[str, int], EvaluationResult], *, quiet: bool
) -> dict[str, float]:
    """Returns the first figure under every kind of corruption, averaged over its five levels, and the mean over kinds."""
    import numpy as np

    from vitrail.evaluation.corruptions import CORRUPTIONS
    from vitrail.runtime.progress import ProgressBar

    figures: dict[str, float] = {}
    first = ""
    with ProgressBar("corruptions", 5 * len(CORRUPTIONS), quiet=quiet) as progress:
        for count, kind in enumerate(CORRUPTIONS):
            scores = []
            for level in range(1, 6):
                first, score = next(iter(evaluate_corrupted(kind, level).figures.items()))
                scores.append(score)
                progress.update(5 * count + level, kind=kind, **{first: score})
            figures[f"corrupted_{kind}"] = float(np.mean(scores))
    figures[f"corrupted_{first}"] = float(np.mean(list(figures.values())))
    return figures


def _write_report(out: Path, task: Task, source: Source, result: EvaluationResult, facts: dict[str, Any]) -> None:
    """Writes ``report.html``, its charts, ``figures.json`` and ``predictions.csv`` into ``out``."""
    from datetime import date

    from vitrail.evaluation.evaluate import write_predictions
    from vitrail.files import dump_json, replace_file
    from vitrail.models import cost_of
    from vitrail.reports.evaluated_run import write_report
    from vitrail.reports.facts import EvaluatedRun
    from vitrail.runtime.machine import describe, versions

    counted = cost_of(task.config)
    facts |= {
        "images": {result.split: len(source)},
        "model": task.config.about,
        "parameters": counted.parameters,
        "multiply_adds": counted.multiply_adds,
        "image_size": task.preprocessing.size,
        "preprocessing": task.preprocessing.to_dict(),
        "operations": task.provenance.get("operations"),
        "machine": describe(),
        "versions": versions(),
        "date": date.today().isoformat(),
    }
    replace_file(out / "figures.json", dump_json(result.to_dict()))
    write_predictions(out / "predictions.csv", result.metric)
    run = EvaluatedRun(facts=facts, model=task, splits={result.split: source}, source=source, result=result)
    write_report(out, run)
