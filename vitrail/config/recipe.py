"""A recipe: a whole run with a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vitrail.config.parse import build, overlay, plain
from vitrail.config.schema import Run


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a paper's table of settings: those in which it differs from the recipe, and what else to know of it."""

    settings: Mapping[str, Any]
    expect: str


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A run and where its figures come from.

    ``rows`` are the rows of the table, by model or by data set, where the paper has settings for several.
    """

    run: Run
    source: str
    expect: str
    rows: Mapping[str, Row] = field(default_factory=dict)

    def row(self, name: str) -> Recipe:
        """Returns the recipe of one row, with the name ``recipe/row``."""
        row = self.rows[name]
        tree = overlay(plain(self.run), {**row.settings, "recipe": f"{self.run.recipe}/{name}"})
        return replace(self, run=build(Run, tree), expect=row.expect, rows={})
