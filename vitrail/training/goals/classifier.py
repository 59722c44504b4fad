"""A classifier: prepared from a run, judged and written at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail import weights
from vitrail.analysis.attention import attention_map, reach_of
from vitrail.analysis.pictures import thumbnail
from vitrail.config.parse import plain
from vitrail.config.schema import Run
from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.source import Source, Splits, check_data, choose_split, describe_data, parts_of
from vitrail.errors import ConfigError
from vitrail.evaluation.judgement import Judgement
from vitrail.inference.outputs import judge, quick_figures
from vitrail.models import activation_bytes, cost_of, device_of
from vitrail.objectives.distillation import Distillation
from vitrail.objectives.objective import Objective, configured
from vitrail.objectives.supervised import Supervised
from vitrail.reports.classification.card import CardFacts, write_card
from vitrail.reports.classification.page import Mistake, ReportFacts, worst_mistakes, write_report
from vitrail.runs.folder import RunFolder
from vitrail.runtime import fault_injection
from vitrail.runtime.device import find_device
from vitrail.runtime.machine import versions
from vitrail.runtime.progress import ProgressBar, Say, duration
from vitrail.tasks.classification import Classifier
from vitrail.training.auto import settle
from vitrail.training.data import Transform, opened, training_batches
from vitrail.training.inputs import Feed, labelled, taught
from vitrail.training.network import build, check_model, load_start
from vitrail.training.prepare import assemble
from vitrail.training.provenance import model_name, provenance, run_facts
from vitrail.training.state import Training, averaged
from vitrail.training.teacher import Teacher
from vitrail.weights.native import save_model


@dataclass(frozen=True)
class Prepared:
    """A training ready for its next step, and the data it stands on."""

    training: Training
    classifier: Classifier
    splits: Splits
    bad: BadImages


def prepare(run: Run, folder: RunFolder, *, data: Any = None, transform: Transform | None = None, say: Say) -> Prepared:
    """Opens the data, builds the network, and fills every automatic field of ``run``.

    Args:
        run: what was asked for, or what a resumed run's ``config.yaml`` says.
        data: anything `open_data` takes; by default the path in ``run.data.source``.
        transform: the user's own map from a decoded picture to a (C, h, w) tensor in [0, 1], in place of the recipe's crops.
        say: takes each line that a user should read.

    Raises `ConfigError`, `DataError` or `CheckpointError` before any training memory is used.
    """
    run = check_model(run, say)
    device = find_device(run.compute.device)
    run, start = load_start(run, say)
    splits, bad = opened(run, folder, data, start)
    train = check_data(splits)
    say(describe_data(splits))
    run, classifier = build(run, train, start, say, classes=train.classes, multi_label=train.multi_label)
    classifier = classifier.to(device)
    preprocessing, saved = classifier.preprocessing, activation_bytes(classifier.config)
    run = settle(run, preprocessing, train, device, say, width=classifier.width, saved=saved)

    def judge(stopped: Callable[[], bool]) -> dict[str, float] | None:
        return quick_figures(classifier, splits.val, run, bad=bad, stopped=stopped) if splits.val is not None else {}

    cropped = train.kind == "files" or transform is not None
    feed = labelled(run, preprocessing, len(train.classes), cropped=cropped)
    objective, feed = objective_of(run, classifier, feed, say)
    training = assemble(
        run,
        objective,
        feed,
        batches=training_batches(run, train, preprocessing, device, bad, transform),
        evaluate=judge,
        images=len(train),
        folder=folder,
        device=device,
    )
    return Prepared(training, classifier, splits, bad)


def objective_of(run: Run, classifier: Classifier, feed: Feed, say: Say) -> tuple[Objective, Feed]:
    """What is minimised and what it is fed: the labels alone, or also a teacher's answers.

    Raises `ConfigError` for arguments that the objective does not have, or a teacher that cannot teach this.
    """
    asked, encoder = run.objective, classifier.backbone
    on_labels = {"loss": asked.loss or "softmax", "binarise": asked.binarise}
    if asked.teacher is None:
        return configured(Supervised, encoder, {**on_labels, **asked.changes}), feed
    if classifier.multi_label:
        raise ConfigError("the images have several labels each, and a teacher says one", "train without --teacher")
    device = device_of(classifier)
    teaching = weights.load(asked.teacher, log=say).to(device)
    teacher = Teacher(teaching, classifier.classes, classifier.preprocessing)
    size = "{} x {}".format(*teaching.preprocessing.size)
    say(f"teacher  {teaching.config.about}, {len(teaching.classes)} classes, images of {size}: {asked.teacher}")
    return configured(Distillation, encoder, {**on_labels, **asked.changes}), taught(feed, teacher)


def finish(
    prepared: Prepared, *, command: str, seconds: float, quiet: bool, say: Callable[[str], None]
) -> tuple[Path, dict[str, float]]:
    """Writes ``model/``, ``report.html`` and ``card.md``; returns the report's path and the final figures."""
    training = prepared.training
    folder, classifier, splits = training.folder, prepared.classifier, prepared.splits
    fault_injection.hit("run.before_model")
    with averaged(training):
        split, source = choose_split(splits)
        with ProgressBar(f"judging on {split}", len(source), quiet=quiet) as show:
            judgement = judge(
                classifier,
                source,
                split=split,
                seed=training.run.seed,
                batch=64,
                workers=training.run.data.workers or 0,
                bad=prepared.bad,
                show=show,
            )
        save_model(folder.model, classifier, metrics=judgement.figures, provenance=provenance(training, splits))
        fault_injection.hit("run.after_model")
        pictures = mistakes(classifier, source, judgement)
    facts = report_facts(prepared, judgement, pictures, command, seconds)
    report = write_report(folder.path, facts)
    write_card(folder.path, card_facts(prepared, judgement))
    fault_injection.hit("run.before_finished")
    folder.write_status("finished", steps=training.steps, seconds=round(seconds, 1), figures=judgement.figures)
    name, value = next(iter(judgement.figures.items()))
    say(f"done     {name} {value:.4f} on {split} ({len(judgement.keys):,} images) after {duration(seconds)}")
    return report, judgement.figures


