"""Learning without labels: an encoder, judged by its features, or a visual tokenizer for BEiT, judged by its codes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.config.schema import Run
from vitrail.data.augment.policy import Augment
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.source import drop_annotations
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.feature_health import Health, diagnose
from vitrail.models import device_of
from vitrail.models.backbone import at_rest
from vitrail.models.cost import saved_bytes
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.objectives import OBJECTIVES, ContrastiveObjective, MaskedCodes, MaskedPatch, Objective, Reconstruction
from vitrail.objectives.objective import configure_objective
from vitrail.reports.cards import pretraining_card, write_card
from vitrail.reports.pretraining import Panel, PretrainingFacts, write_pretrain_report
from vitrail.runs.folder import RunFolder
from vitrail.runtime import fault_injection
from vitrail.runtime.distributed import SINGLE
from vitrail.runtime.progress import Say
from vitrail.tasks import Task
from vitrail.training.data import RunData, Transform, open_run_data
from vitrail.training.frozen import TokenizerCodes
from vitrail.training.inputs import Augmented, Inputs, ViewInputs
from vitrail.training.monitors import CodeMonitor, FeatureMonitor
from vitrail.training.network import (
    BuiltModel,
    NetworkPlan,
    build_network,
    check_model,
    plan_network,
    size_and_channels,
)
from vitrail.training.provenance import Ending, Outcome, provenance, run_facts
from vitrail.training.state import Training
from vitrail.weights.native import save_model
from vitrail.weights.tokenizers import load_tokenizer, save_tokenizer

TOO_SMALL_TO_BLUR = 64  # pixels; the blurs of the papers are for images of 224
SHOWN = 8  # images


class EncoderGoal:
    """See `Goal`. The model that is saved has no head."""

    evaluate_first = True

    def check(self, run: Run) -> None:
        check_pretraining(run)
        check_model(run)

    def open(
        self, run: Run, data: Any, folder: RunFolder, transform: Transform | None, channels: int | None = None
    ) -> RunData:
        return open_unlabelled(run, data, folder, transform, channels)

    def plan(self, run: Run, data: RunData, start: Task | None, say: Say) -> NetworkPlan:
        plan = plan_network(run, data, start, say)
        return replace(plan, image_bytes=plan.image_bytes * OBJECTIVES[run.objective.name].views)

    def build(self, run: Run, data: RunData, plan: NetworkPlan, start: Task | None, say: Say) -> BuiltModel:
        return build_network(run, data, plan, start, say)

    def objective(self, run: Run, built: BuiltModel, data: RunData, say: Say) -> tuple[Objective, Inputs]:
        return make_objective(run, built.model.backbone, built.preprocessing, data, say)

    def monitor(self, run: Run, built: BuiltModel, data: RunData) -> FeatureMonitor:
        return FeatureMonitor(built.model, data.splits, run, data.bad)

    def finish(self, training: Training, built: BuiltModel, data: RunData, ending: Ending) -> Outcome:
        run, folder = training.run, training.folder
        if not training.ranks.first:
            return Outcome(folder.report, {}, "")
        facts = run_facts(run, training.steps, folder, built, data, ending)
        figures = collect_figures(facts["records"], FeatureMonitor.FIGURES)
        origin = provenance(run, training.steps, data.splits, ending)
        save_model(folder.model, built.model, metrics=figures, provenance=origin)
        before, after = (read_health(facts["records"], built.model.width, last=last) for last in (False, True))
        diagnosis = diagnose(after, before) if after is not None else None
        facts |= {"before": before, "after": after, "diagnosis": diagnosis}
        return write_documents(training, built, data, facts, figures)


class TokenizerGoal:
    """See `Goal`."""

    evaluate_first = True

    def check(self, run: Run) -> None:
        check_pretraining(run)
        if run.model.init is not None or run.model.name is not None:
            raise ConfigError("a tokenizer has no model name and no initial weights", "leave --model and --init out")

    def open(
        self, run: Run, data: Any, folder: RunFolder, transform: Transform | None, channels: int | None = None
    ) -> RunData:
        return open_unlabelled(run, data, folder, transform, channels)

    def plan(self, run: Run, data: RunData, start: Task | None, say: Say) -> NetworkPlan:
        """Chooses the size and channels of the data, and the patch of `small-data` for small images."""
        own_size, own_channels = size_and_channels(data.train)
        size, channels = run.model.size or own_size or (224, 224), run.data.channels or own_channels or 3
        patch = 16 if min(size) > 96 else 8 if min(size) > 40 else 4 if min(size) > 16 else 2
        changes = {"patch_size": (patch, patch), **run.model.changes}
        config = TokenizerConfig.from_dict({**changes, "in_channels": channels})
        with torch.device("meta"):
            tokenizer, image = Tokenizer(config), torch.empty(1, channels, *size)
        return NetworkPlan(
            model=replace(run.model, changes=changes, size=size),
            channels=channels,
            width=config.width,
            parameters=sum(parameter.numel() for parameter in tokenizer.parameters()),
            image_bytes=saved_bytes(tokenizer, image),
        )

    def build(self, run: Run, data: RunData, plan: NetworkPlan, start: Task | None, say: Say) -> BuiltModel:
        size, channels = plan.model.size, plan.channels
        assert size is not None
        torch.manual_seed(run.seed)
        tokenizer = Tokenizer(TokenizerConfig.from_dict({**run.model.changes, "in_channels": channels}))
        return BuiltModel(
            model=tokenizer,
            preprocessing=Preprocessing.paper(size, channels=channels).override(**run.model.preprocessing),
            about=f"tokenizer of {tokenizer.config.vocabulary:,} codes",
            parameters=plan.parameters,
        )

    def objective(self, run: Run, built: BuiltModel, data: RunData, say: Say) -> tuple[Objective, Inputs]:
        return make_objective(run, built.model, built.preprocessing, data, say)

    def monitor(self, run: Run, built: BuiltModel, data: RunData) -> CodeMonitor:
        return CodeMonitor(built.model, built.preprocessing, data.splits, run, data.bad)

    def finish(self, training: Training, built: BuiltModel, data: RunData, ending: Ending) -> Outcome:
        run, folder = training.run, training.folder
        if not training.ranks.first:
            return Outcome(folder.report, {}, "")
        facts = run_facts(run, training.steps, folder, built, data, ending)
        origin = provenance(run, training.steps, data.splits, ending)
        save_tokenizer(folder.model, built.model, built.preprocessing, origin)
        return write_documents(training, built, data, facts, collect_figures(facts["records"], CodeMonitor.FIGURES))


def check_pretraining(run: Run) -> None:
    """Raises `ConfigError` for settings of a head, which learning without labels does not have."""
    for name in ("head_only", "head_first"):
        if getattr(run.model, name):
            raise ConfigError(f"model.{name} is set, and learning without labels has no head", "leave it out")


def open_unlabelled(
    run: Run, data: Any, folder: RunFolder, transform: Transform | None, channels: int | None
) -> RunData:
    """Opens the images; their labels, where they have some, are used only to evaluate features.

    Raises `DataError` where there are too few to learn from and to evaluate.
    """
    run_data = open_run_data(run, data, folder, transform, channels=channels, labels=False)
    run_data = replace(run_data, splits=drop_annotations(run_data.splits))
    train = run_data.splits.train
    if train is None or len(train) < 4:
        count = 0 if train is None else len(train)
        raise DataError(f"the data hold {count} training images", "give more; see `vitrail data check`")
    return run_data


def make_objective(
    run: Run, encoder: Any, preprocessing: Preprocessing, data: RunData, say: Say
) -> tuple[Objective, Inputs]:
    """Creates the objective of a run around ``encoder``, and its inputs, for BEiT with the codes of a tokenizer.

    Raises:
        ConfigError: the objective does not support the encoder or has no such argument, or a tokenizer is missing.
        CheckpointError: the tokenizer cannot be read.
    """
    settings, kind, codes = run.objective, OBJECTIVES[run.objective.name], None
    given: dict[str, Any] = {}
    if kind is MaskedPatch:
        given = {"preprocessing": preprocessing}
    elif kind is Reconstruction:
        given = {"std": preprocessing.std}
    elif kind is MaskedCodes:
        if settings.tokenizer is None:
            remedy = "train one first, `vitrail pretrain DATA --objective tokenizer`, and give it with --tokenizer RUN"
            raise ConfigError("beit predicts the codes of a tokenizer, and none is given", remedy)
        saved = load_tokenizer(settings.tokenizer, say)
        codes = TokenizerCodes(saved, preprocessing, encoder.config.patch_size, device_of(encoder))
        given = {"vocabulary": saved.tokenizer.config.vocabulary, "drawn": codes.decode}
    objective = configure_objective(kind, encoder, settings.changes, **given)
    if isinstance(objective, ContrastiveObjective) and run.data.batch > len(data.train):
        say(
            f"warning  a batch of {run.data.batch} holds each of {len(data.train)} images more than once, and each is to be "
            "unlike itself: give a smaller --batch"
        )
    policy = drop_blur(run.augment, preprocessing.size, say)
    augmented = Augmented(policy=policy, preprocessing=preprocessing, seed=run.seed, cropped=data.cropped)
    return objective, ViewInputs(augmented, objective, codes)


def drop_blur(policy: Augment, size: tuple[int, int], say: Say) -> Augment:
    """Returns the policy without the blur of its views where images are too small for it: SimCLR's for CIFAR has none either."""
    if not any(policy.blur_views) or min(size) >= TOO_SMALL_TO_BLUR:
        return policy
    say(f"views    no blur: images of {size[0]} x {size[1]} would lose their content")
    return replace(policy, blur_views=(0.0, 0.0))


