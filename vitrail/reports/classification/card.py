"""The model card: what the model is, what it was trained on, how good it is, and where nobody has tried it.

In the manner of Mitchell et al. 2019, "Model Cards for Model Reporting"; the front matter is what model hubs read.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vitrail.files import disk_errors, replace_file
from vitrail.reports.facts import PretrainFacts
from vitrail.reports.html import safe
from vitrail.reports.wording import as_yaml, decimal, large, percent, plural

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


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """All that a card says; only ``title`` and ``classes`` are needed.

    ``figures`` are those of `ReportFacts`, measured on ``split``. ``base`` names the weights that training started
    from and ``base_license`` their licence. ``provenance`` is whatever says where the model comes from (seed, date,
    versions, commit, ...); it, ``preprocessing`` and ``recipe_settings`` are shown as they are. ``location`` is the
    model's place in the examples.
    """

    title: str
    classes: Sequence[str]
    multi_label: bool = False
    model: str = ""
    parameters: int | None = None
    multiply_adds: int | None = None
    image_size: tuple[int, int] | None = None
    data: str = ""
    layout: str = ""
    images: Mapping[str, int] = field(default_factory=dict)
    split: str = "val"
    figures: Mapping[str, float] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = ""
    recipe_settings: Mapping[str, Any] = field(default_factory=dict)
    base: str = ""
    base_license: str = ""
    license: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    location: str = "path/to/this/folder"


def write_card(folder: Path, facts: CardFacts) -> Path:
    """Writes ``card.md`` into ``folder`` and returns its path. Raises `DiskError` where it cannot be written."""
    return write(folder, card(facts))


def write(folder: Path, words: str) -> Path:
    path = folder / "card.md"
    with disk_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, words)
    return path


def card(facts: CardFacts) -> str:
    """The whole card, Markdown with YAML front matter."""
    parts = {
        "Classes": class_names(facts),
        "How good it is": results(facts),
        "How to use it": use(facts),
        "Data": data(facts),
        "What the model expects": settings(facts.preprocessing),
        "How it was trained": training(facts),
        "What it was not tested on": bullets(ELSEWHERE, "" if facts.multi_label else CLOSED, DAMAGE, GROUPS),
        "Where it comes from": settings(facts.provenance),
        "Licence": licence(facts),
    }
    matter = front_matter(facts.license, "image-classification", "multi-label" if facts.multi_label else "single-label")
    return put_together(matter, facts.title, opening(facts), parts)


def put_together(matter: str, title: str, first: str, parts: Mapping[str, str]) -> str:
    """The front matter, the title and the first words, then the parts that have any."""
    sections = "\n\n".join(f"## {name}\n\n{body}" for name, body in parts.items() if body)
    return f"---\n{matter}---\n\n# {escape(title)}\n\n{first}\n\n{sections}\n"


def escape(words: str) -> str:
    """Text from outside, without the characters that Markdown or HTML would act on, on one line."""
    return re.sub(r"([\\`*_\[\]|#~$!])", r"\\\1", safe(" ".join(words.split()), quote=False))


def settings(tree: Mapping[str, Any]) -> str:
    return fenced(as_yaml(tree), "yaml") if tree else ""


def fenced(words: str, language: str) -> str:
    """A block of code; its fence is longer than any run of backticks in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", words)), default=0))
    return f"{fence}{language}\n{words.rstrip()}\n{fence}"


def front_matter(license: str, task: str, kind: str) -> str:
    fields = {"license": license or "unknown", "library_name": "vitrail", "pipeline_tag": task}
    return yaml.safe_dump({**fields, "tags": ["vision-transformer", kind]}, sort_keys=False, allow_unicode=True)


def opening(facts: CardFacts) -> str:
    kind = "every label that applies" if facts.multi_label else "one class"
    names = f"{kind} out of {len(facts.classes):,}"
    return f"A vision model that gives an image {names}{known(facts)}. {started(facts.base)}"


