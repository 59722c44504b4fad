"""Learning without labels, from a run as it was asked for to a training that can start: data, encoder, objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.config.parse import plain
from vitrail.config.schema import Run
from vitrail.data.preprocessing import Preprocessing
from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.source import Source, Splits, describe_data
from vitrail.errors import ConfigError, DataError
from vitrail.evaluation.feature_health import Health, diagnose
from vitrail.models import activation_bytes, cost_of
from vitrail.models.backbone import at_rest
from vitrail.models.tokenizer import Tokenizer
from vitrail.objectives.gradient_cache import ContrastiveObjective
from vitrail.objectives.objective import Objective
from vitrail.reports.pretraining.card import write_pretrain_card
from vitrail.reports.pretraining.page import Panel, PretrainFacts, write_pretrain_report
from vitrail.runs.folder import RunFolder
from vitrail.runs.history import joined_records
from vitrail.runtime import fault_injection
from vitrail.runtime.device import find_device
from vitrail.runtime.machine import versions
from vitrail.runtime.progress import Say, duration
from vitrail.tasks.classification import Classifier
from vitrail.training.auto import settle
from vitrail.training.data import Transform, opened, training_batches
from vitrail.training.goals.tokenizer import build_tokenizer, tokenizer_bytes
from vitrail.training.inputs import viewed
from vitrail.training.monitors import CodeWatch, FeatureWatch
from vitrail.training.network import build, check_model, load_start
from vitrail.training.objective import OBJECTIVES, make_objective
from vitrail.training.prepare import assemble
from vitrail.training.provenance import model_name, provenance, run_facts
from vitrail.training.state import Training, averaged
from vitrail.weights.native import save_model
from vitrail.weights.tokenizers import save_tokenizer

TOO_SMALL_TO_BLUR = 64  # pixels; the blurs of the papers are for images of 224


@dataclass(frozen=True)
class Pretraining:
    """A training without labels that is ready for its next step: what it makes, and the data it stands on."""

    training: Training
    kept: Classifier | Tokenizer  # what is saved for use; the classifier has no head
    preprocessing: Preprocessing
    splits: Splits
    bad: BadImages
    transform: Transform | None


def prepare_pretraining(
    run: Run, folder: RunFolder, *, data: Any = None, transform: Transform | None = None, say: Say
) -> Pretraining:
    """As `prepare.prepare`, of a run whose objective needs no labels; labels that are there serve only to judge by.

    Raises `ConfigError`, `DataError` or `CheckpointError` before any training memory is used.
    """
    tokenizes = run.objective.name == "tokenizer"
    if run.model.head_only:
        raise ConfigError("model.head_only is set, and learning without labels has no head", "leave it out")
    if not tokenizes:
        run = check_model(run, say)
    device = find_device(run.compute.device)
    run, start = (run, None) if tokenizes else load_start(run, say)
    splits, bad = opened(run, folder, data, start, labels=False)
    train = check_images(splits)
    say(describe_data(splits))
    if tokenizes:
        run, kept, preprocessing = build_tokenizer(run, train)
        encoder, width, saved = kept, kept.config.width, tokenizer_bytes(kept.config, preprocessing)
    else:
        run, kept = build(run, train, start, say)
        encoder, preprocessing = kept.backbone, kept.preprocessing
        width, saved = kept.width, activation_bytes(kept.config)
    kept.to(device)
    objective, seen = make_objective(run.objective, encoder, preprocessing, say)
    warn_of_repeats(run, objective, len(train), say)
    run = settle(run, preprocessing, train, device, say, width=width, saved=saved * objective.views)
    if isinstance(kept, Tokenizer):
        watch: CodeWatch | FeatureWatch = CodeWatch(kept, preprocessing, splits, run, bad)
    else:
        watch = FeatureWatch(kept, splits, run, bad)
    cropped = train.kind == "files" or transform is not None
    training = assemble(
        run,
        objective.to(device),
        viewed(small_views(run, preprocessing, say), preprocessing, objective, cropped=cropped, seen=seen),
        batches=training_batches(run, train, preprocessing, device, bad, transform, views=objective.views),
        evaluate=watch,
        images=len(train),
        folder=folder,
        device=device,
        evaluate_first=True,
    )
    return Pretraining(training, kept, preprocessing, splits, bad, transform)


def check_images(splits: Splits) -> Source:
    """The training images. Raises `DataError` where there are too few to learn from and to watch."""
    if splits.train is None or len(splits.train) < 4:
        count = 0 if splits.train is None else len(splits.train)
        raise DataError(f"the data hold {count} training images", "give more; see `vitrail data check`")
    return splits.train


def warn_of_repeats(run: Run, objective: Objective, images: int, say: Say) -> None:
    """Says where images that are to be told from all others of a batch are among these themselves."""
    if isinstance(objective, ContrastiveObjective) and run.data.batch > images:
        told = (
            f"a batch of {run.data.batch} holds each of {images} images more than once, and each is to be unlike itself"
        )
        say(f"warning  {told}: give a smaller --batch")


def small_views(run: Run, preprocessing: Preprocessing, say: Say) -> Run:
    """The run without the blur of its views where images are too small for it: SimCLR's for CIFAR has none either."""
    if not any(run.augment.blur_views) or min(preprocessing.size) >= TOO_SMALL_TO_BLUR:
        return run
    say(f"views    no blur: images of {preprocessing.size[0]} x {preprocessing.size[1]} would lose what is in them")
    return replace(run, augment=replace(run.augment, blur_views=(0.0, 0.0)))


SHOWN = 8  # images
WATCHED = ("knn", "chance", "effective_rank", "spread", "psnr_held_out", "psnr_mean_colour", "codes_in_use")


