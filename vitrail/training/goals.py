"""A goal is the kind of a run: it determines the data, the model that is trained, its objective, and the files it writes.

`SUPERVISED` is any task, learned from images with targets and evaluated on those that were held out; `ENCODER` learns without
labels and is evaluated by its features, `TOKENIZER` is a visual tokenizer for BEiT, evaluated by its codes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vitrail import weights
from vitrail.config.schema import Run
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.source import Source, choose_split, drop_annotations, list_splits
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.evaluate import EvaluationResult, evaluate_model, write_predictions
from vitrail.evaluation.feature_health import FeatureHealth, diagnose
from vitrail.evaluation.own_metrics import OwnMetrics
from vitrail.inference.options import InferenceOptions
from vitrail.models import device_of
from vitrail.models.backbone import eval_mode
from vitrail.models.config import grid_of
from vitrail.models.cost import saved_bytes
from vitrail.models.tokenizer import Tokenizer, TokenizerConfig
from vitrail.objectives import (
    ContrastiveObjective,
    FeatureDistillation,
    MaskedCodes,
    MaskedPatch,
    Reconstruction,
    find_objective,
)
from vitrail.objectives.contrastive import pooled_width
from vitrail.objectives.objective import Objective, configure_objective
from vitrail.objectives.supervised import Distillation, Supervised
from vitrail.plugins import METRICS, find_loss, find_own
from vitrail.reports.cards import pretraining_card, write_card
from vitrail.reports.evaluated_run import write_documents
from vitrail.reports.facts import EvaluatedRun
from vitrail.reports.pretraining import Panel, PretrainingFacts, write_pretrain_report
from vitrail.runs.folder import RunFolder
from vitrail.runtime import fault_injection
from vitrail.runtime.distributed import SINGLE
from vitrail.runtime.progress import LogFunction, ProgressBar
from vitrail.tasks import Task, find_task
from vitrail.tasks.class_weights import choose_weights
from vitrail.text import listing
from vitrail.training.data import RunData, Transform, choose_arguments, open_run_data
from vitrail.training.frozen_networks import FeatureTeacher, FrozenNetwork, Teacher, TokenizerCodes
from vitrail.training.inputs import Augmented, Inputs, TaskInputs, ViewInputs
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
from vitrail.training.validation import CodeValidator, FeatureValidator, TaskValidator, Validator
from vitrail.weights.native import save_model
from vitrail.weights.peft import write_peft
from vitrail.weights.tokenizers import load_tokenizer, save_tokenizer

TOO_SMALL_TO_BLUR = 64  # pixels; the blurs of the papers are for images of 224
SHOWN = 8  # images
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


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The functions that differ between kinds of runs, in the order in which a run calls them.

    ``run`` is the requested run until `plan` is called, and resolved from `build` on.

    Args:
        check: raises `ConfigError` for settings that are invalid for any data.
        open: opens the images, with as many training images as the goal needs, and chooses the arguments of the task. Takes the
            channels of the weights to start from, too. Raises `DataError`.
        plan: chooses the network for these images.
        build: builds the model that is trained and saved, on the CPU.
        objective: creates the objective, and the function that makes its inputs from a batch.
        validator: creates the function that gives the figures of an evaluation between steps.
        finish: evaluates the model and writes ``model/``, ``report.html`` and ``card.md``; all ranks evaluate, the first writes.
        evaluate_first: evaluates before the first step too, to compare with the untrained model.
    """

    check: Callable[[Run], None]
    open: Callable[[Run, Any, RunFolder, Transform | None, int | None], RunData]
    plan: Callable[[Run, RunData, Task | None, LogFunction], NetworkPlan]
    build: Callable[[Run, RunData, NetworkPlan, Task | None, LogFunction], BuiltModel]
    objective: Callable[[Run, BuiltModel, RunData, LogFunction], tuple[Objective, Inputs]]
    validator: Callable[[Run, BuiltModel, RunData], Validator]
    finish: Callable[[Training, BuiltModel, Ending], Outcome]
    evaluate_first: bool


def check_supervised(run: Run) -> None:
    task = find_task(run.task, run.model.head)
    task.targets.check_policy(run.augment, run.task)
    find_loss(run.objective.loss, task.losses)
    for metric in run.save.metrics:
        find_own("metric", metric, METRICS)
    check_model(run)


def open_labelled(run: Run, data: Any, folder: RunFolder, transform: Transform | None, channels: int | None) -> RunData:
    run_data = open_run_data(run, data, folder, transform, channels=channels, labels=True)
    if run_data.splits.val is None and run.save.compares:
        what = "save.best and save.patience choose by images of val, and the data have none"
        raise DataError(what, "give a val split, or more images of each class, of which some are held out")
    return replace(run_data, arguments=choose_arguments(run_data.splits, run.task, run.model.head))


