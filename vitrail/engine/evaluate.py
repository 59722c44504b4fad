"""`vitrail evaluate`: a model judged on data, by name of class, on the split that was not trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from vitrail import weights
from vitrail.data.decoded_cache import keep_decoded
from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.open import open_data
from vitrail.data.sources.source import Source, choose_split, fingerprint
from vitrail.engine.judge import Judgement, from_logits, judge
from vitrail.errors import ConfigError
from vitrail.evaluation.calibration import fit_temperature
from vitrail.evaluation.corruptions import CORRUPTIONS
from vitrail.runtime.device import find_device
from vitrail.runtime.machine import cores, keep_large_buffers
from vitrail.runtime.progress import Say, Show, to_stderr
from vitrail.tasks.classification import Classifier
from vitrail.weights.native import set_temperature
from vitrail.weights.onnx import ExportedBackbone


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a model and its images are read; what every verb that uses a model has in common.

    ``size`` and ``preprocessing`` are what is known better than the weights tell, as `vitrail.load` takes them.
    """

    size: tuple[int, int] | None = None
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 64
    workers: int = 0
    device: str | None = None
    precision: str = "fp32"
    on_bad: Literal["skip", "stop"] = "skip"
    max_bad: float = 0.01
    quiet: bool = False

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("workers", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}", f"give {least} or more")

    def load(self, model: str | Path | Classifier, classes: Path | None, say: Say) -> Classifier:
        """The model, on its device and ready to predict; a `Classifier` is taken as it is."""
        if not isinstance(model, Classifier):
            model = weights.load(
                model, classes_file=classes, image_size=self.size, preprocessing=self.preprocessing, log=say
            )
        if isinstance(model.backbone, ExportedBackbone):
            self._check_graph()
        return model.to(find_device(self.device)).eval()

    def _check_graph(self) -> None:
        """Raises `ConfigError` for what an exported graph cannot be asked for."""
        if self.precision != "fp32":
            what = f"the precision of an exported graph is in it, and {self.precision} was asked for"
            raise ConfigError(what, "leave --precision out, or take the model that it was exported from")
        if self.device not in (None, "cpu"):
            what = f"an exported graph runs on the CPU, and {self.device} was asked for"
            raise ConfigError(what, "leave --device out, or take the model that it was exported from")


def evaluate(
    model: str | Path | Classifier,
    data: Any,
    *,
    split: str | None = None,
    classes: Path | None = None,
    calibrate: bool = False,
    corruptions: bool = False,
    reading: Reading = Reading(),
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
    torch.set_num_threads(cores())
    classifier = reading.load(model, classes, say)
    classifier.check_can_answer(1)
    keep_large_buffers()
    name, source = split_to_judge(classifier, data, split, say)
    bad = BadImages(reading.on_bad, reading.max_bad, None, total=len(source))
    source = keep_decoded(source, channels=classifier.config.in_channels, bad=bad)
    how = {"batch": reading.batch, "workers": reading.workers, "precision": reading.precision, "bad": bad}
    with Show("judging", len(source), quiet=reading.quiet) as show:
        judgement = judge(classifier, source, split=name, show=show, **how)
    if calibrate:
        judgement = _calibrate(classifier, model, judgement, say)
    if corruptions:
        figures = _corruption_figures(classifier, source, name, how, reading.quiet)
        judgement = replace(judgement, figures={**judgement.figures, **figures})
    return judgement


def split_to_judge(
    classifier: Classifier, data: Any, split: str | None, say: Say, *, labelled: bool = True
) -> tuple[str, Source]:
    """The split to judge, carved as it was for the training where the data have none of their own."""
    trained = classifier.provenance.get("split", {})
    # data without splits of their own are carved as for the training, or judged whole if they are not those of a training
    validation = trained.get("validation", 0.0) if trained.get("held_out") else 0.0
    splits = open_data(
        data,
        seed=trained.get("seed", 0),
        validation=validation,
        classes=classifier.classes or None,
        channels=classifier.config.in_channels,
        labelled=labelled,
    )
    name, source = choose_split(splits, split)
    held_out = splits.held_out and name == "val"
    say(f"split    {'held out of train when the model was trained' if held_out else name}: {len(source):,} images")
    if held_out and trained.get("sha256") != fingerprint(source):
        say("warning  this held-out part is not the one the model was trained without; the figures may flatter it")
    return name, source


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
    with Show("corruptions", 5 * len(CORRUPTIONS), quiet=quiet) as show:
        for count, kind in enumerate(CORRUPTIONS):
            scores = []
            for level in range(1, 6):
                found = judge(classifier, source, split=split, corruption=(kind, level), **how)
                scores.append(next(iter(found.figures.values())))
                show.update(5 * count + level, kind=kind, top1=scores[-1])
            figures[f"corrupted_{kind}"] = float(np.mean(scores))
    figures["corrupted_top1"] = float(np.mean(list(figures.values())))
    return figures