def collect_figures(records: Sequence[dict], columns: Sequence[str]) -> dict[str, float]:
    """Returns the last value of each of the ``columns``, the accuracy ``knn`` before training, and the last loss."""
    figures: dict[str, float] = {}
    for name in columns:
        values = [record[name] for record in records if name in record]
        if values:
            figures[name] = values[-1]
            if name == "knn":
                figures["knn_untrained"] = values[0]
    losses = [record["loss"] for record in records if "loss" in record]
    return {**figures, "loss": losses[-1]} if losses else figures


def read_health(records: Sequence[dict], width: int, *, last: bool) -> Health | None:
    """Returns the rank and spread of the features before training, or at the end of it, as they were recorded."""
    recorded = [record for record in records if "effective_rank" in record]
    if not recorded or (not last and recorded[0]["step"] != 0):
        return None
    record = recorded[-1 if last else 0]
    return Health(rank=record["effective_rank"], spread=record["spread"], width=width)


def write_documents(
    training: Training, built: BuiltModel, data: RunData, facts: dict[str, Any], figures: dict[str, float]
) -> Outcome:
    """Writes the report and the card of a run whose model is saved."""
    fault_injection.hit("run.after_model")
    name, folder = training.run.objective.name, training.folder
    about, panels = OBJECTIVES[name].about, draw_panels(training, built.preprocessing, data)
    page = PretrainingFacts(**facts, objective=name, about_objective=about, panels=panels)
    report = write_pretrain_report(folder.path, page)
    write_card(folder.path, pretraining_card(page))
    summary = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
    return Outcome(report, figures, summary, warning=page.diagnosis)


