"""The provenance of a run: the origin of its data, its weights and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from vitrail.config.parse import plain
from vitrail.data.sources.source import list_splits, sample_images
from vitrail.files import read_checksummed
from vitrail.runs.folder import busy_seconds, join_records, speed
from vitrail.runtime.machine import describe, versions
from vitrail.tasks.class_weights import share_classes
from vitrail.text import plural, sentence
from vitrail.training.network import BuiltModel
from vitrail.training.state import Training
from vitrail.weights.public import find_repository


@dataclass(frozen=True)
class Ending:
    """The command that started a run, the seconds that it took, and whether to show no progress at its end."""

    command: str
    seconds: float
    quiet: bool


@dataclass(frozen=True)
class Outcome:
    """The result of a finished run: its report, the figures of its model, their summary, a warning, and the evaluated split."""

    report: Path
    figures: dict[str, float]
    summary: str
    warning: str | None = None
    split: str = ""


def device_hours(training: Training) -> float:
    """Returns the time of all steps and evaluations on all devices together, including those repeated after a stop."""
    return busy_seconds(training.folder) * training.ranks.world / 3600


def provenance(training: Training) -> dict[str, Any]:
    """Describes where the weights come from: data, split, recipe, compute, versions."""
    run, splits = training.run, training.batches.data.splits
    opened = training.batches.data.opened  # with images that could not be read
    split: dict[str, Any] = {"held_out": splits.held_out, "seed": run.seed, "validation": run.data.validation}
    split["sha256"] = opened.val.keys.digest() if opened.val is not None else None
    split["trained_on"] = sample_images(opened.train) if opened.train is not None else {}
    classes: dict[str, Any] = {}
    if run.objective.name == "supervised" and run.task == "classification":
        balance, weights, train = run.data.balance, run.objective.class_weights, training.batches.data.train
        classes["class_images"] = train.counts().tolist()
        if balance or weights != "none":
            classes["class_shares"] = share_classes(train.counts(), train.classes, balance=balance, weights=weights)
    return {
        "data": run.data.source,
        "layout": splits.layout,
        "split": split | ({"fold": run.data.fold} if run.data.fold else {}),
        "recipe": run.recipe,
        "init": run.model.init,
        "objective": run.objective.name,
        "teacher": run.objective.teacher,
        "tokenizer": run.objective.tokenizer,
        "steps": training.progress.best_step if training.best else training.steps,
        "operations": training.operations,
        "date": date.today().isoformat(),
        "versions": versions(),
        **classes,
    }


def describe_choice(training: Training) -> list[str]:
    """Returns sentences on what the evaluations on val have decided, and which figures this flatters."""
    progress, save, sentences = training.progress, training.run.save, []
    compared = plural(progress.compared, "evaluation")
    if training.best:
        bias = "its figures on val are too good by this choice"
        if training.batches.data.splits.test is not None:
            bias += ", those on test are not"
        best = f"the best of {compared} on val, of step {progress.best_step:,} of {training.steps:,}"
        sentences.append(f"the model is that of {best}: {bias}")
    elif save.best:
        sentences.append("no evaluation on val had a figure to choose by: the model is that of the last step")
    if save.patience and progress.waited >= save.patience:
        best = "" if progress.best is None else f", of which that of step {progress.best_step:,} was the best"
        sentences.append(f"ended by save.patience={save.patience} after {compared} on val{best}")
    return sentences


def describe_first(figures: Mapping[str, Any]) -> str:
    """Returns the first figure of an evaluation with its interval and the number of images."""
    name, value = next((name, value) for name, value in figures.items() if name != "split")
    ends = [figures.get(f"{name}_{end}") for end in ("low", "high")]
    interval = "" if None in ends else " [{:.4f}, {:.4f}]".format(*ends)
    shown = "not defined" if value is None else f"{value:.4f}{interval}"
    return f"{name} {shown} on {plural(figures['images'], 'image')}"


def describe_folds(training: Training) -> list[str]:
    """Returns a sentence on the cross-validation before a training on all images, where there was one."""
    found, images = read_checksummed(training.folder.folds), len(training.batches.data.train)
    if found is None:
        return []
    first, count = describe_first(found["all"]), len(found["folds"])
    answered = f"Of {count} folds: {first}, each answered by a model that was not trained on it"
    return [f"{answered}; this model was trained on {plural(images, 'image')} of all folds"]


def run_facts(training: Training, built: BuiltModel, ending: Ending) -> dict[str, Any]:
    """Returns the fields of `RunFacts`: what the report and the card of every run say."""
    run, folder, data, init = training.run, training.folder, training.batches.data, training.run.model.init or ""
    today, unread = date.today().isoformat(), len(data.bad)
    saved_at = training.progress.best_step if training.best else training.steps
    notes = folder.find_damage()
    if run.data.fold == "all":
        notes = [*describe_folds(training), *notes]
    if run.save.compares:
        notes = [*map(sentence, describe_choice(training)), *notes]
    if unread:
        listed = "they are" if unread > 1 else "it is"
        notes = [f"{plural(unread, 'image')} could not be read; {listed} listed in bad_images.csv", *notes]
    return {
        "title": folder.path.name,
        "command": ending.command,
        "config": plain(run),
        "data": run.data.source,
        "layout": data.splits.layout,
        "images": {name: len(part) for name, part in list_splits(data.splits).items()},
        "model": built.about,
        "parameters": built.parameters,
        "multiply_adds": built.multiply_adds,
        "image_size": built.preprocessing.size,
        "preprocessing": built.preprocessing.to_dict(),
        "recipe": run.recipe,
        "recipe_settings": plain(run.optim) | plain(run.schedule),
        "base": init,
        "base_license": public.terms if init and (public := find_repository(init)) else "",
        "records": join_records(folder),
        "operations": training.operations,
        "device_hours": device_hours(training),
        "seconds": ending.seconds,
        "images_per_second": speed(folder),
        "machine": describe(),
        "versions": versions(),
        "date": today,
        "provenance": versions() | {"seed": run.seed, "steps": saved_at, "date": today},
        "location": str(folder.path),
        "notes": notes,
    }