def known(facts: CardFacts | PretrainFacts) -> str:
    """The model's name and size, in brackets."""
    numbers = (
        f"{large(facts.parameters)} parameters" if facts.parameters else "",
        f"{large(facts.multiply_adds)} multiply-adds an image" if facts.multiply_adds else "",
        f"images of {' × '.join(map(str, facts.image_size))} pixels" if facts.image_size else "",
    )
    words = ", ".join(filter(None, (escape(facts.model), *numbers)))
    return f" ({words})" if words else ""


def started(base: str) -> str:
    return f"Training started from {escape(base)}." if base else "It was trained from scratch."


def class_names(facts: CardFacts) -> str:
    names = ", ".join(escape(name) for name in facts.classes[:CLASSES_MOST])
    rest = len(facts.classes) - CLASSES_MOST
    return names + (f" … and {rest:,} more, all of them in `model/config.json`" if rest > 0 else "") + "."


def results(facts: CardFacts) -> str:
    """The figures as a table, the first with its interval."""
    names = {
        "top1": ("top-1 accuracy", percent),
        "top5": ("top-5 accuracy", percent),
        "map": ("mean average precision", percent),
        "f1_macro": ("macro F1", percent),
        "f1_micro": ("micro F1", percent),
        "nll": ("negative log-likelihood", decimal),
        "ece": ("expected calibration error", percent),
        "brier": ("Brier score", decimal),
    }
    rows = []
    for key, (name, words) in names.items():
        if math.isfinite(value := facts.figures.get(key, math.nan)):
            low, high = (facts.figures.get(f"{key}_{end}", math.nan) for end in ("low", "high"))
            known = math.isfinite(low) and math.isfinite(high)
            rows.append(f"| {name} | {words(value)} | {f'{words(low)} to {words(high)}' if known else ''} |")
    if not rows:
        return "It was not measured on labelled images: nothing is known about its accuracy."
    count = facts.images.get(facts.split)
    where = f"the split `{facts.split}`" + (f" ({plural(count, 'image')})" if count else "")
    warning = (
        " **The model was trained on these very images; new ones will do worse.**" if facts.split == "train" else ""
    )
    table = "\n".join(("| figure | value | 95 % interval |", "| --- | ---: | :---: |", *rows))
    return f"Measured on {where} of the data below.{warning}\n\n{table}"


def use(facts: CardFacts) -> str:
    """The command and the Python lines."""
    place = shlex.quote(facts.location)
    shell = f"vitrail predict {place} photograph.jpg\nvitrail evaluate {place} folder-of-images"
    python = f"""import vitrail
from PIL import Image

model = vitrail.load({facts.location!r})
print(model.predict([Image.open("photograph.jpg")], top=5))"""
    return f"{fenced(shell, 'sh')}\n\n{fenced(python, 'python')}"


def data(facts: CardFacts | PretrainFacts) -> str:
    counts = ", ".join(f"{count:,} {escape(name)}" for name, count in facts.images.items())
    rows = {"Source": escape(facts.data), "Layout": escape(facts.layout), "Images": counts}
    return bullets(*(f"{name}: {words}." for name, words in rows.items() if words))


def bullets(*lines: str) -> str:
    return "\n".join(f"- {line}" for line in lines if line)


def training(facts: CardFacts | PretrainFacts) -> str:
    words = f"Recipe `{facts.recipe}`." if facts.recipe else ""
    return "\n\n".join(filter(None, (words, settings(facts.recipe_settings))))


def licence(facts: CardFacts | PretrainFacts) -> str:
    own = (
        f"This model: {escape(facts.license)}."
        if facts.license
        else "This model: unknown; whoever publishes it decides."
    )
    if not facts.base:
        return own
    return f"{own} The weights it started from ({escape(facts.base)}): {escape(facts.base_license) or 'unknown'}."
