"""The report page of `vitrail study`, and its charts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.markup import Markup, join
from vitrail.reports.components import notes
from vitrail.reports.page import Section, frame
from vitrail.reports.study import accounts, arm_figures, compute_figures, data_figures, verdicts
from vitrail.reports.study.data_figures import Colours


def page(numbers: Mapping[str, Any], costs: Mapping[str, Any]) -> tuple[str, dict[str, Markup]]:
    """Returns the whole document and its charts by name. What the study has not measured is left out."""
    plots: dict[str, Markup] = {}
    colours, claims, data = Colours(), numbers.get("claims") or (), numbers.get("data") or {}
    parts = {
        "Verdicts": verdicts.verdicts(claims, data),
        "Controls": verdicts.controls(numbers.get("controls") or ()),
        "Data": data_figures.data(numbers, colours, plots),
        "Compute": compute_figures.compute(numbers, costs, colours, plots),
        "Shape": compute_figures.shape(numbers, Colours(), plots),
        "Arms": arm_figures.side_by_side(numbers, plots),
        "Learning rates": arm_figures.rates(numbers, plots),
        "Attention": arm_figures.heads(numbers, plots),
        "Positions": arm_figures.positions(numbers),
        "Published": compute_figures.published(numbers, colours, plots),
        "Regimes": accounts.regimes(numbers),
        "Cost": accounts.costs(numbers, costs),
        "Not asked": verdicts.not_asked(numbers),
        "Fits": accounts.fits(numbers),
        "Run details": accounts.plan(numbers, costs),
    }
    opening = join(
        verdicts.tally(claims),
        verdicts.summary(numbers),
        verdicts.alarms(numbers.get("controls") or ()),
        notes(accounts.warnings(numbers)),
    )
    title = " on ".join(filter(None, (str(numbers.get("study") or "Study"), str(data.get("name") or ""))))
    return frame(
        "vitrail study",
        title,
        str(costs.get("date") or ""),
        opening,
        [Section(name, part) for name, part in parts.items() if part is not None],
    ), plots
