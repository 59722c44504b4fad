"""The reference pages that are lists: written as Markdown from the tables of the code that the commands use themselves."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import yaml

import vitrail
from vitrail import errors
from vitrail.cli import build_app
from vitrail.config.parse import flatten, plain
from vitrail.config.recipes import RECIPES
from vitrail.evaluation.vtab import PUBLISHED, TASKS
from vitrail.verbs.models import ModelFacts
from vitrail.verbs.settings import list_settings

LONG = 100  # characters of a cell that is written below its table


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown; the cells are Markdown, too."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def code(value: Any) -> str:
    """A value as it is written in a YAML file of settings."""
    written = yaml.safe_dump(_rounded(value), default_flow_style=True, width=math.inf, sort_keys=False)
    return f"`{written.removesuffix('...' + chr(10)).strip()}`"


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.6g}")
        case list():
            return [_rounded(each) for each in value]
        case dict():
            return {key: _rounded(each) for key, each in value.items()}
    return value


def command_line() -> str:
    """Every verb with its options, as ``vitrail VERB --help`` prints them."""
    written = build_app().generate_docs(output_format="markdown", recursive=True)
    # the lines of usage name the program that is running
    written = re.sub(r"^(vitrail[\w -]*?) -m \w+", r"\1", written, flags=re.MULTILINE)
    return written[written.index("## vitrail train") :]


def exit_codes() -> str:
    """The classes of errors with an exit code of their own, by it; 0 and 1 are those that have none."""
    classes = [
        each
        for each in vars(errors).values()
        if inspect.isclass(each) and issubclass(each, errors.VitrailError) and "code" in vars(each)
    ]
    rows = [
        ("0", "", "Done."),
        ("1", "", "Any other error: a bug in vitrail. `--debug` shows where; please report it."),
        *(
            (str(each.code), f"`{each.__name__}`", inspect.getdoc(each).removesuffix(f" Exit {each.code}."))
            for each in sorted(classes, key=lambda each: each.code)
            if each is not errors.VitrailError
        ),
    ]
    return table(("code", "exception", "meaning"), rows)


def settings() -> str:
    """A table for each group of settings."""
    parts = []
    found = list_settings().values()
    for group, members in groupby(found, key=lambda setting: setting.key.rpartition(".")[0]):
        rows = [
            (f"`{each.key}`", f"{each.meaning}{f' (`{each.flag}`)' if each.flag else ''}", each.type, code(each.value))
            for each in members
        ]
        parts.append(f"## {group or 'The run'}\n\n{table(('setting', 'meaning', 'type', 'default'), rows)}")
    return "\n\n".join(parts)


def recipes() -> str:
    """The source of every recipe, the settings in which those of a kind differ, side by side, and the rows that some have."""
    rows = [(f"`{name}`", each.source, each.expect) for name, each in RECIPES.items()]
    labelled = [name for name, each in RECIPES.items() if each.run.objective.name == "supervised"]
    unlabelled = [name for name in RECIPES if name not in labelled]
    return "\n\n".join(
        [
            f"## Sources\n\n{table(('recipe', 'source', 'what to expect'), rows)}",
            f"## With labels\n\n{_side_by_side(labelled)}",
            f"## Without labels\n\n{_side_by_side(unlabelled)}",
            f"## Rows\n\n{table(('--recipe', 'settings', 'what to expect'), _rows())}",
        ]
    )


def _rows() -> Iterator[tuple[str, str, str]]:
    """The rows of all recipes, with the settings in which each differs from its recipe."""
    for name, recipe in RECIPES.items():
        own = flatten(plain(recipe.run))
        for row, each in recipe.rows.items():
            changed = {
                key: value for key, value in flatten(plain(recipe.row(row).run)).items() if value != own.get(key)
            }
            settings = (f"`{key}` {_compact(value)}" for key, value in changed.items() if key != "recipe")
            yield f"`{name}/{row}`", ", ".join(settings) or "those of the recipe", each.expect


def _side_by_side(names: Sequence[str]) -> str:
    """A row for each setting in which the recipes differ; long lists stand below the table."""
    columns = {name: {key: each.value for key, each in list_settings(recipe=name).items()} for name in names}
    rows, lists = [], {}
    for key in next(iter(columns.values())):
        cells = [_compact(values[key]) for values in columns.values()]
        if key == "recipe" or len(set(cells)) == 1:
            continue
        for cell in cells:
            if len(cell) > LONG:
                lists.setdefault(cell, f"({len(lists) + 1})")
        rows.append((f"`{key}`", *(lists.get(cell, cell) for cell in cells)))
    notes = [f"{number} {cell}" for cell, number in lists.items()]
    return "\n\n".join([table(("setting", *(f"`{name}`" for name in names)), rows), *notes])


def _compact(value: Any) -> str:
    """A value in as little space as it takes; null is an empty cell."""
    match value:
        case None:
            return ""
        case dict():
            return ", ".join(f"{key}: {_compact(each) or 'null'}" for key, each in value.items())
        case list():
            return ", ".join(map(_compact, value)) or "none"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.4g}"
    return str(value)


def models() -> str:
    """Every name with its size, cost and paper, by architecture."""
    parts = []
    for about, members in groupby(vitrail.list_models().values(), key=lambda facts: facts.config.about):
        head = ("name", "image", "tokens", "M parameters", "G multiply-adds", "attention", "top-1", "paper")
        parts.append(f"## {about.removeprefix('a ').removeprefix('an ')}\n\n{table(head, map(_describe, members))}")
    return "\n\n".join(parts)


def _describe(facts: ModelFacts) -> tuple[str, ...]:
    height, width = facts.image_size
    cost, published = facts.cost, facts.published
    return (
        f"`{facts.name}`",
        str(height) if height == width else f"{height} x {width}",
        f"{cost.tokens:,}",
        f"{cost.parameters / 1e6:.1f}",
        f"{cost.multiply_adds / 1e9:.2f}",
        f"{100 * cost.attention / cost.multiply_adds:.1f} %",
        "" if published.top1 is None else str(published.top1),
        published.paper if published.setting is None else f"{published.paper}; {published.setting}",
    )


def vtab() -> str:
    """The tasks of VTAB-1k with the published figures."""
    rows = [
        (
            f"`{name}`",
            task.group,
            str(task.classes),
            task.about,
            ", ".join(word for word, done in (("flips", task.flips), ("crops", task.crops)) if done) or "none",
            *(f"{other.accuracies[name]:.1f}" for other in PUBLISHED.values()),
        )
        for name, task in TASKS.items()
    ]
    means = (
        "mean",
        "",
        "",
        "",
        "",
        *(f"{other.mean(list(TASKS)):.1f} ± {other.std:.2f}" for other in PUBLISHED.values()),
    )
    return table(("folder", "group", "classes", "task", "augmentation", *PUBLISHED), [*rows, means])