def create_supervised_objective(
    run: Run, built: BuiltModel, data: RunData, log: LogFunction
) -> tuple[Objective, Inputs]:
    """Returns the loss on the targets, or on a teacher's outputs too, and its inputs. Raises `ConfigError`."""
    settings, model = run.objective, built.model
    augmented = Augmented(policy=run.augment, preprocessing=built.preprocessing, seed=run.seed, cropped=data.cropped)
    arguments = {"loss": settings.loss, "binarise": settings.binarise, **settings.changes}
    weights = None
    if settings.class_weights != "none":
        weights = torch.tensor(choose_weights(settings.class_weights, model.classes, data.train.counts()))
        each = (f"{name} {weight:.3g}" for name, weight in zip(model.classes, weights.tolist()))
        log(f"weights  {listing([*each])}")
    if settings.teacher is None:
        return configure_objective(Supervised, model, arguments, class_weights=weights), TaskInputs(augmented, model)
    teacher = load_teacher(settings.teacher, model, run.compute.precision or "fp32", log)
    arguments |= model.loss_options(settings.loss, binarise=settings.binarise)
    objective = configure_objective(Distillation, model.backbone, arguments, class_weights=weights)
    return objective, TaskInputs(augmented, model, teacher)


def load_teacher(path: str, model: Task, precision: str, log: LogFunction) -> Teacher:
    """Loads the model at ``path`` as a teacher of ``model``. Raises `ConfigError` if it cannot teach it."""
    if not model.learns_from_teacher:
        what = "the images have several labels each, and a teacher gives one" if model.multi_label else ""
        raise ConfigError(what or f"the task {model.name} has no use for a teacher", "train without --teacher")
    teacher = read_teacher(path, log).to(device_of(model))
    return Teacher(teacher, model.classes, model.preprocessing, precision)


def read_teacher(path: str, log: LogFunction) -> Task:
    """Loads the model at ``path`` on the CPU, and says what it is."""
    teacher = weights.load(path, log=log)
    size = "{} x {}".format(*teacher.preprocessing.size)
    classes = f", {len(teacher.classes)} classes" if teacher.classes else ""
    log(f"teacher  {teacher.config.about}{classes}, images of {size}: {path}")
    return teacher


def finish_supervised(training: Training, built: BuiltModel, ending: Ending) -> Outcome:
    run, folder, model, data = training.run, training.folder, built.model, training.batches.data
    split, source = choose_split(data.splits)
    options = InferenceOptions(workers=run.data.workers or 0, max_pixels=run.data.max_pixels)

    def evaluate_on(split: str, source: Source) -> EvaluationResult:
        own = OwnMetrics(run.save.metrics, model) if run.save.metrics else None
        with ProgressBar(f"evaluating on {split}", len(source), quiet=ending.quiet) as progress:
            how = {
                "bad": data.bad,
                "progress": progress,
                "ranks": training.ranks,
                "on_outputs": own.add if own else None,
            }
            result = evaluate_model(model, source, options, split=split, seed=run.seed, **how)
            return replace(result, further=own.compute()) if own else result

    result = evaluate_on(split, source)
    val = data.splits.val
    if model.tuned and model.tuned not in run.model.head and val is not None:
        validated = result if split == "val" else evaluate_on("val", val)
        best = validated.figures.get(model.tuned, math.nan)
        if math.isfinite(best):  # a model that finds nothing keeps its own
            setattr(model, model.tuned, best)
    figures = result.figures
    if not training.ranks.first:
        return Outcome(folder.report, figures, "", split=split)
    save_model(folder.model, model, metrics=figures, provenance=provenance(training))
    if run.model.adapters.rank and built.base is not None:
        write_peft(folder.adapter, model, built.base)
    write_predictions(folder.predictions, result.metric)
    fault_injection.hit("run.after_model")
    facts = run_facts(training, built, ending)
    evaluated = EvaluatedRun(facts=facts, model=model, splits=list_splits(data.splits), source=source, result=result)
    report = write_documents(folder.path, evaluated)
    name, value = next(iter(figures.items()))
    summary = f"{name} {value:.4f} on {split} ({len(result.keys):,} images)"
    return Outcome(report, figures, summary, result.metric.explain_failure(figures) or None, split)


