"""A recipe: a whole run with a name."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.config.schema import Run


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A run and where its figures come from."""

    run: Run
    source: str
    expect: str
