"""The section of a report on the metric under image corruptions."""

from __future__ import annotations

from collections.abc import Mapping

from vitrail.markup import Markup, join, tag
from vitrail.reports.components import header, lead, make_scrollable
from vitrail.reports.metric_names import metric_of

CORRUPTED = "corrupted_"  # names of figures under a corruption begin so


def list_corruptions(figures: Mapping[str, float]) -> Markup | None:
    """Returns the table of the main metric under each corruption, or None if none was measured."""
    measured = {name: value for name, value in figures.items() if name.startswith(CORRUPTED)}
    if not measured:
        return None
    metric = metric_of(next(iter(figures)))
    *kinds, (_, mean) = ((name.removeprefix(CORRUPTED).replace("_", " "), value) for name, value in measured.items())
    rows = [("no corruption", figures[next(iter(figures))]), *kinds, ("mean of all corruptions", mean)]
    body = (tag("tr", tag("th", name, scope="row"), tag("td", metric.format(value))) for name, value in rows)
    words = lead("Each corruption is averaged over five levels. Its strengths are not those of ImageNet-C.")
    table = tag("table", header(["corruption", metric.label]), tag("tbody", *body))
    return join(tag("h2", "Corruptions"), words, make_scrollable(table, "Corruptions"))