def draw_panels(training: Training, preprocessing: Preprocessing, data: RunData) -> tuple[Panel, ...]:
    """Shows the objective's inputs and predictions for a few images; from val, where that has enough."""
    objective, batches, val = training.objective, training.batches, data.splits.val
    source = val if val is not None and len(val) >= SHOWN else data.train
    few = replace(batches, source=source, batch=min(SHOWN, len(source)), workers=0, ranks=SINGLE)
    with closing(few(0, 1)) as shown:
        tensors = training.inputs(next(shown).to(few.device))
    with at_rest(objective):
        predictions = objective.show(*tensors)
    views = objective.views
    names = ["images"] if views == 1 else [f"view {view + 1}" for view in range(views)]
    captions = {**CAPTIONS, **OWN_CAPTIONS.get(training.run.objective.name, {})}
    if getattr(objective, "norm_pix", False):
        captions["reconstructed"] += ", each with the mean and the contrast of the original"
    pictures: dict[str, Tensor] = {**dict(zip(names, tensors[:views])), **predictions}
    return tuple(
        Panel(name=name, caption=captions.get(name, ""), pictures=pixels.float().cpu().numpy())
        for name, images in pictures.items()
        for pixels in [preprocessing.denormalise(images)]
    )


CAPTIONS = {
    "images": "as the objective sees them, after augmentation",
    "view 1": "a random crop of the image with changed colours",
    "view 2": "another such crop; the two should have similar features",
    "masked": "what the encoder sees; grey is corrupted or hidden",
    "visible": "what the encoder sees; grey is hidden",
    "predicted": "the corrupted patches in their predicted colours",
    "reconstructed": "the image with its hidden patches as predicted",
}
OWN_CAPTIONS = {
    "beit": {
        "masked": "what the encoder sees; grey is hidden",
        "codes": "the images as decoded from the tokenizer's codes",
        "predicted": "the same, with the predicted codes of the hidden patches",
    },
    "tokenizer": {"reconstructed": "the image decoded from its codes"},
}
