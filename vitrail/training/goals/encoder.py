"""An encoder: trained without labels, judged by its features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vitrail.config.schema import Run
from vitrail.data.sources.source import Source
from vitrail.evaluation.feature_health import Health, diagnose
from vitrail.objectives.objective import Objective
from vitrail.reports.facts import PretrainingFacts
from vitrail.runs.folder import RunFolder
from vitrail.runtime import fault_injection
from vitrail.runtime.progress import Say
from vitrail.tasks import Task
from vitrail.training.data import RunData, Transform
from vitrail.training.goals.pretraining import (
    check_pretraining,
    collect_figures,
    draw_panels,
    open_unlabelled,
    pretraining_objective,
    write_documents,
)
from vitrail.training.inputs import Inputs
from vitrail.training.monitors import FeatureMonitor
from vitrail.training.network import Kept, NetworkPlan, build_network, check_model, load_start, plan_network
from vitrail.training.objective import OBJECTIVES
from vitrail.training.provenance import Ending, Outcome, provenance, run_facts
from vitrail.training.state import Training
from vitrail.weights.native import save_model


class EncoderGoal:
    """See `Goal`. What is kept is a model without a head."""

    evaluate_first = True

    def check(self, run: Run) -> None:
        check_pretraining(run)
        check_model(run)

    def start(self, run: Run, say: Say) -> Task | None:
        return load_start(run, say)

    def open(self, run: Run, data: Any, folder: RunFolder, transform: Transform | None, start: Task | None) -> RunData:
        return open_unlabelled(run, data, folder, transform, channels=start.config.in_channels if start else None)

    def plan(self, run: Run, train: Source, start: Task | None, say: Say) -> NetworkPlan:
        plan = plan_network(run, train, start, say, arguments={"classes": ()})
        return replace(plan, image_bytes=plan.image_bytes * OBJECTIVES[run.objective.name].kind.views)

    def build(self, run: Run, data: RunData, start: Task | None, say: Say) -> Kept:
        return build_network(run, start, say, arguments={"classes": ()})

    def objective(self, run: Run, kept: Kept, data: RunData, say: Say) -> tuple[Objective, Inputs]:
        return pretraining_objective(run, kept.model.backbone, kept, data, say)

    def monitor(self, run: Run, kept: Kept, data: RunData) -> FeatureMonitor:
        return FeatureMonitor(kept.model, data.splits, run, data.bad)

    def finish(self, training: Training, kept: Kept, data: RunData, ending: Ending) -> Outcome:
        run, folder, name = training.run, training.folder, training.run.objective.name
        if not training.ranks.first:
            return Outcome(folder.report, {}, "")
        facts = run_facts(run, training.steps, folder, kept, data, ending)
        figures = collect_figures(facts["records"], FeatureMonitor.FIGURES)
        origin = provenance(run, training.steps, data.splits, ending)
        save_model(folder.model, kept.model, metrics=figures, provenance=origin)
        fault_injection.hit("run.after_model")
        before, after = (read_health(facts["records"], kept.model.width, last=last) for last in (False, True))
        facts = PretrainingFacts(
            **facts,
            objective=name,
            about_objective=OBJECTIVES[name].about,
            panels=draw_panels(name, training.objective, training.inputs, training.batches, kept, data),
            before=before,
            after=after,
            diagnosis=diagnose(after, before) if after is not None else None,
        )
        return write_documents(folder, facts, figures)


def read_health(records: Sequence[dict], width: int, *, last: bool) -> Health | None:
    """The rank and spread of the features before training, or at the end of it, as they were recorded."""
    recorded = [record for record in records if "effective_rank" in record]
    if not recorded or (not last and recorded[0]["step"] != 0):
        return None
    record = recorded[-1 if last else 0]
    return Health(rank=record["effective_rank"], spread=record["spread"], width=width)
