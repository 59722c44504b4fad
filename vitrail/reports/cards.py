"""Model cards: Markdown with YAML front matter, from the templates card.md, classification.md and pretraining.md.

The format follows Mitchell et al. 2019, "Model Cards for Model Reporting". The front matter is read by model hubs. What a
template inserts is escaped as Markdown unless it is `Markup`.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import yaml
from jinja2 import Environment

from vitrail.errors import ConfigError
from vitrail.files import ensure_folder, replace_file
from vitrail.markup import Markup, safe
from vitrail.reports.facts import EvaluatedRun, RunFacts, as_yaml, describe_compute, describe_model
from vitrail.reports.metric_names import METRICS, metric_of
from vitrail.reports.page import TEMPLATES
from vitrail.reports.pretraining import PretrainingFacts, format_known, list_health
from vitrail.tasks.task import Task
from vitrail.text import THIN, plural
from vitrail.weights.hub import REMOTE
from vitrail.weights.public import find_weights

SHOWN = ("top1", "top5", "map", "mean_recall", "f1_macro", "f1_micro", "nll", "ece", "brier")
CLASSES_MOST = 100  # listed in the card; config.json has all of them
# the hub's names of tasks and metrics, where they differ from ours
PIPELINES = {
    "classification": "image-classification",
    "detection": "object-detection",
    **dict.fromkeys(("instances", "panoptic", "segmentation"), "image-segmentation"),
}
HUB_METRICS = {"top1": "accuracy", "f1_macro": "f1", "miou": "mean_iou", "r2": "r_squared"}
DATA_SETS = f"{REMOTE}datasets/"
PATHS = ("data", "init", "teacher", "tokenizer", "weights")  # keys of a provenance whose values may be paths
USAGE = re.compile(r"^## Usage\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def write_card(folder: Path, card: str) -> Path:
    """Writes ``card.md`` into ``folder`` and returns its path. Raises `DiskError` if it cannot be written."""
    path = folder / "card.md"
    ensure_folder(folder)
    replace_file(path, card)
    return path


def default_card(evaluated: EvaluatedRun) -> str:
    """Returns the card of a model without one of its own: its metrics and how it was trained."""
    name, figures = evaluated.model.name, evaluated.result.figures
    metrics = [(metric_of(name), value) for name, value in figures.items()]
    lines = [f"{metric.heading}: {metric.format(value)}" for metric, value in metrics]
    task = PIPELINES.get(name, "")
    return render_card("card.md", RunFacts(**evaluated.facts), task, name, name=name, metrics=lines)


def classification_card(evaluated: EvaluatedRun) -> str:
    """Returns the card of a classifier."""
    facts, result, multi_label, rows = RunFacts(**evaluated.facts), evaluated.result, evaluated.model.multi_label, []
    for metric, key in ((METRICS[key], key) for key in SHOWN):
        value, low, high = (result.figures.get(f"{key}{end}", math.nan) for end in ("", "_low", "_high"))
        known = math.isfinite(low) and math.isfinite(high)
        if math.isfinite(value):
            ends = f"{metric.format(low)} to {metric.format(high)}" if known else ""
            rows.append((metric.label, metric.format(value), ends))
    return render_card(
        "classification.md",
        facts,
        "image-classification",
        "multi-label" if multi_label else "single-label",
        rows=rows,
        multi_label=multi_label,
        split=result.split,
        classes=plural(len(result.classes), "class", "classes"),
        names=Markup(", ".join(escape(name) for name in result.classes[:CLASSES_MOST])),
        hidden=len(result.classes) - CLASSES_MOST,
        evaluated=facts.images.get(result.split),
    )


def pretraining_card(facts: PretrainingFacts) -> str:
    """Returns the card of a self-supervised encoder or a tokenizer."""
    rows = [
        (metric.label, format_known(old, metric), metric.format(new), gloss)
        for metric, gloss, old, new in list_health(facts)
    ]
    if (loss := facts.last("loss")) is not None:
        rows.append((METRICS["loss"].label, "–", METRICS["loss"].format(loss), METRICS["loss"].gloss))
    for column in facts.measurements:
        metric = metric_of(column)
        rows.append((metric.heading, "–", format_known(facts.last(column), metric), metric.gloss))
    return render_card("pretraining.md", facts, "image-feature-extraction", "self-supervised", rows=rows)


def render_card(template: str, facts: RunFacts, task: str, kind: str, **values: Any) -> str:
    """Returns the card: front matter, title, introduction, then the sections of the template that are not empty."""
    fields = {"license": facts.license or "unknown", "library_name": "vitrail"} | (
        {"pipeline_tag": task} if task else {}
    )
    matter = yaml.safe_dump({**fields, "tags": ["vision-transformer", kind]}, sort_keys=False, allow_unicode=True)
    sections: list[str] = []

    def section(name: str, *, caller: Callable[[], str]) -> str:
        if body := caller().strip("\n"):
            sections.append(f"## {name}\n\n{body}")
        return ""

    opening = (
        environment()
        .get_template(template)
        .render(
            section=section,
            facts=facts,
            size=describe_model(facts.model, facts.parameters, facts.multiply_adds, facts.image_size),
            compute=describe_compute(facts.operations, facts.device_hours),
            **values,
        )
    )
    text = "\n\n".join(sections)
    return f"---\n{matter}---\n\n# {escape(facts.title)}\n\n{opening.strip()}\n\n{text}\n"


@cache
def environment() -> Environment:
    """Returns the templates of cards, which escape for Markdown instead of HTML."""
    found = Environment(
        **TEMPLATES,
        autoescape=False,
        finalize=lambda value: value if isinstance(value, Markup) else escape(str(value)),
    )
    found.filters |= {"plural": plural, "code": lambda name: Markup(f"`{name}`"), "yaml": format_settings}
    found.filters |= {"block": fence_code, "quote": shlex.quote, "repr": repr}
    found.filters |= {"name": without_folders}
    return found


def without_folders(path: str) -> str:
    """Returns the name of a file or folder of a path, whose folders are those of this machine; else the name or address."""
    is_path = len(PurePath(path).parts) > 1 and not path.startswith(REMOTE) and "://" not in path
    parts = PurePath(path).parts
    return parts[-1 - (parts[-1] == "model")] if is_path else path  # of RUN/model the run


def without_paths(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a provenance as it is published: without the folders of this machine, and the files named in the layout."""
    kept = {**provenance, **{key: without_folders(str(provenance[key])) for key in PATHS if provenance.get(key)}}
    named = re.match(r"(?:hf:[^:]*: )?[^;(]*", str(kept.get("layout") or ""))
    return kept | ({"layout": named[0].strip()} if named and named[0] else {})


