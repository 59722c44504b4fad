"""The claims of a study: a contrast of its cells and the rule that turns its interval into a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim. See `CLAIMS`."""

    name: str
    quote: str = ""
    source: str = ""
    question: str = ""
    experiment: str = ""
    contrast: Any = None
    rule: Any = None
    scale: str = "points"
    needs: Any = None
    caveat: str = ""


CLAIMS: dict[str, Claim] = {}
