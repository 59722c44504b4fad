"""Results as tables: rows of named values, the data frames of pandas and polars, and HTML for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from vitrail.errors import ConfigError
from vitrail.markup import Markup, join, tag

if TYPE_CHECKING:
    import pandas
    import polars

SHOWN = 20  # rows of a table in a notebook


class Rows:
    """Whatever can be read as a table: `to_rows` lists its rows, and the data frames are made of these."""

    def to_rows(self) -> list[dict[str, Any]]:
        """The rows, each a dict from the name of a column to a value."""
        raise NotImplementedError

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a data frame of pandas. Raises `ConfigError` if pandas is not installed."""
        return _import("pandas").DataFrame(self.to_rows())

    def to_polars(self) -> polars.DataFrame:
        """The rows as a data frame of polars. Raises `ConfigError` if polars is not installed."""
        return _import("polars").DataFrame(self.to_rows(), infer_schema_length=None)


class Table(list[dict[str, Any]], Rows):
    """A list of rows that is also a table."""

    def to_rows(self) -> list[dict[str, Any]]:
        return list(self)

    def _repr_html_(self) -> str:
        return show_rows(self)


class Record(Protocol):
    """A record that gives a row."""

    def row(self) -> dict[str, Any]: ...


Named = TypeVar("Named", bound=Record)


class Records(dict[str, Named], Rows):
    """Records by name: a dict that is also a table, a row for each."""

    def to_rows(self) -> list[dict[str, Any]]:
        return [record.row() for record in self.values()]

    def _repr_html_(self) -> str:
        return show_rows(self.to_rows())


class Scores(Rows):
    """The result of an evaluation: a row for each figure of `to_dict`, with the ends of its 95 % interval if it has one."""

    def to_dict(self) -> dict[str, Any]:
        """The result as one flat dict: texts on what was evaluated, then the figures."""
        raise NotImplementedError

    def to_rows(self) -> list[dict[str, Any]]:
        """``metric``, ``value``, ``low`` and ``high``."""
        figures = {name: value for name, value in self.to_dict().items() if not isinstance(value, str)}
        ends = {name + side for name in figures for side in ("_low", "_high")}
        return [
            {"metric": name, "value": value, "low": figures.get(f"{name}_low"), "high": figures.get(f"{name}_high")}
            for name, value in figures.items()
            if name not in ends
        ]

    def __repr__(self) -> str:
        figures = (f"{name}={_format(value)}" for name, value in self.to_dict().items())
        return f"{type(self).__name__}({', '.join(figures)})"

    def _repr_html_(self) -> str:
        texts = {name: value for name, value in self.to_dict().items() if isinstance(value, str)}
        rows = []
        for row in self.to_rows():
            interval = "" if row["low"] is None else f"{_format(row['low'])} to {_format(row['high'])}"
            rows.append({"metric": row["metric"], "value": row["value"], "95 % interval": interval})
        return join(show_facts(texts.items()), show_rows(rows, most=len(rows)))


def show_rows(rows: Sequence[Mapping[str, Any]], most: int = SHOWN) -> Markup:
    """An HTML table of the first ``most`` rows, for a notebook: it has no colours, so it is right on light and on dark."""
    shown = rows[:most]
    names = list(dict.fromkeys(name for row in shown for name in row))
    sides = {name: _side([row.get(name) for row in shown]) for name in names}
    head = tag("thead", tag("tr", *(tag("th", name, style=side) for name, side in sides.items())))
    lines = (
        tag("tr", *(tag("td", _format(row.get(name)), style=side) for name, side in sides.items())) for row in shown
    )
    more = tag("p", f"the first {most:,} of {len(rows):,} rows") if len(rows) > most else None
    return join(tag("table", head, tag("tbody", *lines)), more)


def show_facts(facts: Iterable[tuple[str, Any]]) -> Markup:
    """An HTML table of names and values."""
    left = "text-align:left"
    lines = (tag("tr", tag("th", name, style=left), tag("td", value, style=left)) for name, value in facts)
    return tag("table", tag("tbody", *lines))


def _side(column: Sequence[Any]) -> str:
    """Numbers to the right, texts to the left."""
    is_number = any(isinstance(value, int | float) and not isinstance(value, bool) for value in column)
    return f"text-align:{'right' if is_number else 'left'}"


def _format(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)


def _import(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as missing:
        raise ConfigError(f"a data frame of {package} needs {package}", f"pip install {package}") from missing