def finish_pretraining(
    pretraining: Pretraining, *, command: str, seconds: float, quiet: bool, say: Callable[[str], None]
) -> tuple[Path, dict[str, float]]:
    """Writes ``model/``, ``report.html`` and ``card.md``; returns the report's path and the final figures."""
    training, kept = pretraining.training, pretraining.kept
    folder = training.folder
    records = joined_records(folder)
    figures = final_figures(records)
    fault_injection.hit("run.before_model")
    with averaged(training):
        told = provenance(training, pretraining.splits)
        if isinstance(kept, Tokenizer):
            save_tokenizer(folder.model, kept, pretraining.preprocessing, told)
        else:
            save_model(folder.model, kept, metrics=figures, provenance=told)
        fault_injection.hit("run.after_model")
        shown = panels(pretraining)
    facts = pretrain_facts(pretraining, shown, command, seconds)
    report = write_pretrain_report(folder.path, facts)
    write_pretrain_card(folder.path, facts)
    fault_injection.hit("run.before_finished")
    folder.write_status("finished", steps=training.steps, seconds=round(seconds, 1), figures=figures)
    if facts.diagnosis:
        say(f"warning  {facts.diagnosis}")
    words = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
    say(f"done     {words} after {duration(seconds)}")
    return report, figures


def final_figures(records: list[dict]) -> dict[str, float]:
    """What was watched last, with what it was before training, and the last loss."""
    figures: dict[str, float] = {}
    for name in WATCHED:
        values = [record[name] for record in records if name in record]
        if values:
            figures[name] = values[-1]
            if name == "knn":
                figures["knn_untrained"] = values[0]
    losses = [record["loss"] for record in records if "loss" in record]
    return {**figures, "loss": losses[-1]} if losses else figures


def panels(pretraining: Pretraining) -> tuple[Panel, ...]:
    """A few images as the objective sees them, and its answers; of the validation part, where there is one."""
    training, preprocessing = pretraining.training, pretraining.preprocessing
    run, splits, bad = training.run, pretraining.splits, pretraining.bad
    part = splits.val if splits.val is not None and len(splits.val) >= SHOWN else splits.train
    assert part is not None, "there are no images"
    few = replace(run, data=replace(run.data, batch=min(SHOWN, len(part)), micro_batch=None, workers=0))
    views = training.objective.views
    batches = training_batches(few, part, preprocessing, training.device, bad, pretraining.transform, views=views)
    inputs = training.feed(next(batches(0, 1)).to(training.device))
    with at_rest(training.objective):
        answers = training.objective.show(*inputs)
    names = ["images"] if views == 1 else [f"view {view + 1}" for view in range(views)]
    captions = {**CAPTIONS, **OWN_CAPTIONS.get(run.objective.name, {})}
    if getattr(training.objective, "norm_pix", False):
        captions["reconstructed"] += "; the mean and the contrast of each hidden patch are the image's own"
    pictures: dict[str, Tensor] = {**dict(zip(names, inputs[:views])), **answers}
    return tuple(
        Panel(name=name, caption=captions.get(name, ""), pictures=shown(preprocessing.restored(images)))
        for name, images in pictures.items()
    )


CAPTIONS = {
    "images": "as the objective was given them, cropped and flipped",
    "view 1": "one random crop of the image, its colours changed",
    "view 2": "another one; the two are to have like features",
    "masked": "what the encoder sees; grey is corrupted or hidden",
    "visible": "what the encoder sees; grey is hidden",
    "predicted": "the corrupted patches in the colours that were predicted",
    "reconstructed": "what was rebuilt",
}
OWN_CAPTIONS = {
    "beit": {
        "masked": "what the encoder sees; grey is hidden",
        "codes": "what the tokenizer's codes tell of the images",
        "predicted": "the same, where the codes of hidden patches are the predicted ones",
    }
}


def shown(images: Tensor) -> np.ndarray:
    """(B, C, h, w) in [0, 1] as plain numbers."""
    return images.float().cpu().numpy()


def pretrain_facts(pretraining: Pretraining, shown: tuple[Panel, ...], command: str, seconds: float) -> PretrainFacts:
    """All that the report and the card say, gathered."""
    training, kept = pretraining.training, pretraining.kept
    run, told = training.run, run_facts(training, pretraining.splits, pretraining.bad, command, seconds)
    tokenizes = isinstance(kept, Tokenizer)
    cost = None if tokenizes else cost_of(kept.config)
    before, after = (None if tokenizes else health_of(told["records"], kept.width, last=last) for last in (False, True))
    return PretrainFacts(
        **told,
        objective=run.objective.name,
        about_objective=OBJECTIVES[run.objective.name].about,
        panels=shown,
        before=before,
        after=after,
        diagnosis=diagnose(after, before) if after is not None else None,
        model=f"tokenizer of {kept.config.vocabulary:,} codes" if isinstance(kept, Tokenizer) else model_name(training),
        parameters=cost.parameters if cost else sum(each.numel() for each in kept.parameters()),
        multiply_adds=cost.multiply_adds if cost else None,
        image_size=pretraining.preprocessing.size,
        preprocessing=pretraining.preprocessing.to_dict(),
        recipe_settings=plain(run.optim) | plain(run.schedule),
        base=run.model.init or "",
        provenance=versions() | {"seed": run.seed, "steps": training.steps, "date": date.today().isoformat()},
        location=str(training.folder.path),
    )


def health_of(records: list[dict], width: int, *, last: bool) -> Health | None:
    """The health of the features before training, or at the end of it, as it was recorded."""
    found = [each for each in records if "effective_rank" in each]
    if not found or (not last and found[0]["step"] != 0):
        return None
    record = found[-1 if last else 0]
    return Health(rank=record["effective_rank"], spread=record["spread"], width=width)