def check_pretraining(run: Run) -> None:
    """Raises `ConfigError` for an unknown objective, and for settings of a head, which learning without labels does not have."""
    find_objective(run.objective.name)
    if run.model.head_only:
        raise ConfigError("model.head_only is set, and learning without labels has no head", "leave it out")
    if run.save.compares:
        what = "save.best and save.patience choose by figures on val, which learning without labels does not have"
        raise ConfigError(what, "leave them out")
    for name, value in {"head_first": run.model.head_first, "adapters": run.model.adapters.rank}.items():
        if value and run.objective.name == "tokenizer":
            raise ConfigError(f"model.{name} is set, and a tokenizer is trained from scratch", "leave it out")
    if run.objective.name == "distil" and run.objective.teacher is None:
        raise ConfigError("distil learns from a teacher, and none is given", "name a model with --teacher")
    if run.objective.name != "tokenizer":
        check_model(run)
    elif run.model.init is not None or run.model.name is not None:
        raise ConfigError("a tokenizer has no model name and no initial weights", "leave --model and --init out")


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


def build_encoder(run: Run, data: RunData, plan: NetworkPlan, start: Task | None, log: LogFunction) -> BuiltModel:
    """Builds the network, and reads the teacher if its features are distilled."""
    built, teacher = build_network(run, data, plan, start, log), run.objective.teacher
    return built if teacher is None else replace(built, teacher=read_teacher(teacher, log))


def plan_tokenizer(run: Run, data: RunData, start: Task | None, log: LogFunction) -> NetworkPlan:
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
        parameters=sum(parameter.numel() for parameter in tokenizer.parameters()),
        image_bytes=saved_bytes(tokenizer, image),
    )


def build_tokenizer(run: Run, data: RunData, plan: NetworkPlan, start: Task | None, log: LogFunction) -> BuiltModel:
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


def create_pretraining_objective(
    run: Run, built: BuiltModel, data: RunData, log: LogFunction
) -> tuple[Objective, Inputs]:
    """Returns the objective of a run around its encoder, and its inputs, with the outputs of a teacher or a tokenizer.

    Raises `ConfigError`, and `CheckpointError` for a tokenizer that cannot be read.
    """
    encoder = built.model.backbone if isinstance(built.model, Task) else built.model
    preprocessing, settings, kind = built.preprocessing, run.objective, find_objective(run.objective.name)
    given: dict[str, Any] = {}
    frozen: FrozenNetwork | None = None
    if kind is MaskedPatch:
        given = {"preprocessing": preprocessing}
    elif kind is Reconstruction:
        given = {"std": preprocessing.std}
    elif kind is MaskedCodes:
        if settings.tokenizer is None:
            remedy = "train one first, `vitrail pretrain DATA --objective tokenizer`, and give it with --tokenizer RUN"
            raise ConfigError("beit predicts the codes of a tokenizer, and none is given", remedy)
        saved = load_tokenizer(settings.tokenizer, log)
        frozen = codes = TokenizerCodes(saved, preprocessing, encoder.config.patch_size, device_of(encoder))
        given = {"vocabulary": saved.tokenizer.config.vocabulary, "drawn": codes.decode}
    elif kind is FeatureDistillation:
        model, grid = built.teacher.to(device_of(encoder)), grid_of(preprocessing.size, encoder.config.cell)
        frozen = FeatureTeacher(model, preprocessing, grid, run.compute.precision or "fp32")
        given = {"images": len(data.train), "features": pooled_width(model.backbone)}
    objective = configure_objective(kind, encoder, settings.changes, **given)
    compares_images = isinstance(objective, ContrastiveObjective) and objective.compares_images
    if compares_images and run.data.batch > len(data.train):
        log(
            f"warning  a batch of {run.data.batch} holds each of {len(data.train)} images more than once, and each is to be "
            "unlike itself: give a smaller --batch"
        )
    if objective.local is not None and data.transform is not None:
        what = f"the objective {settings.name} has small views, which a transform of your own does not make"
        raise ConfigError(what, "set objective.changes.local_views=0")
    policy = run.augment
    whole, local = preprocessing.size, objective.local.size if objective.local else preprocessing.size
    if any(policy.blur_views) and min(whole) < TOO_SMALL_TO_BLUR:  # SimCLR's for CIFAR has no blur either
        log("views    no blur: images of {} x {} would lose their content".format(*whole))
        policy = replace(policy, blur_views=(0.0, 0.0))
    if policy.local_blur and min(local) < TOO_SMALL_TO_BLUR:
        policy = replace(policy, local_blur=0.0)
    augmented = Augmented(policy=policy, preprocessing=preprocessing, seed=run.seed, cropped=data.cropped)
    return objective, ViewInputs(augmented, objective, frozen)


def finish_encoder(training: Training, built: BuiltModel, ending: Ending) -> Outcome:
    """Saves the model without a head."""
    if not training.ranks.first:
        return Outcome(training.folder.report, {}, "")
    facts = run_facts(training, built, ending)
    figures = collect_figures(facts["records"], FeatureValidator.FIGURES)
    save_model(training.folder.model, built.model, metrics=figures, provenance=provenance(training))
    before, after = (health_from_records(facts["records"], built.model.width, last=last) for last in (False, True))
    measured = [record for record in facts["records"] if "loss" in record]
    collapse = training.objective.explain_collapse(measured[-1], 1.0) if measured else None
    narrow = None if after is None else diagnose(after, before)
    found = " ".join(sentence for sentence in (collapse, narrow) if sentence)
    facts |= {"before": before, "after": after, "diagnosis": found or None}
    return write_pretraining_documents(training, built, facts, figures)


