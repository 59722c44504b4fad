"""The card of an encoder trained without labels, or of a tokenizer: what it is, what it learned from, its worth and limits."""

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

NO_CLASSES = "It names nothing: it has no classes until a head is trained on labelled images."
ELSEWHERE = (
    "Its features follow the images it was trained on. How well they serve for images from another camera, place, season or "
    "kind was not measured."
)
UNCHOSEN = (
    "Nobody chose what it learned: whatever the images have in common, unwanted or unfair, can be in its features, and reaches "
    "every model that starts from it."
)
REBUILT = (
    "Its codes follow the images it was trained on. How well it rebuilds images from another camera, place, season or kind was "
    "not measured."
)
COMPARABLE = (
    "Its loss compares runs of the same objective and settings only, and says little of what the features are good for."
)


TOKENIZED = """import torch
from vitrail.weights.tokenizers import load_tokenizer

tokenizer, preprocessing, _ = load_tokenizer({!r}, print)
pictures = torch.rand(1, preprocessing.channels, *preprocessing.size)  # yours, from 0 to 1
codes = tokenizer.encode(preprocessing.normalise(pictures))"""


def write_pretrain_card(folder: Path, facts: PretrainingFacts) -> Path:
    """Writes ``card.md`` into ``folder`` and returns its path. Raises `DiskError` where it cannot be written."""
    return card_parts.write(folder, card(facts))


def card(facts: PretrainingFacts) -> str:
    """The whole card, Markdown with YAML front matter."""
    parts = {
        "Objective": objective(facts),
        "How well it rebuilds images" if facts.tokenizes else "How good its features are": results(facts),
        "How to use it": use(facts),
        "Data": card_parts.data(facts),
        "What the model expects": settings(facts.preprocessing),
        "How it was trained": card_parts.training(facts),
        "What it was not tested on": bullets(
            *([REBUILT] if facts.tokenizes else [NO_CLASSES, ELSEWHERE, UNCHOSEN, COMPARABLE])
        ),
        "Where it comes from": settings(facts.provenance),
        "Licence": card_parts.licence(facts),
    }
    matter = front_matter(facts.license, "image-feature-extraction", "self-supervised")
    return compose_card(matter, facts.title, opening(facts), parts)


def opening(facts: PretrainingFacts) -> str:
    if facts.tokenizes:
        kind = "A tokenizer that turns an image into one discrete code a patch"
        return f"{kind}{describe_size(facts)}. {describe_start(facts.base)}"
    learned = f"learned without labels by {escape(facts.objective)}"
    return f"A vision encoder that turns an image into features{describe_size(facts)}, {learned}. {describe_start(facts.base)}"


def objective(facts: PretrainingFacts) -> str:
    words = f": {escape(facts.about_objective)}" if facts.about_objective else ""
    return f"{escape(facts.objective)}{words}"


def results(facts: PretrainingFacts) -> str:
    """The figures as a table, before and after training; a collapse comes before them."""
    rows = []
    knn, rank, spread = METRICS["knn"], METRICS["effective_rank"], METRICS["spread"]
    if (accuracy := facts.last("knn")) is not None:
        rows.append((knn.label, format_known(facts.untrained("knn"), knn), knn.format(accuracy), knn.gloss))
    if (now := facts.after) is not None:
        old_rank, old_spread = (None, None) if facts.before is None else (facts.before.rank, facts.before.spread)
        gloss = f"{rank.gloss}, of {now.width:,}"
        rows.append((rank.label, format_known(old_rank, rank), rank.format(now.rank), gloss))
        rows.append((spread.label, format_known(old_spread, spread), spread.format(now.spread), spread.gloss))
    if (loss := facts.last("loss")) is not None:
        rows.append((METRICS["loss"].label, "–", METRICS["loss"].format(loss), METRICS["loss"].gloss))
    for column in measurements(facts):
        metric = metric_of(column)
        rows.append((escape(metric.heading), "–", format_known(facts.last(column), metric), metric.gloss))
    if not rows:
        return "They were not measured: nothing is known about them."
    lines = (f"| {' | '.join(row)} |" for row in rows)
    table = "\n".join(("| figure | before training | now | what it is |", "| --- | ---: | ---: | --- |", *lines))
    return f"**{escape(facts.diagnosis)}**\n\n{table}" if facts.diagnosis else table


def use(facts: PretrainingFacts) -> str:
    """The commands and the Python lines."""
    place = shlex.quote(facts.location)
    if facts.tokenizes:
        shell = f"vitrail pretrain images --objective beit --tokenizer {place}"
        return f"{fence_code(shell, 'sh')}\n\n{fence_code(TOKENIZED.format(facts.location), 'python')}"
    shell = f"vitrail train labelled-images --init {place}\nvitrail probe {place} labelled-images --protocol knn"
    python = f"""import vitrail
from PIL import Image

model = vitrail.load({facts.location!r})
images = model.preprocess([Image.open("photograph.jpg")])
features = model.features(images)"""
    return f"{fence_code(shell, 'sh')}\n\n{fence_code(python, 'python')}"
