"""A classifier: trained on labelled images, judged on those that were held out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from vitrail import weights
from vitrail.analysis.attention import attention_map, reach_of
from vitrail.analysis.pictures import thumbnail
from vitrail.config.schema import Run
from vitrail.data.sources.source import Source, check_data, choose_split, parts_of
from vitrail.errors import ConfigError
from vitrail.evaluation.judgement import Judgement
from vitrail.inference.outputs import judge
from vitrail.models import device_of
from vitrail.objectives.distillation import Distillation
from vitrail.objectives.objective import Objective, configured
from vitrail.objectives.supervised import Supervised
from vitrail.reports.classification.card import write_card
from vitrail.reports.classification.page import worst_mistakes, write_report
from vitrail.reports.facts import ClassificationFacts, Mistake
from vitrail.runs.folder import RunFolder
from vitrail.runtime import fault_injection
from vitrail.runtime.progress import ProgressBar, Say
from vitrail.tasks.classification import Classifier
from vitrail.training.data import RunData, Transform, open_run_data
from vitrail.training.inputs import Augmented, Inputs, LabelledInputs, TaughtInputs
from vitrail.training.monitors import ValidationMonitor
from vitrail.training.network import Kept, NetworkPlan, build_network, check_model, load_start, plan_network
from vitrail.training.provenance import Ending, Outcome, provenance, run_facts
from vitrail.training.state import Training
from vitrail.training.teacher import Teacher
from vitrail.weights.native import save_model


class ClassifierGoal:
    """See `Goal`."""

    evaluate_first = False

    def check(self, run: Run) -> None:
        check_model(run)

    def start(self, run: Run, say: Say) -> Classifier | None:
        return load_start(run, say)

    def open(
        self, run: Run, data: Any, folder: RunFolder, transform: Transform | None, start: Classifier | None
    ) -> RunData:
        channels = start.config.in_channels if start else None
        opened = open_run_data(run, data, folder, transform, channels=channels, labels=True)
        check_data(opened.splits)
        return opened

    def plan(self, run: Run, train: Source, start: Classifier | None, say: Say) -> NetworkPlan:
        return plan_network(run, train, start, say, classes=len(train.classes))

    def build(self, run: Run, data: RunData, start: Classifier | None, say: Say) -> Kept:
        return build_network(run, start, say, classes=data.train.classes, multi_label=data.train.multi_label)

    def objective(self, run: Run, kept: Kept, data: RunData, say: Say) -> tuple[Objective, Inputs]:
        """The labels alone, or also a teacher's outputs.

        Raises `ConfigError` for arguments that the objective does not have, or a teacher that cannot teach this.
        """
        settings, encoder = run.objective, kept.model.backbone
        augmented = Augmented(policy=run.augment, preprocessing=kept.preprocessing, seed=run.seed, cropped=data.cropped)
        inputs = LabelledInputs(augmented, len(data.train.classes))
        arguments = {"loss": settings.loss or "softmax", "binarise": settings.binarise, **settings.changes}
        if settings.teacher is None:
            return configured(Supervised, encoder, arguments), inputs
        return configured(Distillation, encoder, arguments), TaughtInputs(
            inputs, load_teacher(settings.teacher, kept.model, say)
        )

    def monitor(self, run: Run, kept: Kept, data: RunData) -> ValidationMonitor:
        return ValidationMonitor(kept.model, data.splits.val, data.bad)

    def finish(self, training: Training, kept: Kept, data: RunData, ending: Ending) -> Outcome:
        run, folder, classifier = training.run, training.folder, kept.model
        split, source = choose_split(data.splits)
        with ProgressBar(f"judging on {split}", len(source), quiet=ending.quiet) as show:
            judgement = judge(
                classifier,
                source,
                split=split,
                seed=run.seed,
                batch=64,
                workers=run.data.workers or 0,
                bad=data.bad,
                show=show,
            )
        origin = provenance(run, training.steps, data.splits)
        save_model(folder.model, classifier, metrics=judgement.figures, provenance=origin)
        fault_injection.hit("run.after_model")
        facts = ClassificationFacts(
            **run_facts(run, training.steps, folder, kept, data, ending),
            classes=judgement.classes,
            class_counts={name: part.counts().tolist() for name, part in parts_of(data.splits).items()},
            split=judgement.split,
            figures=judgement.figures,
            probabilities=judgement.probabilities,
            targets=judgement.targets,
            mistakes=mistakes(classifier, source, judgement),
        )
        report = write_report(folder.path, facts)
        write_card(folder.path, facts)
        name, value = next(iter(judgement.figures.items()))
        summary = f"{name} {value:.4f} on {split} ({len(judgement.keys):,} images)"
        return Outcome(report, judgement.figures, summary)


def load_teacher(path: str, classifier: Classifier, say: Say) -> Teacher:
    """The model at ``path`` as a teacher of ``classifier``, on its device."""
    if classifier.multi_label:
        raise ConfigError("the images have several labels each, and a teacher gives one", "train without --teacher")
    teacher = weights.load(path, log=say).to(device_of(classifier))
    size = "{} x {}".format(*teacher.preprocessing.size)
    say(f"teacher  {teacher.config.about}, {len(teacher.classes)} classes, images of {size}: {path}")
    return Teacher(teacher, classifier.classes, classifier.preprocessing)


def mistakes(classifier: Classifier, source: Source, judgement: Judgement, most: int = 12) -> tuple[Mistake, ...]:
    """The images that the model is most sure and most wrong about, with the attention of its last layer."""
    probabilities = judgement.probabilities
    place = {key: index for index, key in enumerate(map(str, source.keys))}
    worst = []
    for index in worst_mistakes(probabilities, judgement.targets, most):
        picture = classifier.picture(source.read(place[judgement.keys[index]]).content)  # (C, h, w)
        attention, reach = last_attention(classifier, picture)
        true, predicted = name_labels(judgement, probabilities[index], judgement.targets[index])
        worst.append(
            Mistake(
                key=judgement.keys[index],
                true=true,
                predicted=predicted,
                confidence=float(probabilities[index].max()),
                picture=thumbnail(picture),
                attention=attention,
                reach=reach,
            )
        )
    return tuple(worst)


def name_labels(judgement: Judgement, probabilities: np.ndarray, target: np.ndarray) -> tuple[str, str]:
    """The true label of an image and the predicted one; of several labels all, with commas."""
    if not judgement.multi_label:
        return judgement.classes[int(target)], judgement.classes[int(probabilities.argmax())]
    true, predicted = (
        ", ".join(name for name, given in zip(judgement.classes, row) if given) or "none"
        for row in (target > 0.5, probabilities >= 0.5)
    )
    return true, predicted


def last_attention(classifier: Classifier, picture: np.ndarray) -> tuple[np.ndarray | None, tuple[float, float]]:
    """The attention of the last layer, (h, w), and its `reach_of` the picture; None for an architecture without attention."""
    size = picture.shape[1], picture.shape[2]
    if not (grids := classifier.attention_grids(size)):
        return None, (1.0, 1.0)
    images = classifier.preprocessing.normalise(torch.from_numpy(picture)[None].to(device_of(classifier)))
    attention = attention_map(classifier, images)[0].cpu().numpy()
    return attention, reach_of(attention.shape, grids[-1].cell, size)
