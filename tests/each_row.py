"""Tables as tests: all rows of a table are one test, which is cheap to collect, and one error names each row that failed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest


def each_row(
    names: str, rows: Iterable[Any], *, quick: Collection[Any] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Like `pytest.mark.parametrize`, but as one test; where rows are named in ``quick``, the others are a second, slow one.

    Every row gets a ``tmp_path`` of its own; other fixtures are shared by the rows.
    """
    given, table = [name.strip() for name in names.split(",")], list(rows)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def try_rows(rows: list[Any] = table, **fixtures: Any) -> None:
            assert rows, "no rows"
            failures = []
            for number, row in enumerate(rows):
                values = dict(zip(given, row if len(given) > 1 else [row], strict=True))
                if "tmp_path" in fixtures:
                    values["tmp_path"] = fixtures["tmp_path"] / str(number)
                    values["tmp_path"].mkdir()
                try:
                    test(**{**fixtures, **values})
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"row {number}: {row!r:.300}")
                    failures.append(error)
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(rows)} rows failed", failures)

        parameters = inspect.signature(test).parameters.values()
        kept = [each for each in parameters if each.name not in given]
        if not quick:
            try_rows.__signature__ = inspect.Signature(kept)
            return try_rows
        rows = inspect.Parameter("rows", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        try_rows.__signature__ = inspect.Signature([rows, *kept])
        few = pytest.param([row for row in table if row in quick], id="quick")
        rest = pytest.param([row for row in table if row not in quick], id="slow", marks=pytest.mark.slow)
        return pytest.mark.parametrize("rows", [few, rest])(try_rows)

    return decorate