def finish_tokenizer(training: Training, built: BuiltModel, ending: Ending) -> Outcome:
    if not training.ranks.first:
        return Outcome(training.folder.report, {}, "")
    facts = run_facts(training, built, ending)
    save_tokenizer(training.folder.model, built.model, built.preprocessing, provenance(training))
    return write_pretraining_documents(training, built, facts, collect_figures(facts["records"], CodeValidator.FIGURES))


def collect_figures(records: Sequence[dict], columns: Sequence[str]) -> dict[str, float]:
    """Returns the last value of each of the ``columns``, the accuracy ``knn`` before training, and the last loss."""
    figures: dict[str, float] = {}
    for name in (*columns, "loss"):
        if values := [record[name] for record in records if name in record]:
            figures[name] = values[-1]
            if name == "knn":
                figures["knn_untrained"] = values[0]
    return figures


def health_from_records(records: Sequence[dict], width: int, *, last: bool) -> FeatureHealth | None:
    """Returns the recorded health of the features before training, or with ``last`` at its end."""
    recorded = [record for record in records if "effective_rank" in record]
    if not recorded or (not last and recorded[0]["step"] != 0):
        return None
    record = recorded[-1 if last else 0]
    return FeatureHealth(rank=record["effective_rank"], spread=record["spread"], width=width)


def write_pretraining_documents(
    training: Training, built: BuiltModel, facts: dict[str, Any], figures: dict[str, float]
) -> Outcome:
    """Writes the report and the card of a run whose model is saved."""
    fault_injection.hit("run.after_model")
    name, folder = training.run.objective.name, training.folder
    about, panels = find_objective(name).about, draw_panels(training, built.preprocessing)
    page = PretrainingFacts(**facts, objective=name, about_objective=about, panels=panels)
    report = write_pretrain_report(folder.path, page)
    write_card(folder.path, pretraining_card(page))
    summary = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
    return Outcome(report, figures, summary, warning=page.diagnosis)


def draw_panels(training: Training, preprocessing: Preprocessing) -> tuple[Panel, ...]:
    """Shows the objective's inputs and predictions for a few images; from val, where that has enough."""
    objective, batches = training.objective, training.batches
    val = batches.data.splits.val
    source = val if val is not None and len(val) >= SHOWN else batches.data.train
    few = replace(batches, source=source, batch=min(SHOWN, len(source)), workers=0, ranks=SINGLE)
    with closing(few(0, 1)) as shown:
        tensors = training.inputs(next(shown).to(few.device))
    with eval_mode(objective):
        predictions = objective.show(*tensors)
    views = objective.views
    names = ["images"] if views == 1 else [f"view {view + 1}" for view in range(views)]
    small = names[views - objective.local.count :] if objective.local else []
    captions = dict.fromkeys(small, "a small part of the image")
    captions |= {**CAPTIONS, **OWN_CAPTIONS.get(training.run.objective.name, {})}
    if getattr(objective, "norm_pix", False):
        captions["reconstructed"] += ", each with the mean and the contrast of the original"
    pictures: dict[str, Tensor] = {**dict(zip(names, tensors[:views])), **predictions}
    return tuple(
        Panel(name=name, caption=captions.get(name, ""), pictures=pixels.float().cpu().numpy())
        for name, images in pictures.items()
        for pixels in [preprocessing.denormalise(images)]
    )


SUPERVISED = Goal(
    check=check_supervised,
    open=open_labelled,
    plan=plan_network,
    build=build_network,
    objective=create_supervised_objective,
    validator=lambda run, built, data: TaskValidator(built.model, data.splits, run, data.bad),
    finish=finish_supervised,
    evaluate_first=False,
)
ENCODER = Goal(
    check=check_pretraining,
    open=open_unlabelled,
    plan=plan_network,
    build=build_encoder,
    objective=create_pretraining_objective,
    validator=lambda run, built, data: FeatureValidator(built.model, data.splits, run, data.bad, built.teacher),
    finish=finish_encoder,
    evaluate_first=True,
)
TOKENIZER = replace(
    ENCODER,
    plan=plan_tokenizer,
    build=build_tokenizer,
    validator=lambda run, built, data: CodeValidator(built.model, built.preprocessing, data.splits, run, data.bad),
    finish=finish_tokenizer,
)
GOALS = {"supervised": SUPERVISED, "tokenizer": TOKENIZER}  # of all other objectives it is `ENCODER`
