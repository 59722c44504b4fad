"""The model card of a classifier: description, training data, evaluation and limitations.

The format follows Mitchell et al. 2019, "Model Cards for Model Reporting". The front matter is read by model hubs.
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
from vitrail.text import plural

SHOWN = ("top1", "top5", "map", "f1_macro", "f1_micro", "nll", "ece", "brier")
CLASSES_MOST = 100  # listed in the card; config.json has all of them
ELSEWHERE = (
    "The model was evaluated on images from the same source as its training images. Accuracy on images from other "
    "cameras, locations, seasons or domains is unknown and probably lower."
)
CLOSED = "The model always predicts one of its classes, even for images that show none of them, sometimes with high confidence."
DAMAGE = "Robustness to noise, blur and other corruptions was not measured (see `vitrail evaluate --corruptions`)."
GROUPS = "Differences in accuracy between subgroups within a class were not measured."


def write_card(folder: Path, facts: ClassificationFacts) -> Path:
    """Writes ``card.md`` into ``folder`` and returns its path. Raises `DiskError` if it cannot be written."""
    return card_parts.write(folder, card(facts))


def card(facts: ClassificationFacts) -> str:
    """Returns the whole card, Markdown with YAML front matter."""
    parts = {
        "Classes": class_names(facts),
        "Evaluation": results(facts),
        "Usage": use(facts),
        "Data": card_parts.data(facts),
        "Preprocessing": settings(facts.preprocessing),
        "Training": card_parts.training(facts),
        "Limitations": bullets(ELSEWHERE, "" if facts.multi_label else CLOSED, DAMAGE, GROUPS),
        "Provenance": settings(facts.provenance),
        "Licence": card_parts.licence(facts),
    }
    matter = front_matter(facts.license, "image-classification", "multi-label" if facts.multi_label else "single-label")
    return compose_card(matter, facts.title, opening(facts), parts)


def opening(facts: ClassificationFacts) -> str:
    kind = "A multi-label" if facts.multi_label else "An"
    classes = plural(len(facts.classes), "class", "classes")
    return f"{kind} image classifier with {classes}{describe_size(facts)}. {describe_start(facts.base)}"


def class_names(facts: ClassificationFacts) -> str:
    names = ", ".join(escape(name) for name in facts.classes[:CLASSES_MOST])
    rest = len(facts.classes) - CLASSES_MOST
    return names + (f" … and {rest:,} more; `model/config.json` has all of them" if rest > 0 else "") + "."


def results(facts: ClassificationFacts) -> str:
    """Returns the metrics as a table, with confidence intervals where they are known."""
    rows = []
    for key in SHOWN:
        metric = METRICS[key]
        if math.isfinite(value := facts.figures.get(key, math.nan)):
            low, high = (facts.figures.get(f"{key}_{end}", math.nan) for end in ("low", "high"))
            known_interval = math.isfinite(low) and math.isfinite(high)
            interval = f"{metric.format(low)} to {metric.format(high)}" if known_interval else ""
            rows.append(f"| {metric.label} | {metric.format(value)} | {interval} |")
    if not rows:
        return "The model was not evaluated on labelled images; its accuracy is unknown."
    count = facts.images.get(facts.split)
    where = f"the split `{facts.split}`" + (f" ({plural(count, 'image')})" if count else "")
    warning = (
        " **The model was trained on these images; expect lower accuracy on new images.**"
        if facts.split == "train"
        else ""
    )
    table = "\n".join(("| metric | value | 95 % confidence interval |", "| --- | ---: | :---: |", *rows))
    return f"Measured on {where} of the data described below.{warning}\n\n{table}"


def use(facts: ClassificationFacts) -> str:
    """Returns usage examples for the command line and for Python."""
    place = shlex.quote(facts.location)
    shell = f"vitrail predict {place} photograph.jpg\nvitrail evaluate {place} folder-of-images"
    python = f"""import vitrail

model = vitrail.load({facts.location!r})
print(model.predict("photograph.jpg", top=5))"""
    return f"{fence_code(shell, 'sh')}\n\n{fence_code(python, 'python')}"
