"""The end of a run: the model for use, its judgement, the report and the card."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.analysis.attention import attention_map, reach_of
from vitrail.analysis.pictures import thumbnail
from vitrail.config.parse import plain
from vitrail.data.sources.bad_images import BadImages
from vitrail.data.sources.source import Source, Splits, choose_split, fingerprint, parts_of
from vitrail.engine.judge import Judgement, judge
from vitrail.engine.prepare import Prepared
from vitrail.engine.reporting.card import CardFacts, write_card
from vitrail.engine.reporting.report import Mistake, ReportFacts, worst_mistakes, write_report
from vitrail.engine.reporting.wording import plural
from vitrail.engine.training import Training, averaged
from vitrail.errors import DataError
from vitrail.files import dump_json, replace_file
from vitrail.models import cost_of, device_of
from vitrail.runs.folder import RunFolder
from vitrail.runs.history import joined_records, speed
from vitrail.runtime import fault_injection
from vitrail.runtime.machine import describe, versions
from vitrail.runtime.progress import Show, duration
from vitrail.tasks.classification import Classifier
from vitrail.weights.native import save_model


def record_split(folder: RunFolder, splits: Splits) -> None:
    """Writes which images there are and which were held out, by key, to ``split.json``.

    Raises `DataError` where the run began with others: their order, and so every batch, would be another one.
    """
    path = folder.path / "split.json"
    held = [str(key) for key in splits.val.keys] if splits.held_out and splits.val is not None else []
    images = {name: fingerprint(part) for name, part in parts_of(splits).items() if name != "test"}
    before = json.loads(path.read_text()).get("images", images) if path.exists() else images
    if before != images:
        raise DataError(
            f"the images for {' and '.join(images)} are not those with which the run {folder.path} began",
            "put them back as they were, or start a new run with another --out (--init takes this one's weights)",
        )
    replace_file(path, dump_json({"seed": splits.seed, "images": images, "held_out": held}))


def finish(
    prepared: Prepared, *, command: str, seconds: float, quiet: bool, say: Callable[[str], None]
) -> tuple[Path, dict[str, float]]:
    """Writes ``model/``, ``report.html`` and ``card.md``; returns the report's path and the final figures."""
    training = prepared.training
    folder, classifier, splits = training.folder, prepared.classifier, prepared.splits
    fault_injection.hit("run.before_model")
    with averaged(training):
        split, source = choose_split(splits)
        with Show(f"judging on {split}", len(source), quiet=quiet) as show:
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


def provenance(training: Training, splits: Splits) -> dict[str, Any]:
    """Where the weights come from: data, split, recipe, versions."""
    run = training.run
    held = fingerprint(splits.val) if splits.val is not None else None
    return {
        "data": run.data.source,
        "layout": splits.layout,
        "split": {"held_out": splits.held_out, "seed": run.seed, "validation": run.data.validation, "sha256": held},
        "recipe": run.recipe,
        "init": run.model.init,
        "objective": run.objective.name,
        "teacher": run.objective.teacher,
        "tokenizer": run.objective.tokenizer,
        "steps": training.steps,
        "date": date.today().isoformat(),
        "versions": versions(),
    }


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


def run_facts(training: Training, splits: Splits, bad: BadImages, command: str, seconds: float) -> dict[str, Any]:
    """What any run has to say, of `RunFacts`, but for its network."""
    run = training.run
    return {
        "title": training.folder.path.name,
        "command": command,
        "config": plain(run),
        "data": run.data.source,
        "layout": splits.layout,
        "images": {name: len(part) for name, part in parts_of(splits).items()},
        "recipe": run.recipe,
        "records": joined_records(training.folder),
        "seconds": seconds,
        "images_per_second": speed(training.folder),
        "machine": describe(),
        "versions": versions(),
        "date": date.today().isoformat(),
        "notes": unread(len(bad)),
    }


def model_name(training: Training) -> str:
    """The network in a word: its name, or where its weights came from."""
    model = training.run.model
    return model.name or (Path(model.init).stem if model.init else "vit")


def unread(count: int) -> list[str]:
    """What a report notes of images that were passed over."""
    if not count:
        return []
    return [
        f"{plural(count, 'image')} could not be read; {'they are' if count > 1 else 'it is'} listed in bad_images.csv"
    ]


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
