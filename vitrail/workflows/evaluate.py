"""`vitrail evaluate`: a model judged on data, by name of class, on the split that was not trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.decoded_cache import keep_decoded
from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.source import Source
from vitrail.evaluation.calibration import fit_temperature
from vitrail.evaluation.corruptions import CORRUPTIONS
from vitrail.evaluation.judgement import Judgement, from_logits
from vitrail.inference.inputs import split_to_judge
from vitrail.inference.options import InferenceOptions
from vitrail.inference.outputs import judge
from vitrail.runtime.progress import ProgressBar, Say, to_stderr
from vitrail.tasks.classification import Classifier
from vitrail.weights.native import set_temperature


def evaluate(
    model: str | Path | Classifier,
    data: Any,
    *,
    split: str | None = None,
    classes: Path | None = None,
    calibrate: bool = False,
    corruptions: bool = False,
    options: InferenceOptions = InferenceOptions(),
    say: Say = to_stderr,
) -> Judgement:
    """Judges ``model`` on ``data``.

    Args:
        model: anything `vitrail.load` takes, or a `Classifier`.
        data: anything `open_data` takes.
        split: ``test``, ``val`` or ``train``; by default test, else val, else the part held out when the model was trained.
        classes: a text file that names the outputs, one a line, for weights that carry no names.
        calibrate: fit a temperature on this split and store it with the model.
        corruptions: judge every corruption too; the figures gain ``corrupted_top1`` and one per kind.

    Raises `ConfigError` for a model without a head, `DataError` for unknown classes or an unlabelled split, `CheckpointError`
    for the weights.
    """
    classifier = options.load(model, classes, say)
    classifier.check_can_answer(1)
    name, source = split_to_judge(classifier, data, split, say)
    bad = BadImages(options.on_bad, options.max_bad, None, total=len(source))
    source = keep_decoded(source, channels=classifier.config.in_channels, bad=bad)
    how = {"batch": options.batch, "workers": options.workers, "precision": options.precision, "bad": bad}
    with ProgressBar("judging", len(source), quiet=options.quiet) as show:
        judgement = judge(classifier, source, split=name, show=show, **how)
    if calibrate:
        judgement = _calibrate(classifier, model, judgement, say)
    if corruptions:
        figures = _corruption_figures(classifier, source, name, how, options.quiet)
        judgement = replace(judgement, figures={**judgement.figures, **figures})
    return judgement


def _calibrate(classifier: Classifier, model: Any, judgement: Judgement, say: Say) -> Judgement:
    before = judgement.figures
    classifier.temperature = fit_temperature(judgement.logits, judgement.targets, multi_label=judgement.multi_label)
    after = from_logits(classifier, judgement.logits, judgement.targets, judgement.keys, split=judgement.split)
    say(f"calibrated: temperature {classifier.temperature:.4f}, nll {before['nll']:.4f} -> {after.figures['nll']:.4f}")
    if not isinstance(model, Classifier):
        say(f"stored in {set_temperature(model, classifier.temperature)}")
    return after


def _corruption_figures(
    classifier: Classifier, source: Source, split: str, how: dict[str, Any], quiet: bool
) -> dict[str, float]:
    """Top-1 of every kind of corruption, averaged over its five levels, and the mean over kinds."""
    figures: dict[str, float] = {}
    with ProgressBar("corruptions", 5 * len(CORRUPTIONS), quiet=quiet) as show:
        for count, kind in enumerate(CORRUPTIONS):
            scores = []
            for level in range(1, 6):
                found = judge(classifier, source, split=split, corruption=(kind, level), **how)
                scores.append(next(iter(found.figures.values())))
                show.update(5 * count + level, kind=kind, top1=scores[-1])
            figures[f"corrupted_{kind}"] = float(np.mean(scores))
    figures["corrupted_top1"] = float(np.mean(list(figures.values())))
    return figures
