"""Components of the pages of studies: paragraphs, tables and run details."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vitrail.markup import Markup, join, tag


def lead(*words: object) -> Markup:
    return tag("p", *words, class_="lead")


def list_figures(rows: Sequence[tuple[str, str, str]]) -> Markup | None:
    """Returns a row of metrics: (name, value, description) each."""
    items = (
        tag("div", tag("dt", name), tag("dd", value, class_="value"), tag("dd", gloss, class_="gloss"))
        for name, value, gloss in rows
    )
    return tag("dl", *items, class_="more") if rows else None


def notes(words: Sequence[str]) -> Markup | None:
    """Returns the box of notes about the run, or None without notes."""
    if not words:
        return None
    return tag("aside", tag("h2", "Notes"), tag("ul", *(tag("li", note) for note in words)), class_="notes")


def make_scrollable(table: Markup, name: str) -> Markup:
    """Wraps a table in its own scrollable region, which the keyboard can reach."""
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=name)


def header(names: Sequence[str], *, text: int = 1, sorted_by: str | None = None) -> Markup:
    """Returns a table head: ``text`` text columns, then numeric ones. With ``sorted_by``, headings are sort buttons."""
    cells = []
    for index, name in enumerate(names):
        words = tag("button", name, type="button") if sorted_by else name
        kind, order = "text" if index < text else None, "ascending" if name == sorted_by else None
        cells.append(tag("th", words, scope="col", class_=kind, aria_sort=order))
    return tag("thead", tag("tr", *cells))


def describe_run(command: str, rows: Mapping[str, str]) -> Markup:
    """Returns the section of run details: the command and the rows that are not empty."""
    lines = (join(tag("dt", name), tag("dd", words)) for name, words in rows.items() if words)
    return join(
        tag("h2", "Run details"), show_commands(command) if command else None, tag("dl", *lines, class_="facts")
    )


def show_commands(*commands: str) -> Markup:
    """Returns a block of shell commands."""
    return tag("pre", tag("code", "\n".join(commands)), class_="command")
