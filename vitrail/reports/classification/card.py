"""The model card of a classifier: what it is, what it was trained on, how good it is, and what was not tested.

In the manner of Mitchell et al. 2019, "Model Cards for Model Reporting"; the front matter is what model hubs read.
"""

from __future__ import annotations

import math
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
from vitrail.reports.facts import ClassificationFacts
from vitrail.reports.metric_names import METRICS
from vitrail.reports.wording import plural

SHOWN = ("top1", "top5", "map", "f1_macro", "f1_micro", "nll", "ece", "brier")
CLASSES_MOST = 100  # named in the card; all of them are in config.json
ELSEWHERE = (
    "It was tested on images of the same origin as those it was trained on. Of images from another camera, place, "
    "season or kind nothing is known; expect less."
)
CLOSED = (
    "It always answers with one of its classes, also for an image of something else, and sometimes with confidence."
)
DAMAGE = "How it stands noise, blur and other damage was not measured (`vitrail evaluate --corruptions` does)."
GROUPS = "Whether it works equally well for every group of people or things within a class was not measured."


def write_card(folder: Path, facts: ClassificationFacts) -> Path:
    """Writes ``card.md`` into ``folder`` and returns its path. Raises `DiskError` where it cannot be written."""
    return card_parts.write(folder, card(facts))


def card(facts: ClassificationFacts) -> str:
    """The whole card, Markdown with YAML front matter."""
    parts = {
        "Classes": class_names(facts),
        "How good it is": results(facts),
        "How to use it": use(facts),
        "Data": card_parts.data(facts),
        "What the model expects": settings(facts.preprocessing),
        "How it was trained": card_parts.training(facts),
        "What it was not tested on": bullets(ELSEWHERE, "" if facts.multi_label else CLOSED, DAMAGE, GROUPS),
        "Where it comes from": settings(facts.provenance),
        "Licence": card_parts.licence(facts),
    }
    matter = front_matter(facts.license, "image-classification", "multi-label" if facts.multi_label else "single-label")
    return compose_card(matter, facts.title, opening(facts), parts)


def opening(facts: ClassificationFacts) -> str:
    kind = "every label that applies" if facts.multi_label else "one class"
    names = f"{kind} out of {len(facts.classes):,}"
    return f"A vision model that gives an image {names}{describe_size(facts)}. {describe_start(facts.base)}"


def class_names(facts: ClassificationFacts) -> str:
    names = ", ".join(escape(name) for name in facts.classes[:CLASSES_MOST])
    rest = len(facts.classes) - CLASSES_MOST
    return names + (f" … and {rest:,} more, all of them in `model/config.json`" if rest > 0 else "") + "."


def results(facts: ClassificationFacts) -> str:
    """The figures as a table, the first with its interval."""
    rows = []
    for key in SHOWN:
        metric = METRICS[key]
        if math.isfinite(value := facts.figures.get(key, math.nan)):
            low, high = (facts.figures.get(f"{key}_{end}", math.nan) for end in ("low", "high"))
            known_interval = math.isfinite(low) and math.isfinite(high)
            interval = f"{metric.format(low)} to {metric.format(high)}" if known_interval else ""
            rows.append(f"| {metric.label} | {metric.format(value)} | {interval} |")
    if not rows:
        return "It was not measured on labelled images: nothing is known about its accuracy."
    count = facts.images.get(facts.split)
    where = f"the split `{facts.split}`" + (f" ({plural(count, 'image')})" if count else "")
    warning = (
        " **The model was trained on these very images; new ones will do worse.**" if facts.split == "train" else ""
    )
    table = "\n".join(("| figure | value | 95 % interval |", "| --- | ---: | :---: |", *rows))
    return f"Measured on {where} of the data below.{warning}\n\n{table}"


def use(facts: ClassificationFacts) -> str:
    """The command and the Python lines."""
    place = shlex.quote(facts.location)
    shell = f"vitrail predict {place} photograph.jpg\nvitrail evaluate {place} folder-of-images"
    python = f"""import vitrail
from PIL import Image

model = vitrail.load({facts.location!r})
print(model.predict([Image.open("photograph.jpg")], top=5))"""
    return f"{fence_code(shell, 'sh')}\n\n{fence_code(python, 'python')}"
