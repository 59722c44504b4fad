"""The model card of a self-supervised encoder or a tokenizer: description, training data, evaluation and limitations."""

from __future__ import annotations

import shlex
from pathlib import Path

from vitrail.reports import card as card_parts
from vitrail.reports.card import (
    bullets,
    compose_card,
    describe_size,
    describe_start,
    escape,
    fence_code,
    front_matter,
    settings,
)
from vitrail.reports.facts import PretrainingFacts
from vitrail.reports.metric_names import METRICS, metric_of
from vitrail.reports.pretraining.sections import format_known, measurements

NO_CLASSES = "The model has no classes; a classification head must be trained on labelled images."
ELSEWHERE = (
    "The features depend on the training images. Their quality on images from other cameras, locations, seasons or domains "
    "was not measured."
)
UNCHOSEN = (
    "Training without labels also encodes unwanted or unfair regularities of the images. They transfer to every model that is "
    "trained from these weights."
)
REBUILT = (
    "The codes depend on the training images. Reconstruction of images from other cameras, locations, seasons or domains was "
    "not measured."
)
COMPARABLE = "The loss is comparable only between runs with the same objective and settings. It does not measure feature quality."


TOKENIZED = """import torch
from vitrail.weights.tokenizers import load_tokenizer

tokenizer, preprocessing, _ = load_tokenizer({!r}, print)
pictures = torch.rand(1, preprocessing.channels, *preprocessing.size)  # yours, from 0 to 1
codes = tokenizer.encode(preprocessing.normalise(pictures))"""


def write_pretrain_card(folder: Path, facts: PretrainingFacts) -> Path:
    """Writes ``card.md`` into ``folder`` and returns its path. Raises `DiskError` if it cannot be written."""
    return card_parts.write(folder, card(facts))


def card(facts: PretrainingFacts) -> str:
    """Returns the whole card, Markdown with YAML front matter."""
    parts = {
        "Objective": objective(facts),
        "Reconstruction quality" if facts.tokenizes else "Feature quality": results(facts),
        "Usage": use(facts),
        "Data": card_parts.data(facts),
        "Preprocessing": settings(facts.preprocessing),
        "Training": card_parts.training(facts),
        "Limitations": bullets(*([REBUILT] if facts.tokenizes else [NO_CLASSES, ELSEWHERE, UNCHOSEN, COMPARABLE])),
        "Provenance": settings(facts.provenance),
        "Licence": card_parts.licence(facts),
    }
    matter = front_matter(facts.license, "image-feature-extraction", "self-supervised")
    return compose_card(matter, facts.title, opening(facts), parts)


def opening(facts: PretrainingFacts) -> str:
    if facts.tokenizes:
        kind = "A tokenizer that maps each patch of an image to a discrete code"
        return f"{kind}{describe_size(facts)}. {describe_start(facts.base)}"
    learned = f"trained without labels with {escape(facts.objective)}"
    return (
        f"A vision encoder that maps images to features{describe_size(facts)}, {learned}. {describe_start(facts.base)}"
    )


def objective(facts: PretrainingFacts) -> str:
    words = f": {escape(facts.about_objective)}" if facts.about_objective else ""
    return f"{escape(facts.objective)}{words}"


def results(facts: PretrainingFacts) -> str:
    """Returns the metrics before and after training as a table, preceded by the diagnosis of a collapse."""
    rows = []
    knn, rank, spread = METRICS["knn"], METRICS["effective_rank"], METRICS["spread"]
    if (accuracy := facts.last("knn")) is not None:
        rows.append((knn.label, format_known(facts.untrained("knn"), knn), knn.format(accuracy), knn.gloss))
    if (now := facts.after) is not None:
        old_rank, old_spread = (None, None) if facts.before is None else (facts.before.rank, facts.before.spread)
        gloss = f"{rank.gloss}, at most {now.width:,}"
        rows.append((rank.label, format_known(old_rank, rank), rank.format(now.rank), gloss))
        rows.append((spread.label, format_known(old_spread, spread), spread.format(now.spread), spread.gloss))
    if (loss := facts.last("loss")) is not None:
        rows.append((METRICS["loss"].label, "–", METRICS["loss"].format(loss), METRICS["loss"].gloss))
    for column in measurements(facts):
        metric = metric_of(column)
        rows.append((escape(metric.heading), "–", format_known(facts.last(column), metric), metric.gloss))
    if not rows:
        return "Not measured."
    lines = (f"| {' | '.join(row)} |" for row in rows)
    table = "\n".join(
        ("| metric | before training | after training | description |", "| --- | ---: | ---: | --- |", *lines)
    )
    return f"**{escape(facts.diagnosis)}**\n\n{table}" if facts.diagnosis else table


def use(facts: PretrainingFacts) -> str:
    """Returns usage examples for the command line and for Python."""
    place = shlex.quote(facts.location)
    if facts.tokenizes:
        shell = f"vitrail pretrain images --objective beit --tokenizer {place}"
        return f"{fence_code(shell, 'sh')}\n\n{fence_code(TOKENIZED.format(facts.location), 'python')}"
    shell = f"vitrail train labelled-images --init {place}\nvitrail probe {place} labelled-images --protocol knn"
    python = f"""import vitrail

model = vitrail.load({facts.location!r})
features = model.features(model.preprocess("photograph.jpg"))"""
    return f"{fence_code(shell, 'sh')}\n\n{fence_code(python, 'python')}"
