"""A visual tokenizer, for BEiT."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from vitrail.config.schema import Run
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.source import Source
from vitrail.errors import ConfigError
from vitrail.models.cost import saved_bytes
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
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
from vitrail.training.monitors import CodeMonitor
from vitrail.training.network import Kept, NetworkPlan, size_and_channels
from vitrail.training.objective import OBJECTIVES
from vitrail.training.provenance import Ending, Outcome, provenance, run_facts
from vitrail.training.state import Training
from vitrail.weights.tokenizers import save_tokenizer


class TokenizerGoal:
    """See `Goal`."""

    evaluate_first = True

    def check(self, run: Run) -> None:
        check_pretraining(run)
        if run.model.init is not None or run.model.name is not None:
            raise ConfigError("a tokenizer has no model name and no initial weights", "leave --model and --init out")

    def start(self, run: Run, say: Say) -> Task | None:
        return None

    def open(self, run: Run, data: Any, folder: RunFolder, transform: Transform | None, start: Task | None) -> RunData:
        return open_unlabelled(run, data, folder, transform, channels=None)

    def plan(self, run: Run, train: Source, start: Task | None, say: Say) -> NetworkPlan:
        """For the size and channels of the data, its patch that of `small-data` for small images."""
        own_size, own_channels = size_and_channels(train)
        size, channels = run.model.size or own_size or (224, 224), run.data.channels or own_channels or 3
        patch = 16 if min(size) > 96 else 8 if min(size) > 40 else 4 if min(size) > 16 else 2
        changes = {"patch_size": (patch, patch), **run.model.changes}
        config = TokenizerConfig.from_dict({**changes, "in_channels": channels})
        with torch.device("meta"):
            parameters = sum(parameter.numel() for parameter in Tokenizer(config).parameters())
        return NetworkPlan(
            model=replace(run.model, changes=changes, size=size),
            channels=channels,
            width=config.width,
            parameters=parameters,
            image_bytes=tokenizer_bytes(config, size) * OBJECTIVES[run.objective.name].kind.views,
        )

    def build(self, run: Run, data: RunData, start: Task | None, say: Say) -> Kept:
        size, channels = run.model.size, run.data.channels
        assert size is not None and channels is not None, "the run is not resolved"
        torch.manual_seed(run.seed)
        tokenizer = Tokenizer(TokenizerConfig.from_dict({**run.model.changes, "in_channels": channels}))
        return Kept(
            model=tokenizer,
            preprocessing=Preprocessing.paper(size, channels=channels).override(**run.model.preprocessing),
            about=f"tokenizer of {tokenizer.config.vocabulary:,} codes",
            parameters=sum(parameter.numel() for parameter in tokenizer.parameters()),
        )

    def objective(self, run: Run, kept: Kept, data: RunData, say: Say) -> tuple[Objective, Inputs]:
        return pretraining_objective(run, kept.model, kept, data, say)

    def monitor(self, run: Run, kept: Kept, data: RunData) -> CodeMonitor:
        return CodeMonitor(kept.model, kept.preprocessing, data.splits, run, data.bad)

    def finish(self, training: Training, kept: Kept, data: RunData, ending: Ending) -> Outcome:
        run, folder, name = training.run, training.folder, training.run.objective.name
        if not training.ranks.first:
            return Outcome(folder.report, {}, "")
        facts = run_facts(run, training.steps, folder, kept, data, ending)
        save_tokenizer(
            folder.model, kept.model, kept.preprocessing, provenance(run, training.steps, data.splits, ending)
        )
        fault_injection.hit("run.after_model")
        shown = draw_panels(name, training.objective, training.inputs, training.batches, kept, data)
        figures = collect_figures(facts["records"], CodeMonitor.FIGURES)
        about = OBJECTIVES[name].about
        facts = PretrainingFacts(**facts, objective=name, about_objective=about, panels=shown)
        return write_documents(folder, facts, figures)


def tokenizer_bytes(config: TokenizerConfig, size: tuple[int, int]) -> int:
    """Bytes that one image of ``size`` keeps for the backward pass."""
    with torch.device("meta"):
        tokenizer = Tokenizer(config)
    return saved_bytes(tokenizer, torch.empty(1, config.in_channels, *size, device="meta"))
