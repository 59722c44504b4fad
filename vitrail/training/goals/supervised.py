"""Supervised learning of any task: trained on images with targets, judged on those that were held out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from vitrail import weights
from vitrail.config.schema import Run
from vitrail.data.sources.source import Source, choose_split, list_splits
from vitrail.errors import ConfigError
from vitrail.evaluation.evaluate import evaluate_model
from vitrail.evaluation.result import EvaluationResult
from vitrail.inference.options import InferenceOptions
from vitrail.models import device_of
from vitrail.objectives.objective import Objective, configure_objective
from vitrail.objectives.supervised import Distillation, Supervised
from vitrail.reports.facts import JudgedRun
from vitrail.reports.judged_run import write_documents
from vitrail.runs.folder import RunFolder
from vitrail.runtime import fault_injection
from vitrail.runtime.progress import ProgressBar, Say
from vitrail.tasks import Task, find_task
from vitrail.training.data import RunData, Transform, choose_arguments, open_run_data
from vitrail.training.frozen import Teacher
from vitrail.training.inputs import Augmented, Inputs, TaskInputs
from vitrail.training.monitors import ValidationMonitor
from vitrail.training.network import BuiltModel, NetworkPlan, build_network, check_model, plan_network
from vitrail.training.provenance import Ending, Outcome, provenance, run_facts
from vitrail.training.state import Training
from vitrail.weights.native import save_model


class SupervisedGoal:
    """See `Goal`."""

    evaluate_first = False

    def check(self, run: Run) -> None:
        find_task(run.task).targets.check_policy(run.augment, run.task)
        check_model(run)

    def open(
        self, run: Run, data: Any, folder: RunFolder, transform: Transform | None, channels: int | None = None
    ) -> RunData:
        run_data = open_run_data(run, data, folder, transform, channels=channels, labels=True)
        return replace(run_data, arguments=choose_arguments(run_data.splits, run.task, run.model.head))

    def plan(self, run: Run, data: RunData, start: Task | None, say: Say) -> NetworkPlan:
        return plan_network(run, data, start, say)

    def build(self, run: Run, data: RunData, plan: NetworkPlan, start: Task | None, say: Say) -> BuiltModel:
        return build_network(run, data, plan, start, say)

    def objective(self, run: Run, built: BuiltModel, data: RunData, say: Say) -> tuple[Objective, Inputs]:
        """Returns the loss on the targets alone, or also on a teacher's outputs, and its inputs.

        Raises `ConfigError` for arguments that the objective does not have, or a teacher that cannot teach this.
        """
        settings, model = run.objective, built.model
        augmented = Augmented(
            policy=run.augment, preprocessing=built.preprocessing, seed=run.seed, cropped=data.cropped
        )
        arguments = {"loss": settings.loss, "binarise": settings.binarise, **settings.changes}
        if settings.teacher is None:
            return configure_objective(Supervised, model, arguments), TaskInputs(augmented, model)
        teacher = load_teacher(settings.teacher, model, run.compute.precision or "fp32", say)
        arguments |= model.loss_options(settings.loss, binarise=settings.binarise)
        return configure_objective(Distillation, model.backbone, arguments), TaskInputs(augmented, model, teacher)

    def monitor(self, run: Run, built: BuiltModel, data: RunData) -> ValidationMonitor:
        return ValidationMonitor.of(built.model, data.splits, run, data.bad)

    def finish(self, training: Training, built: BuiltModel, data: RunData, ending: Ending) -> Outcome:
        run, folder, model = training.run, training.folder, built.model
        split, source = choose_split(data.splits)
        options = InferenceOptions(workers=run.data.workers or 0, max_pixels=run.data.max_pixels)

        def evaluate_on(split: str, source: Source) -> EvaluationResult:
            with ProgressBar(f"evaluating on {split}", len(source), quiet=ending.quiet) as progress:
                how = {"bad": data.bad, "progress": progress, "ranks": training.ranks}
                return evaluate_model(model, source, options, split=split, seed=run.seed, **how)

        result = evaluate_on(split, source)
        val = data.splits.val
        if model.tuned and model.tuned not in run.model.head and val is not None:
            validated = result if split == "val" else evaluate_on("val", val)
            best = validated.figures.get(model.tuned, math.nan)
            if math.isfinite(best):  # a model that finds nothing keeps its own
                setattr(model, model.tuned, best)
        figures, origin = result.figures, provenance(run, training.steps, data.splits, ending)
        if not training.ranks.first:
            return Outcome(folder.report, figures, "")
        save_model(folder.model, model, metrics=figures, provenance=origin)
        fault_injection.hit("run.after_model")
        facts = run_facts(run, training.steps, folder, built, data, ending)
        judged = JudgedRun(facts=facts, model=model, splits=list_splits(data.splits), source=source, judgement=result)
        report = write_documents(folder.path, judged)
        name, value = next(iter(figures.items()))
        return Outcome(report, figures, f"{name} {value:.4f} on {split} ({len(result.keys):,} images)")


def load_teacher(path: str, model: Task, precision: str, say: Say) -> Teacher:
    """Loads the model at ``path`` as a teacher of ``model``, on its device."""
    if not model.learns_from_teacher:
        what = "the images have several labels each, and a teacher gives one" if model.multi_label else ""
        raise ConfigError(what or f"the task {model.name} has no use for a teacher", "train without --teacher")
    teacher = weights.load(path, log=say).to(device_of(model))
    size = "{} x {}".format(*teacher.preprocessing.size)
    say(f"teacher  {teacher.config.about}, {len(teacher.classes)} classes, images of {size}: {path}")
    return Teacher(teacher, model.classes, model.preprocessing, precision)
