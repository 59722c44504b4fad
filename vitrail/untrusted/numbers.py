"""Numbers in files from untrusted sources: text, infinities and digits without end stand where a number should."""

from __future__ import annotations

from typing import Any

from vitrail.untrusted.limits import DIGITS


def to_whole(value: Any, what: str, *, least: int = 0, most: int = 2**31 - 1) -> int:
    """Converts a number, or text of one such as "7" and "7.0", to a whole number from ``least`` to ``most``.

    Raises `ValueError` for anything else, which names the value as ``what``.
    """
    try:
        number = value if isinstance(value, int) and not isinstance(value, bool) else to_real(value, what)
        if int(number) == number and least <= number <= most:
            return int(number)
    except (ValueError, OverflowError):  # OverflowError: infinity
        pass
    raise ValueError(f"{what} is {_shorten(value)}, not a whole number from {least:,} to {most:,}")


def to_real(value: Any, what: str) -> float:
    """Converts a number, or text of one, to a float, which may be infinite or NaN. Raises `ValueError` for anything else."""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)
        except (ValueError, OverflowError):
            pass
    raise ValueError(f"{what} is {_shorten(value)}, not a number")


def _shorten(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 10**DIGITS:
        return f"of more than {DIGITS} digits"
    text = f"of type {type(value).__name__}" if isinstance(value, dict | list) else repr(value)
    return text if len(text) <= 2 * DIGITS else f"{text[: 2 * DIGITS]}..."