def publish_card(
    card: str, model: Task, repository: str, library: str, *, metrics: Mapping[str, Any], licence: str | None = None
) -> str:
    """Returns the README.md of a repository of the hub, without folders of this machine.

    Args:
        card: that of the run; "" gives one that says that nothing is known of the training.
        repository: ``owner/name``.
        library: the library whose files are published: vitrail, transformers or timm.
        metrics: the figures of the ``model-index``.
        licence: the hub's identifier; by default that of the card.
    """
    from huggingface_hub import ModelCard

    shown, title = without_paths(model.provenance), repository.partition("/")[2]
    is_encoder = model.name == "classification" and not model.classes
    task = "image-feature-extraction" if is_encoder else PIPELINES.get(model.name, "")
    if not card:
        # nobody reads the images by which data are known again
        split = {key: value for key, value in dict(shown.get("split") or {}).items() if key != "trained_on"}
        known = {
            "provenance": shown | ({"split": split} if split else {}),
            "preprocessing": model.preprocessing.to_dict(),
        }
        facts = RunFacts(title=title, model=model.config.about, image_size=model.config.image_size, **known)
        card = render_card("unknown.md", facts, task, model.name)
    try:
        page = ModelCard(card)
    except (yaml.YAMLError, ValueError, TypeError, AttributeError) as error:
        what = f"the fields at the head of the card cannot be read: {' '.join(str(error).split())[:200]}"
        raise ConfigError(what, "correct them, or remove the card") from error
    text = USAGE.sub("", page.text).replace("`model/config.json`", "`config.json`")
    text = re.sub("^# .*", lambda _: f"# {escape(title)}", text, count=1, flags=re.MULTILINE)
    for key, value in model.provenance.items():
        text = text.replace(escape(str(value)), escape(str(shown[key])))
    if licence:
        text = text.replace("unknown; to be chosen by the publisher", escape(licence))
    values = {"repository": repository, "library": library, "model": model, "is_encoder": is_encoder}
    usage = environment().get_template("hub.md").render(values).strip()
    before, mark, after = text.partition("\n## ")
    page.text = f"{before.rstrip()}\n\n{usage}\n\n{mark.lstrip()}{after}"
    split = re.search(r"on the split `(\w+)`", text)
    page.data["model_name"] = title if metrics else None  # of the figures
    of = {"task_type": task or model.name, "dataset_split": split[1] if split else None}
    fields = {"license": licence, "library_name": library, "pipeline_tag": task}
    fields |= _describe_training(shown, metrics, of)
    for key, value in fields.items():
        page.data[key] = value or page.data.get(key)
    return str(page)


def _describe_training(
    provenance: Mapping[str, Any], metrics: Mapping[str, Any], of: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the fields of ``ModelCardData`` of huggingface_hub on where a model comes from, and its figures."""
    from huggingface_hub import EvalResult

    data = str(provenance.get("data") or "unknown")
    start = str(provenance.get("init") or provenance.get("weights"))
    public = find_weights(start)
    base = public.source if public else start
    path, _, revision = data.removeprefix(DATA_SETS).partition("@")
    owner, *rest = path.split("/") if data.startswith(DATA_SETS) else [path]
    name, config = "/".join([owner, *rest[:1]]), "/".join(rest[1:])
    of = {**of, "dataset_type": name, "dataset_name": name, "dataset_config": config or None}
    of["dataset_revision"] = revision or None
    results = []
    for key, value in metrics.items():
        if value is not None and key != "images" and not key.endswith(("_low", "_high")):
            kind, label = HUB_METRICS.get(key, key), metric_of(key).label
            results.append(EvalResult(**of, metric_type=kind, metric_name=label, metric_value=round(value, 6)))
    return {
        "base_model": base.removeprefix(REMOTE).partition("@")[0] if base.startswith(REMOTE) else None,
        "datasets": [name] if data.startswith(DATA_SETS) else None,
        "metrics": [each.metric_type for each in results],
        "eval_results": results,
    }


def escape(words: str) -> str:
    """Escapes the special characters of Markdown and HTML and joins the text into one line."""
    line = re.sub(rf"[^\S{THIN}]+", " ", words).strip()
    return re.sub(r"([\\`*_\[\]|#~$!])", r"\\\1", safe(line, quote=False))


def format_settings(tree: Mapping[str, Any]) -> Markup:
    return fence_code(as_yaml(tree), "yaml") if tree else Markup("")


def fence_code(words: str, language: str) -> Markup:
    """Returns a code block whose fence is longer than any run of backticks in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", words)), default=0))
    return Markup(f"{fence}{language}\n{words.rstrip()}\n{fence}")
