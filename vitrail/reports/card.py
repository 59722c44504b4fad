"""Components of model cards: Markdown with YAML front matter. Text from outside is escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from vitrail.files import disk_errors, replace_file
from vitrail.markup import safe
from vitrail.reports.facts import RunFacts, as_yaml, describe_compute
from vitrail.text import large


def write(folder: Path, words: str) -> Path:
    path = folder / "card.md"
    with disk_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
    replace_file(path, words)
    return path


def compose_card(matter: str, title: str, first: str, parts: Mapping[str, str]) -> str:
    """Returns the card: front matter, title, introduction, then the sections that are not empty."""
    sections = "\n\n".join(f"## {name}\n\n{body}" for name, body in parts.items() if body)
    return f"---\n{matter}---\n\n# {escape(title)}\n\n{first}\n\n{sections}\n"


def escape(words: str) -> str:
    """Escapes the special characters of Markdown and HTML and joins the text into one line."""
    return re.sub(r"([\\`*_\[\]|#~$!])", r"\\\1", safe(" ".join(words.split()), quote=False))


def settings(tree: Mapping[str, Any]) -> str:
    return fence_code(as_yaml(tree), "yaml") if tree else ""


def fence_code(words: str, language: str) -> str:
    """Returns a code block whose fence is longer than any run of backticks in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", words)), default=0))
    return f"{fence}{language}\n{words.rstrip()}\n{fence}"


def front_matter(license: str, task: str, kind: str) -> str:
    fields = {"license": license or "unknown", "library_name": "vitrail", "pipeline_tag": task}
    return yaml.safe_dump({**fields, "tags": ["vision-transformer", kind]}, sort_keys=False, allow_unicode=True)


def describe_size(facts: RunFacts) -> str:
    """Returns the name and size of the model, in parentheses."""
    numbers = (
        f"{large(facts.parameters)} parameters" if facts.parameters else "",
        f"{large(facts.multiply_adds)} multiply-adds per image" if facts.multiply_adds else "",
        f"images of {' × '.join(map(str, facts.image_size))} pixels" if facts.image_size else "",
    )
    words = ", ".join(filter(None, (escape(facts.model), *numbers)))
    return f" ({words})" if words else ""


def describe_start(base: str) -> str:
    return f"Training started from {escape(base)}." if base else "The model was trained from scratch."


def data(facts: RunFacts) -> str:
    counts = ", ".join(f"{count:,} {escape(name)}" for name, count in facts.images.items())
    rows = {"Source": escape(facts.data), "Layout": escape(facts.layout), "Images": counts}
    return bullets(*(f"{name}: {words}." for name, words in rows.items() if words))


def bullets(*lines: str) -> str:
    return "\n".join(f"- {line}" for line in lines if line)


def training(facts: RunFacts) -> str:
    words = f"Recipe `{facts.recipe}`." if facts.recipe else ""
    compute = describe_compute(facts.operations, facts.device_hours)
    took = f"Compute: {compute}." if compute else ""
    return "\n\n".join(filter(None, (words, took, settings(facts.recipe_settings))))


def licence(facts: RunFacts) -> str:
    own = (
        f"This model: {escape(facts.license)}."
        if facts.license
        else "This model: unknown; to be chosen by the publisher."
    )
    if not facts.base:
        return own
    return f"{own} Initial weights ({escape(facts.base)}): {escape(facts.base_license) or 'unknown'}."