def mistakes(classifier: Classifier, source: Source, judgement: Judgement, most: int = 12) -> tuple[Mistake, ...]:
    """The images that the model is most sure and most wrong about, with what its last layer looked at."""
    probabilities = judgement.probabilities
    place = {key: index for index, key in enumerate(map(str, source.keys))}
    found = []
    for index in worst_mistakes(probabilities, judgement.targets, most):
        picture = classifier.picture(source.read(place[judgement.keys[index]]).content)  # (C, h, w)
        looked, reach = last_attention(classifier, picture)
        true, predicted = _named(judgement, probabilities[index], judgement.targets[index])
        found.append(
            Mistake(
                key=judgement.keys[index],
                true=true,
                predicted=predicted,
                confidence=float(probabilities[index].max()),
                picture=thumbnail(picture),
                attention=looked,
                reach=reach,
            )
        )
    return tuple(found)


def _named(judgement: Judgement, probabilities: np.ndarray, target: np.ndarray) -> tuple[str, str]:
    if not judgement.multi_label:
        return judgement.classes[int(target)], judgement.classes[int(probabilities.argmax())]
    words = [
        [name for name, there in zip(judgement.classes, row) if there] for row in (target > 0.5, probabilities >= 0.5)
    ]
    return tuple(", ".join(names) or "none" for names in words)  # type: ignore[return-value]


def last_attention(classifier: Classifier, picture: np.ndarray) -> tuple[np.ndarray | None, tuple[float, float]]:
    """Where the last layer looks, (h, w), and its `reach_of` the picture; None for an architecture that has no attention."""
    size = picture.shape[1], picture.shape[2]
    if not (grids := classifier.attention_grids(size)):
        return None, (1.0, 1.0)
    device = device_of(classifier)
    images = classifier.preprocessing.normalise(torch.from_numpy(picture)[None].to(device))
    looked = attention_map(classifier, images)[0].cpu().numpy()
    return looked, reach_of(looked.shape, grids[-1].cell, size)


def report_facts(
    prepared: Prepared,
    judgement: Judgement,
    pictures: tuple[Mistake, ...],
    command: str,
    seconds: float,
) -> ReportFacts:
    """All that the report says, gathered."""
    config = prepared.classifier.config
    cost = cost_of(config)
    return ReportFacts(
        **run_facts(prepared.training, prepared.splits, prepared.bad, command, seconds),
        classes=judgement.classes,
        class_counts={name: part.counts().tolist() for name, part in parts_of(prepared.splits).items()},
        model=model_name(prepared.training),
        parameters=cost.parameters,
        multiply_adds=cost.multiply_adds,
        image_size=config.image_size,
        split=judgement.split,
        figures=judgement.figures,
        probabilities=judgement.probabilities,
        targets=judgement.targets,
        mistakes=pictures,
    )


def card_facts(prepared: Prepared, judgement: Judgement) -> CardFacts:
    """All that the model card says."""
    training, splits, config = prepared.training, prepared.splits, prepared.classifier.config
    run = training.run
    cost = cost_of(config)
    return CardFacts(
        title=training.folder.path.name,
        classes=judgement.classes,
        multi_label=judgement.multi_label,
        model=model_name(training),
        parameters=cost.parameters,
        multiply_adds=cost.multiply_adds,
        image_size=config.image_size,
        data=run.data.source,
        layout=splits.layout,
        images={name: len(part) for name, part in parts_of(splits).items()},
        split=judgement.split,
        figures=judgement.figures,
        preprocessing=prepared.classifier.preprocessing.to_dict(),
        recipe=run.recipe,
        recipe_settings=plain(run.optim) | plain(run.schedule),
        base=run.model.init or "",
        provenance=versions() | {"seed": run.seed, "steps": training.steps, "date": date.today().isoformat()},
        location=str(training.folder.path),
    )
