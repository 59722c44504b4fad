"""The card of an encoder trained without labels, or of a tokenizer: what it is, what it learned from, its worth and limits."""

from __future__ import annotations

import shlex
from pathlib import Path

from vitrail.reports.classification import card as model_card
from vitrail.reports.classification.card import (
    bullets,
    escape,
    fenced,
    front_matter,
    known,
    put_together,
    settings,
    started,
)
from vitrail.reports.facts import PretrainFacts
from vitrail.reports.pretraining.sections import (
    NEIGHBOURS,
    RANK,
    RANK_WORDS,
    SPREAD,
    SPREAD_WORDS,
    measure_of,
    measured,
    told,
)
from vitrail.reports.wording import decimal, percent

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


def write_pretrain_card(folder: Path, facts: PretrainFacts) -> Path:
    """Writes ``card.md`` into ``folder`` and returns its path. Raises `DiskError` where it cannot be written."""
    return model_card.write(folder, card(facts))


def card(facts: PretrainFacts) -> str:
    """The whole card, Markdown with YAML front matter."""
    parts = {
        "Objective": objective(facts),
        "How well it rebuilds images" if facts.tokenizes else "How good its features are": results(facts),
        "How to use it": use(facts),
        "Data": model_card.data(facts),
        "What the model expects": settings(facts.preprocessing),
        "How it was trained": model_card.training(facts),
        "What it was not tested on": bullets(
            *([REBUILT] if facts.tokenizes else [NO_CLASSES, ELSEWHERE, UNCHOSEN, COMPARABLE])
        ),
        "Where it comes from": settings(facts.provenance),
        "Licence": model_card.licence(facts),
    }
    matter = front_matter(facts.license, "image-feature-extraction", "self-supervised")
    return put_together(matter, facts.title, opening(facts), parts)


def opening(facts: PretrainFacts) -> str:
    if facts.tokenizes:
        return f"A tokenizer that turns an image into one discrete code a patch{known(facts)}. {started(facts.base)}"
    learned = f"learned without labels by {escape(facts.objective)}"
    return f"A vision encoder that turns an image into features{known(facts)}, {learned}. {started(facts.base)}"


def objective(facts: PretrainFacts) -> str:
    words = f": {escape(facts.about_objective)}" if facts.about_objective else ""
    return f"{escape(facts.objective)}{words}"


def results(facts: PretrainFacts) -> str:
    """The figures as a table, before and after training; a collapse comes before them."""
    rows = []
    if (accuracy := facts.last("knn")) is not None:
        rows.append(("kNN accuracy", told(facts.untrained("knn"), percent), percent(accuracy), NEIGHBOURS))
    if (now := facts.after) is not None:
        rank, spread = (None, None) if facts.before is None else (facts.before.rank, facts.before.spread)
        rows.append(("effective rank", told(rank, RANK_WORDS), RANK_WORDS(now.rank), f"{RANK}, of {now.width:,}"))
        rows.append(("spread", told(spread, SPREAD_WORDS), SPREAD_WORDS(now.spread), SPREAD))
    if (loss := facts.last("loss")) is not None:
        rows.append(("loss", "–", decimal(loss), "of the training images"))
    for column in measured(facts):
        measure = measure_of(column)
        rows.append((escape(measure.name), "–", told(facts.last(column), measure.words), measure.gloss))
    if not rows:
        return "They were not measured: nothing is known about them."
    lines = (f"| {' | '.join(row)} |" for row in rows)
    table = "\n".join(("| figure | before training | now | what it is |", "| --- | ---: | ---: | --- |", *lines))
    return f"**{escape(facts.diagnosis)}**\n\n{table}" if facts.diagnosis else table


def use(facts: PretrainFacts) -> str:
    """The commands and the Python lines."""
    place = shlex.quote(facts.location)
    if facts.tokenizes:
        shell = f"vitrail pretrain images --objective beit --tokenizer {place}"
        return f"{fenced(shell, 'sh')}\n\n{fenced(TOKENIZED.format(facts.location), 'python')}"
    shell = f"vitrail train labelled-images --init {place}\nvitrail probe {place} labelled-images --protocol knn"
    python = f"""import vitrail
from PIL import Image

model = vitrail.load({facts.location!r})
images = model.preprocess([Image.open("photograph.jpg")])
features = model.features(images)"""
    return f"{fenced(shell, 'sh')}\n\n{fenced(python, 'python')}"
